"""Multislice: conservation of electrons, free space, and the symmetries of real crystals."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from data_gen.potential import potential_slices
from physics_cases import FCC, OPTICS, cubic, plane_wave, random_potential, relative
from stemdl.physics.constants import interaction_parameter
from stemdl.physics.grid import Grid
from stemdl.physics.multislice import diffraction_waves, intensities_, propagator, transmission
from stemdl.physics.probe import Optics, probes, raster

GOLD_A = 4.078


def _patterns(optics: Optics, grid: Grid, slices: torch.Tensor, dz: float, waves: torch.Tensor) -> torch.Tensor:
    return intensities_(waves.clone(), transmission(optics, grid, slices), propagator(optics, grid, dz))


def _gold(cells: int, layers: int, pixels: int) -> tuple[Grid, torch.Tensor, float]:
    specimen = cubic(79, FCC, GOLD_A, (cells, cells, layers))
    grid = Grid(pixels, specimen.box_angstrom[0])
    slices, dz = potential_slices(specimen, grid, GOLD_A / 2, "kirkland")
    return grid, slices, dz


def test_vacuum_keeps_every_electron() -> None:
    grid = Grid(96, 24.0)
    waves = probes(OPTICS, grid, raster((2, 2), 3.3, 24.0))
    total = _patterns(OPTICS, grid, torch.zeros(20, 96, 96), 2.0, waves).sum(dim=(1, 2))
    assert torch.allclose(total, torch.ones(4), rtol=0, atol=1e-5)


def test_a_crystal_loses_only_what_the_aperture_cuts() -> None:
    """|transmission| is 1, so electrons vanish beyond the anti-alias aperture alone: few, and fewer on a finer grid."""
    lost = []
    for pixels in (96, 192):
        grid, slices, dz = _gold(4, 5, pixels)
        total = _patterns(OPTICS, grid, slices, dz, probes(OPTICS, grid, raster((2, 2), 1.3, grid.box_angstrom)))
        lost.append(1 - total.sum(dim=(1, 2)))
    assert float(lost[0].min()) > 0
    assert float(lost[0].max()) < 0.2
    assert float(lost[1].min()) > 0
    assert float(lost[1].max()) < 0.6 * float(lost[0].min())


def test_without_the_aperture_a_crystal_loses_no_electron() -> None:
    grid, slices, dz = _gold(4, 5, 96)
    waves = probes(OPTICS, grid, raster((2, 2), 1.3, grid.box_angstrom))
    sharp = torch.exp(1j * interaction_parameter(OPTICS.energy_kev) * slices)
    pure_phase = torch.exp(-1j * torch.pi * OPTICS.wavelength_angstrom * dz * grid.k_squared()).to(torch.complex64)
    total = intensities_(waves, sharp, pure_phase).sum(dim=(1, 2))
    assert torch.allclose(total, torch.ones(4), rtol=0, atol=1e-5)


def test_free_space_in_steps_is_free_space_at_once() -> None:
    grid = Grid(64, 16.0)
    inside = grid.antialias() == 1
    twice, whole = propagator(OPTICS, grid, 7.0) ** 2, propagator(OPTICS, grid, 14.0)
    assert torch.allclose(twice[inside], whole[inside], atol=1e-5)
    back = propagator(OPTICS, grid, -7.0) * propagator(OPTICS, grid, 7.0)
    assert torch.allclose(back[inside], torch.ones_like(back[inside]), atol=1e-5)


def test_in_place_and_differentiable_forms_agree() -> None:
    grid = Grid(48, 12.0)
    slices = random_potential(grid, 200.0, 1, slices=3)
    waves = probes(OPTICS, grid, raster((2, 2), 1.0, 12.0))
    exit_waves = diffraction_waves(waves, transmission(OPTICS, grid, slices), propagator(OPTICS, grid, 2.0))
    assert relative(_patterns(OPTICS, grid, slices, 2.0, waves), exit_waves.abs().square()) < 1e-6


def test_a_step_by_a_lattice_vector_gives_the_same_pattern() -> None:
    grid, slices, dz = _gold(4, 3, 96)
    start = torch.tensor([3.1, 2.3])
    steps = torch.tensor([[0.0, 0.0], [1.0, 0.0], [2.0, 1.0], [0.5, 0.5], [0.5, 0.0], [0.25, 0.0]]) * GOLD_A
    patterns = _patterns(OPTICS, grid, slices, dz, probes(OPTICS, grid, start + steps))
    for index in (1, 2, 3):  # (½ ½ 0) is a lattice vector of fcc too
        assert relative(patterns[index], patterns[0]) < 1e-4
    # (½ 0 0) is one of the projection alone, so that only scattering into higher Laue zones tells it apart
    assert 2e-3 < relative(patterns[4], patterns[0]) < 0.05
    assert relative(patterns[5], patterns[0]) > 0.05


def test_the_pattern_on_a_fourfold_axis_has_its_symmetry() -> None:
    """fcc [001], probe on an atom column: four-fold rotation and mirrors, as the projected group p4mm."""
    grid, slices, dz = _gold(4, 3, 96)
    column = torch.tensor([[2 * GOLD_A, 2 * GOLD_A]])
    off_axis = column + torch.tensor([[0.4, 0.9]])
    on_axis, tilted = _patterns(OPTICS, grid, slices, dz, probes(OPTICS, grid, torch.cat([column, off_axis])))
    reversed_ = (-torch.arange(96)) % 96
    for turned in (on_axis.T, on_axis[reversed_], on_axis[:, reversed_]):
        assert relative(turned, on_axis) < 1e-4
    assert relative(tilted.T, tilted) > 0.05


def test_friedel_pairs_are_equal_for_a_thin_object_alone() -> None:
    grid = Grid(64, 16.0)
    weak, strong = random_potential(grid, 1.0, 2), random_potential(grid, 300.0, 2, slices=6)
    reversed_ = (-torch.arange(64)) % 64

    def asymmetry(slices: torch.Tensor) -> float:
        pattern = _patterns(OPTICS, grid, slices, 4.0, plane_wave(grid))[0]
        pattern[0, 0] = 0
        return relative(pattern[reversed_][:, reversed_], pattern)

    assert asymmetry(weak[None]) < 0.02
    assert asymmetry(strong) > 0.1


def test_reciprocity() -> None:
    """Exchanging source and detector and turning the specimen round leaves the intensity as it was."""
    grid = Grid(64, 16.0)
    slices = random_potential(grid, 400.0, 3, slices=5)

    def intensity(order: torch.Tensor, source: tuple[int, int], seen: tuple[int, int]) -> float:
        wave = plane_wave(grid, source[0] % 64, source[1] % 64)
        return float(_patterns(OPTICS, grid, order, 10.0, wave)[0, seen[0] % 64, seen[1] % 64])

    for one, other in (((0, 4), (3, -3)), ((0, 0), (-7, 2)), ((-5, -1), (6, 6))):
        forward = intensity(slices, one, other)
        opposite_one, opposite_other = (-one[0], -one[1]), (-other[0], -other[1])
        assert intensity(slices.flip(0), opposite_other, opposite_one) == pytest.approx(forward, rel=1e-3)
        assert intensity(slices, opposite_other, opposite_one) != pytest.approx(forward, rel=0.02)


def test_spots_of_gold_stand_at_the_reciprocal_lattice() -> None:
    """fcc [001]: 200 and 220 at 1/d, nothing at the forbidden 100 and 110."""
    grid, slices, dz = _gold(4, 2, 96)
    optics = replace(OPTICS, semiangle_mrad=0.5, defocus_angstrom=0.0)
    pattern = _patterns(optics, grid, slices, dz, probes(optics, grid, torch.tensor([[1.0, 1.0]])))[0]
    per_cell = 4  # points of the reciprocal grid per 1/a, the box being four cells wide
    allowed = {(h * per_cell % 96, k * per_cell % 96) for h, k in [(2, 0), (-2, 0), (0, 2), (0, -2)]}
    bright = pattern.flatten().argsort(descending=True)[:5].tolist()
    assert {divmod(index, 96) for index in bright} == allowed | {(0, 0)}
    spot = float(pattern[2 * per_cell, 0])
    for h, k in ((1, 0), (2, 1), (0, 3)):  # forbidden within each layer of atoms
        assert float(pattern[h * per_cell, k * per_cell]) < 1e-6 * spot
    assert float(pattern[per_cell, per_cell]) < 1e-3 * spot  # forbidden between the layers: up to the Ewald sphere
    assert float(pattern[2 * per_cell, 2 * per_cell]) > 1e-2 * spot
    off_lattice = pattern.clone()
    off_lattice[::per_cell, ::per_cell] = 0
    assert float(off_lattice.sum()) < 1e-6  # a crystal scatters into its reciprocal lattice and nowhere else


def test_transmission_is_a_band_limited_phase() -> None:
    grid = Grid(96, 24.0)
    potential = random_potential(grid, 50.0, 4, slices=1)
    smooth = transmission(OPTICS, grid, potential)[0]
    spectrum = torch.fft.fft2(smooth)
    assert float(spectrum[grid.k_squared().sqrt() > grid.cutoff_per_angstrom].abs().max()) < 1e-2
    sigma = 9.244e-4  # rad/(V·Å) at 100 keV
    assert torch.allclose(smooth.angle(), potential[0] * sigma, atol=2e-3)
