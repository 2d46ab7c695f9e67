"""What a pixelated detector makes of the electrons that reach it, in the order in which it happens.

Point spread, counting of electrons (shot noise), saturation, gain with readout noise and rounding, dead and hot pixels;
then back to fractions of the incident beam, as whoever reads the detector would compute them: electrons over electrons
sent. Such fractions may exceed 1: in a hot pixel, or by chance.

The point spread acts before the counting, so the noise of neighbouring pixels is independent: that of a counting
detector. Charge shared between pixels, dark current and dead time are not modelled.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Amplitude = NDArray[np.float16]
Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class DetectorEffects:
    """What the detector does; the defaults are an ideal one. Saturation, gain and hot pixels are in electrons, so they
    need a dose."""

    blur_sigma_pixels: float = 0.0
    """Standard deviation of the Gaussian point spread in pixels."""
    saturation_electrons: float | None = None
    """Electrons beyond which a pixel counts no further."""
    adu_per_electron: float | None = None
    """Gain; readings are whole ADU."""
    readout_sigma_adu: float = 0.0
    """Standard deviation of the readout noise in ADU."""
    dead_fraction: float = 0.0
    """Probability of a pixel to read nothing."""
    hot_fraction: float = 0.0
    """Probability of a pixel to read too much."""
    hot_electrons: float = 1000.0
    """What a hot pixel reads in excess, where there is no saturation for it to be stuck at."""


def gaussian_kernel(sigma: float) -> NDArray[np.float32]:
    """(2 r + 1,) normalised Gaussian of standard deviation `sigma` in samples, cut at 4 σ."""
    radius = max(1, math.ceil(4 * sigma))
    kernel = np.exp(-0.5 * (np.arange(-radius, radius + 1) / sigma) ** 2)
    return np.asarray(kernel / kernel.sum(), dtype=np.float32)


def point_spread(amplitude: Amplitude, sigma_pixels: float) -> Amplitude:
    """Amplitudes (sy, sx, qy, qx) of the intensities under a Gaussian point spread; what leaves the edge is lost.

    Sums of shifted patterns: the bits do not depend on a number of threads.
    """
    if sigma_pixels == 0:
        return amplitude
    kernel = gaussian_kernel(sigma_pixels)
    result = np.empty_like(amplitude)
    for row, patterns in enumerate(amplitude):  # a row of the scan at a time bounds the memory
        intensity = patterns.astype(np.float32) ** 2
        for axis in (-2, -1):
            intensity = _convolved(intensity, kernel, axis)
        result[row] = np.sqrt(intensity)
    return result


def _convolved(values: NDArray[np.float32], kernel: NDArray[np.float32], axis: int) -> NDArray[np.float32]:
    """One axis convolved with a symmetric kernel, zeros beyond the edge."""
    moved = np.moveaxis(values, axis, -1)
    radius = len(kernel) // 2
    total = moved * kernel[radius]
    for distance in range(1, min(radius, moved.shape[-1] - 1) + 1):
        weight = kernel[radius + distance]
        total[..., distance:] += weight * moved[..., :-distance]
        total[..., :-distance] += weight * moved[..., distance:]
    return np.moveaxis(total, -1, axis)


def bad_pixels(shape: tuple[int, int], effects: DetectorEffects, seed: Sequence[int]) -> tuple[Mask, Mask]:
    """(qy, qx) dead and (qy, qx) hot pixels, each pixel by itself and none both; they follow from `seed` alone."""
    chance = np.random.default_rng(np.random.SeedSequence(list(seed))).random(shape)
    dead = chance < effects.dead_fraction
    return dead, (chance < effects.dead_fraction + effects.hot_fraction) & ~dead


def read_out(
    amplitude: Amplitude,
    effects: DetectorEffects,
    electrons_per_pattern: float | None,
    *,
    noise_seed: Sequence[int],
    bad_pixel_seed: Sequence[int],
) -> Amplitude:
    """What is read of the patterns of one field: all but the point spread.

    amplitude: (sy, sx, qy, qx) behind the point spread, √(fraction of the incident beam). Without a number of electrons
    (dose times step²) there is no counting, and dead pixels are all that is left. One detector records the whole field:
    its bad pixels are at the same place in every pattern. The random numbers follow from the seeds alone.

    Readings below zero, which readout noise makes, are clipped to zero: an amplitude knows no sign.
    """
    bad = effects.dead_fraction > 0 or effects.hot_fraction > 0
    if electrons_per_pattern is None:
        assert effects.saturation_electrons is None, "no electrons to saturate"
        assert effects.adu_per_electron is None, "no electrons to convert"
        assert effects.hot_fraction == 0, "no electrons to add"
        if not bad:
            return amplitude
    dead, hot = bad_pixels((amplitude.shape[2], amplitude.shape[3]), effects, bad_pixel_seed)
    rng = np.random.default_rng(np.random.SeedSequence(list(noise_seed)))
    result = np.empty_like(amplitude)
    for row, patterns in enumerate(amplitude):
        reading = patterns.astype(np.float64) ** 2
        if electrons_per_pattern is not None:
            reading = _electrons_read(rng.poisson(reading * electrons_per_pattern), effects, rng)
        if bad:
            reading[:, dead] = 0.0
            if effects.saturation_electrons is not None:
                reading[:, hot] = effects.saturation_electrons
            else:
                reading[:, hot] += effects.hot_electrons
        if electrons_per_pattern is not None:
            reading /= electrons_per_pattern
        result[row] = np.sqrt(reading)
    return result


def _electrons_read(
    counts: NDArray[np.int64], effects: DetectorEffects, rng: np.random.Generator
) -> NDArray[np.float64]:
    """Electrons as the reading says, from the electrons that arrived: saturation, gain, readout noise, rounding."""
    reading = counts.astype(np.float64)
    if effects.saturation_electrons is not None:
        np.minimum(reading, effects.saturation_electrons, out=reading)
    gain = effects.adu_per_electron
    if gain is not None:
        reading *= gain
        if effects.readout_sigma_adu > 0:
            reading += rng.normal(0.0, effects.readout_sigma_adu, reading.shape)
        reading = np.maximum(np.rint(reading), 0.0) / gain
    return reading
