"""Integrated centre of mass: the classical, linear picture of the potential, as a baseline.

The centre of mass of a pattern is the gradient of the phase averaged under the probe, <k> = σ/(2π) ∇V (Lazić, Bosch
and Lazar, Ultramicroscopy 160, 265, 2016). It is integrated by least squares in Fourier space.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from stemdl.physics.constants import interaction_parameter

Array = NDArray[np.float64]


def centre_of_mass(amplitude: NDArray[np.float16] | NDArray[np.float32], dk_per_angstrom: float) -> Array:
    """(sy, sx, 2) mean wave vector (y, x) in 1/Å of each pattern, from (sy, sx, qy, qx) amplitudes.

    An empty pattern has the mean 0. The first row and column of an even detector, at -n/2, have no counterpart at +n/2
    and are left out: a pattern that is symmetric about the beam, or the same everywhere, has the mean 0.
    """
    intensity = amplitude.astype(np.float64) ** 2
    counts = intensity.shape[2:]
    intensity = intensity[:, :, 1 - counts[0] % 2 :, 1 - counts[1] % 2 :]
    total = intensity.sum(axis=(2, 3))
    total[total == 0] = 1.0
    ky, kx = ((np.arange(1 - n % 2, n) - n // 2) * dk_per_angstrom for n in counts)
    return np.stack([intensity.sum(axis=3) @ ky / total, intensity.sum(axis=2) @ kx / total], axis=-1)


def integrated_centre_of_mass(
    amplitude: NDArray[np.float16] | NDArray[np.float32],
    *,
    energy_kev: float,
    dk_per_angstrom: float,
    step_angstrom: float,
    field_pixels: tuple[int, int],
    field_step_angstrom: float | None = None,
) -> Array:
    """(y, x) potential in V·Å on the pixels of the field; its mean over the scan is 0.

    The scan is mirrored at its borders before the integration, which makes it periodic without a jump, and the result
    is interpolated to the field's pixels linearly. The field is that of a scan of as many positions about the same
    middle with steps of `field_step_angstrom`, if that is given, else the scan's own; beyond the border of the scan its
    last value goes on.
    """
    gradient = centre_of_mass(amplitude, dk_per_angstrom) * (2 * np.pi / interaction_parameter(energy_kev))
    # The mean of the gradient stays: a field that ends on a column has one, and there is no descan to take away.
    scanned = _integrate(gradient, step_angstrom)
    ratio = 1.0 if field_step_angstrom is None else field_step_angstrom / step_angstrom
    return _interpolate(_interpolate(scanned, field_pixels[0], 0, ratio), field_pixels[1], 1, ratio)


def _integrate(gradient: Array, step_angstrom: float) -> Array:
    """Least-squares potential of a gradient field (sy, sx, 2) per Å (Frankot and Chellappa, 1988)."""
    sy, sx = gradient.shape[:2]
    gy = np.block([[gradient[..., 0], gradient[:, ::-1, 0]], [-gradient[::-1, :, 0], -gradient[::-1, ::-1, 0]]])
    gx = np.block([[gradient[..., 1], -gradient[:, ::-1, 1]], [gradient[::-1, :, 1], -gradient[::-1, ::-1, 1]]])
    ky = np.fft.fftfreq(2 * sy, step_angstrom)[:, None]
    kx = np.fft.fftfreq(2 * sx, step_angstrom)[None, :]
    k2 = ky**2 + kx**2
    k2[0, 0] = 1.0
    spectrum = (ky * np.fft.fft2(gy) + kx * np.fft.fft2(gx)) / (2j * np.pi * k2)
    spectrum[0, 0] = 0.0
    potential = np.asarray(np.fft.ifft2(spectrum).real[:sy, :sx], dtype=np.float64)
    return np.asarray(potential - potential.mean())


def _interpolate(values: Array, pixels: int, axis: int, ratio: float) -> Array:
    """Linear interpolation of one axis from the middles of scan steps to the middles of the pixels of a field that is
    `ratio` times as wide as the scan."""
    count = values.shape[axis]
    place = (np.arange(pixels) + 0.5) * count / pixels - 0.5
    place += (ratio - 1) * (place - (count - 1) / 2)  # so written, a ratio of 1 leaves every bit as it is
    low = np.clip(np.floor(place).astype(int), 0, max(count - 2, 0))
    high = np.minimum(low + 1, count - 1)
    weight = np.clip(place - low, 0.0, 1.0)
    shape = [1, 1]
    shape[axis] = pixels
    weight = weight.reshape(shape)
    return np.asarray(np.take(values, low, axis) * (1 - weight) + np.take(values, high, axis) * weight)
