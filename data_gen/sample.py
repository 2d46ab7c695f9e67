"""One item of the work list: crystal to specimen to patterns and potential, with all it takes to make it again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data_gen.draws import ScanNoise, draw_parameters, scan_noise
from data_gen.engines import Engine, ImagingSetup
from data_gen.imaging import image, setup_for
from data_gen.materials import BadCrystal, Crystal
from data_gen.potential import projected_target
from data_gen.specimen import Specimen, cut_specimen, displaced, remake
from data_gen.worklist import Part, draw_thickness
from stemdl.config import Config
from stemdl.config.base import Section
from stemdl.config.simulation import Sampling
from stemdl.config.substitute import with_values
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

    Whatever `vary` draws, the target is the field of the nominal scan, in the middle of the box. The potential is that
    of the displaced configuration where there is one, and the mean of all of them otherwise: what is averaged in the
    patterns is averaged in the potential.

    Raises BadCrystal where no draw puts an atom into the field (a slab in far more vacuum than the box is wide), or
    the box would hold too many.
    """
    crystal = part.crystal_of(item)
    drawn = draw_parameters(config, part, item)
    own = with_values(config, drawn)
    if part.name == "held_out":  # the test is exact, whatever the training set may approximate
        own = own.model_copy(update={"simulation": own.simulation.model_copy(update={"prism_interpolation": 1})})
    at_rest, draws = draw_specimen(config, part, item)
    seeds = [(config.run.seed, int(part.phonon_purpose), item, n) for n in range(part.sampling.frozen_phonons)]
    noise_seed = (config.run.seed, int(part.scan_noise_purpose), item)
    noise = scan_noise(own.scan, noise_seed)
    setup = setup_for(own, part.sampling, noise.offsets_angstrom)
    field = config.scan.field_angstrom
    amplitude, potential = _simulated(own, part.sampling, field, at_rest, seeds, setup, engine)
    return Sample(
        item=item,
        amplitude=amplitude,
        potential=potential,
        parameters=_parameters(own, at_rest.box_angstrom[2], noise, drawn["dose_quantile"]),
        provenance={
            "crystal": crystal.name,
            "formula": crystal.formula,
            "prototype": crystal.prototype,
            "source": crystal.source,
            "part": part.name,
            "specimen": at_rest.provenance,
            "draws": draws,
            "phonon_seeds": [list(seed) for seed in seeds],
            "scan_noise_seed": list(noise_seed),
            "engine": engine.version(),
            "algorithm": own.simulation.algorithm,
            "prism_interpolation": own.simulation.prism_interpolation,
            "parametrization": own.simulation.parametrization,
            "grid_pixel_angstrom": part.sampling.pixel_angstrom,
            "slice_angstrom": part.sampling.slice_angstrom,
            "dk_per_angstrom": own.detector.dk_per_angstrom,
            "field_angstrom": list(field),
            "target_pixel_angstrom": own.target.pixel_angstrom,
            "target_blur_sigma_angstrom": own.target.blur_sigma_angstrom,
        },
    )


