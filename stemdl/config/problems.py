"""Turns what the YAML layer and pydantic report into problems with a full key, a place and the nearest valid name."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from stemdl.config.errors import Problem
from stemdl.config.fields import (
    all_paths,
    describe,
    dotted,
    expand,
    inside,
    keys_of,
    kinds_of,
    nearest_key,
    nearest_value,
    node_at,
    root_node,
)
from stemdl.config.hints import draw_hint, hint_for
from stemdl.config.variation import OUT_OF_LIMITS, SECTION_OF
from stemdl.config.yaml_layer import KeyPath, YamlFault


class Places:
    """Where each value came from: a line of the file or an override."""

    def __init__(self, file: str, lines: Mapping[KeyPath, int]) -> None:
        self.file = file
        self._known: dict[KeyPath, tuple[int, str]] = {
            path: (line, f"{file}:{line}") for path, line in lines.items() if path
        }

    def of(self, path: Sequence[str | int]) -> str:
        """FILE:LINE or `--set KEY` of a key, or of the nearest section around it; the file where there is none."""
        return self._find(path)[1]

    def order(self, key: str) -> int:
        """Line of a dotted key, to sort by; overrides come last."""
        return self._find(tuple(int(part) if part.isdigit() else part for part in key.split(".")))[0]

    def override(self, path: KeyPath) -> None:
        """Say that everything under `path` comes from an override."""
        for known in [known for known in self._known if known[: len(path)] == path]:
            del self._known[known]
        self._known[path] = (1_000_000, f"--set {dotted(path)}")

    def _find(self, path: Sequence[str | int]) -> tuple[int, str]:
        parts = tuple(path)
        around = (self._known[parts[:length]] for length in range(len(parts), 0, -1) if parts[:length] in self._known)
        return next(around, (0, self.file))


def from_faults(faults: Sequence[YamlFault], file: str) -> list[Problem]:
    """Problems of the YAML text itself."""
    return [
        Problem(dotted(fault.path), f"{file}:{fault.line}" if fault.line else file, fault.found, fault.allowed)
        for fault in faults
    ]


def from_validation(error: ValidationError, data: Any, places: Places) -> list[Problem]:
    """Problems that pydantic found, each once."""
    details = error.errors(include_url=False)
    return list(dict.fromkeys(_problem(detail, data, places) for detail in details if not _follows(detail)))


def unknown_key(path: KeyPath, data: Any, place: str) -> Problem:
    """The problem of a key that does not exist; `path` may be wrong at any level."""
    good = 0
    while good < len(path) and node_at(path[: good + 1], data) is not None:
        good += 1
    section, key = path[:good], str(path[good])
    node = node_at(section, data) or root_node()
    keys = keys_of(node, value_at(section, data))
    if not keys:
        found, allowed = f"{dotted(path)}, inside {dotted(section)}", f"{dotted(section)} as a whole: {describe(node)}"
        return Problem(dotted(path), place, found, allowed, nearest=dotted(section))
    nearest, hint = nearest_key(key, section, keys), ""
    if dotted(path) in all_paths():  # a key of another kind of the same section
        nearest, hint = "", f"another {dotted(section)} has it, {value_at((*section, 'name'), data)} has not"
    return Problem(dotted(path), place, f"unknown key {key!r}", ", ".join(keys), nearest, hint)


def value_at(path: Sequence[str | int], data: Any) -> Any:
    """The value at a key path, None where there is none."""
    for part in path:
        if isinstance(part, str):
            data = data.get(part) if isinstance(data, dict) else None
        else:
            data = data[part] if isinstance(data, list) and part < len(data) else None
    return data


def _problem(detail: ErrorDetails, data: Any, places: Places) -> Problem:
    path, kind = tuple(_without_kinds(detail["loc"])), detail["type"]
    if kind == "extra_forbidden":
        return unknown_key(path, data, places.of(path))
    if kind in ("union_tag_invalid", "union_tag_not_found"):
        return _unknown_kind(path, data, places)
    if kind == OUT_OF_LIMITS:
        return _out_of_limits(path, detail["ctx"], data, places)
    if kind == "missing" and isinstance(path[-1], str):
        return Problem(dotted(path), places.of(path[:-1]), "no such key", _allowed(path, data), hint="add the key")
    if kind == "missing":  # a list that is too short
        path = path[:-1]
    if kind == "value_error":
        name, _, text = detail["msg"].removeprefix("Value error, ").partition(": ")
        path = (*path, name) if name else path
        return Problem(dotted(path), places.of(path), text, _allowed(path, data))
    return _wrong_value(path, data, places)


def _follows(detail: ErrorDetails) -> bool:
    """Whether this only says that a list is short because its items were refused, each with an error of its own."""
    context = detail.get("ctx", {})
    return detail["type"] == "too_short" and len(detail["input"]) >= context.get("min_length", 0)


def _without_kinds(location: Sequence[str | int]) -> Iterator[str | int]:
    """Pydantic puts the kind of a section into the path (network.scanfield.stages); the file does not have it."""
    node, data_kind = root_node(), False
    for part in location:
        if data_kind:
            node, data_kind = expand(node, {"name": part}), False
            continue
        yield part
        properties = inside(node).get("properties", {})
        node = properties.get(part, {}) if isinstance(part, str) else {}
        data_kind = "discriminator" in node


def _unknown_kind(path: KeyPath, data: Any, places: Places) -> Problem:
    node, section = node_at(path, data) or {}, value_at(path, data)
    kinds = kinds_of(node)
    if not isinstance(section, dict):
        return Problem(
            dotted(path), places.of(path), found_words(section), f"a section with name: {' or '.join(kinds)}"
        )
    path = (*path, "name")
    if "name" not in section:
        return Problem(dotted(path), places.of(path), "no such key", " or ".join(kinds), hint="add the key")
    name = section["name"]
    nearest = nearest_value(name, kinds) if isinstance(name, str) else ""
    return Problem(dotted(path), places.of(path), found_words(name), " or ".join(kinds), nearest)


def _out_of_limits(path: KeyPath, context: Mapping[str, Any], data: Any, places: Places) -> Problem:
    """A range or choice that reaches beyond what the key whose place it takes may hold."""
    value, section, name = context["value"], context["section"], context["name"]
    allowed = f"what {section}.{name} may be: {_allowed((section, name), data)}"
    hint = hint_for(f"{section}.{name}", value, "number")
    return Problem(dotted(path), places.of(path), f"{value:g}", allowed, hint=hint)


def _wrong_value(path: KeyPath, data: Any, places: Places) -> Problem:
    value = value_at(path, data)
    node = expand(node_at(path, data) or {}, data)
    options = [expand(option) for option in node.get("anyOf", [node])]
    wants = next((str(option["type"]) for option in options if option.get("type") not in (None, "null")), "")
    names = [str(name) for name in node.get("enum", [])]
    nearest = nearest_value(value, names) if isinstance(value, str) else ""
    usual = dotted((SECTION_OF.get(str(path[-1]), ""), path[-1]))
    if path == ("vary", path[-1]):
        hint = draw_hint(usual, value)
    elif dotted(path) == usual and isinstance(value, dict):
        hint = f"what is drawn for every sample stands under vary.{path[-1]}"
    else:
        hint = hint_for(dotted(path), value, wants, inside(node).get("minItems", 1))
    return Problem(dotted(path), places.of(path), found_words(value), _allowed(path, data), nearest, hint)


def _allowed(path: KeyPath, data: Any) -> str:
    node = node_at(path, data) or {}
    meaning = node.get("description", "").replace("\n", " ")
    return f"{describe(node)}. {meaning}" if meaning else describe(node)


def found_words(value: Any) -> str:
    """A value as it should be quoted back to the user."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return f'text "{value}"' if len(value) <= 60 else f'text "{value[:57]}..."'
    if isinstance(value, float) and not math.isfinite(value):
        return f"{value}, no finite number"
    words = {
        list: f"a list of {len(value)}" if isinstance(value, list) else "",
        dict: "a section",
        type(None): "nothing",
    }
    return words.get(type(value), repr(value))
