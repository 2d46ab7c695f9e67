"""One item of the work list: crystal to specimen to patterns and potential, with all it takes to make it again."""

from __future__ import annotations

import numpy as np

from data_gen.engines import Engine
from data_gen.imaging import image, setup_for
from data_gen.potential import projected_target
from data_gen.specimen import cut_specimen, displaced
from data_gen.worklist import Part, draw_thickness
from stemdl.config import Config
from stemdl.shards import Sample, ShardAxes


def axes_of(config: Config) -> ShardAxes:
    """The steps of the axes of every sample of a configuration."""
    return ShardAxes(
        scan_step_angstrom=config.scan.step_angstrom,
        dk_per_angstrom=config.detector.dk_per_angstrom,
        potential_pixel_angstrom=config.target.pixel_angstrom,
    )


def make_sample(config: Config, part: Part, item: int, engine: Engine) -> Sample:
    """Simulate item number `item` of a part; the result depends on the configuration and the item alone.

    The potential is that of the first displaced configuration when there is one, and of the mean of all of them
    otherwise: what is averaged in the patterns is averaged in the potential.
    """
    crystal = part.crystal_of(item)
    thickness = draw_thickness(config, part, item)
    box = config.specimen.box_angstrom
    specimen_seed = (config.run.seed, int(part.specimen_purpose), item)
    at_rest = cut_specimen(
        crystal,
        (box, box, thickness),
        zone_axes=config.specimen.zone_axes,
        tilt_mrad=config.specimen.tilt_mrad,
        displacement_sigma_angstrom=0.0,
        rng_seed=specimen_seed,
    )
    sigma = config.specimen.displacement_sigma_angstrom
    seeds = [(config.run.seed, int(part.phonon_purpose), item, n) for n in range(part.sampling.frozen_phonons)]
    patterns = image(engine, at_rest, setup_for(config, part.sampling), config, part.sampling, seeds)
    potentials = [
        projected_target(
            displaced(at_rest, sigma, seed),
            field_angstrom=config.scan.field_angstrom,
            pixel_angstrom=config.target.pixel_angstrom,
            blur_sigma_angstrom=config.target.blur_sigma_angstrom,
            parametrization=config.simulation.parametrization,
        ).numpy()
        for seed in seeds
    ]
    return Sample(
        item=item,
        amplitude=np.sqrt(patterns).astype(np.float16),
        potential=np.mean(potentials, axis=0, dtype=np.float64).astype(np.float32),
        parameters=_parameters(config, thickness),
        provenance={
            "crystal": crystal.name,
            "formula": crystal.formula,
            "prototype": crystal.prototype,
            "source": crystal.source,
            "part": part.name,
            "specimen": at_rest.provenance,
            "phonon_seeds": [list(seed) for seed in seeds],
            "engine": engine.version(),
            "parametrization": config.simulation.parametrization,
            "grid_pixel_angstrom": part.sampling.pixel_angstrom,
            "slice_angstrom": part.sampling.slice_angstrom,
        },
    )


def _parameters(config: Config, thickness_angstrom: float) -> dict[str, float]:
    microscope = config.microscope
    return {
        "thickness_angstrom": thickness_angstrom,
        "energy_kev": microscope.energy_kev,
        "semiangle_mrad": microscope.semiangle_mrad,
        "defocus_angstrom": microscope.defocus_angstrom,
        "c3_angstrom": microscope.c3_angstrom,
        "astigmatism_angstrom": microscope.astigmatism_angstrom,
        "astigmatism_azimuth_rad": microscope.astigmatism_azimuth_rad,
        "source_sigma_angstrom": microscope.source_sigma_angstrom,
        "displacement_sigma_angstrom": config.specimen.displacement_sigma_angstrom,
        "tilt_mrad": config.specimen.tilt_mrad,
    }
