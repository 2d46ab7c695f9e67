"""A set of fields in memory: as they were sealed, or with the shot noise of a dose."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from field_cases import fields_of, sample_of, small_config, write_fields
from stemdl.config import Config, stage_hash
from stemdl.physics.detector_effects import DetectorEffects, point_spread
from stemdl.seeds import Purpose
from stemdl.shards import ShardAxes, ShardError, ShardWriter
from stemdl.shards.detector import DetectorModel, detector_model
from stemdl.shards.fields import Fields, load_fields

DOSE, STEP = 3e4, 2.0  # 1.2e5 electrons a pattern


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return small_config(run__folder=tmp_path)


@pytest.fixture
def sealed(config: Config) -> tuple[Path, Fields]:
    """Seven fields in two shards, and what was put in."""
    fields = fields_of(config, 7)
    return write_fields(config, fields), fields


def detector(seed: int = 1, dose: float | None = DOSE, **effects: float) -> DetectorModel:
    return DetectorModel(
        DetectorEffects(**effects), dose, STEP, seed=seed, noise=Purpose.TRAIN_DOSE, bad_pixels=Purpose.TRAIN_DETECTOR
    )


def noisy(folder: Path, config: Config, model: DetectorModel | None = None, **keys: Any) -> Fields:
    return load_fields(folder, stage_hash(config, "simulate"), detector=model or detector(), **keys)


def test_what_was_sealed_is_what_is_loaded(config: Config, sealed: tuple[Path, Fields]) -> None:
    folder, put_in = sealed
    found = load_fields(folder, stage_hash(config, "simulate"))
    assert len(found) == 7
    for field in dataclasses.fields(Fields):
        one, other = getattr(found, field.name), getattr(put_in, field.name)
        assert type(one) is type(other)
        if field.name != "parameters":
            assert np.array_equal(one, other), field.name
    assert found.detector is None
    assert found.noise_misfit is None
    assert {name: column.tolist() for name, column in found.parameters.items()} == {"thickness_angstrom": [20.0] * 7}
    dtypes = [str(array.dtype) for array in (found.amplitude, found.potential, found.thickness_angstrom)]
    assert dtypes == ["float16", "float32", "float64"]


def test_they_are_in_the_order_of_their_numbers_whoever_wrote_them(config: Config, tmp_path: Path) -> None:
    fields = fields_of(config, 6)
    axes = ShardAxes(2.0, 1 / 16, 1.0)
    for rank, items in ((1, (4, 1)), (0, (5, 0, 3))):
        digest = stage_hash(config, "simulate")
        with ShardWriter(tmp_path / "s", rank=rank, axes=axes, config_hash=digest, samples_per_shard=2) as writer:
            for item in items:
                writer.add(sample_of(fields, item))
    found = load_fields(tmp_path / "s", stage_hash(config, "simulate"))
    assert found.items == (0, 1, 3, 4, 5)
    assert np.array_equal(found.amplitude, fields.amplitude[[0, 1, 3, 4, 5]])
    assert found.crystals == tuple(fields.crystals[i] for i in (0, 1, 3, 4, 5))


def test_the_first_few(config: Config, sealed: tuple[Path, Fields]) -> None:
    folder, put_in = sealed
    few = load_fields(folder, stage_hash(config, "simulate"), most=3)
    assert few.items == (0, 1, 2)
    assert np.array_equal(few.potential, put_in.potential[:3])
    assert len(load_fields(folder, stage_hash(config, "simulate"), most=100)) == 7


class TestDose:
    def test_electrons_are_counted(self, config: Config, sealed: tuple[Path, Fields]) -> None:
        """Whole electrons, as many as expected on average, with the variance of Poisson."""
        folder, put_in = sealed
        expected = put_in.amplitude.astype(np.float64) ** 2 * DOSE * STEP**2
        found = noisy(folder, config).amplitude.astype(np.float64) ** 2 * DOSE * STEP**2
        few = expected < 50  # where float16 still tells one electron from two
        assert np.abs(found[few] - found[few].round()).max() < 0.1
        assert found.sum() == pytest.approx(expected.sum(), rel=5e-3)
        bright = expected > 20
        normalised = (found - expected)[bright] / np.sqrt(expected[bright])
        assert bright.sum() > 1000
        assert abs(normalised.mean()) < 0.1
        assert normalised.std() == pytest.approx(1.0, rel=0.05)

    def test_more_electrons_less_noise(self, config: Config, sealed: tuple[Path, Fields]) -> None:
        folder, put_in = sealed
        errors = [
            np.linalg.norm(noisy(folder, config, detector(dose=dose)).amplitude.astype(np.float64) - put_in.amplitude)
            for dose in (1e3, 1e5)
        ]
        assert errors[0] / errors[1] > 5  # ten, less what is in empty pixels

    def test_the_noise_follows_from_seed_and_item_alone(self, config: Config, sealed: tuple[Path, Fields]) -> None:
        folder, _ = sealed
        one = noisy(folder, config)
        np.random.seed(1)  # global state must not matter
        assert np.array_equal(noisy(folder, config).amplitude, one.amplitude)
        assert np.array_equal(noisy(folder, config, most=2).amplitude, one.amplitude[:2])
        assert not np.array_equal(noisy(folder, config, detector(seed=2)).amplitude, one.amplitude)
        other_part = dataclasses.replace(detector(), noise=Purpose.HELD_OUT_DOSE)
        assert not np.array_equal(noisy(folder, config, other_part).amplitude, one.amplitude)

    def test_equal_fields_have_unequal_noise(self, config: Config, tmp_path: Path) -> None:
        fields = fields_of(config, 1)
        twins = dataclasses.replace(
            fields,
            items=(0, 1),
            amplitude=np.repeat(fields.amplitude, 2, axis=0),
            potential=np.repeat(fields.potential, 2, axis=0),
            thickness_angstrom=np.repeat(fields.thickness_angstrom, 2),
            crystals=fields.crystals * 2,
            formulas=fields.formulas * 2,
            zone_axes=fields.zone_axes * 2,
            parameters={"thickness_angstrom": np.repeat(fields.thickness_angstrom, 2)},
        )
        found = noisy(write_fields(config, twins), config).amplitude
        assert not np.array_equal(found[0], found[1])

    def test_what_noise_adds_to_the_misfit_is_known(self, config: Config, sealed: tuple[Path, Fields]) -> None:
        """A quarter of an electron for each pixel that has many: the variance of the root of a count."""
        folder, put_in = sealed
        found = noisy(folder, config)
        change = found.amplitude.astype(np.float64) - put_in.amplitude
        assert found.noise_misfit is not None
        assert np.allclose(found.noise_misfit, (change**2).sum(axis=(3, 4)).mean(axis=(1, 2)), rtol=1e-3)
        bright = (put_in.amplitude.astype(np.float64) ** 2 * DOSE * STEP**2 > 20).sum(axis=(3, 4)).mean(axis=(1, 2))
        assert np.all(found.noise_misfit * DOSE * STEP**2 > 0.23 * bright)

    def test_the_point_spread_alone_is_no_noise(self, config: Config, sealed: tuple[Path, Fields]) -> None:
        folder, put_in = sealed
        found = noisy(folder, config, detector(dose=None, blur_sigma_pixels=1.0), every_epoch=True)
        assert np.array_equal(found.amplitude, point_spread(put_in.amplitude, 1.0))
        assert found.detector is None
        assert found.noise_misfit is not None
        assert found.noise_misfit.tolist() == [0.0] * 7

    def test_dose_and_step_of_each_sample(self, config: Config) -> None:
        """One set, two scan steps, doses from quantiles: electrons sent are dose times the square of the own step."""
        steps, quantiles = [1.0, 2.0] * 2, [0.1, 0.1, 0.9, 0.9]
        fields = fields_of(config, 4, scan_step_angstrom=steps, dose_quantile=quantiles)
        folder = write_fields(config, fields)
        drawn = small_config(run__folder=config.run.folder, vary={"dose_e_per_a2": {"log_uniform": [1e3, 1e5]}})
        found = load_fields(folder, stage_hash(drawn, "simulate"), detector=detector_model(drawn, "train"))
        assert found.parameters["dose_e_per_a2"] == pytest.approx(10 ** (3 + 2 * np.array(quantiles)))
        assert found.parameters["scan_step_angstrom"].tolist() == steps
        for index in range(4):
            sent = float(found.parameters["dose_e_per_a2"][index]) * steps[index] ** 2
            counts = found.amplitude[index].astype(np.float64) ** 2 * sent
            few = (counts > 0.5) & (counts < 40)
            assert few.any()
            assert np.abs(counts[few] - counts[few].round()).max() < 0.1


class TestEpochs:
    def test_each_epoch_reads_anew_and_the_first_is_the_one_that_is_loaded(
        self, config: Config, sealed: tuple[Path, Fields]
    ) -> None:
        folder, put_in = sealed
        model = detector(blur_sigma_pixels=0.5, dead_fraction=0.1)
        once, ever = noisy(folder, config, model), noisy(folder, config, model, every_epoch=True)
        assert once.detector is None
        assert ever.detector == model
        assert np.array_equal(ever.amplitude, point_spread(put_in.amplitude, 0.5))
        indices = np.array([4, 0, 4])
        assert np.array_equal(ever.recorded(indices), once.amplitude[indices])
        assert np.array_equal(once.recorded(indices, np.array([5, 6, 7])), once.amplitude[indices])
        mixed = ever.recorded(indices, np.array([0, 2, 1]))
        assert np.array_equal(mixed[0], once.amplitude[4])
        assert not np.array_equal(mixed[2], once.amplitude[4])
        assert not np.array_equal(mixed[1], once.amplitude[0])
        assert np.array_equal(mixed[1], ever.recorded(np.array([0]), np.array([2]))[0])

    def test_without_an_effect_nothing_is_drawn_or_copied_twice(
        self, config: Config, sealed: tuple[Path, Fields]
    ) -> None:
        found = load_fields(sealed[0], stage_hash(config, "simulate"), every_epoch=True)
        assert found.detector is None
        assert np.array_equal(found.recorded(np.array([1]), np.array([9]))[0], found.amplitude[1])


class TestRefused:
    def test_another_configuration(self, config: Config, sealed: tuple[Path, Fields]) -> None:
        with pytest.raises(ShardError, match="config hash is"):
            load_fields(sealed[0], stage_hash(small_config(run__seed=99), "simulate"))

    def test_a_damaged_shard(self, config: Config, sealed: tuple[Path, Fields]) -> None:
        path = sealed[0] / "shard-00000-00001.h5"
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
        with pytest.raises(ShardError, match=r"shard-00000-00001\.h5: sha256 differs"):
            load_fields(sealed[0], stage_hash(config, "simulate"))

    def test_no_shards(self, config: Config, tmp_path: Path) -> None:
        with pytest.raises(ShardError, match="no shard is sealed"):
            load_fields(tmp_path / "nowhere", stage_hash(config, "simulate"))

    def test_a_field_without_its_thickness_is_named(self, config: Config, tmp_path: Path) -> None:
        sample = dataclasses.replace(sample_of(fields_of(config, 1), 0), item=41, parameters={"tilt_mrad": 1.0})
        digest, axes = stage_hash(config, "simulate"), ShardAxes(2.0, 1 / 16, 1.0)
        with ShardWriter(tmp_path / "s", rank=0, axes=axes, config_hash=digest, samples_per_shard=2) as writer:
            writer.add(sample)
        with pytest.raises(ShardError, match="item 41: thickness_angstrom is not recorded"):
            load_fields(tmp_path / "s", digest)

    def test_a_field_without_the_dose_that_is_asked_for_is_named(self, sealed: tuple[Path, Fields]) -> None:
        drawn = small_config(vary={"dose_e_per_a2": {"choice": [1e3]}})
        with pytest.raises(ShardError, match="item 0: dose_quantile is not recorded"):
            load_fields(sealed[0], stage_hash(drawn, "simulate"), detector=detector_model(drawn, "train"))

    def test_a_field_with_other_parameters_than_the_rest_is_named(self, config: Config, tmp_path: Path) -> None:
        """Each shard has the same names for all of its samples; shards of two versions may differ."""
        digest, axes = stage_hash(config, "simulate"), ShardAxes(2.0, 1 / 16, 1.0)
        fields = fields_of(config, 2)
        for item, extra in enumerate(({}, {"energy_kev": 100.0})):
            sample = sample_of(fields, item)
            sample = dataclasses.replace(sample, parameters={**sample.parameters, **extra})
            with ShardWriter(tmp_path / "s", rank=item, axes=axes, config_hash=digest, samples_per_shard=2) as writer:
                writer.add(sample)
        with pytest.raises(ShardError, match=r"item 1: it records other parameters .* \(energy_kev\)"):
            load_fields(tmp_path / "s", digest)


@pytest.mark.parametrize(
    ("specimen", "expected"),
    [({"zone_axis": [1, 1, 0]}, (1, 1, 0)), ({"zone_axis": [1, 1]}, None), ({}, None), (None, None), ("text", None)],
)
def test_a_zone_axis_is_three_integers_or_unknown(
    config: Config, tmp_path: Path, specimen: Any, expected: tuple[int, int, int] | None
) -> None:
    sample = sample_of(fields_of(config, 1), 0)
    sample = dataclasses.replace(sample, provenance={**sample.provenance, "specimen": specimen})
    digest, axes = stage_hash(config, "simulate"), ShardAxes(2.0, 1 / 16, 1.0)
    with ShardWriter(tmp_path / "s", rank=0, axes=axes, config_hash=digest, samples_per_shard=2) as writer:
        writer.add(sample)
    assert load_fields(tmp_path / "s", digest).zone_axes == (expected,)
