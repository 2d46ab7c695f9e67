"""The detector: where electrons are counted, that none is made or lost, blur, source and shot noise."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from stemdl.physics.detector import (
    blur_patterns,
    finite_source,
    gaussian_kernel,
    poisson_dose,
    to_detector,
    to_detector_adjoint,
)

SHAPES = [(96, (48, 48), 1), (24, (12, 10), 2), (27, (9, 7), 3), (25, (40, 30), 1), (32, (6, 9), 4), (16, (12, 20), 2)]


def _random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize(("grid", "pixels", "binning"), SHAPES)
def test_the_adjoint_is_the_transpose(grid: int, pixels: tuple[int, int], binning: int) -> None:
    x, y = _random(3, grid, grid, seed=1), _random(3, *pixels, seed=2)
    across = float((to_detector(x, pixels, binning) * y).sum())
    assert float((x * to_detector_adjoint(y, grid, binning)).sum()) == pytest.approx(across, rel=1e-12)


@pytest.mark.parametrize(
    ("grid", "pixels", "binning"),
    [(96, (96, 96), 1), (24, (13, 14), 2), (27, (9, 9), 3), (25, (31, 27), 1), (32, (9, 10), 4), (96, (130, 100), 1)],
)
def test_a_detector_that_covers_the_grid_counts_every_electron(
    grid: int, pixels: tuple[int, int], binning: int
) -> None:
    x = _random(2, grid, grid)
    assert torch.allclose(to_detector(x, pixels, binning).sum(dim=(1, 2)), x.sum(dim=(1, 2)), rtol=1e-12)


@pytest.mark.parametrize(("grid", "pixels", "binning"), SHAPES)
def test_beams_fall_on_the_pixel_of_their_frequency(grid: int, pixels: tuple[int, int], binning: int) -> None:
    middle = (pixels[0] // 2, pixels[1] // 2)
    for row, column in ((0, 0), (2, -1), (-1, 2)):
        pattern = torch.zeros(grid, grid)
        pattern[row * binning, column * binning] = 1
        seen = to_detector(pattern, pixels, binning)
        assert float(seen[middle[0] + row, middle[1] + column]) == 1
        assert float(seen.sum()) == 1


def test_an_even_binning_shares_its_edges() -> None:
    pattern = torch.zeros(16, 16)
    pattern[0, 1] = 1  # half a pixel to the right of the middle
    seen = to_detector(pattern, (4, 4), 2)
    assert seen[2].tolist() == [0, 0, 0.5, 0.5]


def test_the_order_of_the_axes_is_kept() -> None:
    intensity = _random(2, 5, 24, 24)
    seen = to_detector(intensity, (6, 8), 1)
    assert seen.shape == (2, 5, 6, 8)
    assert torch.equal(seen[1, 2], to_detector(intensity[1, 2], (6, 8), 1))


def test_blur_spreads_by_its_standard_deviation_and_keeps_electrons() -> None:
    pattern = torch.zeros(1, 1, 41, 41)
    pattern[0, 0, 20, 17] = 1
    spread = blur_patterns(pattern, 1.7)[0, 0]
    assert float(spread.sum()) == pytest.approx(1, abs=1e-5)
    axis = torch.arange(41, dtype=torch.float32)
    for sums, middle in ((spread.sum(dim=1), 20), (spread.sum(dim=0), 17)):
        assert float((sums * axis).sum()) == pytest.approx(middle, abs=1e-3)
        assert float((sums * (axis - middle) ** 2).sum()) == pytest.approx(1.7**2, rel=0.01)


def test_blur_loses_what_leaves_the_edge_and_only_that() -> None:
    pattern = torch.zeros(1, 1, 32, 32)
    pattern[0, 0, 0, 16] = 1
    half = float(gaussian_kernel(2.0)[8:].sum())
    assert float(blur_patterns(pattern, 2.0).sum()) == pytest.approx(half, abs=1e-5)
    assert blur_patterns(pattern, 0.0) is pattern


def test_a_finite_source_mixes_neighbouring_positions_only() -> None:
    patterns = torch.zeros(9, 11, 3, 2)
    patterns[4, 5, 1, 1] = 1
    seen = finite_source(patterns, (1.0, 1.5))
    assert float(seen[..., 1, 1].sum()) == pytest.approx(1, abs=0.02)
    assert float(seen.sum() - seen[..., 1, 1].sum()) == 0
    rows = seen[:, :, 1, 1].sum(dim=1)
    assert float(rows[5] / rows[4]) == pytest.approx(np.exp(-0.5), rel=0.01)
    columns = seen[:, :, 1, 1].sum(dim=0)
    assert float(columns[6] / columns[5]) == pytest.approx(np.exp(-0.5 / 1.5**2), rel=0.02)


def test_a_finite_source_leaves_a_uniform_specimen_alone() -> None:
    patterns = _random(1, 1, 6, 6).to(torch.float32).expand(5, 4, 6, 6)
    assert torch.allclose(finite_source(patterns, (0.8, 2.0)), patterns, rtol=1e-5)
    assert finite_source(patterns, (0.0, 0.0)) is patterns


def test_shot_noise_has_the_mean_and_the_variance_of_counting() -> None:
    patterns = np.full((2000, 4), [0.0, 1e-4, 0.01, 0.3], dtype=np.float32)
    electrons = 1e4 * 0.5**2
    counts = poisson_dose(patterns, 1e4, 0.5, seed=(1, 2)).astype(np.float64) * electrons
    expected = patterns[0].astype(np.float64) * electrons
    assert np.array_equal(counts[:, 0], np.zeros(2000))
    assert np.allclose(counts, np.round(counts), atol=1e-3)  # whole electrons
    deviation = np.sqrt(expected / 2000)
    assert np.all(np.abs(counts.mean(axis=0) - expected) <= 5 * deviation)
    assert np.allclose(counts.var(axis=0)[1:], expected[1:], rtol=0.2)


def test_shot_noise_follows_from_the_seed_alone() -> None:
    patterns = np.full((4, 8, 8), 0.01, dtype=np.float32)
    np.random.seed(0)  # the global state must not matter
    first = poisson_dose(patterns, 1e4, 1.0, seed=(7, 1, 3))
    np.random.seed(1)
    assert np.array_equal(first, poisson_dose(patterns, 1e4, 1.0, seed=(7, 1, 3)))
    assert not np.array_equal(first, poisson_dose(patterns, 1e4, 1.0, seed=(7, 1, 4)))
    assert first.dtype == np.float32
