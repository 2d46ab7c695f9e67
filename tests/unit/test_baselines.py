"""Baselines: what they are called, how they are scaled, and that the scale is that of the training set alone."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from numpy.typing import NDArray

from field_cases import fields_of, small_config
from stemdl.config import Config
from stemdl.models.predictor import Predictor
from stemdl.models.registry import build_network
from stemdl.physics.constants import interaction_parameter
from stemdl.reconstruct.baselines import (
    BACK_PROJECTION,
    COM,
    MEAN,
    LinearFit,
    fit,
    fitted_baselines,
    iterated_name,
    raw_pictures,
)
from stemdl.reconstruct.com import integrated_centre_of_mass
from stemdl.shards.fields import Fields

DENSE = {"name": "fc_densenet", "growth": 2, "blocks": (1, 1, 1)}


def some(fields: Fields, first: int, last: int) -> Fields:
    columns = ("items", "amplitude", "potential", "thickness_angstrom", "crystals", "formulas", "zone_axes")
    return dataclasses.replace(
        fields,
        **{name: getattr(fields, name)[first:last] for name in columns},
        parameters={name: column[first:last] for name, column in fields.parameters.items()},
    )


def channels(config: Config, fields: Fields) -> NDArray[np.float32] | None:
    predictor = Predictor(config, build_network(config), threads=1)
    physics = predictor.look(fields.amplitude, fields.thickness_angstrom)
    return None if physics is None else np.asarray(physics.pictures.numpy())


def test_the_fit_is_one_scale_and_one_offset_for_all_fields() -> None:
    rng = np.random.default_rng(2)
    pictures = rng.normal(size=(5, 6, 7))
    found = fit(pictures, (3.0 * pictures - 20.0).astype(np.float32))
    assert found.scale == pytest.approx(3.0, rel=1e-5)
    assert found.offset_v_angstrom == pytest.approx(-20.0, rel=1e-5)
    assert np.allclose(found(np.zeros((2, 2))), -20.0, rtol=1e-5)


def test_the_fit_is_the_least_squares_one() -> None:
    rng = np.random.default_rng(3)
    pictures, truth = rng.normal(size=(3, 5, 5)), rng.normal(size=(3, 5, 5)).astype(np.float32)
    found = fit(pictures, truth)
    expected = np.polyfit(pictures.ravel(), truth.ravel(), 1)
    assert [found.scale, found.offset_v_angstrom] == pytest.approx(list(expected), rel=1e-6)


def test_constant_pictures_give_the_mean_of_the_truth() -> None:
    truth = np.arange(12, dtype=np.float32).reshape(1, 3, 4)
    assert fit(np.full((1, 3, 4), 8.0), truth) == LinearFit(0.0, 5.5)


def test_each_baseline_is_the_picture_it_is_named_after() -> None:
    config = small_config()
    fields = some(fields_of(config), 0, 2)
    pictures = channels(config, fields)
    assert pictures is not None
    raw = raw_pictures(config, fields, pictures)
    assert list(raw) == [COM, BACK_PROJECTION, "3 conjugate-gradient steps"] == [COM, BACK_PROJECTION, iterated_name(3)]
    assert pictures.shape[1] == 5, "after 1, 2 and 3 steps, the gradient, the residual"
    assert np.array_equal(raw[BACK_PROJECTION], pictures[:, 0])
    assert np.array_equal(raw[iterated_name(3)], pictures[:, 2])
    assert all(picture.shape == fields.potential.shape for picture in raw.values())


def test_one_step_is_the_back_projection_and_not_named_twice() -> None:
    config = small_config(network__back_projection={"pixel_angstrom": 0.5, "slices": 2, "steps": 1})
    fields = some(fields_of(config), 0, 1)
    assert list(raw_pictures(config, fields, channels(config, fields))) == [COM, BACK_PROJECTION]


def test_a_network_without_physics_has_no_back_projection_to_compare_with() -> None:
    config = small_config(network=DENSE, target__pixel_angstrom=8 / 24)
    fields = some(fields_of(config), 0, 2)
    assert channels(config, fields) is None
    assert list(raw_pictures(config, fields, None)) == [COM]


def test_scales_come_from_the_training_set_alone() -> None:
    config = small_config()
    fields = fields_of(config)
    training, held_out = some(fields, 0, 8), some(fields, 8, 12)
    predictor = Predictor(config, build_network(config), threads=1)
    pictures = channels(config, held_out)
    found = fitted_baselines(config, predictor, training, held_out, pictures)
    assert list(found) == [MEAN, COM, BACK_PROJECTION, iterated_name(3)]
    assert np.all(found[MEAN] == float(training.potential.mean()))
    doubled = dataclasses.replace(held_out, potential=held_out.potential * 2)
    again = fitted_baselines(config, predictor, training, doubled, pictures)
    assert all(np.array_equal(found[name], again[name]) for name in found), "the held-out truth must not be seen"
    expected = fit(np.asarray(channels(config, training), dtype=np.float64)[:, 2], training.potential)
    assert pictures is not None
    assert np.allclose(found[iterated_name(3)], expected(pictures[:, 2].astype(np.float64)))


def test_more_physics_is_closer_to_the_truth() -> None:
    config = small_config()
    fields = fields_of(config)
    raw = raw_pictures(config, fields, channels(config, fields))
    figures = [
        np.median(
            [
                np.corrcoef(one.ravel(), true.ravel())[0, 1]
                for one, true in zip(raw[name], fields.potential, strict=True)
            ]
        )
        for name in (BACK_PROJECTION, iterated_name(3))
    ]
    assert figures[0] > 0.5
    assert figures[1] > figures[0]


def test_each_field_is_seen_with_its_own_energy_and_step() -> None:
    """The centre of mass turns into volts by the energy, and is integrated over steps."""
    config = small_config()
    twins = fields_of(config, 3, energy_kev=[100.0, 200.0, 100.0], scan_step_angstrom=[2.0, 2.0, 1.9])
    twins = dataclasses.replace(twins, amplitude=np.repeat(twins.amplitude[:1], 3, axis=0))
    com = raw_pictures(config, twins, None)[COM]
    ratio = interaction_parameter(100.0) / interaction_parameter(200.0)
    assert np.allclose(com[1], com[0] * ratio)
    assert np.array_equal(com[0], raw_pictures(config, some(fields_of(config), 0, 1), None)[COM][0])
    own = integrated_centre_of_mass(
        twins.amplitude[0],
        energy_kev=100.0,
        dk_per_angstrom=1 / 16,
        step_angstrom=1.9,
        field_pixels=(8, 8),
        field_step_angstrom=2.0,
    )
    assert np.array_equal(com[2], own)
    assert not np.allclose(com[2], com[0], rtol=0.02)


def test_back_projections_to_compare_with_are_made_with_each_field_s_own_optics() -> None:
    config = small_config()
    fields = fields_of(config, 8, energy_kev=[60.0, 200.0] * 4)
    predictor = Predictor(config, build_network(config), threads=1)
    physics = predictor.look(fields.amplitude, fields.thickness_angstrom, parameters=fields.parameters)
    assert physics is not None
    pictures = np.asarray(physics.pictures.numpy())
    found = fitted_baselines(config, predictor, fields, fields, pictures)[iterated_name(3)]
    assert np.allclose(
        found, fit(pictures[:, 2].astype(np.float64), fields.potential)(pictures[:, 2].astype(np.float64))
    )
