"""Conjugate gradients on the misfit: downhill, towards the potential, and from the classical first step."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from field_cases import Blobs, blobs, correlation, model_of, small_config
from physics_cases import relative
from stemdl.physics.iterate import ILLUMINATION_FLOOR, Iterates, conjugate_gradient
from stemdl.physics.misfit import ScanModel

SCANNED = (slice(8, 24), slice(8, 24))  # 8 Å in the middle of the box, on its 0.5 Å grid
ROUNDING = 1e-12  # of a misfit in single precision, whose amplitudes are of order 0.1
LEVEL = 150.0


@pytest.fixture(scope="module")
def model() -> ScanModel:
    return model_of(small_config())


def recorded(model: ScanModel, potential: Blobs) -> tuple[torch.Tensor, torch.Tensor]:
    """Potential on the box and its patterns."""
    truth = potential.on_box(model.grid)
    return truth, model.amplitudes(truth)


def from_flat(model: ScanModel, amplitude: torch.Tensor, steps: int, keep: tuple[int, ...] = ()) -> Iterates:
    start = torch.full((model.grid.pixels,) * 2, LEVEL)
    return conjugate_gradient(model, amplitude, start, steps, keep)


@pytest.mark.parametrize("slices", [1, 3])
@pytest.mark.parametrize("height", [5.0, 100.0])
def test_no_step_raises_the_misfit_of_a_weak_object(slices: int, height: float) -> None:
    model = model_of(small_config(), slices=slices)
    _, amplitude = recorded(model, blobs(1, height=height))
    misfits = np.array(from_flat(model, amplitude, 16).misfits)
    assert len(misfits) == 17
    assert np.all(np.diff(misfits) <= ROUNDING)
    assert misfits[-1] < 1e-3 * misfits[0]


@pytest.mark.parametrize("seed", range(3))
def test_a_weak_potential_is_recovered_where_the_probe_has_been(model: ScanModel, seed: int) -> None:
    truth, amplitude = recorded(model, blobs(seed, height=20.0))
    found = from_flat(model, amplitude, 8, (1,)).potentials
    first, last = (correlation(picture[SCANNED], truth[SCANNED]) for picture in found)
    assert last > 0.95
    assert last > first > 0.5
    # And in V·Å, not only in shape: patterns fix all but the level.
    contrast = found[-1][SCANNED] - found[-1][SCANNED].mean()
    assert relative(contrast, truth[SCANNED] - truth[SCANNED].mean()) < 0.3
    beside = [correlation(torch.roll(found[-1], 2, axis)[SCANNED], truth[SCANNED]) for axis in (0, 1)]
    assert max(beside) < last - 0.1


def test_the_first_step_is_the_gradient_over_the_illumination(model: ScanModel) -> None:
    truth, amplitude = recorded(model, blobs(2))
    start = torch.full_like(truth, LEVEL).requires_grad_()
    misfit = (model.amplitudes(start) - amplitude).square().sum()
    (gradient,) = torch.autograd.grad(misfit, start)
    expected = -gradient / (model.illumination + ILLUMINATION_FLOOR)
    moved = from_flat(model, amplitude, 1).potentials[0] - LEVEL
    length = float((moved * expected).sum() / expected.square().sum())
    assert length > 0
    assert relative(moved, length * expected) < 1e-3
    steepest = torch.nn.functional.cosine_similarity(moved.flatten(), -gradient.flatten(), dim=0)
    assert float(steepest) < 0.99  # without the illumination it would be another direction


def test_its_length_is_the_best_one_nearby(model: ScanModel) -> None:
    truth, amplitude = recorded(model, blobs(2, height=50.0))
    start = torch.full_like(truth, LEVEL)
    step = from_flat(model, amplitude, 1).potentials[0] - start
    misfits = [model.linearise(start + scale * step, amplitude).misfit for scale in (0.8, 1.0, 1.2)]
    assert misfits[1] == min(misfits)


def test_conjugate_directions_beat_as_many_steepest_ones(model: ScanModel) -> None:
    _, amplitude = recorded(model, blobs(3, height=20.0))
    potential = torch.full((model.grid.pixels,) * 2, LEVEL)
    for _ in range(8):
        potential = conjugate_gradient(model, amplitude, potential, 1).potentials[0]
    steepest = model.linearise(potential, amplitude).misfit
    assert from_flat(model, amplitude, 8).misfits[-1] < 0.7 * steepest


def test_the_level_of_the_start_does_not_matter(model: ScanModel) -> None:
    truth, amplitude = recorded(model, blobs(4, height=20.0))
    low, high = (conjugate_gradient(model, amplitude, torch.full_like(truth, level), 4) for level in (0.0, 500.0))
    assert relative(high.potentials[0] - 500.0, low.potentials[0]) < 0.01
    assert high.misfits == pytest.approx(low.misfits, rel=0.02)


def test_at_the_truth_it_stays(model: ScanModel) -> None:
    truth, amplitude = recorded(model, blobs(5))
    result = conjugate_gradient(model, amplitude, truth, 4)
    assert max(result.misfits) < 1e-10
    assert float((result.potentials[0] - truth).abs().max()) < 1e-2


def test_kept_potentials_are_those_of_shorter_runs(model: ScanModel) -> None:
    _, amplitude = recorded(model, blobs(6))
    kept = from_flat(model, amplitude, 4, (1, 3)).potentials
    assert len(kept) == 3
    for steps, potential in zip((1, 3, 4), kept, strict=True):
        assert torch.equal(potential, from_flat(model, amplitude, steps).potentials[-1])


def test_gradient_and_residual_are_those_at_the_last_potential(model: ScanModel) -> None:
    _, amplitude = recorded(model, blobs(7))
    result = from_flat(model, amplitude, 2)
    state = model.linearise(result.potentials[-1], amplitude)
    assert relative(result.gradient * (model.illumination + ILLUMINATION_FLOOR), state.gradient()) < 1e-4
    by_position = (model.amplitudes(result.potentials[-1]) - amplitude).square().sum(dim=(2, 3))
    assert relative(result.residual, by_position) < 1e-4
    assert float(result.residual.mean()) == pytest.approx(result.misfits[-1], rel=1e-4)
    assert not result.gradient.requires_grad


def test_the_residual_points_to_where_the_potential_is_unexplained(model: ScanModel) -> None:
    # One heavy column at the position of row 0, column 3: 5 Å, 11 Å.
    _, amplitude = recorded(model, Blobs(np.array([[5.0, 11.0]]), np.array([3000.0]), level=LEVEL))
    residual = from_flat(model, amplitude, 1).residual
    assert residual.shape == (4, 4)
    assert divmod(int(residual.argmax()), 4) == (0, 3)


def test_the_same_patterns_give_the_same_bits(model: ScanModel) -> None:
    _, amplitude = recorded(model, blobs(8))
    assert torch.equal(from_flat(model, amplitude, 4).potentials[0], from_flat(model, amplitude, 4).potentials[0])


@pytest.mark.parametrize(("steps", "keep"), [(0, ()), (2, (3,)), (2, (0,))])
def test_steps_that_do_not_exist_cannot_be_kept(model: ScanModel, steps: int, keep: tuple[int, ...]) -> None:
    _, amplitude = recorded(model, blobs(8))
    with pytest.raises(AssertionError):
        from_flat(model, amplitude, steps, keep)
