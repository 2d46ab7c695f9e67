"""The periodic square grid of a multislice calculation and its anti-alias aperture."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

ANTIALIAS_CUTOFF = 2.0 / 3.0
"""Radius of the anti-alias aperture in units of the Nyquist frequency (Kirkland, section 6.8)."""
ANTIALIAS_TAPER = 0.01
"""Width of its cosine edge in units of the sampling frequency, as in abTEM."""


@dataclass(frozen=True)
class Grid:
    """`pixels` x `pixels` points over a periodic square box of side `box_angstrom`."""

    pixels: int
    box_angstrom: float

    @property
    def pixel_angstrom(self) -> float:
        """Distance of neighbouring points in Å."""
        return self.box_angstrom / self.pixels

    @property
    def dk_per_angstrom(self) -> float:
        """Distance of neighbouring points in reciprocal space in 1/Å (without 2π)."""
        return 1.0 / self.box_angstrom

    @property
    def cutoff_per_angstrom(self) -> float:
        """Highest spatial frequency in 1/Å that the anti-alias aperture lets through."""
        return ANTIALIAS_CUTOFF / (2 * self.pixel_angstrom)

    @classmethod
    def from_pixel(cls, box_angstrom: float, pixel_angstrom: float) -> Grid:
        """Grid of a box whose side is a whole number of pixels; ValueError where it is not."""
        count = box_angstrom / pixel_angstrom
        pixels = round(count)
        if pixels < 2 or abs(count - pixels) > 1e-6 * pixels:
            raise ValueError(f"a box of {box_angstrom} Å is not a whole number of pixels of {pixel_angstrom} Å")
        return cls(pixels, box_angstrom)

    def frequencies(self, dtype: torch.dtype = torch.float64) -> torch.Tensor:
        """(n,) spatial frequencies in 1/Å in FFT order."""
        frequencies: torch.Tensor = torch.fft.fftfreq(self.pixels, d=self.pixel_angstrom, dtype=dtype)
        return frequencies

    def k_squared(self) -> torch.Tensor:
        """(n, n) squared spatial frequencies in 1/Å², float64, FFT order."""
        k = self.frequencies()
        return k[:, None] ** 2 + k[None, :] ** 2

    def antialias(self) -> torch.Tensor:
        """(n, n) float64: 1 inside the anti-alias aperture, a cosine edge, 0 outside (same as abTEM's)."""
        taper = ANTIALIAS_TAPER / self.pixel_angstrom
        cutoff = self.cutoff_per_angstrom
        k = self.k_squared().sqrt()
        edge = 0.5 * (1 + torch.cos(math.pi * (k - cutoff + taper) / taper))
        edge = torch.where(k > cutoff - taper, edge, torch.ones_like(k))
        return torch.where(k > cutoff, torch.zeros_like(k), edge)
