"""From intensities on the FFT grid to what reaches the pixels of a detector."""

from __future__ import annotations

from functools import lru_cache

import torch


def to_detector(intensity: torch.Tensor, pixels: tuple[int, int], binning: int = 1) -> torch.Tensor:
    """Crop and bin patterns to the detector.

    intensity: (..., n, n) in FFT order. Returns (..., qy, qx) with the unscattered beam in pixel (q // 2, q // 2), each
    detector pixel the sum of `binning`² grid points centred on it (for an even binning the points on the edge are
    shared half and half). A detector wider than the grid is padded with zeros.
    """
    for axis, count in ((-2, pixels[0]), (-1, pixels[1])):
        n = intensity.shape[axis]
        if binning == 1 and count <= n:  # a crop: two blocks, the negative frequencies first
            negative = intensity.narrow(axis, n - count // 2, count // 2)
            intensity = torch.cat([negative, intensity.narrow(axis, 0, count - count // 2)], dim=axis)
            continue
        index, weight = _bin_taps(n, count, binning)
        total = None
        for tap in range(binning if binning % 2 else binning + 1):
            part = intensity.index_select(axis, index[:, tap].to(intensity.device))
            shape = (-1, 1) if axis == -2 else (-1,)
            if not bool((weight[:, tap] == 1).all()):
                part = part * weight[:, tap].reshape(shape).to(part)
            total = part if total is None else total + part
        assert total is not None
        intensity = total
    return intensity


def to_detector_adjoint(recorded: torch.Tensor, grid_pixels: int, binning: int = 1) -> torch.Tensor:
    """The transpose of `to_detector` as a linear map: (..., qy, qx) to (..., n, n) in FFT order."""
    for axis in (-2, -1):
        count = recorded.shape[axis]
        shape = list(recorded.shape)
        if binning == 1 and count <= grid_pixels:
            shape[axis] = grid_pixels - count
            positive = recorded.narrow(axis, count // 2, count - count // 2)
            negative = recorded.narrow(axis, 0, count // 2)
            recorded = torch.cat([positive, recorded.new_zeros(shape), negative], dim=axis)
            continue
        index, weight = _bin_taps(grid_pixels, count, binning)
        shape[axis] = grid_pixels
        spread = recorded.new_zeros(shape)
        for tap in range(index.shape[1]):
            extent = (-1, 1) if axis == -2 else (-1,)
            part = recorded * weight[:, tap].reshape(extent).to(recorded)
            spread.index_add_(axis, index[:, tap].to(recorded.device), part)
        recorded = spread
    return recorded


@lru_cache(maxsize=32)
def _bin_taps(n: int, count: int, binning: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Grid indices (count, taps) that make each detector pixel, and their weights (0 outside the grid)."""
    taps = binning if binning % 2 else binning + 1
    offsets = torch.arange(taps) - taps // 2
    weight = torch.ones(taps)
    if binning % 2 == 0:
        weight[0] = weight[-1] = 0.5
    frequency = (torch.arange(count) - count // 2)[:, None] * binning + offsets  # signed grid frequencies
    inside = (frequency >= -(n // 2)) & (frequency < (n + 1) // 2)
    return torch.where(inside, frequency % n, 0), weight * inside


def finite_source(patterns: torch.Tensor, sigma_positions: tuple[float, float]) -> torch.Tensor:
    """Incoherent effective source: a Gaussian over the scan axes of (sy, sx, qy, qx) patterns, in scan steps.

    At the border of the scan the kernel is cut and normalised again: positions beyond were not simulated.
    """
    for axis, sigma in ((0, sigma_positions[0]), (1, sigma_positions[1])):
        if sigma > 0:
            count = patterns.shape[axis]
            distance = torch.arange(count, dtype=torch.float32)[:, None] - torch.arange(count, dtype=torch.float32)
            weights = torch.exp(-0.5 * (distance / sigma) ** 2)
            weights = (weights / weights.sum(dim=1, keepdim=True)).to(patterns)
            patterns = torch.tensordot(weights, patterns.movedim(axis, 0), dims=1).movedim(0, axis)
    return patterns