def draw_specimen(config: Config, part: Part, item: int) -> tuple[Specimen, int]:
    """The specimen at rest of an item, and the number of draws it took.

    Layers far apart leave boxes and fields without any atom, whose potential is nothing to learn from or to compare
    with: orientation and origin are then drawn again, from the next child of the item's seed. Raises as `make_sample`.
    """
    crystal, box = part.crystal_of(item), config.specimen.box_angstrom
    thickness = draw_thickness(config, part, item)
    tilt = with_values(config, draw_parameters(config, part, item)).specimen.tilt_mrad
    last: BadCrystal | None = None
    for draw in range(MOST_DRAWS):
        seed = (config.run.seed, int(part.specimen_purpose), item)
        try:
            specimen = cut_specimen(
                crystal,
                (box, box, thickness),
                zone_axes=config.specimen.zone_axes,
                tilt_mrad=tilt,
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
    """The sample once more from its parameters and provenance, bit for bit on the same kind of machine with the same
    versions.

    Of the configuration only what cannot change a sample is read, such as the number of probes at once; crystal: the
    one that the provenance names. With another number of threads the last bits may differ; the simulation uses one.
    Raises BadCrystal where the crystal is another than the one recorded, KeyError where an older record lacks an entry.
    """
    record: Mapping[str, Any] = sample.provenance
    own, sampling = _recorded(config, sample)
    at_rest = remake(crystal, record["specimen"])
    noise = scan_noise(own.scan, record["scan_noise_seed"])
    setup = setup_for(own, sampling, noise.offsets_angstrom)
    rows, columns = record["field_angstrom"]
    amplitude, potential = _simulated(own, sampling, (rows, columns), at_rest, record["phonon_seeds"], setup, engine)
    parameters = _parameters(own, at_rest.box_angstrom[2], noise, sample.parameters["dose_quantile"])
    return Sample(sample.item, amplitude, potential, parameters, dict(record))


def _recorded(config: Config, sample: Sample) -> tuple[Config, Sampling]:
    """The configuration and the sampling that a sample was made with, as far as its simulation reads them."""
    record: Mapping[str, Any] = sample.provenance
    own = with_values(config, sample.parameters)
    rows, columns, *pixels = sample.amplitude.shape
    detector = {"pixels": tuple(pixels), "dk_per_angstrom": record["dk_per_angstrom"]}
    program = {name: record[name] for name in ("algorithm", "prism_interpolation", "parametrization")}
    target = {
        "pixel_angstrom": record["target_pixel_angstrom"],
        "blur_sigma_angstrom": record["target_blur_sigma_angstrom"],
    }
    changed: dict[str, Mapping[str, object]] = {
        "specimen": {"box_angstrom": record["specimen"]["box_angstrom"][0]},
        "scan": {"positions": (rows, columns)},
        "detector": detector,
        "simulation": program,
        "target": target,
    }
    update: dict[str, Section] = {
        name: getattr(own, name).model_copy(update=values) for name, values in changed.items()
    }
    sampling = Sampling(
        pixel_angstrom=record["grid_pixel_angstrom"],
        slice_angstrom=record["slice_angstrom"],
        frozen_phonons=len(record["phonon_seeds"]),
    )
    return own.model_copy(update=update), sampling


def _simulated(
    own: Config,
    sampling: Sampling,
    field_angstrom: tuple[float, float],
    at_rest: Specimen,
    seeds: Sequence[Sequence[int]],
    setup: ImagingSetup,
    engine: Engine,
) -> tuple[NDArray[np.float16], NDArray[np.float32]]:
    """Amplitudes (sy, sx, qy, qx) and the projected potential (y, x) in V·Å, with the sample's own values."""
    sigma = own.specimen.displacement_sigma_angstrom
    patterns = image(engine, at_rest, setup, own, sampling, seeds)
    potentials = [
        projected_target(
            displaced(at_rest, sigma, seed),
            field_angstrom=field_angstrom,
            pixel_angstrom=own.target.pixel_angstrom,
            blur_sigma_angstrom=own.target.blur_sigma_angstrom,
            parametrization=own.simulation.parametrization,
        ).numpy()
        for seed in seeds
    ]
    mean = np.stack(potentials).mean(axis=0, dtype=np.float64)
    return np.sqrt(patterns).astype(np.float16), np.asarray(mean, dtype=np.float32)


def _parameters(own: Config, thickness_angstrom: float, noise: ScanNoise, dose_quantile: float) -> dict[str, float]:
    """What varies from sample to sample, or may; whether it is drawn or not, under the same names."""
    microscope, scan = own.microscope, own.scan
    return {
        "thickness_angstrom": thickness_angstrom,
        "energy_kev": microscope.energy_kev,
        "semiangle_mrad": microscope.semiangle_mrad,
        "defocus_angstrom": microscope.defocus_angstrom,
        "c3_angstrom": microscope.c3_angstrom,
        "astigmatism_angstrom": microscope.astigmatism_angstrom,
        "astigmatism_azimuth_rad": microscope.astigmatism_azimuth_rad,
        "source_sigma_angstrom": microscope.source_sigma_angstrom,
        "scan_step_angstrom": scan.step_angstrom,
        "jitter_sigma_angstrom": scan.jitter_sigma_angstrom,
        "drift_angstrom": scan.drift_angstrom,
        "drift_azimuth_rad": noise.drift_azimuth_rad,
        "displacement_sigma_angstrom": own.specimen.displacement_sigma_angstrom,
        "tilt_mrad": own.specimen.tilt_mrad,
        "dose_quantile": dose_quantile,
    }
