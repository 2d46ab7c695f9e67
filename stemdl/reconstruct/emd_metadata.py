"""Nested metadata in an HDF5 group, in the typed form of EMD 1.0 (emdfile's `Metadata`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import h5py
import numpy as np

from stemdl.errors import UserError


class EmdError(UserError):
    """What was to be written, or was found, is not a reconstruction in our EMD 1.0 layout."""


def write_items(group: h5py.Group, items: Mapping[str, Any], path: str = "metadata") -> None:
    """Write numbers, strings, booleans, None, lists of numbers or strings, arrays and mappings of these.

    Raises:
        EmdError: a value of another type or a name that HDF5 cannot hold, named with its place.
    """
    for name, value in items.items():
        place = f"{path}.{name}"
        if not isinstance(name, str) or not name or "/" in name or name == "." or "\0" in name:
            raise EmdError(f"{path}: {name!r} cannot be a name here; use text without '/'")
        if isinstance(value, Mapping):
            inner = group.create_group(name)
            inner.attrs["type"] = "dict"
            write_items(inner, value, place)
        else:
            _write_value(group, name, value, place)


def _write_value(group: h5py.Group, name: str, value: Any, place: str) -> None:
    """One value with the attribute `type` by which emdfile knows how to read it."""
    kind: str
    data: Any
    if value is None:
        kind, data = "None", np.bytes_(b"_None")
    elif isinstance(value, bool | np.bool_):
        kind, data = "bool", np.bool_(value)
    elif isinstance(value, int | float | np.integer | np.floating):
        kind, data = "number", value
    elif isinstance(value, str):
        kind, data = "string", value
    elif isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
        kind, data = "array", value
    elif isinstance(value, list | tuple) and all(isinstance(part, str) for part in value) and value:
        _write_strings(group, name, value)
        return
    elif isinstance(value, list | tuple) and all(
        isinstance(part, int | float) and not isinstance(part, bool) for part in value
    ):
        kind, data = "list", np.array(value)
    else:
        raise EmdError(
            f"{place} is {value!r} ({type(value).__name__}); allowed are numbers, text, booleans, None, "
            "lists of numbers or of text, arrays of numbers, and mappings of these"
        )
    group.create_dataset(name, data=data).attrs["type"] = kind


def _write_strings(group: h5py.Group, name: str, value: Sequence[str]) -> None:
    inner = group.create_group(name)
    inner.attrs.update({"type": "list_of_strings", "length": len(value)})
    for index, text in enumerate(value):
        inner.create_dataset(str(index), data=text)


_READ: dict[str, Callable[[Any], Any]] = {
    "None": lambda dataset: None,
    "bool": lambda dataset: bool(dataset[()]),
    "number": lambda dataset: dataset[()].item(),
    "string": lambda dataset: dataset.asstr()[()],
    "array": lambda dataset: dataset[()],
    "list": lambda dataset: dataset[()].tolist(),
    "list_of_strings": lambda group: [group[str(i)].asstr()[()] for i in range(int(group.attrs["length"]))],
}


def read_items(group: h5py.Group) -> dict[str, Any]:
    """The mapping that `write_items` wrote; sequences come back as lists.

    Raises:
        EmdError: an entry has a type this reader does not know.
    """
    items: dict[str, Any] = {}
    for name, entry in group.items():
        kind = str(entry.attrs.get("type", "missing"))
        if kind == "dict":
            items[name] = read_items(entry)
        elif kind in _READ:
            items[name] = _READ[kind](entry)
        else:
            raise EmdError(f"{entry.name}: metadata of type {kind!r}; known are dict, {', '.join(_READ)}")
    return items
