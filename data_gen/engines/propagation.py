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
from stemdl.physics.grid import Grid
from stemdl.physics.multislice import diffraction_waves, intensities_, propagator, transmission
from stemdl.physics.probe import Optics, position_shifts, probe_spectrum, probes

_KEPT_TRANSMISSIONS_BYTES = 512 * 2**20
"""Transmission functions of a specimen are kept up to this size, and made again for every chunk of waves above."""
_KEPT_CHUNKS, _KEPT_PROBES_BYTES = 8, 32 * 2**20
"""A few chunks of probes are kept, up to this size together: the next specimen mostly meets the same ones."""


class Propagation(Protocol):
    """A specimen and the optics, ready for waves."""

    def exit_waves(self, waves: torch.Tensor) -> torch.Tensor:
        """Waves (p, n, n) complex64 in real space to the Fourier transforms of the exit waves times the anti-alias
        aperture, (p, n, n) complex64, FFT order."""
        ...

    def probe_intensities(self, positions_angstrom: torch.Tensor) -> torch.Tensor:
        """|Ψ|² (p, n, n) float32, FFT order, of probes at positions (p, 2), (y, x) in Å."""
        ...


class TorchPropagation:
    """All waves of a chunk at once, on any device."""

    def __init__(self, slices: torch.Tensor, thickness_angstrom: float, setup: ImagingSetup) -> None:
        self._setup = setup
        self._transmissions = transmission(setup.optics, setup.grid, slices)
        self._kernel = _propagator(setup.optics, setup.grid, thickness_angstrom).to(slices.device)

    def exit_waves(self, waves: torch.Tensor) -> torch.Tensor:
        """See `Propagation`."""
        return diffraction_waves(waves.to(self._kernel.device), self._transmissions, self._kernel)

    def probe_intensities(self, positions_angstrom: torch.Tensor) -> torch.Tensor:
        """See `Propagation`."""
        waves = probes(self._setup.optics, self._setup.grid, positions_angstrom).to(self._kernel.device)
        return intensities_(waves, self._transmissions, self._kernel)


class FftwPropagation:
    """A few waves at a time, with FFTW."""

    def __init__(self, slices: torch.Tensor, thickness_angstrom: float, setup: ImagingSetup) -> None:
        self._optics, self._grid = setup.optics, setup.grid
        self._multislice = multislice_of(setup.grid.pixels)
        self._slices: NDArray[np.float32] = slices.numpy()
        self._interaction = interaction_parameter(setup.optics.energy_kev)
        self._aperture = _aperture(setup.grid)
        self._kernel = _propagator(setup.optics, setup.grid, thickness_angstrom)
        self._at_once = max(1, _KEPT_TRANSMISSIONS_BYTES // (8 * setup.grid.pixels**2))
        self._whole = self._transmissions(0) if len(slices) <= self._at_once else None

    def exit_waves(self, waves: torch.Tensor) -> torch.Tensor:
        """See `Propagation`."""
        return self._multislice.in_fft_order(self._exits(self._multislice.centred(waves)))

    def probe_intensities(self, positions_angstrom: torch.Tensor) -> torch.Tensor:
        """See `Propagation`."""
        place = self._optics, self._grid, positions_angstrom.numpy().tobytes()
        if _KEPT_CHUNKS * len(positions_angstrom) * 8 * self._grid.pixels**2 <= _KEPT_PROBES_BYTES:
            waves = _kept_probes(*place)
            exits = self._exits(waves if self._whole is not None else waves.copy())
        else:
            exits = self._exits(_probes(*place))
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


# A process makes one part of a set after the other, mostly with the same optics: the last two suffice.


@lru_cache(maxsize=2)
def _propagator(optics: Optics, grid: Grid, thickness_angstrom: float) -> torch.Tensor:
    return propagator(optics, grid, thickness_angstrom)


@lru_cache(maxsize=2)
def _probe_spectrum(optics: Optics, grid: Grid) -> Complex:
    return np.asarray(probe_spectrum(optics, grid).to(torch.complex64).numpy())


@lru_cache(maxsize=2)
def _aperture(grid: Grid) -> Complex:
    return np.asarray(grid.antialias().to(torch.complex64).numpy())


@lru_cache(maxsize=4)
def multislice_of(pixels: int) -> BandLimitedMultislice:
    """Plans and buffers of a grid, made once in a process."""
    return BandLimitedMultislice(pixels)


def _probes(optics: Optics, grid: Grid, positions: bytes) -> Complex:
    """Waves as `BandLimitedMultislice.centred` gives them, at positions (p, 2) float64 as bytes."""
    along_y, along_x = position_shifts(grid, torch.frombuffer(bytearray(positions), dtype=torch.float64).view(-1, 2))
    shifts = along_y.to(torch.complex64).numpy(), along_x.to(torch.complex64).numpy()
    return multislice_of(grid.pixels).shifted(_probe_spectrum(optics, grid), *shifts)


_kept_probes = lru_cache(maxsize=_KEPT_CHUNKS)(_probes)
