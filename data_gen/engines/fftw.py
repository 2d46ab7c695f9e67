"""The same multislice as `stemdl.physics.multislice.intensities_`, twice as fast on a CPU.

The anti-alias aperture leaves a third of the frequencies empty, so a 2-D transform need not touch them: rows are
transformed, then only the columns inside the band; they are multiplied by the propagator and go back the same way.
FFTW does each pass out of place and writes contiguously (its quick case), rows are padded so that no stride is a power
of two, and the working set of a wave stays in the processor's second-level cache. A few waves take turns, slice by
slice, so that a slice is read from memory once for all of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from data_gen.engines import fftw_plans

Complex = NDArray[np.complex64]
_VECTOR = 4  # complex64 numbers in a vector register: the band is a multiple of it, the padding is one
_TURNS = 4  # waves that share the reading of a slice


class BandLimitedMultislice:
    """Plans and buffers for waves of n x n points whose propagator is zero beyond 2/3 of the Nyquist frequency.

    effort: FFTW's planner flag; with the default, plans come from `fftw_plans` or follow from the sizes alone.
    Not safe for several threads at once: the buffers are shared.
    """

    def __init__(self, pixels: int, effort: str = "FFTW_ESTIMATE") -> None:
        import pyfftw  # type: ignore[import-untyped]  # takes half a second, and only a simulation on a CPU needs it

        if effort == "FFTW_ESTIMATE":
            fftw_plans.load()
        n = pixels
        reach = math.ceil(n / 3) - 1  # highest index strictly inside the aperture
        width = min(n, math.ceil((2 * reach + 1) / _VECTOR) * _VECTOR)
        band = slice(n // 2 - width // 2, n // 2 - width // 2 + width)  # the zero frequency stands in column n // 2
        self.pixels = n
        self._columns = (np.arange(n)[band] - n // 2) % n  # of the band, in FFT order
        self._ramp = np.exp(2j * np.pi * (np.arange(n) * (n // 2) % n) / n).astype(np.complex64)

        def empty(*shape: int) -> Complex:
            return np.asarray(pyfftw.zeros_aligned(shape, dtype="complex64"))

        def plan(source: Complex, target: Complex, axis: int, direction: str) -> Any:
            return pyfftw.FFTW(source, target, axes=(axis,), direction=direction, flags=(effort,), threads=1).execute

        self._waves = [empty(n, n) for _ in range(_TURNS)]  # y, x
        rows = empty(n, n + _VECTOR)[:, :n]  # y, kx
        self._padded_band = empty(width, n + _VECTOR)
        self._band = self._padded_band[:, :n]  # kx, ky
        columns = empty(n, n + _VECTOR)[:, :n]  # kx, y: zero outside the band for ever
        self._rows_forward = [plan(wave, rows, 1, "FFTW_FORWARD") for wave in self._waves]
        self._columns_forward = plan(rows[:, band], self._band.T, 0, "FFTW_FORWARD")
        self._columns_back = plan(self._band, columns[band], 1, "FFTW_BACKWARD")
        self._rows_back = [plan(columns.T, wave, 1, "FFTW_BACKWARD") for wave in self._waves]

    def centred(self, waves: torch.Tensor) -> Complex:
        """(p, n, n) waves times the phase ramp that moves the zero frequency along x to column n // 2.

        The ramp stays on a wave through all slices, so the band is one block of columns throughout.
        """
        return np.asarray(waves.numpy() * self._ramp)

    def shifted(self, spectrum: Complex, shifts_y: Complex, shifts_x: Complex) -> Complex:
        """(p, n, n) waves as `centred` gives them, from a spectrum (n, n) within the band, FFT order, times
        shifts_y[p, ky] shifts_x[p, kx]."""
        band = spectrum.T[self._columns] / np.float32(self.pixels**2)
        waves = np.empty((len(shifts_y), self.pixels, self.pixels), np.complex64)
        for wave, shift_y, shift_x in zip(waves, shifts_y, shifts_x[:, self._columns], strict=True):
            np.multiply(band, shift_x[:, None], out=self._band)
            np.multiply(self._band, shift_y, out=self._band)
            self._columns_back()
            self._rows_back[0]()
            wave[...] = self._waves[0]
        return waves

    def transforms_alone(self, slices: int, waves: int) -> None:
        """The Fourier transforms of `exit_bands` and nothing else, to see what share of its time they take."""
        for _ in range(waves):
            for _ in range(slices - 1):
                self._rows_forward[0]()
                self._columns_forward()
                self._columns_back()
                self._rows_back[0]()
            self._rows_forward[0]()
            self._columns_forward()

    def transmissions(self, slices_v_angstrom: NDArray[np.float32], interaction: float, aperture: Complex) -> Complex:
        """(s, n, n) exp(iσV), band-limited: what `stemdl.physics.multislice.transmission` gives.

        interaction: σ in rad/(V·Å); aperture: (n, n) anti-alias aperture, FFT order.
        """
        step = self._padded(aperture)
        back = self._ramp.conj()
        wave = self._waves[0]
        smooth = np.empty(slices_v_angstrom.shape, np.complex64)
        phase = np.empty((2, self.pixels, self.pixels), np.float32)
        for potential, target in zip(slices_v_angstrom, smooth, strict=True):
            np.multiply(potential, np.float32(interaction), out=phase[0])
            np.sin(phase[0], out=phase[1])
            np.cos(phase[0], out=phase[0])
            wave.real, wave.imag = phase
            np.multiply(wave, self._ramp, out=wave)
            self._to_next(0, step)
            np.multiply(wave, back, out=target)
        return smooth

    def exit_bands(self, waves: Complex, slabs: Iterable[tuple[Complex, bool]], kernel: torch.Tensor) -> Complex:
        """(p, kx, ky) Fourier transforms of the exit waves within the band, kx in the order of `columns`.

        waves: (p, n, n) from `centred`, overwritten where there is more than one slab; slabs: transmission functions
        (s, n, n) of consecutive slices, and whether they are the last; kernel: (n, n) from
        `stemdl.physics.multislice.propagator`.
        """
        step = self._padded(kernel.numpy())
        exits = np.empty((len(waves), *self._band.shape), np.complex64)
        for slab, last in slabs:
            *inner, final = slab
            for first in range(0, len(waves), _TURNS):
                taking_part = range(min(_TURNS, len(waves) - first))
                for turn in taking_part:
                    self._waves[turn][...] = waves[first + turn]
                for slice_ in inner:
                    for turn in taking_part:
                        np.multiply(self._waves[turn], slice_, out=self._waves[turn])
                        self._to_next(turn, step)
                for turn in taking_part:
                    np.multiply(self._waves[turn], final, out=self._waves[turn])
                    if last:
                        self._rows_forward[turn]()
                        self._columns_forward()
                        exits[first + turn] = self._band
                    else:
                        self._to_next(turn, step)
                        waves[first + turn] = self._waves[turn]
        exits *= kernel.numpy().T[self._columns]
        return exits

    def in_fft_order(self, bands: NDArray[Any]) -> torch.Tensor:
        """(p, n, n) of what was computed from `exit_bands` (p, kx, ky): y rows, FFT order, zero outside the band."""
        values = torch.from_numpy(bands)
        whole = values.new_zeros(len(bands), self.pixels, self.pixels)
        whole[:, :, torch.from_numpy(self._columns)] = values.mT
        return whole

    def _padded(self, kernel: NDArray[Any]) -> Complex:
        """What the band is multiplied by between the transforms: FFTW's inverse does not divide by their number."""
        step = np.zeros_like(self._padded_band)
        step[:, : self.pixels] = kernel.T[self._columns] / self.pixels**2
        return step

    def _to_next(self, turn: int, step: Complex) -> None:
        """One wave forward, times the step, and back."""
        self._rows_forward[turn]()
        self._columns_forward()
        np.multiply(self._padded_band, step, out=self._padded_band)
        self._columns_back()
        self._rows_back[turn]()
