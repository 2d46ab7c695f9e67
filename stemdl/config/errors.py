"""What is said to a user whose configuration is wrong."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stemdl.errors import UserError


@dataclass(frozen=True)
class Problem:
    """One mistake.

    `key` is the full path (`train.lr`; empty for the file as a whole), `place` is FILE:LINE or `--set`, `nearest` the
    full path or the value that was probably meant, `hint` a sentence on how to put it right.
    """

    key: str
    place: str
    found: str
    allowed: str
    nearest: str = ""
    hint: str = ""

    def __str__(self) -> str:
        lines = [f"{self.place}: {self.key}" if self.key else self.place]
        rows = (("found", self.found), ("allowed", self.allowed), ("nearest", self.nearest), ("hint", self.hint))
        return "\n".join(lines + [f"    {name:<8} {text}" for name, text in rows if text])


class ConfigError(UserError):
    """A configuration that cannot be used, with all of its problems; the message has several lines."""

    def __init__(self, source: str, problems: Sequence[Problem]) -> None:
        self.source = source
        self.problems = tuple(problems)
        count = "1 problem" if len(self.problems) == 1 else f"{len(self.problems)} problems"
        super().__init__("\n".join([f"{source}: {count}", *(str(problem) for problem in self.problems)]))
