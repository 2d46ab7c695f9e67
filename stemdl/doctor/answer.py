"""What a check of the machine answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

JSON_SCHEMA_VERSION = 1

Level = Literal["ok", "note", "warning"]


@dataclass(frozen=True)
class Line:
    """A fact about the machine and what follows from it; "note" is worth reading, "warning" worth acting on."""

    level: Level
    fact: str
    follows: str


@dataclass(frozen=True)
class Answer:
    """What one check found: lines for people, and figures (plain JSON values, units in their names) under `key`."""

    key: str
    figures: Mapping[str, Any]
    lines: Sequence[Line]


def as_json(answers: Sequence[Answer]) -> dict[str, Any]:
    """Return the figures of all checks as one object with stable keys."""
    content: dict[str, Any] = {"schema_version": JSON_SCHEMA_VERSION}
    content.update({answer.key: dict(answer.figures) for answer in answers})
    content["warnings"] = [
        {"check": answer.key, "fact": line.fact, "follows": line.follows}
        for answer in answers
        for line in answer.lines
        if line.level == "warning"
    ]
    return content
