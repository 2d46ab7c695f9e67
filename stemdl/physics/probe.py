"""The convergent probe: aperture and aberrations in reciprocal space, shifted to each scan position."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from stemdl.physics.constants import wavelength_angstrom
from stemdl.physics.grid import Grid


@dataclass(frozen=True)
class Optics:
    """What forms the probe. Lengths Å, angles mrad (azimuth rad), energy keV; defocus = -C10."""

    energy_kev: float
    semiangle_mrad: float
    defocus_angstrom: float = 0.0
    c3_angstrom: float = 0.0
    astigmatism_angstrom: float = 0.0
    astigmatism_azimuth_rad: float = 0.0

    @property
    def wavelength_angstrom(self) -> float:
        """Wavelength of the beam in Å."""
        return wavelength_angstrom(self.energy_kev)


def aberration_phase(optics: Optics, grid: Grid) -> torch.Tensor:
    """(n, n) float64 χ(k) in rad (Kirkland, eq. 2.10, with two-fold astigmatism), FFT order; y rows, x columns."""
    k = grid.frequencies()
    ky, kx = k[:, None], k[None, :]
    wavelength = optics.wavelength_angstrom
    alpha2 = (kx**2 + ky**2) * wavelength**2
    azimuth = torch.atan2(ky, kx)
    c12 = optics.astigmatism_angstrom * torch.cos(2 * (azimuth - optics.astigmatism_azimuth_rad))
    quadratic = 0.5 * alpha2 * (c12 - optics.defocus_angstrom)
    return 2 * math.pi / wavelength * (quadratic + 0.25 * alpha2**2 * optics.c3_angstrom)


def aperture(optics: Optics, grid: Grid) -> torch.Tensor:
    """(n, n) float64 aperture with an edge one pixel of reciprocal space wide, so that its area does not depend
    on where the pixels fall (as abTEM's soft aperture)."""
    alpha = grid.k_squared().sqrt() * optics.wavelength_angstrom
    step = grid.dk_per_angstrom * optics.wavelength_angstrom
    soft = ((optics.semiangle_mrad * 1e-3 - alpha) / step + 0.5).clamp(0.0, 1.0)
    soft[0, 0] = 1.0
    return soft


def probe_spectrum(optics: Optics, grid: Grid) -> torch.Tensor:
    """(n, n) complex128 Fourier transform of the probe at the origin, of total intensity 1: Σ|Ψ|² = 1."""
    chi = aberration_phase(optics, grid)
    spectrum = torch.polar(aperture(optics, grid), -chi)
    return spectrum / spectrum.abs().square().sum().sqrt()


def position_shifts(grid: Grid, positions_angstrom: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Phase factors (p, ky) and (p, kx), complex128, FFT order, whose product moves a spectrum to positions (p, 2),
    (y, x) in Å."""
    position = positions_angstrom.to(torch.float64)
    k = grid.frequencies()
    unit = torch.ones((), dtype=torch.float64)
    along_y, along_x = (torch.polar(unit, -2 * math.pi * position[:, axis, None] * k) for axis in (0, 1))
    return along_y, along_x


def probes(optics: Optics, grid: Grid, positions_angstrom: torch.Tensor) -> torch.Tensor:
    """Probe waves at scan positions.

    positions_angstrom: (p, 2) as (y, x) in Å. Returns (p, n, n) complex64 in real space, scaled so that the plain FFT
    of each has Σ|Ψ|² = 1.
    """
    spectrum = probe_spectrum(optics, grid)
    shift_y, shift_x = position_shifts(grid, positions_angstrom)
    shifted = (spectrum * shift_y[:, :, None] * shift_x[:, None, :]).to(torch.complex64)
    waves: torch.Tensor = torch.fft.ifft2(shifted)
    return waves


def raster(scan_shape: tuple[int, int], step_angstrom: float, box_angstrom: float) -> torch.Tensor:
    """(sy * sx, 2) scan positions (y, x) in Å, centred in the box, float64.

    Each position stands in the middle of its own square of one step, so the field covers
    scan_shape * step in the middle of the box.
    """
    axes = [
        (torch.arange(count, dtype=torch.float64) - (count - 1) / 2) * step_angstrom + box_angstrom / 2
        for count in scan_shape
    ]
    return torch.cartesian_prod(*axes)
