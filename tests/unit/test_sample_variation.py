"""Samples of a set in which everything varies: what is stored is what was used, and makes each one again."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from data_gen.draws import draw_parameters, scan_noise
from data_gen.engines.torch_engine import TorchEngine
from data_gen.imaging import image, setup_for
from data_gen.sample import draw_specimen, make_sample, remake_sample
from data_gen.specimen import displaced
from data_gen.worklist import parts
from stemdl.config import Config
from stemdl.config.substitute import with_values
from stemdl.config.variation import SECTION_OF
from stemdl.physics.constants import wavelength_angstrom
from stemdl.shards import Sample
from test_sample import same, stored
from tests.small_run import small_config

EVERYTHING = (
    "vary.energy_kev={uniform: [60, 200]}",
    "vary.semiangle_mrad={choice: [15, 20, 25]}",
    "vary.defocus_angstrom={uniform: [-60, 60]}",
    "vary.c3_angstrom={log_uniform: [1e3, 1e5]}",
    "vary.astigmatism_angstrom={uniform: [0, 20]}",
    "vary.astigmatism_azimuth_rad={uniform: [0, 3.14]}",
    "vary.source_sigma_angstrom={uniform: [0.3, 1.0]}",
    "vary.step_angstrom={uniform: [1.8, 2.2]}",
    "vary.jitter_sigma_angstrom={uniform: [0.05, 0.2]}",
    "vary.drift_angstrom={uniform: [0.5, 2]}",
    "vary.tilt_mrad={uniform: [0, 40]}",
    "vary.displacement_sigma_angstrom={uniform: [0.04, 0.12]}",
    "vary.dose_e_per_a2={log_uniform: [1e2, 1e6]}",
    "held_out.frozen_phonons=2",
)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """As in the workers: the last bits follow from it."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def samples(config: Config, count: int, part: int = 0) -> list[Sample]:
    chosen = parts(config)[0][part]
    return [make_sample(config, chosen, item, TorchEngine()) for item in range(count)]


def test_what_is_drawn_is_stored_and_shapes_are_equal_for_all(tmp_path: Path) -> None:
    config = small_config(tmp_path, *EVERYTHING)
    part = parts(config)[0][0]
    made = samples(config, 4)
    assert len({(one.amplitude.shape, one.potential.shape) for one in made}) == 1
    names = {"step_angstrom": "scan_step_angstrom"}
    for item, sample in enumerate(made):
        drawn = draw_parameters(config, part, item)
        assert len(drawn) == len(SECTION_OF)
        assert {names.get(name, name): value for name, value in drawn.items()}.items() <= sample.parameters.items()
        assert set(sample.parameters) - {names.get(name, name) for name in drawn} == {
            "thickness_angstrom",
            "drift_azimuth_rad",
        }
        assert "dose_e_per_a2" not in sample.parameters, "the dose is that of whoever loads it"
    quiet = samples(small_config(tmp_path), 1)[0]
    assert set(quiet.parameters) == set(made[0].parameters), "the same columns, whether drawn or not"


def test_the_configuration_of_a_sample_is_all_that_there_is_to_it(tmp_path: Path) -> None:
    """By hand: the engine at the drawn values, on the item's specimen, at the positions of its scan noise."""
    config = small_config(tmp_path, *EVERYTHING)
    part, item = parts(config)[0][0], 3
    sample = make_sample(config, part, item, TorchEngine())
    own = with_values(config, sample.parameters)
    noise = scan_noise(own.scan, (7, 18, item))
    assert noise.drift_azimuth_rad == sample.parameters["drift_azimuth_rad"]
    setup = setup_for(own, part.sampling, noise.offsets_angstrom)
    assert setup.optics.energy_kev == sample.parameters["energy_kev"] != config.microscope.energy_kev
    assert setup.scan_step_angstrom == sample.parameters["scan_step_angstrom"] != config.scan.step_angstrom
    at_rest, _ = draw_specimen(config, part, item)
    patterns = image(TorchEngine(), at_rest, setup, own, part.sampling, [(7, 6, item, 0)])
    assert np.array_equal(np.sqrt(patterns).astype(np.float16), sample.amplitude)
    still = image(TorchEngine(), at_rest, setup_for(own, part.sampling), own, part.sampling, [(7, 6, item, 0)])
    assert np.linalg.norm(still - patterns) > 0.02 * np.linalg.norm(patterns), "scan noise is seen"


