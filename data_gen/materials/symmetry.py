"""Symmetry operations and the sites they generate."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from data_gen.materials.geometry import FloatArray, IntArray, close_pairs

SAME_POSITION_ANGSTROM = 0.02
"""Images nearer than this are one site: "0.333" for 1/3 is off by 0.01 Å in 20 Å; split sites lie further apart."""

Operation = tuple[FloatArray, FloatArray]
"""Rotation (3, 3) and translation (3,), acting on columns of fractional coordinates: x' = R x + t."""

_TERM = re.compile(r"([+-]?)(?:(\d+/\d+|\d*\.?\d+)|([xyz]))")


def parse_operation(text: str) -> Operation:
    """One operation in the notation of the International Tables, such as "-x, y+1/2, -z+1/2".

    Raises:
        ValueError: the text is no such operation (the message quotes it).
    """
    rows = text.lower().replace(" ", "").split(",")
    if len(rows) != 3:
        raise ValueError(f"symmetry operation {text!r} has {len(rows)} parts instead of 3")
    rotation, translation = np.zeros((3, 3)), np.zeros(3)
    for row, part in enumerate(rows):
        terms = list(_TERM.finditer(part))
        if not terms or "".join(term.group(0) for term in terms) != part:
            raise ValueError(f"symmetry operation {text!r} cannot be read at {part!r}")
        for term in terms:
            sign = -1.0 if term.group(1) == "-" else 1.0
            if term.group(3):
                rotation[row, "xyz".index(term.group(3))] += sign
            else:
                translation[row] += sign * _fraction(term.group(2), text)
    if abs(abs(float(np.linalg.det(rotation))) - 1.0) > 1e-9:
        raise ValueError(f"symmetry operation {text!r} does not keep the volume")
    return rotation, translation


def _fraction(digits: str, operation: str) -> float:
    try:
        return float(Fraction(digits))
    except ZeroDivisionError:
        raise ValueError(f"symmetry operation {operation!r} divides by zero") from None


@functools.lru_cache(maxsize=256)
def space_group_operations(space_group: int, setting: int = 1) -> tuple[Operation, ...]:
    """All operations of a space group in its conventional cell, centring translations included.

    Args:
        space_group: number in the International Tables, 1..230.
        setting: 1 is the first origin choice, hexagonal axes, or unique axis b; 2 the other one.

    Raises:
        ValueError: there is no such group or setting.
    """
    from ase.spacegroup import Spacegroup  # imported here: half a second that most processes never need
    from ase.spacegroup.spacegroup import SpacegroupError

    try:
        group = Spacegroup(space_group, setting)
    except SpacegroupError as error:
        raise ValueError(f"there is no space group {space_group} with setting {setting}") from error
    operations = group.get_symop()  # type: ignore[no-untyped-call]  # ASE annotates only part of the class
    return tuple((np.array(r, dtype=np.float64), np.array(t, dtype=np.float64)) for r, t in operations)


def orbit(operations: Sequence[Operation], point: FloatArray, cell_angstrom: FloatArray) -> FloatArray:
    """Distinct images (M, 3) of a point under the operations, in [0, 1), in the order of the operations."""
    rotations = np.array([rotation for rotation, _ in operations])
    translations = np.array([translation for _, translation in operations])
    images = wrap(rotations @ point + translations)
    # exact copies first: most sites of tables are special positions, with up to 48 copies of each image
    _, exact = np.unique(np.round(images, 7), axis=0, return_index=True)
    images = images[np.sort(exact)]
    difference = images[:, None, :] - images[None, :, :]
    # near copies differ by almost whole cells, so rounding finds the nearest image in any cell shape
    apart = (difference - np.round(difference)) @ cell_angstrom
    first_copy = np.argmax((apart * apart).sum(axis=2) < SAME_POSITION_ANGSTROM**2, axis=1)
    return np.asarray(images[np.unique(first_copy)])


def orbits(
    operations: Sequence[Operation], points: FloatArray, cell_angstrom: FloatArray
) -> tuple[FloatArray, IntArray]:
    """The orbits of many points (A, 3) one behind the other, each as `orbit` gives it: images (M, 3) and
    the point of each (M,).

    Raises:
        ValueError: as `close_pairs`.
    """
    rotations = np.array([rotation for rotation, _ in operations])
    translations = np.array([translation for _, translation in operations])
    images = wrap((rotations @ points[:, None, :, None])[..., 0] + translations).reshape(-1, 3)
    point_of = np.repeat(np.arange(len(points)), len(operations))
    _, exact = np.unique(np.column_stack([point_of, np.round(images, 7)]), axis=0, return_index=True)
    exact.sort()
    images, point_of = images[exact], point_of[exact]
    pairs = close_pairs(cell_angstrom, images, SAME_POSITION_ANGSTROM)
    same = (point_of[pairs.first] == point_of[pairs.second]) & (pairs.first != pairs.second)
    first_copy = np.arange(len(images))
    np.minimum.at(first_copy, pairs.second[same], pairs.first[same])
    kept = np.unique(first_copy)
    return images[kept], point_of[kept]


def wrap(fractional: FloatArray) -> FloatArray:
    """Coordinates moved into [0, 1); values within 1e-9 of a whole cell become 0."""
    wrapped = fractional - np.floor(fractional + 1e-9)
    return np.where(np.abs(wrapped) < 1e-9, 0.0, wrapped)
