"""Frequency by frequency: the Fourier ring correlation and the resolution it gives."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from stemdl.reconstruct.quality.pixels import Image, as_image_pair

EDGE_FRACTION = 0.125
HALF = 0.5


def _soft_edge(count: int) -> NDArray[np.float64]:
    """Tukey window: one inside, falling as a cosine over the outer eighth at either end, sampled at pixel centres."""
    from_edge = np.minimum(np.arange(count) + 0.5, count - np.arange(count) - 0.5) / count
    result: NDArray[np.float64] = 0.5 - 0.5 * np.cos(np.pi * np.minimum(from_edge / EDGE_FRACTION, 1.0))
    return result


def _spectrum(image: Image, window: Image) -> NDArray[np.complex128]:
    """FFT of the windowed picture without its mean, which the window would smear over the first rings."""
    mean = (image * window).sum() / window.sum()
    result: NDArray[np.complex128] = np.fft.fft2((image - mean) * window)
    return result


def fourier_ring_correlation(
    a: ArrayLike, b: ArrayLike, pixel_angstrom: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Correlation of two pictures (y, x) ring by ring in reciprocal space, up to Nyquist.

    FRC(k) = Re Σ A B* / sqrt(Σ|A|² Σ|B|²) over each ring (Saxton and Baumeister, J. Microsc. 127 (1982) 127). The
    pictures are not periodic, so each loses its mean and is multiplied by a soft edge: a Tukey window, a cosine over
    the outer eighth of every side. Rings are as wide as one pixel of the shorter side's spectrum. A ring in which
    either picture has no power at all counts as 0.

    Returns:
        frequency_per_angstrom (rings,) without 2π, the middle of each ring; frc (rings,).

    Raises:
        ValueError: shapes differ, a value is not finite, fewer than 8 pixels a side, pixel_angstrom not positive.
    """
    first, second = as_image_pair(a, b)
    if not (np.isfinite(pixel_angstrom) and pixel_angstrom > 0):
        raise ValueError(f"pixel_angstrom is {pixel_angstrom}; it must be a positive length in Å")
    if min(first.shape) < 8:
        raise ValueError(f"pictures of shape {first.shape} are too small for rings; 8 pixels a side are the least")
    rows, columns = first.shape
    window = _soft_edge(rows)[:, None] * _soft_edge(columns)[None, :]
    spectrum_a, spectrum_b = _spectrum(first, window), _spectrum(second, window)

    frequency = np.hypot(np.fft.fftfreq(rows)[:, None], np.fft.fftfreq(columns)[None, :])  # cycles per pixel
    shorter = min(rows, columns)
    ring = np.rint(frequency * shorter).astype(np.int64).ravel()
    rings = shorter // 2 + 1

    def ring_sum(values: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.bincount(ring, weights=values.ravel(), minlength=rings)[1:rings].astype(np.float64)

    cross = ring_sum((spectrum_a * spectrum_b.conj()).real)
    power_a, power_b = ring_sum(np.abs(spectrum_a) ** 2), ring_sum(np.abs(spectrum_b) ** 2)
    norm = np.sqrt(power_a) * np.sqrt(power_b)
    frc = np.divide(cross, norm, out=np.zeros_like(cross), where=norm > 0)
    return np.arange(1, rings) / (shorter * pixel_angstrom), np.clip(frc, -1.0, 1.0)


def resolution_angstrom(frequency_per_angstrom: ArrayLike, frc: ArrayLike) -> float:
    """Length in Å at which the curve falls below 0.5 for good, linear between rings.

    The last fall counts, not the first: a crystal has no power in the rings between its reflections, and what the
    curve does there is noise. The answer is the last ring (for an even side Nyquist, two pixels) where the curve ends
    above 0.5, and the first ring, the side of the field, where it never reaches 0.5.
    """
    k = np.asarray(frequency_per_angstrom, dtype=np.float64)
    curve = np.asarray(frc, dtype=np.float64)
    reached = np.flatnonzero(curve >= HALF)
    if reached.size == 0:
        return float(1.0 / k[0])
    i = int(reached[-1])
    if i == curve.size - 1:
        return float(1.0 / k[-1])
    part = (curve[i] - HALF) / (curve[i] - curve[i + 1])
    return float(1.0 / (k[i] + part * (k[i + 1] - k[i])))
