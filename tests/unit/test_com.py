"""Integrated centre of mass: exact on what it is the exact inverse of, and close where the specimen is weak."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from data_gen.engines import ImagingSetup
from data_gen.engines.torch_engine import TorchEngine
from physics_cases import random_potential, relative
from stemdl.physics.constants import interaction_parameter
from stemdl.physics.grid import Grid
from stemdl.physics.misfit import ScanGeometry, ScanModel
from stemdl.physics.probe import Optics
from stemdl.reconstruct.com import centre_of_mass, integrated_centre_of_mass

BOX = 20.0
GRID = Grid(80, BOX)
FINE = Optics(100.0, 20.0)


def smooth_potential(scale_v_angstrom: float) -> torch.Tensor:
    """(80, 80) in V·Å, nothing finer than the probe."""
    return blurred(random_potential(GRID, 1.0, seed=3), 1.0, scale_v_angstrom)


def blurred(potential: torch.Tensor, sigma_angstrom: float, scale_v_angstrom: float) -> torch.Tensor:
    damping = torch.exp(-2 * (np.pi * sigma_angstrom) ** 2 * GRID.k_squared()).to(torch.float32)
    result: torch.Tensor = torch.fft.ifft2(torch.fft.fft2(potential) * damping).real
    return result * (scale_v_angstrom / result.std())


def window(potential: torch.Tensor, scan: tuple[int, int], step: float) -> NDArray[np.float32]:
    """The field in the middle of the box, on the pixels of the grid (0.25 Å)."""
    shape = [round(count * step / 0.25) for count in scan]
    first = [(80 - extent) // 2 for extent in shape]
    picture: NDArray[np.float32] = potential.numpy()
    return picture[first[0] : first[0] + shape[0], first[1] : first[1] + shape[1]]


def reconstructed(patterns: NDArray[np.float32], step: float, shape: tuple[int, int]) -> NDArray[np.float64]:
    return integrated_centre_of_mass(
        np.sqrt(patterns), energy_kev=100.0, dk_per_angstrom=1 / BOX, step_angstrom=step, field_pixels=shape
    )


def correlation(one: NDArray[np.float64], other: NDArray[np.float32]) -> float:
    return float(np.corrcoef(one.ravel(), other.ravel())[0, 1])


@pytest.mark.parametrize(("scan", "step", "defocus"), [((20, 24), 0.5, 0.0), ((10, 12), 1.0, 60.0)])
def test_a_weak_smooth_potential_comes_back_with_sign_and_scale(
    scan: tuple[int, int], step: float, defocus: float
) -> None:
    potential = smooth_potential(20.0)
    optics = Optics(100.0, 20.0, defocus)
    setup = ImagingSetup(optics, GRID, scan, step, (40, 40), 1, 2.0, "kirkland")
    patterns = TorchEngine().patterns(potential[None], 2.0, setup).numpy()
    truth = window(potential, scan, step)
    found = reconstructed(patterns, step, (truth.shape[0], truth.shape[1]))
    assert found.shape == truth.shape == (round(scan[0] * step / 0.25), round(scan[1] * step / 0.25))
    assert correlation(found, truth) > 0.95
    assert 0.7 < found.std() / truth.std() < 1.1, "a probe of 1 Å blurs it a little"
    for wrong in (found[::-1], found[:, ::-1], -found):
        assert correlation(wrong, truth) < 0.6


def test_the_same_from_the_model_that_the_network_looks_through() -> None:
    potential = smooth_potential(20.0)
    model = ScanModel(FINE, GRID, ScanGeometry((20, 20), 0.5, (40, 40), 1), slices=1, thickness_angstrom=2.0)
    patterns = model.amplitudes(potential).square().numpy()
    truth = window(potential, (20, 20), 0.5)
    assert correlation(reconstructed(patterns, 0.5, (40, 40)), truth) > 0.95


def test_twice_the_potential_gives_twice_the_picture() -> None:
    setup = ImagingSetup(FINE, GRID, (10, 10), 1.0, (40, 40), 1, 2.0, "kirkland")
    potential = smooth_potential(5.0)
    pictures = [
        torch.from_numpy(reconstructed(TorchEngine().patterns(v[None], 2.0, setup).numpy(), 1.0, (20, 20)))
        for v in (potential, 2 * potential)
    ]
    assert relative(pictures[1], 2 * pictures[0]) < 0.02


def test_the_centre_of_mass_is_the_mean_wave_vector_row_before_column() -> None:
    amplitude = np.zeros((2, 1, 9, 8), dtype=np.float32)
    amplitude[0, 0, 4 + 2, 4 - 1] = 1.0
    amplitude[1, 0, 4, 4] = np.sqrt(0.75)
    amplitude[1, 0, 4 - 4, 4 + 3] = 0.5
    found = centre_of_mass(amplitude, 0.1)
    assert found.shape == (2, 1, 2)
    assert np.allclose(found[:, 0], [[0.2, -0.1], [-0.1, 0.075]])


@pytest.mark.parametrize("detector", [(8, 8), (7, 9), (8, 5)])
def test_patterns_that_are_the_same_everywhere_give_zero(detector: tuple[int, int]) -> None:
    rng = np.random.default_rng(1)
    quarter = rng.random(detector)
    symmetric = np.zeros(detector)
    inner = quarter[1 - detector[0] % 2 :, 1 - detector[1] % 2 :]
    symmetric[1 - detector[0] % 2 :, 1 - detector[1] % 2 :] = inner + inner[::-1, ::-1]
    for pattern in (np.zeros(detector), np.ones(detector), symmetric):
        patterns = np.broadcast_to(pattern / max(1.0, pattern.sum()), (4, 5, *detector)).astype(np.float32)
        found = reconstructed(patterns, 1.0, (8, 10))
        assert found.shape == (8, 10)
        assert np.abs(found).max() < 1e-6


def test_a_ramp_and_a_wave_are_integrated_exactly_in_both_directions() -> None:
    """Patterns with one spot each, at the gradient of a known potential: cosines that fit the mirrored scan."""
    sigma, step, scan = interaction_parameter(100.0), 0.5, (16, 24)
    y, x = ((np.arange(count) + 0.5) * np.pi / count for count in scan)
    truth = 40 * np.cos(2 * y)[:, None] * np.cos(3 * x)[None, :] + 10 * np.cos(y)[:, None]
    dy = (-80 * np.sin(2 * y)[:, None] * np.cos(3 * x)[None, :] - 10 * np.sin(y)[:, None]) * np.pi / scan[0] / step
    dx = -120 * np.cos(2 * y)[:, None] * np.sin(3 * x)[None, :] * np.pi / scan[1] / step
    patterns = np.zeros((*scan, 3, 3), dtype=np.float32)
    patterns[:, :, 1, 1] = 0.5
    dk = 0.5
    for gradient, spots in ((dy, ((2, 1), (0, 1))), (dx, ((1, 2), (1, 0)))):
        fraction = gradient * sigma / (2 * np.pi) / dk
        assert np.abs(fraction).max() < 0.1
        patterns[:, :, spots[0][0], spots[0][1]] = 0.125 + fraction / 2
        patterns[:, :, spots[1][0], spots[1][1]] = 0.125 - fraction / 2
    found = integrated_centre_of_mass(
        np.sqrt(patterns), energy_kev=100.0, dk_per_angstrom=dk, step_angstrom=step, field_pixels=scan
    )
    assert np.allclose(found, truth, atol=2e-3 * np.abs(truth).max())


@pytest.mark.parametrize("step", [0.4, 0.625])
def test_a_scan_of_another_step_is_shown_on_the_same_field(step: float) -> None:
    """The field of 20 positions of 0.5 Å, about the same middle; beyond the border its last value goes on."""
    potential = smooth_potential(20.0)
    setup = ImagingSetup(FINE, GRID, (20, 20), step, (40, 40), 1, 2.0, "kirkland")
    patterns = TorchEngine().patterns(potential[None], 2.0, setup).numpy()
    truth = window(potential, (20, 20), 0.5)
    keys = {"energy_kev": 100.0, "dk_per_angstrom": 1 / BOX, "step_angstrom": step}
    found = integrated_centre_of_mass(np.sqrt(patterns), **keys, field_pixels=(40, 40), field_step_angstrom=0.5)
    inner = slice(5, 35)  # what both scans reach
    assert correlation(found[inner, inner], truth[inner, inner]) > 0.95
    own = integrated_centre_of_mass(np.sqrt(patterns), **keys, field_pixels=(40, 40))
    assert correlation(own[inner, inner], truth[inner, inner]) < 0.9
    if step < 0.5:
        assert np.array_equal(found[:, 0], found[:, 3])


def test_a_field_of_the_scan_s_own_step_is_the_scan_s_own_bit_for_bit() -> None:
    patterns = np.random.default_rng(1).random((5, 7, 8, 8)).astype(np.float32)
    keys = {"energy_kev": 100.0, "dk_per_angstrom": 0.1, "step_angstrom": 0.7}
    own = integrated_centre_of_mass(patterns, **keys, field_pixels=(15, 28))
    assert np.array_equal(
        own, integrated_centre_of_mass(patterns, **keys, field_pixels=(15, 28), field_step_angstrom=0.7)
    )


def test_one_position_is_a_flat_picture() -> None:
    patterns = np.full((1, 1, 5, 5), 0.04, dtype=np.float32)
    assert np.allclose(reconstructed(patterns, 2.0, (4, 4)), 0.0)
