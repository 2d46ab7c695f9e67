"""Potentials: absolute scale, exactness at any atom position, slices, and the target."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from data_gen.potential import _cos_sin, potential_slices, projected_target, slice_count
from data_gen.scattering import UnknownElement, scattering_factor
from data_gen.specimen import Specimen
from physics_cases import DIAMOND, atoms, cubic, random_atoms, relative
from stemdl.physics.constants import SCATTERING_FACTOR_TO_V_A2
from stemdl.physics.grid import Grid

BOTH = pytest.mark.parametrize("parametrization", ["kirkland", "lobato"])


def _series(specimen: Specimen, parametrization: str, reach: int, point: tuple[float, float], damping: object) -> float:
    """Fourier series of the projected potential at one point (y, x), term by term in double precision."""
    box = specimen.box_angstrom[0]
    k = torch.arange(-reach, reach + 1, dtype=torch.float64) / box
    ky, kx = k[:, None], k[None, :]
    total = torch.zeros(len(k), len(k), dtype=torch.complex128)
    for number, (x, y, _) in zip(specimen.numbers.tolist(), specimen.positions_angstrom.tolist(), strict=True):
        phase = torch.exp(2j * math.pi * (ky * (point[0] - y) + kx * (point[1] - x)))
        total += scattering_factor(number, ky**2 + kx**2, parametrization) * phase
    assert callable(damping)
    return float((total * damping(ky, kx)).sum().real) * SCATTERING_FACTOR_TO_V_A2 / box**2


@BOTH
def test_mean_inner_potential_of_silicon(parametrization: str) -> None:
    specimen = cubic(14, DIAMOND, 5.431, (3, 3, 2))
    slices, thickness = potential_slices(specimen, Grid(64, 3 * 5.431), 5.431 / 4, parametrization)
    assert slices.shape[0] == 8
    assert float(slices.mean()) / thickness == pytest.approx(13.9, rel=0.02)


@BOTH
@pytest.mark.parametrize("number", [1, 6, 14, 79])
def test_fast_electrons_see_the_bare_nucleus(parametrization: str, number: int) -> None:
    """Mott and Bethe: f(k) → Z / (2π² a₀ k²) far beyond the electron cloud."""
    k2 = torch.tensor([144.0])
    coulomb = number / (2 * math.pi**2 * 0.529177 * 144.0)
    assert float(scattering_factor(number, k2, parametrization)) == pytest.approx(coulomb, rel=0.06)


def test_an_element_without_factors_is_named() -> None:
    k2 = torch.zeros(1)
    with pytest.raises(UnknownElement, match="Z=130"):
        scattering_factor(130, k2, "kirkland")
    with pytest.raises(UnknownElement, match="Z=0"):
        scattering_factor(0, k2, "kirkland")
    with pytest.raises(ValueError, match="known are kirkland, lobato"):
        scattering_factor(14, k2, "peng")


@BOTH
def test_the_integral_is_the_sum_of_form_factors(parametrization: str) -> None:
    specimen = random_atoms(40, (12.0, 12.0, 8.0), seed=1)
    slices, _ = potential_slices(specimen, Grid(50, 12.0), 2.0, parametrization)
    factors = [float(scattering_factor(z, torch.zeros(1), parametrization)) for z in specimen.numbers.tolist()]
    expected = SCATTERING_FACTOR_TO_V_A2 * sum(factors)
    assert float(slices.sum()) * (12.0 / 50) ** 2 == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("pixels", [32, 33])
def test_atoms_anywhere_are_exact(pixels: int) -> None:
    """At its own points the grid holds the Fourier series summed atom by atom; half of Nyquist is on either side."""
    specimen = random_atoms(5, (8.0, 8.0, 2.0), seed=2)
    grid = Grid(pixels, 8.0)
    slices, _ = potential_slices(specimen, grid, 2.0, "kirkland")
    reach = pixels // 2

    def nyquist_halved(ky: torch.Tensor, kx: torch.Tensor) -> torch.Tensor:
        def weight(k: torch.Tensor) -> torch.Tensor:
            return torch.where((k.abs() * 8.0).round() * 2 == pixels, 0.5, 1.0)

        return weight(ky) * weight(kx)

    for row, column in ((0, 0), (3, 17), (31, 8), (20, 20)):
        point = (row * grid.pixel_angstrom, column * grid.pixel_angstrom)
        expected = _series(specimen, "kirkland", reach, point, nyquist_halved)
        assert float(slices[0, row, column]) == pytest.approx(expected, abs=1e-4 * float(slices.max()))


@pytest.mark.parametrize("pixels", [5, 16, 33, 96, 257, 1000])
def test_cosines_are_as_exact_on_a_large_grid_as_on_a_small_one(pixels: int) -> None:
    """They are products of products: the rounding error must not grow with the frequency."""
    grid = Grid(pixels, 0.25 * pixels)
    x = torch.rand(50, dtype=torch.float64, generator=torch.Generator().manual_seed(1)) * grid.box_angstrom
    frequencies = torch.arange(pixels // 2 + 1, dtype=torch.float64) / grid.box_angstrom
    angle = 2 * math.pi * frequencies[:, None] * x
    sine = angle.sin()
    if pixels % 2 == 0:
        sine[-1] = 0  # the Nyquist frequency has only its even part
    expected = torch.cat([angle.cos(), sine]).to(torch.float32)
    assert float((_cos_sin(x, grid) - expected).abs().max()) < 1e-6


def test_the_size_of_the_slabs_and_chunks_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    specimen = random_atoms(60, (12.0, 12.0, 12.0), seed=5)
    grid = Grid(32, 12.0)
    expected, _ = potential_slices(specimen, grid, 2.0, "kirkland")
    monkeypatch.setattr("data_gen.potential._SLAB_BYTES", (2 * 4 * 34**2, 0))  # two slices
    monkeypatch.setattr("data_gen.potential._ATOMS_AT_ONCE", 7)
    found, _ = potential_slices(specimen, grid, 2.0, "kirkland")
    assert relative(found, expected) < 1e-6


def test_slices_without_atoms_are_empty() -> None:
    specimen = atoms([14, 79], [[3.0, 3.0, 0.5], [5.0, 3.0, 8.5]], (8.0, 8.0, 9.0))
    slices, _ = potential_slices(specimen, Grid(32, 8.0), 1.0, "kirkland")
    assert [bool(slice_.any()) for slice_ in slices] == [True, *[False] * 7, True]


def test_moving_atoms_by_a_pixel_rolls_the_potential() -> None:
    specimen = random_atoms(30, (12.0, 12.0, 4.0), seed=3)
    grid = Grid(48, 12.0)
    shift = np.array([5 * 0.25, 3 * 0.25, 0.0])  # x, y, z
    moved = atoms(specimen.numbers.tolist(), specimen.positions_angstrom + shift, specimen.box_angstrom)
    slices, _ = potential_slices(specimen, grid, 2.0, "lobato")
    rolled, _ = potential_slices(moved, grid, 2.0, "lobato")
    assert relative(rolled, slices.roll((3, 5), (1, 2))) < 1e-5


def test_rows_are_y_and_columns_are_x() -> None:
    specimen = atoms([79], [[2.0, 5.0, 0.5]], (8.0, 8.0, 1.0))  # x = 2, y = 5
    slices, _ = potential_slices(specimen, Grid(32, 8.0), 1.0, "kirkland")
    assert divmod(int(slices[0].argmax()), 32) == (20, 8)


def test_every_atom_is_in_the_slice_that_holds_its_centre() -> None:
    heights = [0.0, 1.99, 2.0, 3.5, 5.999]
    specimen = atoms([1, 6, 14, 26, 79], [[3.0, 3.0, z] for z in heights], (8.0, 8.0, 6.0))
    slices, thickness = potential_slices(specimen, Grid(32, 8.0), 2.0, "kirkland")
    assert thickness == 2.0
    at_zero = [float(scattering_factor(z, torch.zeros(1), "kirkland")) for z in (1, 6, 14, 26, 79)]
    expected = [at_zero[0] + at_zero[1], at_zero[2] + at_zero[3], at_zero[4]]
    found = slices.sum(dim=(1, 2)) * (8.0 / 32) ** 2 / SCATTERING_FACTOR_TO_V_A2
    assert found.tolist() == pytest.approx(expected, rel=1e-4)


def test_slices_are_equally_thick_and_make_up_the_specimen() -> None:
    assert [slice_count(20.0, 2.0), slice_count(19.0, 2.0), slice_count(0.4, 2.0)] == [10, 10, 1]
    slices, thickness = potential_slices(random_atoms(9, (8.0, 8.0, 19.0), seed=4), Grid(16, 8.0), 2.0, "kirkland")
    assert slices.shape == (10, 16, 16)
    assert thickness == pytest.approx(1.9)


def test_the_order_of_the_atoms_does_not_matter() -> None:
    specimen = random_atoms(60, (12.0, 12.0, 8.0), seed=5)
    order = np.random.default_rng(0).permutation(60)
    shuffled = atoms(specimen.numbers[order].tolist(), specimen.positions_angstrom[order], specimen.box_angstrom)
    grid = Grid(32, 12.0)
    one, other = (potential_slices(s, grid, 2.0, "kirkland")[0] for s in (specimen, shuffled))
    assert relative(one, other) < 1e-6


def _target(specimen: Specimen, field: tuple[float, float], pixel: float, blur: float) -> torch.Tensor:
    return projected_target(
        specimen, field_angstrom=field, pixel_angstrom=pixel, blur_sigma_angstrom=blur, parametrization="kirkland"
    )


@pytest.mark.parametrize("blur", [0.35, 0.6])
def test_the_target_over_the_whole_box_holds_every_atom(blur: float) -> None:
    specimen = random_atoms(40, (12.0, 12.0, 8.0), seed=6)
    factors = [float(scattering_factor(z, torch.zeros(1), "kirkland")) for z in specimen.numbers.tolist()]
    target = _target(specimen, (12.0, 12.0), 0.5, blur)
    assert target.shape == (24, 24)
    assert float(target.sum()) * 0.5**2 == pytest.approx(SCATTERING_FACTOR_TO_V_A2 * sum(factors), rel=1e-5)


@pytest.mark.parametrize(("field", "pixel"), [((8.0, 6.0), 0.5), ((7.5, 7.5), 0.5), ((8.0, 8.0), 0.4)])
def test_the_target_is_the_blurred_series_averaged_over_pixels(field: tuple[float, float], pixel: float) -> None:
    specimen = random_atoms(6, (12.0, 12.0, 8.0), seed=7)
    blur = 0.35
    target = _target(specimen, field, pixel, blur)
    assert target.shape == (round(field[0] / pixel), round(field[1] / pixel))

    def seen(ky: torch.Tensor, kx: torch.Tensor) -> torch.Tensor:
        gauss = torch.exp(-2 * (math.pi * blur) ** 2 * (ky**2 + kx**2))
        return gauss * torch.sinc(ky * pixel) * torch.sinc(kx * pixel)

    for row, column in ((0, 0), (3, 11), (14, 7)):
        point = ((12 - field[0]) / 2 + (row + 0.5) * pixel, (12 - field[1]) / 2 + (column + 0.5) * pixel)
        expected = _series(specimen, "kirkland", 36, point, seen)
        assert float(target[row, column]) == pytest.approx(expected, abs=2e-4 * float(target.max()))


def test_the_blur_widens_an_atom_by_its_variance() -> None:
    specimen = atoms([14], [[6.0, 6.0, 1.0]], (12.0, 12.0, 2.0))
    pixel = 0.25
    axis = (torch.arange(48) + 0.5) * pixel - 6.0
    variances = []
    for blur in (0.3, 0.7):
        target = _target(specimen, (12.0, 12.0), pixel, blur)
        assert divmod(int(target.argmax()), 48) in {(23, 23), (23, 24), (24, 23), (24, 24)}
        variances.append(float((target.sum(dim=0) * axis**2).sum() / target.sum()))
    assert variances[1] - variances[0] == pytest.approx(0.7**2 - 0.3**2, rel=0.01)
