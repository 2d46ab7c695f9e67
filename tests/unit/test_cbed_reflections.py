"""Kinematic reflections against what textbooks know of simple structures."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from data_gen.materials import BadCrystal, Crystal, library
from data_gen.reflections import strongest_reflections
from data_gen.scattering import scattering_factor

RANGE = (1.0, 5.0)


def crystal_of(name: str) -> Crystal:
    return next(crystal for crystal in library() if crystal.name == name)


def strongest(crystal: Crystal, count: int = 3) -> list[tuple[int, int, int]]:
    found = strongest_reflections(crystal, count, d_range_angstrom=RANGE, parametrization="kirkland")
    return [reflection.hkl for reflection in found]


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("Al-fcc", [(1, 1, 1), (2, 0, 0), (2, 2, 0)]),  # unmixed indices
        ("Fe-bcc", [(1, 1, 0), (2, 0, 0), (2, 1, 1)]),  # even sums
        ("Si-diamond", [(1, 1, 1), (2, 2, 0), (4, 0, 0)]),  # (200) and (222) are extinct
        ("MgO-rocksalt", [(2, 0, 0), (2, 2, 0), (2, 2, 2)]),  # odd indices see the difference of both
    ],
)
def test_simple_structures(name: str, wanted: list[tuple[int, int, int]]) -> None:
    assert strongest(crystal_of(name)) == wanted


def test_spacing_and_intensity_in_closed_form() -> None:
    found = strongest_reflections(crystal_of("Al-fcc"), 1, d_range_angstrom=RANGE, parametrization="kirkland")
    a = 4.0495
    assert found[0].d_angstrom == pytest.approx(a / np.sqrt(3), rel=1e-9)
    factor = scattering_factor(13, torch.tensor(3 / a**2, dtype=torch.float64), "kirkland")
    assert found[0].intensity == pytest.approx((4 * float(factor)) ** 2, rel=1e-9)


def test_extinct_reflections_are_none() -> None:
    every = strongest_reflections(crystal_of("Si-diamond"), 6, d_range_angstrom=RANGE, parametrization="kirkland")
    for reflection in every:
        h, k, ell = reflection.hkl
        assert h % 2 == k % 2 == ell % 2
        assert h % 2 or (h + k + ell) % 4 == 0


def test_a_triclinic_cell_by_brute_force() -> None:
    rng = np.random.default_rng(4)
    cell = np.array([[4.1, 0.0, 0.0], [0.9, 4.7, 0.0], [-0.6, 0.8, 5.3]])
    fractional = rng.random((3, 3))
    species = (((8, 1.0),), ((26, 0.6), (12, 0.4)), ((14, 0.5),))
    crystal = Crystal("t", "t", "test", cell, fractional, species, "test")
    (found,) = strongest_reflections(crystal, 1, d_range_angstrom=RANGE, parametrization="kirkland")
    best = (0.0, 0.0)
    for h, k, ell in np.ndindex(13, 13, 13):
        hkl = np.array([h, k, ell]) - 6
        if not hkl.any():
            continue
        d = 1 / float(np.linalg.norm(hkl @ np.linalg.inv(cell).T))
        if not 1.0 < d < 5.0:
            continue
        total = 0j
        for site, atoms in zip(fractional, species, strict=True):
            for number, occupancy in atoms:
                factor = float(scattering_factor(number, torch.tensor(d**-2, dtype=torch.float64), "kirkland"))
                total += occupancy * factor * np.exp(2j * np.pi * float(hkl @ site))
        best = max(best, (abs(total) ** 2, d))
    assert (found.intensity, found.d_angstrom) == pytest.approx(best, rel=1e-9)


def test_the_origin_does_not_matter() -> None:
    crystal = crystal_of("Si-diamond")
    moved = Crystal("m", "Si", "test", crystal.cell_angstrom, crystal.fractional + 0.137, crystal.species, "test")
    assert strongest(moved) == strongest(crystal)


def test_directions_differ() -> None:
    for name in ("Mg-hcp", "SrTiO3-perovskite", "TiO2-rutile"):
        directions = [np.array(hkl) / np.gcd.reduce(hkl) for hkl in strongest(crystal_of(name), 5)]
        assert len({tuple(direction) for direction in directions}) == 5


def test_too_few_reflections_are_said() -> None:
    tiny = Crystal("tiny", "H", "test", 1.2 * np.eye(3), np.zeros((1, 3)), (((1, 1.0),),), "test")
    with pytest.raises(BadCrystal, match=r"tiny: 1 reflections .* 1 < d < 5 Å; 3 are needed"):
        strongest(tiny)
