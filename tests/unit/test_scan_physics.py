"""Pictures that physics alone makes of a field: sampled exactly, in the right place, in V·Å."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from data_gen.potential import potential_slices, projected_target
from field_cases import BOX, SECTIONS, THICKNESS, Blobs, blobs, correlation, model_of, optics_of, small_config
from physics_cases import atoms, relative
from stemdl.config import Config
from stemdl.config.substitute import with_values
from stemdl.models.errors import NetworkConfigError
from stemdl.models.scan_physics import ScanPhysics, field_pixels, kept_steps
from stemdl.physics.grid import Grid
from stemdl.physics.misfit import ScanGeometry
from stemdl.physics.probe import Optics

FIELDS: list[dict[str, Any]] = [
    {},
    {"scan__positions": (4, 3), "target__pixel_angstrom": 0.5},
    {"scan__positions": (3, 5), "scan__step_angstrom": 1.5, "target__pixel_angstrom": 0.5},
    {"target__blur_sigma_angstrom": 0.0},
]


def back_projection(**changes: Any) -> dict[str, Any]:
    section = SECTIONS["network"]
    return {**section, "back_projection": {**section["back_projection"], **changes}}


@pytest.mark.parametrize(
    ("steps", "kept"), [(1, (1,)), (2, (1, 2)), (3, (1, 2, 3)), (4, (1, 2, 4)), (8, (1, 2, 4, 8)), (9, (1, 2, 4, 8, 9))]
)
def test_kept_steps(steps: int, kept: tuple[int, ...]) -> None:
    assert kept_steps(steps) == kept


class TestSampling:
    @pytest.mark.parametrize("changes", FIELDS)
    def test_blur_and_pixel_average_are_exact(self, changes: dict[str, Any]) -> None:
        config = small_config(**changes)
        potential = dataclasses.replace(blobs(1), width_angstrom=0.9)  # the grid of 0.5 Å carries all of it
        physics = ScanPhysics(config)
        expected = potential.on_field(config)
        found = physics._sample(potential.on_box(physics.grid)).numpy()
        assert found.shape == expected.shape == field_pixels(config)
        assert np.abs(found - expected).max() < 1e-5 * np.abs(expected).max()

    def test_a_wave_keeps_its_place_and_loses_what_it_must(self) -> None:
        """One Fourier component against a direct sum over each pixel, convolved with the Gaussian by its own sum."""
        config = small_config()
        physics = ScanPhysics(config)
        k, phase = np.array([3, -5]) / BOX, 0.7

        def wave(y: Any, x: Any) -> Any:
            return np.cos(2 * np.pi * (k[0] * y + k[1] * x) + phase)

        points = np.arange(physics.grid.pixels) * physics.grid.pixel_angstrom
        found = physics._sample(torch.from_numpy(wave(points[:, None], points)).to(torch.float32)).numpy()
        sigma, shifts = 0.35, np.linspace(-2.1, 2.1, 61)
        weights = np.exp(-0.5 * (shifts / sigma) ** 2)
        kernel = np.outer(weights, weights) / weights.sum() ** 2
        inside = (np.arange(20) + 0.5) / 20 - 0.5  # of a pixel of 1 Å
        for row, column in ((0, 0), (2, 6), (7, 3)):
            y, x = 4.5 + row + inside[:, None], 4.5 + column + inside
            direct = [[wave(y + dy, x + dx).mean() for dx in shifts] for dy in shifts]
            assert found[row, column] == pytest.approx(float((kernel * direct).sum()), abs=2e-3)

    def test_it_is_the_resolution_of_the_simulated_truth(self) -> None:
        """Slices of a specimen on a fine grid, sampled, are the target that the simulation writes."""
        config = small_config(network=back_projection(pixel_angstrom=0.125), target__pixel_angstrom=0.5)
        physics = ScanPhysics(config)
        specimen = atoms([14, 29, 8], [[5.1, 9.3, 1.0], [9.0, 6.2, 1.0], [11.9, 4.2, 1.0]], (BOX, BOX, 2.0))
        slices, _ = potential_slices(specimen, physics.grid, 2.0, "kirkland")
        target = projected_target(
            specimen,
            field_angstrom=config.scan.field_angstrom,
            pixel_angstrom=0.5,
            blur_sigma_angstrom=0.35,
            parametrization="kirkland",
        )
        assert relative(physics._sample(slices.sum(dim=0)), target) < 1e-3

    def test_the_level_is_kept(self) -> None:
        physics = ScanPhysics(small_config())
        assert torch.allclose(physics._sample(torch.full((32, 32), 250.0)), torch.full((8, 8), 250.0))


class TestEmbedding:
    def test_an_answer_lies_in_its_place(self) -> None:
        """A plane in the field is the same plane on the box, between the centres of its pixels."""
        config = small_config(scan__positions=(4, 3), target__pixel_angstrom=0.5)
        physics = ScanPhysics(config)
        centres = [(np.arange(n) - (n - 1) / 2) * 0.5 + BOX / 2 for n in field_pixels(config)]
        answer = torch.from_numpy(3 * centres[0][:, None] - 2 * centres[1]).to(torch.float32)
        box = physics._embed(answer, torch.zeros(32, 32))
        points = np.arange(32) * 0.5
        plane = 3 * points[:, None] - 2 * points
        rows = (points >= centres[0][0]) & (points <= centres[0][-1])
        columns = (points >= centres[1][0]) & (points <= centres[1][-1])
        assert rows.sum() > 10
        assert columns.sum() > 6
        assert np.allclose(box.numpy()[np.ix_(rows, columns)], plane[np.ix_(rows, columns)], atol=1e-4)

    def test_around_it_the_old_potential_goes_on_at_a_level_that_joins(self) -> None:
        config = small_config(target__pixel_angstrom=0.5, target__blur_sigma_angstrom=0.0)
        physics = ScanPhysics(config)
        around = blobs(3, level=0.0).on_box(physics.grid)
        answer = torch.from_numpy(blobs(3, level=500.0).on_field(config)).to(torch.float32)
        box = physics._embed(answer, around)
        outside = torch.ones(32, 32, dtype=torch.bool)
        outside[8:25, 8:25] = False  # the field from 4 to 12 Å, borders included
        lift = (box - around)[outside]
        assert float(lift.std()) < 1e-3
        assert float(lift.mean()) == pytest.approx(500.0, rel=0.02)
        inside = slice(9, 24)
        assert correlation(box[inside, inside], around[inside, inside]) > 0.95

    def test_taken_out_again_it_is_the_answer(self) -> None:
        config = small_config(target__blur_sigma_angstrom=0.0, target__pixel_angstrom=0.5)
        physics = ScanPhysics(config)
        smooth = dataclasses.replace(blobs(4), width_angstrom=1.5)
        answer = torch.from_numpy(smooth.on_field(config)).to(torch.float32)
        again = physics._sample(physics._embed(answer, smooth.on_box(physics.grid)))
        assert relative(again[2:-2, 2:-2], answer[2:-2, 2:-2]) < 0.02


class TestPictures:
    @pytest.mark.parametrize("seed", range(3))
    def test_steps_come_ever_nearer_to_the_truth(self, seed: int) -> None:
        config = small_config(network=back_projection(steps=8), target__pixel_angstrom=0.5)
        physics, model = ScanPhysics(config), model_of(config)
        truth = blobs(seed).on_field(config)
        pictures = physics.first(model.amplitudes(blobs(seed).on_box(model.grid)), THICKNESS).pictures
        assert pictures.shape == (6, 16, 16)  # after 1, 2, 4 and 8 steps, gradient, residual
        r = [correlation(picture, truth) for picture in pictures[:4]]
        assert r == sorted(r)
        assert r[0] > 0.6
        assert r[3] > 0.95
        beside = max(correlation(pictures[3].roll(shift, axis), truth) for shift in (-1, 1) for axis in (0, 1))
        assert beside < r[3] - 0.03  # not even half an Å beside it

    def test_the_flat_start_has_its_level_by_thickness(self) -> None:
        config = small_config(network=back_projection(start_v_per_angstrom=7.0, steps=1))
        vacuum = model_of(config).amplitudes(torch.zeros(32, 32))
        pictures = ScanPhysics(config).first(vacuum, THICKNESS).pictures
        assert torch.allclose(pictures[0], torch.full((8, 8), 7.0 * THICKNESS), rtol=1e-4)  # nothing to see: it stays

    def test_the_residual_is_that_of_each_position(self) -> None:
        config = small_config(target__pixel_angstrom=0.5, network=back_projection(steps=1))
        model = model_of(config)
        # One heavy column at the position of row 0, column 3.
        heavy = Blobs(np.array([[5.0, 11.0]]), np.array([3000.0]), level=200.0)
        residual = ScanPhysics(config).first(model.amplitudes(heavy.on_box(model.grid)), THICKNESS).pictures[-1]
        squares = residual.reshape(4, 4, 4, 4).transpose(1, 2).reshape(16, 16)
        assert torch.equal(squares, squares[:, :1].expand(-1, 16))
        assert int(squares[:, 0].argmax()) == 3

    def test_from_a_better_answer_it_goes_further(self) -> None:
        config = small_config(target__pixel_angstrom=0.5)
        physics, model = ScanPhysics(config), model_of(config)
        amplitude = model.amplitudes(blobs(2).on_box(model.grid))
        truth = blobs(2).on_field(config)
        first = physics.first(amplitude, THICKNESS)
        answer = torch.from_numpy(truth).to(torch.float32)
        again = physics.after(amplitude, THICKNESS, answer, first.box)
        assert torch.equal(again.pictures[0], answer)
        assert again.pictures.shape == (6, 16, 16)
        assert correlation(again.pictures[3], truth) > correlation(first.pictures[2], truth) + 0.005
        assert float(again.pictures[-1].mean()) < float(first.pictures[-1].mean())
        assert again.box.shape == first.box.shape == (32, 32)

    def test_each_thickness_has_its_own_model(self) -> None:
        config = small_config(network=back_projection(steps=12))
        physics, model = ScanPhysics(config), model_of(config)
        amplitude = model.amplitudes(blobs(5).on_box(model.grid))
        first = physics.first(amplitude, THICKNESS).pictures
        others = [physics.first(amplitude, THICKNESS + extra).pictures for extra in range(1, 12)]
        assert torch.equal(physics.first(amplitude, THICKNESS).pictures, first)
        # Patterns of 20 Å are explained by a model of 20 Å, and worse by a thicker one.
        assert float(others[-1][-1].mean()) > 2 * float(first[-1].mean())

    def test_optics_and_detector_are_those_of_the_configuration(self) -> None:
        keys = {
            "microscope__c3_angstrom": 2e5,
            "microscope__energy_kev": 200.0,
            "microscope__astigmatism_angstrom": 60.0,
            "microscope__astigmatism_azimuth_rad": 0.4,
            "network": back_projection(steps=12),
        }
        config = small_config(**keys)
        truth = blobs(6)
        amplitude = model_of(config).amplitudes(truth.on_box(Grid(32, BOX)))
        right = ScanPhysics(config).first(amplitude, THICKNESS).pictures[-1].mean()
        for key, value in (
            ("microscope__c3_angstrom", 0.0),
            ("microscope__energy_kev", 190.0),
            ("microscope__defocus_angstrom", 40.0),
            ("microscope__semiangle_mrad", 18.0),
            ("microscope__astigmatism_azimuth_rad", 0.9),
            ("scan__step_angstrom", 1.0),
        ):
            wrong = ScanPhysics(small_config(**{**keys, key: value})).first(amplitude, THICKNESS).pictures[-1].mean()
            assert wrong > 2 * right, key


OWN: dict[str, float] = {
    "energy_kev": 200.0,
    "semiangle_mrad": 18.0,
    "defocus_angstrom": 40.0,
    "c3_angstrom": 2e5,
    "astigmatism_angstrom": 60.0,
    "astigmatism_azimuth_rad": 0.4,
    "scan_step_angstrom": 1.8,
}


class TestConditions:
    amplitude = model_of(small_config()).amplitudes(blobs(1).on_box(Grid(32, BOX)))

    @pytest.mark.parametrize("names", [*([name] for name in OWN), list(OWN)], ids=lambda names: "+".join(names)[:30])
    def test_parameters_take_the_place_of_the_configuration_s(self, names: list[str]) -> None:
        """Potentials and gradient are those of a configuration with these values, bit for bit."""
        config = small_config(microscope__astigmatism_angstrom=30.0)
        own = {name: OWN[name] for name in names}
        physics, nominal, changed = ScanPhysics(config), ScanPhysics(config), ScanPhysics(config)
        found = physics.first(self.amplitude, THICKNESS, own)
        changed._optics, changed._geometry = _of(with_values(config, own))
        expected = changed.first(self.amplitude, THICKNESS)
        assert torch.equal(found.pictures[:-1], expected.pictures[:-1])
        assert torch.equal(found.box, expected.box)
        assert not torch.equal(found.box, nominal.first(self.amplitude, THICKNESS).box)
        answer = torch.full((8, 8), 250.0)
        again = [
            one.after(self.amplitude, THICKNESS, answer, found.box, given).pictures[:-1]
            for one, given in ((physics, own), (changed, None))
        ]
        assert torch.equal(again[0], again[1])

    def test_nominal_ones_and_those_that_are_no_optics_change_nothing(self) -> None:
        config = small_config()
        physics = ScanPhysics(config)
        given = {**config.microscope.model_dump(), "scan_step_angstrom": 2.0, "tilt_mrad": 7.0, "dose_e_per_a2": 1e3}
        found = physics.first(self.amplitude, THICKNESS, given)
        assert torch.equal(found.pictures, physics.first(self.amplitude, THICKNESS).pictures)
        assert physics._model.cache_info().currsize == 1

    @pytest.mark.parametrize("changes", FIELDS)
    def test_the_residual_of_a_nominal_scan_is_repeated_over_its_pixels(self, changes: dict[str, Any]) -> None:
        physics = ScanPhysics(small_config(**changes))
        values = torch.rand(physics._geometry.scan_shape, generator=torch.Generator().manual_seed(1))
        expected = functional.interpolate(values[None, None], size=physics.field_pixels, mode="nearest")[0, 0]
        assert torch.equal(physics._on_field(values, physics._geometry.scan_step_angstrom), expected)

    @pytest.mark.parametrize("step", [1.4, 2.7])
    def test_of_another_step_it_lies_where_the_positions_are(self, step: float) -> None:
        physics = ScanPhysics(small_config(target__pixel_angstrom=0.5))
        values = torch.arange(16.0).reshape(4, 4)
        found = physics._on_field(values, step)
        centres = (np.arange(16) - 7.5) * 0.5
        positions = (np.arange(4) - 1.5) * step
        nearest = np.abs(centres[:, None] - positions).argmin(axis=1)
        assert np.array_equal(found.numpy(), values.numpy()[np.ix_(nearest, nearest)])

    def test_pictures_of_a_drawn_step_show_the_same_field(self) -> None:
        """The potential is where it is, whatever the positions; the model of another step sees it elsewhere."""
        config = small_config(network=back_projection(steps=8), target__pixel_angstrom=0.5)
        physics, truth = ScanPhysics(config), blobs(2).on_field(config)
        for step in (1.7, 2.3):
            model = model_of(with_values(config, {"step_angstrom": step}))
            amplitude = model.amplitudes(blobs(2).on_box(model.grid))
            own = physics.first(amplitude, THICKNESS, {"scan_step_angstrom": step}).pictures
            nominal = physics.first(amplitude, THICKNESS).pictures
            inner = slice(2, -2)  # what the smaller scan reaches
            r = [correlation(picture[3, inner, inner], truth[inner, inner]) for picture in (own, nominal)]
            assert r[0] > 0.99
            assert 1 - r[1] > 10 * (1 - r[0])
            nearest = np.abs((np.arange(16)[:, None] - 7.5) * 0.5 - (np.arange(4) - 1.5) * step).argmin(axis=1)
            borders = np.flatnonzero(np.diff(own[-1].numpy(), axis=0).any(axis=1))  # of the residuals of positions
            assert np.array_equal(borders, np.flatnonzero(np.diff(nearest)))

    def test_models_of_samples_that_all_differ_are_not_piled_up(self) -> None:
        physics = ScanPhysics(small_config())
        for energy in np.linspace(60, 300, 20):
            physics.first(self.amplitude, THICKNESS, {"energy_kev": float(energy)})
        assert physics._model.cache_info().currsize == 8
        large = ScanPhysics(
            small_config(
                scan={"positions": (64, 64), "step_angstrom": 0.125},
                target__pixel_angstrom=0.125,
                network=back_projection(pixel_angstrom=0.125),
            )
        )
        # 4096 waves of 128 x 128: 512 MiB a model
        assert large._model.cache_info().maxsize == 1


def _of(config: Config) -> tuple[Optics, ScanGeometry]:
    """Optics and geometry as `field_cases` read them off a configuration."""
    return optics_of(config), ScanGeometry(config.scan.positions, config.scan.step_angstrom, config.detector.pixels, 1)


class TestErrors:
    @pytest.mark.parametrize(
        ("changes", "key"),
        [
            ({"target__pixel_angstrom": 0.75}, "target.pixel_angstrom"),
            ({"target__pixel_angstrom": 3.0}, "target.pixel_angstrom"),
            ({"detector__dk_per_angstrom": 0.07}, "detector.dk_per_angstrom"),
            ({"detector__dk_per_angstrom": 0.01}, "detector.dk_per_angstrom"),
            ({"network": back_projection(pixel_angstrom=0.37)}, "network.back_projection.pixel_angstrom"),
            ({"network": back_projection(pixel_angstrom=50.0)}, "network.back_projection.pixel_angstrom"),
        ],
    )
    def test_grids_that_do_not_divide_name_their_key(self, changes: dict[str, Any], key: str) -> None:
        with pytest.raises(NetworkConfigError, match=rf"^{key}: found .*; allowed: ") as caught:
            ScanPhysics(small_config(**changes))
        assert caught.value.key == key

    def test_what_they_propose_is_accepted(self) -> None:
        with pytest.raises(NetworkConfigError) as caught:
            ScanPhysics(small_config(target__pixel_angstrom=0.75))
        nearest = float(str(caught.value).rpartition(" ")[2])
        assert field_pixels(small_config(target__pixel_angstrom=nearest)) == (12, 12)
        with pytest.raises(NetworkConfigError) as caught:
            ScanPhysics(small_config(network=back_projection(pixel_angstrom=0.37)))
        nearest = float(str(caught.value).rpartition(" ")[2])
        assert math.isclose(nearest, BOX / 43)
        assert ScanPhysics(small_config(network=back_projection(pixel_angstrom=nearest))).grid.pixels == 43
