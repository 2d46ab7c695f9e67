"""Kinematic reflections of a crystal: which lattice planes scatter electrons most strongly."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch

from data_gen.materials.crystal import BadCrystal, Crystal
from data_gen.materials.geometry import FloatArray, IntArray
from data_gen.scattering import scattering_factor

_PRODUCTS_AT_ONCE = 2_000_000
"""Reflections times sites: bounds the memory, since cells may hold many thousands of sites."""
_SAME = 1e-6
"""Relative difference up to which two reflections are equally strong, or two spacings equal: one family."""
_ABSENT = 1e-6
"""Share of the strongest intensity below which a reflection counts as extinct."""


class Reflection(NamedTuple):
    """A family of lattice planes, by one of its members.

    Attributes:
        hkl: Miller indices; of equivalent ones the largest in the order of the indices, (1, 1, 1) before (-1, 1, 1).
        d_angstrom: spacing of the planes in Å.
        intensity: |F|² per cell in Å².
    """

    hkl: tuple[int, int, int]
    d_angstrom: float
    intensity: float


def strongest_reflections(
    crystal: Crystal, count: int, *, d_range_angstrom: tuple[float, float], parametrization: str
) -> list[Reflection]:
    """The `count` strongest reflections with d inside the range, of different directions, the strongest first.

    The intensity is |F|² = |Σ_j occ_j f_j(1/d) exp(2πi hkl·r_j)|² with electron scattering factors, no Debye-Waller
    factor and no multiplicity. Reflections of equal spacing and intensity are taken for one family, and a family
    parallel to one that is chosen, such as (222) beside (111), is left out.

    Raises:
        BadCrystal: the crystal has fewer such reflections.
    """
    hkl, spacing = _indices(crystal.cell_angstrom, *d_range_angstrom)
    chosen: list[Reflection] = []
    if len(hkl):
        intensity = _intensities(crystal, hkl, spacing, parametrization)
        scale = float(intensity.max())
        for index in np.argsort(-intensity, kind="stable"):
            if len(chosen) == count or intensity[index] <= _ABSENT * scale:
                break
            same = np.abs(intensity - intensity[index]) <= _SAME * scale
            same &= np.abs(spacing - spacing[index]) <= _SAME * spacing[index]
            first, second, third = max(map(tuple, hkl[same].tolist()))
            found = Reflection((first, second, third), float(spacing[index]), float(intensity[index]))
            if all(_direction(found.hkl) != _direction(other.hkl) for other in chosen):
                chosen.append(found)
    if len(chosen) < count:
        low, high = d_range_angstrom
        raise BadCrystal(
            crystal.name,
            f"{len(chosen)} reflections of different directions with {low:g} < d < {high:g} Å; {count} are needed",
        )
    return chosen


def _indices(cell: FloatArray, d_min: float, d_max: float) -> tuple[IntArray, FloatArray]:
    """Miller indices (M, 3) with d_min < d < d_max, one of each pair hkl and -hkl, and their spacings (M,) in Å."""
    reach = np.floor(np.linalg.norm(cell, axis=1) / d_min).astype(int)  # h = g · a, at most |a| / d
    ranges = [np.arange(-limit, limit + 1) for limit in reach]
    ranges[0] = np.arange(0, reach[0] + 1)
    hkl = np.stack(np.meshgrid(*ranges, indexing="ij"), axis=-1).reshape(-1, 3)
    h, k, ell = hkl.T
    hkl = hkl[(h > 0) | ((h == 0) & ((k > 0) | ((k == 0) & (ell > 0))))]
    spacing = 1.0 / np.linalg.norm(hkl @ np.linalg.inv(cell).T, axis=1)
    inside = (spacing > d_min) & (spacing < d_max)
    return hkl[inside], spacing[inside]


def _intensities(crystal: Crystal, hkl: IntArray, spacing: FloatArray, parametrization: str) -> FloatArray:
    """|F|² (M,) in Å² per cell."""
    numbers = sorted(crystal.composition())
    occupancy = np.array([[dict(site).get(number, 0.0) for number in numbers] for site in crystal.species])  # (S, Z)
    k_squared = torch.from_numpy(spacing**-2)
    factors = np.stack([scattering_factor(number, k_squared, parametrization).numpy() for number in numbers], axis=1)
    structure = np.empty(len(hkl), dtype=np.complex128)
    step = max(1, _PRODUCTS_AT_ONCE // len(crystal.species))
    for start in range(0, len(hkl), step):
        part = slice(start, start + step)
        turns = hkl[part] @ crystal.fractional.T  # (m, S)
        phases = np.exp(2j * np.pi * (turns - np.round(turns)))
        structure[part] = ((phases @ occupancy) * factors[part]).sum(axis=1)
    return np.asarray(np.abs(structure) ** 2)


def _direction(hkl: tuple[int, int, int]) -> tuple[int, ...]:
    divisor = math.gcd(*hkl)
    return tuple(index // divisor for index in hkl)