def test_everything_on_a_sample_makes_itself_again_from_what_it_stores(tmp_path: Path) -> None:
    config = small_config(tmp_path, *EVERYTHING)
    another = small_config(
        tmp_path,
        "run.seed=99",
        "microscope.energy_kev=300",
        "scan.step_angstrom=1",
        "specimen.tilt_mrad=0",
        "specimen.box_angstrom=24",
        "simulation.pixel_angstrom=0.5",
        "simulation.parametrization=lobato",
        "held_out.frozen_phonons=1",
        "target.blur_sigma_angstrom=0.9",
        "detector.pixels=[8, 8]",
        "detector.dk_per_angstrom=0.25",
    )
    for part, item in ((parts(config)[0][0], 4), (parts(config)[0][1], 2)):
        kept = stored(config, make_sample(config, part, item, TorchEngine()), tmp_path / part.name)
        crystal = part.crystal_of(item)
        assert same(remake_sample(config, crystal, kept, TorchEngine()), kept)
        assert same(remake_sample(another, crystal, kept, TorchEngine()), kept), "nothing else of the run is needed"


@pytest.mark.parametrize(
    "name",
    [
        "semiangle_mrad",
        "defocus_angstrom",
        "c3_angstrom",
        "astigmatism_angstrom",
        "astigmatism_azimuth_rad",
        "source_sigma_angstrom",
        "scan_step_angstrom",
        "jitter_sigma_angstrom",
        "drift_angstrom",
        "displacement_sigma_angstrom",
    ],
)
def test_another_value_would_be_another_sample(tmp_path: Path, name: str) -> None:
    config = small_config(tmp_path, *EVERYTHING)
    part = parts(config)[0][0]
    sample = make_sample(config, part, 1, TorchEngine())
    changed = dataclasses.replace(sample, parameters={**sample.parameters, name: 1.5 * sample.parameters[name]})
    again = remake_sample(config, part.crystal_of(1), changed, TorchEngine())
    assert not np.array_equal(again.amplitude, sample.amplitude)


def test_the_bright_field_has_the_radius_of_the_drawn_energy_and_aperture(tmp_path: Path) -> None:
    overrides = ("vary.energy_kev={choice: [60, 200]}", "vary.semiangle_mrad={choice: [16, 20]}")
    config = small_config(tmp_path, *overrides, "specimen.thickness_angstrom=[2, 2]", "crystals.exclude=[cif:cscl]")
    seen = set()
    for sample in samples(config, 9):
        mean = (sample.amplitude.astype(np.float64) ** 2).mean(axis=(0, 1))
        energy, semiangle = sample.parameters["energy_kev"], sample.parameters["semiangle_mrad"]
        radius = semiangle * 1e-3 / wavelength_angstrom(energy) / config.detector.dk_per_angstrom
        assert math.sqrt((mean > 0.4 * mean.max()).sum() / math.pi) == pytest.approx(radius, rel=0.1)
        seen.add((energy, semiangle))
    assert len(seen) == 4


def test_the_target_stays_where_it_is_whatever_the_step(tmp_path: Path) -> None:
    plain = samples(small_config(tmp_path), 3)
    stepped = samples(small_config(tmp_path, "vary.step_angstrom={uniform: [1.6, 2.2]}"), 3)
    for one, other in zip(plain, stepped, strict=True):
        assert np.array_equal(one.potential, other.potential)
        assert not np.array_equal(one.amplitude, other.amplitude)
        assert other.provenance["field_angstrom"] == [6.0, 6.0]


