"""Our engine: separable Fourier potentials, multislice and PRISM in complex64."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from importlib.metadata import version

import torch

from data_gen.engines import fftw_plans
from data_gen.engines.base import ImagingSetup
from data_gen.engines.cost_model import chosen_algorithm
from data_gen.engines.prism import prism_patterns
from data_gen.engines.propagation import FftwPropagation, Propagation, TorchPropagation
from data_gen.potential import potential_slices
from data_gen.specimen import Specimen
from stemdl import __version__
from stemdl.physics.detector import to_detector


class TorchEngine:
    """Patterns in chunks of waves on a GPU, or a few waves at a time on the CPU, where FFTW does the transforms.

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
        if self._fftw and not fftw_plans.load():
            fft += " with estimated plans"
        return f"stemdl {__version__}, torch {torch.__version__}{fft}"

    def version(self) -> str:
        """Version of this program, of torch, and of what does the Fourier transforms."""
        return self._version

    def slices(self, specimen: Specimen, setup: ImagingSetup) -> tuple[torch.Tensor, float]:
        """(s, n, n) float32 slices in V·Å and the thickness of one in Å."""
        return potential_slices(specimen, setup.grid, setup.slice_angstrom, setup.parametrization, self.device)

    @torch.no_grad()
    def patterns(self, slices: torch.Tensor, slice_thickness_angstrom: float, setup: ImagingSetup) -> torch.Tensor:
        """(sy, sx, qy, qx) float32 fractions of the incident beam, by `setup.algorithm`.

        Multislice holds `setup.probe_chunk` waves at a time; PRISM the exit waves of all beams, see `prism_patterns`.
        Raises UserError where the algorithm is unknown or PRISM's interpolation does not divide the grid.
        """
        propagation: Propagation
        if self._fftw:
            propagation = FftwPropagation(slices, slice_thickness_angstrom, setup)
        else:
            propagation = TorchPropagation(slices.to(self.device), slice_thickness_angstrom, setup)
        if chosen_algorithm(setup, len(slices)) == "prism":
            exact = setup if setup.algorithm == "prism" else replace(setup, prism_interpolation=1)
            return prism_patterns(propagation, exact)
        recorded = []
        for positions in torch.split(setup.positions(), setup.probe_chunk):
            intensity = propagation.probe_intensities(positions)
            recorded.append(to_detector(intensity, setup.detector_pixels, setup.detector_binning).cpu())
        return torch.cat(recorded).reshape(*setup.scan_shape, *setup.detector_pixels)
