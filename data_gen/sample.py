"""One item of the work list: crystal to specimen to patterns and potential, with all it takes to make it again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data_gen.engines import Engine
from data_gen.imaging import image, setup_for
from data_gen.materials import BadCrystal, Crystal
from data_gen.potential import projected_target
from data_gen.specimen import Specimen, cut_specimen, displaced, remake
from data_gen.worklist import Part, draw_thickness
from stemdl.config import Config
from stemdl.config.simulation import Sampling
from stemdl.shards import Sample, ShardAxes

MOST_DRAWS = 64
"""Orientations and origins that are tried before an item is given up: nine tenths of vacuum miss them all once in
a thousand times."""


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

    Raises BadCrystal where no draw puts an atom into the field (a slab in far more vacuum than the box is wide), or
    the box would hold too many.
    """
    crystal = part.crystal_of(item)
    at_rest, draws = draw_specimen(config, part, item)
    seeds = [(config.run.seed, int(part.phonon_purpose), item, n) for n in range(part.sampling.frozen_phonons)]
    amplitude, potential = _simulated(config, part.sampling, at_rest, seeds, engine)
    return Sample(
        item=item,
        amplitude=amplitude,
        potential=potential,
        parameters=_parameters(config, at_rest.box_angstrom[2]),
        provenance={
            "crystal": crystal.name,
            "formula": crystal.formula,
            "prototype": crystal.prototype,
            "source": crystal.source,
            "part": part.name,
            "specimen": at_rest.provenance,
            "draws": draws,
            "phonon_seeds": [list(seed) for seed in seeds],
            "engine": engine.version(),
            "parametrization": config.simulation.parametrization,
            "grid_pixel_angstrom": part.sampling.pixel_angstrom,
            "slice_angstrom": part.sampling.slice_angstrom,
        },
    )


def draw_specimen(config: Config, part: Part, item: int) -> tuple[Specimen, int]:
    """The specimen at rest of an item, and the number of draws it took.

    Layers far apart leave boxes and fields without any atom, whose potential is nothing to learn from or to compare
    with: orientation and origin are then drawn again, from the next child of the item's seed. Raises as `make_sample`.
    """
    crystal, box = part.crystal_of(item), config.specimen.box_angstrom
    thickness = draw_thickness(config, part, item)
    last: BadCrystal | None = None
    for draw in range(MOST_DRAWS):
        seed = (config.run.seed, int(part.specimen_purpose), item)
        try:
            specimen = cut_specimen(
                crystal,
                (box, box, thickness),
                zone_axes=config.specimen.zone_axes,
                tilt_mrad=config.specimen.tilt_mrad,
                displacement_sigma_angstrom=0.0,
                rng_seed=seed if draw == 0 else (*seed, draw),
            )
        except BadCrystal as error:
            last = error
            continue
        if _atoms_in_field(specimen, config):
            return specimen, draw + 1
        rows, columns = config.scan.field_angstrom
        last = BadCrystal(crystal.name, f"no atom lies in the field of {rows:g} x {columns:g} Å")
    assert last is not None
    raise BadCrystal(crystal.name, f"{last.reason}, in none of {MOST_DRAWS} draws of orientation and origin")


def _atoms_in_field(specimen: Specimen, config: Config) -> bool:
    from_middle = np.abs(specimen.positions_angstrom[:, 1::-1] - config.specimen.box_angstrom / 2)  # y, x
    return bool((from_middle <= np.array(config.scan.field_angstrom) / 2).all(axis=1).any())


def remake_sample(config: Config, crystal: Crystal, sample: Sample, engine: Engine) -> Sample:
    """The sample once more from its provenance, bit for bit on the same kind of machine with the same versions.

    config: that of the run; crystal: the one that the provenance names. With another number of threads the last bits
    may differ; the simulation uses one. Raises BadCrystal where the crystal is another than the one recorded.
    """
    record: Mapping[str, Any] = sample.provenance
    sampling: Sampling = config.simulation if record["part"] == "train" else config.held_out
    at_rest = remake(crystal, record["specimen"])
    amplitude, potential = _simulated(config, sampling, at_rest, record["phonon_seeds"], engine)
    return Sample(sample.item, amplitude, potential, _parameters(config, at_rest.box_angstrom[2]), dict(record))


def _simulated(
    config: Config, sampling: Sampling, at_rest: Specimen, seeds: Sequence[Sequence[int]], engine: Engine
) -> tuple[NDArray[np.float16], NDArray[np.float32]]:
    """Amplitudes (sy, sx, qy, qx) and the projected potential (y, x) in V·Å."""
    sigma = config.specimen.displacement_sigma_angstrom
    patterns = image(engine, at_rest, setup_for(config, sampling), config, sampling, seeds)
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
    mean = np.stack(potentials).mean(axis=0, dtype=np.float64)
    return np.sqrt(patterns).astype(np.float16), np.asarray(mean, dtype=np.float32)


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