def test_an_ensemble_is_the_mean_of_its_configurations(tmp_path: Path) -> None:
    """Patterns and potentials of three displaced configurations, each with a seed of the item, averaged."""
    config = small_config(tmp_path, "simulation.frozen_phonons=3")
    part = parts(config)[0][0]
    sample = make_sample(config, part, 2, TorchEngine())
    assert sample.provenance["phonon_seeds"] == [[7, 6, 2, number] for number in range(3)]
    one = part.sampling.model_copy(update={"frozen_phonons": 1})
    at_rest, _ = draw_specimen(config, part, 2)
    sigma = config.specimen.displacement_sigma_angstrom
    atoms = [displaced(at_rest, sigma, (7, 6, 2, number)).positions_angstrom for number in range(3)]
    assert np.std([a[:, :2] - atoms[0][:, :2] for a in atoms[1:]]) > 0.03
    patterns = [
        image(TorchEngine(), at_rest, setup_for(config, one), config, one, [(7, 6, 2, number)]) for number in range(3)
    ]
    mean = np.sqrt(np.mean(patterns, axis=0))
    assert np.allclose(sample.amplitude, mean, rtol=2e-3, atol=1e-5)
    assert not np.allclose(sample.amplitude, np.sqrt(patterns[0]), rtol=2e-2, atol=1e-4)
    fewer = make_sample(small_config(tmp_path), parts(small_config(tmp_path))[0][0], 2, TorchEngine())
    assert np.allclose(fewer.amplitude, np.sqrt(patterns[0]), rtol=2e-3, atol=1e-5), "the first is that of one alone"


def test_drift_alone_shifts_each_position_along_its_way(tmp_path: Path) -> None:
    config = small_config(tmp_path, "scan.drift_angstrom=1.5")
    part = parts(config)[0][0]
    drifting = make_sample(config, part, 0, TorchEngine())
    azimuth = drifting.parameters["drift_azimuth_rad"]
    assert drifting.parameters["drift_angstrom"] == 1.5
    quiet_config = small_config(tmp_path)
    quiet = make_sample(quiet_config, part, 0, TorchEngine())
    assert quiet.parameters["drift_azimuth_rad"] == 0.0
    assert np.array_equal(quiet.potential, drifting.potential)
    middle = (1, 1)  # the fifth of nine positions: half of the time
    assert np.array_equal(drifting.amplitude[middle], quiet.amplitude[middle])
    at_rest, _ = draw_specimen(config, part, 0)
    for number in (0, 8):
        along = 1.5 * (number / 8 - 0.5)
        offsets = ((along * math.sin(azimuth), along * math.cos(azimuth)),) * 9  # the whole scan, moved
        setup = setup_for(quiet_config, part.sampling, offsets)
        moved = np.sqrt(image(TorchEngine(), at_rest, setup, quiet_config, part.sampling, [(7, 6, 0, 0)]))
        row, column = divmod(number, 3)
        assert np.allclose(drifting.amplitude[row, column], moved[row, column], rtol=2e-3, atol=1e-5)
        assert not np.allclose(quiet.amplitude[row, column], moved[row, column], rtol=0.05, atol=1e-3)


def test_specimens_are_tilted_as_drawn(tmp_path: Path) -> None:
    config = small_config(tmp_path, "vary.tilt_mrad={choice: [0, 30]}", "specimen.tilt_mrad=500")
    part = parts(config)[0][0]
    tilts: dict[float, list[float]] = {0.0: [], 30.0: []}
    for item in range(60):
        both = draw_specimen(config, part, item)[0].provenance["tilt_mrad"]
        assert isinstance(both, list)
        tilts[draw_parameters(config, part, item)["tilt_mrad"]] += both
    assert set(tilts[0.0]) == {0.0}
    assert np.std(tilts[30.0]) == pytest.approx(30, rel=0.35)
