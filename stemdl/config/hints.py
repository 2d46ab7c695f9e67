"""Sentences for mistakes that are made again and again: the wrong unit, a quoted number, a bool of YAML 1.1."""

from __future__ import annotations

import re
from typing import Any

_NUMBER = re.compile(r"\s*([-+]?(?:[0-9]+[.,_]?)*[0-9]*(?:[eE][-+]?[0-9]+)?)\s*([A-Za-zÅµμ°/²]*)\s*")


def hint_for(key: str, value: Any, wants: str, length: int = 1) -> str:
    """A sentence for a value that was refused, empty where we have none.

    `wants` is the JSON type that is allowed, `length` that of a list.
    """
    if wants == "array" and not isinstance(value, list | dict | None):
        return f"write [{', '.join([str(value)] * length)}]"
    if isinstance(value, bool):
        return "" if wants == "boolean" else "true and false are no numbers"
    if isinstance(value, str):
        return _text_hint(value, wants)
    if not isinstance(value, int | float):
        return "a section or value left empty: fill it or remove its key" if value is None else ""
    return _unit_hint(key, float(value))


def draw_hint(key: str, value: Any) -> str:
    """A sentence for numbers in the place of a section that says how one is drawn, empty where they are none.

    `key` is the one that holds a value that is the same for every sample.
    """
    numbers = value if isinstance(value, list) else [value]
    if not numbers or not all(isinstance(one, int | float) and not isinstance(one, bool) for one in numbers):
        return hint_for(key, value, "object")
    words = ", ".join(f"{one:g}" for one in numbers)
    if len(numbers) == 1:
        return f"one value for every sample belongs into {key}"
    if len(numbers) == 2:
        return f"write {{uniform: [{words}]}} for all values between, {{choice: [{words}]}} for one of the two"
    return f"write {{choice: [{words}]}}"


def _unit_hint(key: str, value: float) -> str:
    """Values out of range that are well known in another unit."""
    if key == "microscope.energy_kev":
        if 10e3 <= value <= 1500e3:
            return f"{value:g} looks like volts: {value / 1e3:g} keV is `energy_kev: {value / 1e3:g}`"
        if 0.01 <= value <= 1.5:
            return f"{value:g} looks like MeV: {value * 1e3:g} keV is `energy_kev: {value * 1e3:g}`"
    if key == "microscope.semiangle_mrad" and 0.5e-3 <= value <= 0.15:
        return f"{value:g} looks like rad: {value * 1e3:g} mrad is `semiangle_mrad: {value * 1e3:g}`"
    return ""


def _text_hint(value: str, wants: str) -> str:
    lowered = value.strip().lower()
    if wants == "boolean" and lowered in ("yes", "on", "y", "true", "1", "no", "off", "n", "false", "0"):
        return f"write {'true' if lowered in ('yes', 'on', 'y', 'true', '1') else 'false'}, without quotes"
    if wants not in ("number", "integer"):
        return ""
    match = _NUMBER.fullmatch(value)
    if match is None or not any(c.isdigit() for c in match[1]):
        return ""
    number, unit = match.groups()
    if unit:
        return f"write the number alone; its unit is in the key's name, so {unit!r} must be that unit"
    if "," in number:
        return "write a point for the decimals, no comma"
    if "_" in number or re.match("[-+]?0[0-9]", number):
        return f"write {number.replace('_', '').lstrip('0') or '0'}, plain digits"
    return f"write {number} without quotes"
