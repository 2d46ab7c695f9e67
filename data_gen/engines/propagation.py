"""Waves through the slices of one specimen: by FFTW on a CPU, by torch's own transforms elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from data_gen.engines.base import ImagingSetup
from data_gen.engines.fftw import BandLimitedMultislice, Complex
from stemdl.physics.constants import interaction_parameter
from stemdl.physics.multislice import diffraction_waves, intensities_, propagator, transmission

_KEPT_TRANSMISSIONS_BYTES = 512 * 2**20
"""Transmission functions of a specimen are kept up to this size, and made again for every chunk of waves above."""


class Propagation(Protocol):
    """A specimen and the optics, ready for waves. Waves: (p, n, n) complex64 in real space."""

    def exit_waves(self, waves: torch.Tensor) -> torch.Tensor:
        """(p, n, n) complex64 Fourier transforms of the exit waves times the anti-alias aperture, FFT order."""
        ...

    def intensities(self, waves: torch.Tensor) -> torch.Tensor:
        """|Ψ|² of the same, (p, n, n) float32."""
        ...


class TorchPropagation:
    """All waves of a chunk at once, on any device."""

    def __init__(self, slices: torch.Tensor, thickness_angstrom: float, setup: ImagingSetup) -> None:
        self._transmissions = transmission(setup.optics, setup.grid, slices)
        self._kernel = kept_propagator(setup, thickness_angstrom).to(slices.device)

    def exit_waves(self, waves: torch.Tensor) -> torch.Tensor:
        """See `Propagation`."""
        return diffraction_waves(waves.to(self._kernel.device), self._transmissions, self._kernel)

    def intensities(self, waves: torch.Tensor) -> torch.Tensor:
        """See `Propagation`."""
        return intensities_(waves.to(self._kernel.device, copy=True), self._transmissions, self._kernel)


class FftwPropagation:
    """A few waves at a time, with FFTW."""

    def __init__(self, slices: torch.Tensor, thickness_angstrom: float, setup: ImagingSetup) -> None:
        self._multislice = multislice_of(setup.grid.pixels)
        self._slices: NDArray[np.float32] = slices.numpy()
        self._interaction = interaction_parameter(setup.optics.energy_kev)
        self._aperture: Complex = setup.grid.antialias().to(torch.complex64).numpy()
        self._kernel = kept_propagator(setup, thickness_angstrom)
        self._at_once = max(1, _KEPT_TRANSMISSIONS_BYTES // (8 * setup.grid.pixels**2))
        self._whole = self._transmissions(0) if len(slices) <= self._at_once else None

    def exit_waves(self, waves: torch.Tensor) -> torch.Tensor:
        """See `Propagation`."""
        return self._multislice.in_fft_order(self._exits(self._multislice.centred(waves)))

    def intensities(self, waves: torch.Tensor) -> torch.Tensor:
        """See `Propagation`."""
        return self.intensities_of_centred(self._multislice.centred(waves))

    def intensities_of_centred(self, waves: Complex) -> torch.Tensor:
        """From waves as `BandLimitedMultislice.centred` gives them, which are left as they are."""
        exits = self._exits(waves if self._whole is not None else waves.copy())
        power = np.square(exits.real)
        power += np.square(exits.imag)
        return self._multislice.in_fft_order(power)

    def _exits(self, waves: Complex) -> Complex:
        return self._multislice.exit_bands(waves, self._slabs(), self._kernel)

    def _slabs(self) -> Iterator[tuple[Complex, bool]]:
        if self._whole is not None:
            yield self._whole, True
            return
        for first in range(0, len(self._slices), self._at_once):
            yield self._transmissions(first), first + self._at_once >= len(self._slices)

    def _transmissions(self, first: int) -> Complex:
        slab = self._slices[first : first + self._at_once]
        return self._multislice.transmissions(slab, self._interaction, self._aperture)


@lru_cache(maxsize=2)
def kept_propagator(setup: ImagingSetup, thickness_angstrom: float) -> torch.Tensor:
    """(n, n) complex64 propagator over one slice: the same for all specimens of equal optics and thickness."""
    return propagator(setup.optics, setup.grid, thickness_angstrom)


@lru_cache(maxsize=4)
def multislice_of(pixels: int) -> BandLimitedMultislice:
    """Plans and buffers of a grid, made once in a process."""
    return BandLimitedMultislice(pixels)
