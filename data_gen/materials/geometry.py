"""Geometry of periodic cells: cell vectors, heights, and pairs of sites that lie close together."""

from __future__ import annotations

import itertools
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

LARGEST_PAIR_COUNT = 4_000_000
"""Of close sites: what fits into memory; a cell of 50,000 sites may have 80 for each."""


def cell_from_parameters(
    lengths_angstrom: tuple[float, float, float], angles_deg: tuple[float, float, float]
) -> FloatArray:
    """Cell vectors as rows (3, 3) in Å: a along x, b in the xy plane, right-handed.

    Source: International Tables for Crystallography B, section 3.3.

    Raises:
        ValueError: the angles span no volume (the message says so).
    """
    a, b, c = lengths_angstrom
    # exact cosines at 90 and 120 degrees keep orthogonal and hexagonal cells free of 1e-16 rounding skew
    cosines = [{90.0: 0.0, 120.0: -0.5, 60.0: 0.5}.get(angle, float(np.cos(np.radians(angle)))) for angle in angles_deg]
    cos_alpha, cos_beta, cos_gamma = cosines
    sin_gamma = float(np.sqrt(1.0 - cos_gamma**2))
    if sin_gamma < 1e-6:
        raise ValueError(f"the cell angle gamma = {angles_deg[2]:g} degrees spans no plane")
    y = (cos_alpha - cos_beta * cos_gamma) / sin_gamma
    z_squared = 1.0 - cos_beta**2 - y**2
    if z_squared < 1e-9:
        raise ValueError(
            f"the cell angles {angles_deg[0]:g}, {angles_deg[1]:g}, {angles_deg[2]:g} degrees span no volume"
        )
    return np.array(
        [[a, 0.0, 0.0], [b * cos_gamma, b * sin_gamma, 0.0], [c * cos_beta, c * y, c * float(np.sqrt(z_squared))]]
    )


def cell_heights(cell_angstrom: FloatArray) -> FloatArray:
    """Distance in Å between opposite faces of the cell, one per lattice vector (3,).

    Raises:
        numpy.linalg.LinAlgError: the cell is exactly singular.
    """
    return np.asarray(1.0 / np.linalg.norm(np.linalg.inv(cell_angstrom), axis=0))


class ClosePairs(NamedTuple):
    """Pairs of sites nearer than a cutoff, each once: ``second``, shifted by ``shift`` cells, is near ``first``."""

    first: IntArray  # (P,)
    second: IntArray  # (P,)
    shift: IntArray  # (P, 3) whole lattice translations
    distance_angstrom: FloatArray  # (P,)


def close_pairs(cell_angstrom: FloatArray, fractional: FloatArray, cutoff_angstrom: float) -> ClosePairs:
    """All pairs of sites of the infinite crystal nearer than the cutoff, a site and its own translations included.

    Valid for any cell shape and for cells smaller than the cutoff. Sites are sorted into cubes of that size and
    compared with those of the cubes around, so the cost is near linear in the number of sites, however they lie.

    Args:
        cell_angstrom: (3, 3), rows are the lattice vectors.
        fractional: (S, 3) site coordinates, any values.
        cutoff_angstrom: pairs with distance < cutoff are returned.

    Raises:
        ValueError: more than LARGEST_PAIR_COUNT pairs, as where thousands of sites lie at one point.
    """
    base = np.floor(fractional).astype(np.int64)
    site, shift, cartesian = _images(cell_angstrom, fractional - base, cutoff_angstrom)
    left, right = _near(cartesian, cutoff_angstrom)
    i, j, delta = site[left], site[right], shift[right] - shift[left]
    at_home = (shift[left] == 0).all(axis=1) | (shift[right] == 0).all(axis=1)
    flip = (i > j) | ((i == j) & _is_negative(delta))
    i, j, delta = np.where(flip, j, i), np.where(flip, i, j), np.where(flip[:, None], -delta, delta)
    keys = np.column_stack([i, j, delta])[at_home]
    distance = np.linalg.norm(cartesian[right] - cartesian[left], axis=1)[at_home]
    _, once = np.unique(keys, axis=0, return_index=True)
    i, j, delta, distance = keys[once, 0], keys[once, 1], keys[once, 2:], distance[once]
    return ClosePairs(i, j, delta + base[i] - base[j], distance)


def _near(cartesian: FloatArray, cutoff: float) -> tuple[IntArray, IntArray]:
    """Pairs of points (N, 3) nearer than the cutoff, each once: smaller and larger index."""
    cubes = np.floor((cartesian - cartesian.min(axis=0)) / cutoff).astype(np.int64) + 1
    size = cubes.max(axis=0) + 2  # a free cube on each side: a step never leads into the next row
    keys = (cubes[:, 0] * size[1] + cubes[:, 1]) * size[2] + cubes[:, 2]
    order = np.argsort(keys, kind="stable")
    in_order = keys[order]
    found: list[tuple[IntArray, IntArray]] = []
    count = 0
    for step in itertools.product((-1, 0, 1), repeat=3):
        if step < (0, 0, 0):  # of each two opposite steps one
            continue
        target = in_order + (step[0] * size[1] + step[1]) * size[2] + step[2]
        # inside the own cube each point is compared with those behind it
        start = np.searchsorted(in_order, target) if any(step) else np.arange(1, len(order) + 1)
        number = np.searchsorted(in_order, target, side="right") - start
        if number.sum() > 8 * LARGEST_PAIR_COUNT:
            raise ValueError(_too_many(cutoff))
        one = np.repeat(np.arange(len(order)), number)
        other = np.arange(len(one)) - np.repeat(np.cumsum(number) - number, number) + np.repeat(start, number)
        one, other = order[one], order[other]
        near = np.linalg.norm(cartesian[other] - cartesian[one], axis=1) < cutoff
        found.append((np.minimum(one, other)[near], np.maximum(one, other)[near]))
        count += len(found[-1][0])
        if count > LARGEST_PAIR_COUNT:
            raise ValueError(_too_many(cutoff))
    return np.concatenate([pair[0] for pair in found]), np.concatenate([pair[1] for pair in found])


def _too_many(cutoff: float) -> str:
    return f"more than {LARGEST_PAIR_COUNT} pairs of sites are nearer than {cutoff:g} Å: no crystal is so dense"


def _images(cell: FloatArray, wrapped: FloatArray, cutoff: float) -> tuple[IntArray, IntArray, FloatArray]:
    """Sites of the home cell and every image within ``cutoff`` of it, sorted by x: site index, cell shift, position."""
    padding = cutoff / cell_heights(cell)
    reach = [range(-int(np.ceil(p)), int(np.ceil(p)) + 1) for p in padding]
    shifts = np.array(list(itertools.product(*reach)), dtype=np.int64)  # (K, 3)
    images = wrapped[None, :, :] + shifts[:, None, :]  # (K, S, 3)
    keep = ((images >= -padding) & (images <= 1.0 + padding)).all(axis=2)
    shift_index, site = np.nonzero(keep)
    cartesian = images[keep] @ cell
    order = np.argsort(cartesian[:, 0], kind="stable")
    return site[order].astype(np.int64), shifts[shift_index][order], cartesian[order]


def _is_negative(shift: IntArray) -> NDArray[np.bool_]:
    """True where the first non-zero component of a shift (P, 3) is negative: one of each pair +s, -s."""
    first, second, third = shift.T
    return np.asarray((first < 0) | ((first == 0) & ((second < 0) | ((second == 0) & (third < 0)))))
