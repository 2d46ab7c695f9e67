"""From a specimen at rest to what reaches the detector: frozen phonons, scan noise and finite source around an engine.

What the detector makes of it is not here: blur, dose, dead and hot pixels, saturation and gain are applied when samples
are loaded, so that one simulated set serves many detectors.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from data_gen.engines.base import Engine, ImagingSetup
from data_gen.specimen import Specimen, displaced
from stemdl.config import Config
from stemdl.config.simulation import Sampling
from stemdl.errors import UserError
from stemdl.physics.detector import finite_source
from stemdl.physics.grid import Grid
from stemdl.physics.probe import Optics

_WHOLE_TOLERANCE = 1e-6


class GridMismatch(UserError):
    """Box, pixels and detector of a configuration do not fit together."""


def setup_for(
    config: Config, sampling: Sampling, scan_offsets_angstrom: tuple[tuple[float, float], ...] = ()
) -> ImagingSetup:
    """What an engine needs to know of a configuration, for the training set's sampling or the test's.

    scan_offsets_angstrom: what is added (y, x) to each position of the raster in Å; empty for none. Raises GridMismatch
    where the box is not a whole number of pixels, or a detector pixel not a whole number of steps 1/box of the
    reciprocal grid.
    """
    box = config.specimen.box_angstrom
    try:
        grid = Grid.from_pixel(box, sampling.pixel_angstrom)
    except ValueError as error:
        raise GridMismatch(f"pixel_angstrom: {error}; `stemdl validate` names pixels that fit") from error
    return ImagingSetup(
        optics=optics_of(config),
        grid=grid,
        scan_shape=config.scan.positions,
        scan_step_angstrom=config.scan.step_angstrom,
        detector_pixels=config.detector.pixels,
        detector_binning=_binning(config.detector.dk_per_angstrom, box),
        slice_angstrom=sampling.slice_angstrom,
        parametrization=config.simulation.parametrization,
        probe_chunk=config.simulation.probe_chunk,
        algorithm=config.simulation.algorithm,
        prism_interpolation=config.simulation.prism_interpolation,
        scan_offsets_angstrom=scan_offsets_angstrom,
    )


def optics_of(config: Config) -> Optics:
    """The probe-forming optics of a configuration."""
    scope = config.microscope
    return Optics(
        energy_kev=scope.energy_kev,
        semiangle_mrad=scope.semiangle_mrad,
        defocus_angstrom=scope.defocus_angstrom,
        c3_angstrom=scope.c3_angstrom,
        astigmatism_angstrom=scope.astigmatism_angstrom,
        astigmatism_azimuth_rad=scope.astigmatism_azimuth_rad,
    )


def image(
    engine: Engine,
    specimen_at_rest: Specimen,
    setup: ImagingSetup,
    config: Config,
    sampling: Sampling,
    seeds: Sequence[Sequence[int]],
) -> NDArray[np.float32]:
    """Patterns of one field, averaged over displaced configurations of the atoms.

    seeds: one for each of `sampling.frozen_phonons` configurations, integers as for ``specimen.displaced``. Returns
    (sy, sx, qy, qx) float32, fractions of the incident beam. The order of averaging, source and detector does not
    matter, all three being linear in the intensities (Loane, Xu and Silcox, Acta Cryst. A47, 267, 1991). The source is
    a Gaussian over neighbouring positions of the raster, wherever scan noise has put them.
    Raises ValueError where the number of seeds is another than that of configurations.
    """
    if len(seeds) != sampling.frozen_phonons:
        raise ValueError(f"{len(seeds)} seeds for {sampling.frozen_phonons} frozen-phonon configurations")
    sigma = config.specimen.displacement_sigma_angstrom
    total: torch.Tensor | None = None
    for seed in seeds:
        slices, slice_thickness = engine.slices(displaced(specimen_at_rest, sigma, seed), setup)
        patterns = engine.patterns(slices, slice_thickness, setup)
        total = patterns if total is None else total.add_(patterns)
    assert total is not None
    mean = total / len(seeds)
    source = config.microscope.source_sigma_angstrom / setup.scan_step_angstrom
    return np.asarray(finite_source(mean, (source, source)).numpy(), dtype=np.float32)


def _binning(dk_per_angstrom: float, box_angstrom: float) -> int:
    steps = dk_per_angstrom * box_angstrom
    binning = round(steps)
    if binning < 1 or abs(steps - binning) > _WHOLE_TOLERANCE * max(1, binning):
        below = max(1, int(steps))
        raise GridMismatch(
            f"detector.dk_per_angstrom: {dk_per_angstrom:.10g} 1/Å is {steps:.8g} steps of the reciprocal grid of a box"
            f" of {box_angstrom:g} Å; a whole number is needed, such as {below / box_angstrom:.16g} ({below}) or"
            f" {(below + 1) / box_angstrom:.16g} ({below + 1})"
        )
    return binning
