"""abTEM as its own documentation uses it, to measure against: no engine of ours, and none of our settings.

The recipe is that of its 4D-STEM quickstart and walkthroughs (abtem.github.io/doc): a `Potential` of atoms, a `Probe`
matched to it, a `GridScan`, a `PixelatedDetector`, ``probe.scan(...)`` and ``compute()``; lazy, infinite projection,
measured FFTW plans, chunks of 128 MB, as abTEM comes. Specimen, grid, slices, optics, positions and table of scattering
factors are those of our engines.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from data_gen.engines.base import ImagingSetup
from data_gen.potential import slice_count
from data_gen.specimen import Specimen


class AbtemRecipe:
    """Patterns by abTEM's recipe. Importing abTEM takes seconds, so it happens here.

    one_thread: dask's synchronous scheduler in place of the threads that it takes by itself.
    """

    def __init__(self, *, one_thread: bool) -> None:
        import abtem

        abtem.config.set({"device": "cpu", "fft": "fftw", "diagnostics.progress_bar": False})
        if one_thread:
            abtem.integrals._INTERPOLATION_BUFFER_BUDGET = 0  # otherwise a thread per core of the machine
        self._abtem: Any = abtem
        self._scheduler = {"scheduler": "synchronous"} if one_thread else {}

    def version(self) -> str:
        """Version of abTEM, and what is measured."""
        return f"abTEM {self._abtem.__version__}, its documentation's recipe"

    def measurement(self, specimen: Specimen, setup: ImagingSetup) -> Any:
        """abTEM's diffraction patterns (x, y, kx, ky) over the raster; scan offsets are not part of the recipe."""
        from ase import Atoms

        abtem, optics = self._abtem, setup.optics
        thickness = specimen.box_angstrom[2]
        atoms = Atoms(
            numbers=specimen.numbers, positions=specimen.positions_angstrom, cell=specimen.box_angstrom, pbc=True
        )
        potential = abtem.Potential(
            atoms,
            gpts=setup.grid.pixels,
            slice_thickness=thickness / slice_count(thickness, setup.slice_angstrom),
            parametrization=setup.parametrization,
        )
        probe = abtem.Probe(
            energy=optics.energy_kev * 1e3,
            semiangle_cutoff=optics.semiangle_mrad,
            defocus=optics.defocus_angstrom,
            Cs=optics.c3_angstrom,
            C12=optics.astigmatism_angstrom,
            phi12=optics.astigmatism_azimuth_rad,
        )
        probe.grid.match(potential)
        corners = setup.positions()[[0, -1]].flip(1).tolist()  # abTEM takes (x, y)
        scan = abtem.GridScan(start=corners[0], end=corners[1], gpts=setup.scan_shape[::-1], endpoint=True)
        measured = probe.scan(potential=potential, scan=scan, detectors=abtem.PixelatedDetector(max_angle="cutoff"))
        return measured.compute(progress_bar=False, **self._scheduler)

    def patterns(self, specimen: Specimen, setup: ImagingSetup) -> torch.Tensor:
        """The same on our detector, (sy, sx, qy, qx) float32; of one point of the reciprocal grid per pixel.

        Raises ValueError where the detector bins, or is wider than what abTEM records.
        """
        if setup.detector_binning != 1:
            raise ValueError(f"detector_binning is {setup.detector_binning}; patterns of the recipe are not binned")
        array = np.asarray(self.measurement(specimen, setup).array).transpose(1, 0, 3, 2)
        rows, columns = setup.detector_pixels
        if rows > array.shape[2] or columns > array.shape[3]:
            raise ValueError(f"detector of {rows} x {columns} pixels, but abTEM records {array.shape[2:]}")
        first = array.shape[2] // 2 - rows // 2, array.shape[3] // 2 - columns // 2
        cut = array[:, :, first[0] : first[0] + rows, first[1] : first[1] + columns]
        return torch.from_numpy(np.ascontiguousarray(cut, dtype=np.float32))
