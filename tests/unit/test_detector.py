"""The detector: where electrons are counted, that none is made or lost, and the finite source."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from stemdl.physics.detector import (
    finite_source,
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
