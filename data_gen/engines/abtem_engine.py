"""The reference engine: abTEM, eager, on FFTW with cheap plans and one thread per process."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from data_gen.engines.base import ImagingSetup
from data_gen.potential import slice_count
from data_gen.specimen import Specimen
from stemdl.physics.detector import to_detector


class AbtemEngine:
    """Multislice by abTEM, with finite projection integrals. Importing abTEM takes seconds, so it happens here."""

    name = "abtem"

    def __init__(self, projection: str = "finite") -> None:
        import abtem

        abtem.config.set(
            {"fft": "fftw", "fftw.threads": 1, "fftw.planning_effort": "FFTW_ESTIMATE", "precision": "float32"}
        )
        # abTEM deals the atoms of a slice to a thread per core of the machine and offers no switch: with a process per
        # core that is cores² threads, and the order of its sums, so the last bits, depends on the machine. With no room
        # for the threads' buffers it uses the caller's thread alone.
        abtem.integrals._INTERPOLATION_BUFFER_BUDGET = 0
        self._abtem: Any = abtem
        self._projection = projection
        self._integrators: dict[str, Any] = {}

    def version(self) -> str:
        """Version of abTEM and the projection in use."""
        return f"abTEM {self._abtem.__version__}, {self._projection} projection"

    def _integrator(self, parametrization: str) -> Any:
        """One integrator for all specimens: it keeps the integral tables of each element."""
        if parametrization not in self._integrators:
            integrals = self._abtem.integrals
            kind = (
                integrals.QuadratureProjectionIntegrals
                if self._projection == "finite"
                else integrals.ScatteringFactorProjectionIntegrals
            )
            self._integrators[parametrization] = kind(parametrization=parametrization)
        return self._integrators[parametrization]

    def slices(self, specimen: Specimen, setup: ImagingSetup) -> tuple[torch.Tensor, float]:
        """(s, n, n) float32 slices in V·Å and the thickness of one in Å."""
        from ase import Atoms

        thickness = specimen.box_angstrom[2]
        count = slice_count(thickness, setup.slice_angstrom)
        atoms = Atoms(
            numbers=specimen.numbers, positions=specimen.positions_angstrom, cell=specimen.box_angstrom, pbc=True
        )
        potential = self._abtem.Potential(
            atoms,
            gpts=setup.grid.pixels,
            slice_thickness=thickness / count,
            projection=self._projection,
            integrator=self._integrator(setup.parametrization),
        ).build(lazy=False)
        array = np.ascontiguousarray(potential.array.transpose(0, 2, 1))  # abTEM is (slice, x, y)
        if array.shape[0] != count:
            raise RuntimeError(f"abTEM made {array.shape[0]} slices where {count} were asked for")
        return torch.from_numpy(array), thickness / count

    def patterns(self, slices: torch.Tensor, slice_thickness_angstrom: float, setup: ImagingSetup) -> torch.Tensor:
        """(sy, sx, qy, qx) float32 fractions of the incident beam."""
        abtem = self._abtem
        optics = setup.optics
        potential = abtem.PotentialArray(
            np.ascontiguousarray(slices.numpy().transpose(0, 2, 1)),
            slice_thickness=slice_thickness_angstrom,
            extent=setup.grid.box_angstrom,
        )
        probe = abtem.Probe(
            energy=optics.energy_kev * 1e3,
            semiangle_cutoff=optics.semiangle_mrad,
            C10=-optics.defocus_angstrom,
            C30=optics.c3_angstrom,
            C12=optics.astigmatism_angstrom,
            phi12=optics.astigmatism_azimuth_rad,
        )
        probe.grid.match(potential)
        positions = setup.positions().numpy()[:, ::-1]  # abTEM takes (x, y)
        waves = probe.multislice(potential, scan=abtem.CustomScan(positions.copy()), lazy=False)
        spectrum = np.fft.fft2(waves.array)
        # abTEM's real-space waves carry Σ|FFT|² = 1; its array is (position, x, y).
        intensity = torch.from_numpy((np.abs(spectrum) ** 2).astype(np.float32).transpose(0, 2, 1).copy())
        binned = to_detector(intensity, setup.detector_pixels, setup.detector_binning)
        return binned.reshape(*setup.scan_shape, *setup.detector_pixels)
