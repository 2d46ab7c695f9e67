"""The hand-written adjoint of the coarse model against automatic differentiation and finite differences."""

from __future__ import annotations

import pytest
import torch

from physics_cases import OPTICS, random_potential, relative
from stemdl.physics.constants import interaction_parameter
from stemdl.physics.detector import to_detector
from stemdl.physics.grid import Grid
from stemdl.physics.misfit import AMPLITUDE_FLOOR, ScanGeometry, ScanModel
from stemdl.physics.multislice import diffraction_waves, propagator
from stemdl.physics.probe import probes, raster

GRID = Grid(48, 16.0)
THICKNESS = 20.0
CASES = [(2, 1, (24, 24)), (3, 1, (24, 20)), (2, 2, (12, 12)), (3, 2, (11, 12)), (1, 3, (8, 8))]


def _model(slices: int, binning: int, pixels: tuple[int, int]) -> ScanModel:
    geometry = ScanGeometry((3, 2), 2.0, pixels, binning)
    return ScanModel(OPTICS, GRID, geometry, slices=slices, thickness_angstrom=THICKNESS)


def _reference(potential: torch.Tensor, slices: int, binning: int, pixels: tuple[int, int]) -> torch.Tensor:
    """(sy, sx, qy, qx) amplitudes by the general multislice, differentiable."""
    waves = probes(OPTICS, GRID, raster((3, 2), 2.0, 16.0))
    waves = torch.fft.ifft2(torch.fft.fft2(waves) * propagator(OPTICS, GRID, THICKNESS / slices / 2))
    phase = potential * (interaction_parameter(OPTICS.energy_kev) / slices)
    transmission = torch.polar(torch.ones_like(phase), phase).expand(slices, -1, -1)
    exit_waves = diffraction_waves(waves, transmission, propagator(OPTICS, GRID, THICKNESS / slices))
    recorded = to_detector(exit_waves.abs().square(), pixels, binning)
    return (recorded + AMPLITUDE_FLOOR).sqrt().reshape(3, 2, *pixels)


@pytest.mark.parametrize(("slices", "binning", "pixels"), CASES)
def test_amplitudes_are_those_of_the_general_multislice(slices: int, binning: int, pixels: tuple[int, int]) -> None:
    potential = 300 + random_potential(GRID, 100.0, 1)
    found = _model(slices, binning, pixels).amplitudes(potential)
    assert relative(found, _reference(potential, slices, binning, pixels)) < 1e-5


@pytest.mark.parametrize(("slices", "binning", "pixels"), CASES)
def test_the_gradient_is_that_of_automatic_differentiation(slices: int, binning: int, pixels: tuple[int, int]) -> None:
    model = _model(slices, binning, pixels)
    recorded = model.amplitudes(300 + random_potential(GRID, 100.0, 1))
    potential = (300 + random_potential(GRID, 100.0, 2)).requires_grad_()
    misfit = (_reference(potential, slices, binning, pixels) - recorded).square().sum() / 6
    (half_gradient,) = torch.autograd.grad(misfit / 2, potential)
    state = model.linearise(potential.detach(), recorded)
    assert state.misfit == pytest.approx(float(misfit.detach()), rel=1e-4)
    assert relative(state.gradient(), half_gradient) < 1e-5


@pytest.mark.parametrize(("slices", "binning", "pixels"), CASES)
def test_the_directional_derivative_is_a_finite_difference(slices: int, binning: int, pixels: tuple[int, int]) -> None:
    model = _model(slices, binning, pixels)
    potential, direction = 300 + random_potential(GRID, 100.0, 1), random_potential(GRID, 1.0, 2)
    recorded = model.amplitudes(potential)
    step = 2.0
    up, down = model.amplitudes(potential + step * direction), model.amplitudes(potential - step * direction)
    difference = ((up - down) / (2 * step)).reshape(6, *pixels)
    assert relative(model.linearise(potential, recorded).directional(direction), difference) < 5e-3


def test_gradient_and_directional_derivative_belong_together() -> None:
    """<gradient, d> is <residual, derivative along d>: one is the transpose of the other."""
    model = _model(3, 2, (12, 12))
    recorded = model.amplitudes(300 + random_potential(GRID, 100.0, 1))
    state = model.linearise(300 + random_potential(GRID, 100.0, 3), recorded)
    direction = random_potential(GRID, 10.0, 4)
    along = float((state.residual * state.directional(direction)).sum()) / 6
    assert float((state.gradient() * direction).sum()) == pytest.approx(along, rel=1e-3)


def test_the_truth_has_no_misfit_and_no_gradient() -> None:
    model = _model(2, 1, (24, 24))
    truth = 300 + random_potential(GRID, 100.0, 1)
    recorded = model.amplitudes(truth)
    elsewhere = model.linearise(truth + random_potential(GRID, 20.0, 2), recorded)
    at_truth = model.linearise(truth, recorded)
    assert at_truth.misfit < 1e-9
    assert float(at_truth.gradient().norm()) < 1e-4 * float(elsewhere.gradient().norm())


def test_a_gauss_newton_step_goes_downhill_to_the_bottom() -> None:
    model = _model(2, 1, (24, 24))
    truth = 300 + random_potential(GRID, 100.0, 1)
    recorded = model.amplitudes(truth)
    start = truth + random_potential(GRID, 10.0, 2)
    state = model.linearise(start, recorded)
    direction = -state.gradient() / (model.illumination + 0.05)
    step = state.gauss_newton_step(direction)
    misfits = [model.linearise(start + scale * step * direction, recorded).misfit for scale in (0.0, 0.7, 1.0, 1.3)]
    assert step > 0
    assert misfits[2] < 0.9 * misfits[0]
    assert misfits[2] == min(misfits)
    assert state.gauss_newton_step(torch.zeros_like(start)) == 0.0


def test_illumination_is_where_the_probes_stood() -> None:
    light = _model(2, 1, (24, 24)).illumination
    assert float(light.max()) == 1
    middle = float(light[20:28, 20:28].mean())
    assert middle > 20 * float(light[:4, :4].mean())
