"""Multislice: a wave passes slices of projected potential with free space between them.

Cowley and Moodie, Acta Cryst. 10, 609 (1957); Kirkland, chapter 6. The order of operations and the anti-alias
aperture are those of abTEM, so that both programs agree when given the same slices.
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch

from stemdl.physics.constants import interaction_parameter
from stemdl.physics.grid import Grid
from stemdl.physics.probe import Optics


def propagator(optics: Optics, grid: Grid, thickness_angstrom: float) -> torch.Tensor:
    """(n, n) complex64 Fresnel propagator over `thickness_angstrom` (Kirkland, eq. 6.65) times the anti-alias
    aperture, FFT order."""
    phase = -math.pi * optics.wavelength_angstrom * thickness_angstrom * grid.k_squared()
    return torch.polar(grid.antialias(), phase).to(torch.complex64)


def transmission(optics: Optics, grid: Grid, slices_v_angstrom: torch.Tensor) -> torch.Tensor:
    """exp(iσV), band-limited. slices_v_angstrom: (..., n, n) projected potentials in V·Å; returns complex64.

    Differentiable with respect to the potential.
    """
    phase = slices_v_angstrom.to(torch.float32) * interaction_parameter(optics.energy_kev)
    sharp = torch.polar(torch.ones_like(phase), phase)
    smooth: torch.Tensor = torch.fft.ifft2(torch.fft.fft2(sharp) * _aperture_mask(grid).to(phase.device))
    return smooth


@lru_cache(maxsize=8)
def _aperture_mask(grid: Grid) -> torch.Tensor:
    return grid.antialias().to(torch.float32)


def diffraction_waves(waves: torch.Tensor, transmissions: torch.Tensor, kernel: torch.Tensor) -> torch.Tensor:
    """Differentiable multislice.

    waves: (p, n, n) complex64 in real space; transmissions: (s, n, n); kernel: (n, n) from `propagator`.
    Returns the exit waves in reciprocal space (p, n, n), FFT order. Propagation after the last slice changes phases
    alone; its aperture is applied all the same.
    """
    for index in range(transmissions.shape[0] - 1):
        waves = torch.fft.ifft2(torch.fft.fft2(waves * transmissions[index]) * kernel)
    exit_waves: torch.Tensor = torch.fft.fft2(waves * transmissions[-1]) * kernel
    return exit_waves


@torch.no_grad()
def intensities_(waves: torch.Tensor, transmissions: torch.Tensor, kernel: torch.Tensor) -> torch.Tensor:
    """The same, in place and without gradients: overwrites `waves`; returns |Ψ|² (p, n, n) float32, FFT order.

    A chunk of waves stays in the processor's cache over all slices, which is worth more than large batches.
    """
    last = transmissions.shape[0] - 1
    for index in range(last):
        spectrum = torch.fft.fft2(waves.mul_(transmissions[index]))
        waves = torch.fft.ifft2(spectrum.mul_(kernel))
    spectrum = torch.fft.fft2(waves.mul_(transmissions[last])).mul_(kernel)
    parts = torch.view_as_real(spectrum)
    return parts[..., 0].square() + parts[..., 1].square()
