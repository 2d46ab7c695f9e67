"""Attributes of a sample of the CBED database: what is read is small, of the right kind and shape, or refused."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

_TEXTS = ("space_group", "material", "formula")
_DIRECTIONS = ("z_dirs", "y_dirs")
_LONGEST_TEXT = 4096


class AttributeFault(ValueError):
    """An attribute is not of the kind that the layout asks for; names it and what was found."""


def read_attributes(attributes: h5py.AttributeManager, names: Sequence[str]) -> dict[str, Any]:
    """Those of `names` that are there: texts as str, the energy as float, directions (3, 3) [orientation, component],
    all others (3,) float64. Raises AttributeFault.
    """
    found: dict[str, Any] = {}
    for name in names:
        try:
            if name not in attributes:
                continue
            value = _small(attributes, name)
        except (OSError, RuntimeError, KeyError, ValueError, TypeError) as error:
            if isinstance(error, AttributeFault):
                raise
            raise AttributeFault(f"attribute {name} cannot be read: {error}") from error
        found[name] = _typed(name, value)
    return found


def _small(attributes: h5py.AttributeManager, name: str) -> Any:
    identity = attributes.get_id(name)
    if math.prod(identity.shape) > 9:
        raise AttributeFault(f"attribute {name} has the shape {identity.shape}; the layout has 9 numbers at most")
    if identity.dtype.itemsize > _LONGEST_TEXT:
        raise AttributeFault(f"attribute {name} is {identity.dtype.itemsize} bytes long; {_LONGEST_TEXT} are allowed")
    return attributes[name]


def _typed(name: str, value: Any) -> Any:
    if name in _TEXTS:
        return _text(name, value)
    if name == "energy_keV":
        return _positive(name, _numbers(name, value, (1,)))[0].item()
    if name in _DIRECTIONS:
        # np.dstack of three vectors, as in the database, puts the orientation last
        array = _numbers(name, value, (1, 3, 3), (3, 3))
        return np.ascontiguousarray(array[0].T) if array.ndim == 3 else array
    return _positive(name, _numbers(name, value, (3,)))


def _text(name: str, value: Any) -> str:
    if isinstance(value, np.ndarray) and value.size == 1:
        value = value.reshape(-1)[0]
    if isinstance(value, (np.integer, int)) and name == "space_group":
        return str(int(value))
    if isinstance(value, str):
        value = value.encode("utf-8", "surrogateescape")  # h5py's way with bytes that are no UTF-8
    if not isinstance(value, bytes):
        raise AttributeFault(f"attribute {name} is {value}; a text is needed")
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError as error:
        raise AttributeFault(f"attribute {name} is {value[:40]!r}, which is no text") from error


def _numbers(name: str, value: Any, *shapes: tuple[int, ...]) -> NDArray[np.float64]:
    array = np.asarray(value)
    if array.shape == ():
        array = array.reshape(1)
    if array.dtype.kind not in "iuf" or array.shape not in shapes:
        needed = " or ".join(str(shape) for shape in shapes)
        raise AttributeFault(f"attribute {name} is {array.dtype} {array.shape}; numbers of shape {needed} are needed")
    numbers = array.astype(np.float64)
    if not np.isfinite(numbers).all():
        raise AttributeFault(f"attribute {name} holds NaN or infinite values")
    return numbers


def _positive(name: str, numbers: NDArray[np.float64]) -> NDArray[np.float64]:
    if not (numbers > 0).all():
        raise AttributeFault(f"attribute {name} is {numbers.tolist()}; numbers above 0 are needed")
    return numbers
