"""A set of fields in memory: as they were sealed, or with the shot noise of a dose."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from field_cases import fields_of, sample_of, small_config, write_fields
from stemdl.config import Config, stage_hash
from stemdl.shards import ShardAxes, ShardError, ShardWriter
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


def noisy(folder: Path, config: Config, seed: tuple[int, ...] = (1, 8), **keys: Any) -> Fields:
    return load_fields(
        folder,
        stage_hash(config, "simulate"),
        dose_e_per_a2=keys.pop("dose", DOSE),
        scan_step_angstrom=STEP,
        noise_seed=seed,
        **keys,
    )


def test_what_was_sealed_is_what_is_loaded(config: Config, sealed: tuple[Path, Fields]) -> None:
    folder, put_in = sealed
    found = load_fields(folder, stage_hash(config, "simulate"))
    assert len(found) == 7
    for field in dataclasses.fields(Fields):
        one, other = getattr(found, field.name), getattr(put_in, field.name)
        assert np.array_equal(one, other), field.name
        assert type(one) is type(other)
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
            np.linalg.norm(noisy(folder, config, dose=dose).amplitude.astype(np.float64) - put_in.amplitude)
            for dose in (1e3, 1e5)
        ]
        assert errors[0] / errors[1] > 5  # ten, less what is in empty pixels

    def test_the_noise_follows_from_seed_and_item_alone(self, config: Config, sealed: tuple[Path, Fields]) -> None:
        folder, _ = sealed
        one = noisy(folder, config)
        np.random.seed(1)  # global state must not matter
        assert np.array_equal(noisy(folder, config).amplitude, one.amplitude)
        assert np.array_equal(noisy(folder, config, most=2).amplitude, one.amplitude[:2])
        assert not np.array_equal(noisy(folder, config, seed=(2, 8)).amplitude, one.amplitude)
        assert not np.array_equal(noisy(folder, config, seed=(1, 9)).amplitude, one.amplitude)

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
        )
        found = noisy(write_fields(config, twins), config).amplitude
        assert not np.array_equal(found[0], found[1])

    def test_noise_without_a_seed_is_our_own_mistake(self, config: Config, sealed: tuple[Path, Fields]) -> None:
        with pytest.raises(AssertionError, match="needs a seed"):
            noisy(sealed[0], config, seed=())


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
