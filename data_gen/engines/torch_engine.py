"""Our engine: separable Fourier potentials and batched multislice in complex64."""

from __future__ import annotations

from functools import cached_property, lru_cache
from importlib.metadata import version

import torch

from data_gen.engines.base import ImagingSetup
from data_gen.engines.fftw import BandLimitedMultislice, Complex
from data_gen.potential import potential_slices
from data_gen.specimen import Specimen
from stemdl import __version__
from stemdl.physics.detector import to_detector
from stemdl.physics.multislice import intensities_, propagator, transmission
from stemdl.physics.probe import probes

_KEPT_PROBES_BYTES = 256 * 2**20
"""Probes of a whole scan are kept from specimen to specimen up to this size, and made again chunk by chunk above."""


class TorchEngine:
    """Multislice in chunks of probes on a GPU, or wave by wave on the CPU, where FFTW does the transforms.

    fftw: whether FFTW is used; left out, on the CPU alone. Raises ValueError where it is asked for elsewhere.
    """

    name = "torch"

    def __init__(self, device: str = "cpu", *, fftw: bool | None = None) -> None:
        self.device = torch.device(device)
        on_cpu = self.device.type == "cpu"
        if fftw and not on_cpu:
            raise ValueError(f"device {device!r}: FFTW works on the CPU alone")
        self._fftw = on_cpu if fftw is None else fftw

    @cached_property
    def _version(self) -> str:
        fft = f", pyFFTW {version('pyFFTW')}" if self._fftw else ""
        return f"stemdl {__version__}, torch {torch.__version__}{fft}"

    def version(self) -> str:
        """Version of this program, of torch, and of what does the Fourier transforms."""
        return self._version

    def slices(self, specimen: Specimen, setup: ImagingSetup) -> tuple[torch.Tensor, float]:
        """(s, n, n) float32 slices in V·Å and the thickness of one in Å."""
        return potential_slices(specimen, setup.grid, setup.slice_angstrom, setup.parametrization)

    @torch.no_grad()
    def patterns(self, slices: torch.Tensor, slice_thickness_angstrom: float, setup: ImagingSetup) -> torch.Tensor:
        """(sy, sx, qy, qx) float32 fractions of the incident beam; memory is bounded by `setup.probe_chunk`."""
        transmissions = transmission(setup.optics, setup.grid, slices.to(self.device))
        kernel = _propagator(setup, slice_thickness_angstrom).to(self.device)
        recorded = []
        for start in range(0, setup.scan_shape[0] * setup.scan_shape[1], setup.probe_chunk):
            if self._fftw:
                multislice = _multislice(setup.grid.pixels)
                intensity = multislice.intensities(_centred_probes(setup, start), transmissions, kernel)
            else:
                waves = _probes(setup, start).to(self.device, copy=True)
                intensity = intensities_(waves, transmissions, kernel)
            recorded.append(to_detector(intensity, setup.detector_pixels, setup.detector_binning).cpu())
        return torch.cat(recorded).reshape(*setup.scan_shape, *setup.detector_pixels)


@lru_cache(maxsize=8)
def _propagator(setup: ImagingSetup, thickness_angstrom: float) -> torch.Tensor:
    return propagator(setup.optics, setup.grid, thickness_angstrom)


@lru_cache(maxsize=4)
def _multislice(pixels: int) -> BandLimitedMultislice:
    return BandLimitedMultislice(pixels)


def _probes(setup: ImagingSetup, start: int) -> torch.Tensor:
    """(p, n, n) complex64 probe waves of one chunk of positions."""
    return probes(setup.optics, setup.grid, setup.positions()[start : start + setup.probe_chunk])


@lru_cache(maxsize=4)
def _kept_probes(setup: ImagingSetup) -> list[Complex]:
    count = setup.scan_shape[0] * setup.scan_shape[1]
    multislice = _multislice(setup.grid.pixels)
    return [multislice.centred(_probes(setup, start)) for start in range(0, count, setup.probe_chunk)]


def _centred_probes(setup: ImagingSetup, start: int) -> Complex:
    """One chunk of probe waves as FFTW's multislice takes them: the same for every specimen of a setup."""
    if setup.scan_shape[0] * setup.scan_shape[1] * setup.grid.pixels**2 * 8 > _KEPT_PROBES_BYTES:
        return _multislice(setup.grid.pixels).centred(_probes(setup, start))
    return _kept_probes(setup)[start // setup.probe_chunk]
