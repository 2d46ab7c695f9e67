"""The eight operations of the square on pictures and patterns, and the physics that makes them symmetries."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from field_cases import BOX, Blobs, blobs, correlation, model_of, small_config
from physics_cases import relative
from stemdl.models.scan_physics import ScanPhysics
from stemdl.models.symmetry import (
    HALF_TURN,
    IDENTITY,
    apply_to_patterns,
    apply_to_picture,
    symmetries,
    undo_on_picture,
)

ALL = tuple(range(8))
ASTIGMATIC = {"microscope__astigmatism_angstrom": 120.0, "microscope__astigmatism_azimuth_rad": 0.3}


def turned(potential: Blobs, operation: int) -> Blobs:
    """The same blobs under an operation about the middle of the box."""
    centres = potential.centres[:, ::-1] if operation & 1 else potential.centres
    flips = [bool(operation & 2), bool(operation & 4)]
    return Blobs(np.where(flips, BOX - centres, centres), potential.heights, potential.width_angstrom, potential.level)


def recorded_alike(patterns: torch.Tensor, operation: int) -> torch.Tensor:
    """Without the first row or column of an even detector where a flip brings one in that was not recorded."""
    for axis, bit in ((-2, 2), (-1, 4)):
        if operation & bit and patterns.shape[axis] % 2 == 0:
            patterns = patterns.narrow(axis, 1, patterns.shape[axis] - 1)
    return patterns


class TestGroup:
    picture = torch.arange(12.0).reshape(3, 4)

    def test_the_operations_are_eight(self) -> None:
        seen = {(tuple(p.shape), tuple(p.flatten().tolist())) for p in (apply_to_picture(self.picture, s) for s in ALL)}
        assert len(seen) == 8
        assert torch.equal(apply_to_picture(self.picture, IDENTITY), self.picture)
        assert torch.equal(apply_to_picture(self.picture, HALF_TURN), torch.rot90(self.picture, 2))

    @pytest.mark.parametrize(("first", "second"), list(itertools.product(ALL, ALL)))
    def test_two_of_them_are_a_third_the_same_for_pictures_and_patterns(self, first: int, second: int) -> None:
        both = apply_to_picture(apply_to_picture(self.picture, first), second)
        thirds = [
            s
            for s in ALL
            if both.shape == apply_to_picture(self.picture, s).shape
            and torch.equal(both, apply_to_picture(self.picture, s))
        ]
        assert len(thirds) == 1
        patterns = torch.arange(3.0 * 4 * 5 * 6).reshape(3, 4, 5, 6)
        twice = apply_to_patterns(apply_to_patterns(patterns, first), second)
        assert torch.equal(twice, apply_to_patterns(patterns, thirds[0]))

    @pytest.mark.parametrize("operation", ALL)
    @pytest.mark.parametrize("shape", [(3, 4), (2, 5, 5), (2, 3, 6, 4)])
    def test_undone_nothing_has_happened(self, operation: int, shape: tuple[int, ...]) -> None:
        picture = torch.rand(shape, generator=torch.Generator().manual_seed(1))
        assert torch.equal(undo_on_picture(apply_to_picture(picture, operation), operation), picture)
        assert torch.equal(apply_to_picture(undo_on_picture(picture, operation), operation), picture)


@pytest.mark.parametrize("operation", ALL)
@pytest.mark.parametrize("pixels", [(8, 8), (7, 7), (8, 7), (6, 8)])
def test_the_unscattered_beam_stays_in_its_pixel(operation: int, pixels: tuple[int, int]) -> None:
    patterns = torch.zeros(2, 2, *pixels)
    patterns[..., pixels[0] // 2, pixels[1] // 2] = 1
    result = apply_to_patterns(patterns, operation)
    qy, qx = result.shape[-2:]
    assert (qy, qx) == (pixels[::-1] if operation & 1 else pixels)
    assert torch.all(result[..., qy // 2, qx // 2] == 1)
    assert float(result.sum()) == 4


@pytest.mark.parametrize("operation", ALL)
@pytest.mark.parametrize("pixels", [(24, 24), (23, 23)])
def test_patterns_of_a_turned_potential_are_the_turned_patterns(operation: int, pixels: tuple[int, int]) -> None:
    model = model_of(small_config(detector__pixels=pixels, microscope__c3_angstrom=5e5))
    potential = blobs(1)
    patterns = model.amplitudes(potential.on_box(model.grid))
    expected = model.amplitudes(turned(potential, operation).on_box(model.grid))
    found = apply_to_patterns(patterns, operation)
    assert relative(recorded_alike(found, operation), recorded_alike(expected, operation)) < 1e-5
    if operation != IDENTITY:
        assert relative(patterns, expected) > 0.02  # the whole contrast is 0.03


@pytest.mark.parametrize("operation", ALL)
def test_the_true_potential_of_a_turned_specimen_is_the_turned_picture(operation: int) -> None:
    config = small_config()
    found = apply_to_picture(torch.from_numpy(blobs(2).on_field(config)), operation)
    assert np.allclose(found.numpy(), turned(blobs(2), operation).on_field(config), rtol=1e-9)


@pytest.mark.parametrize("operation", ALL)
def test_astigmatism_leaves_the_identity_and_the_half_turn(operation: int) -> None:
    config = small_config(detector__pixels=(23, 23), **ASTIGMATIC)
    model = model_of(config)
    patterns = model.amplitudes(blobs(3).on_box(model.grid))
    expected = model.amplitudes(turned(blobs(3), operation).on_box(model.grid))
    error = relative(apply_to_patterns(patterns, operation), expected)
    assert symmetries(config) == (IDENTITY, HALF_TURN)
    assert error < 1e-5 if operation in symmetries(config) else error > 0.02


@pytest.mark.parametrize("operation", ALL)
def test_pictures_of_the_physics_turn_with_the_patterns(operation: int) -> None:
    config = small_config(detector__pixels=(23, 23))
    physics, model = ScanPhysics(config), model_of(config)
    patterns = model.amplitudes(blobs(4).on_box(model.grid))
    straight = physics.first(patterns, 20.0).pictures
    found = physics.first(apply_to_patterns(patterns, operation), 20.0).pictures
    for picture, expected in zip(found, apply_to_picture(straight, operation), strict=True):
        assert correlation(picture, expected) > 0.999


def test_which_operations_a_configuration_has() -> None:
    no_transposition = (0, 2, 4, 6)
    assert symmetries(small_config()) == ALL
    assert symmetries(small_config(scan__positions=(4, 3))) == no_transposition
    assert symmetries(small_config(detector__pixels=(24, 20))) == no_transposition
    assert symmetries(small_config(scan__positions=(4, 3), **ASTIGMATIC)) == (IDENTITY, HALF_TURN)


@pytest.mark.parametrize(
    ("own", "drawn", "expected"),
    [
        (0.0, {"choice": [0.0, 50.0]}, (IDENTITY, HALF_TURN)),
        (0.0, {"uniform": [0.0, 1e-3]}, (IDENTITY, HALF_TURN)),
        (50.0, {"choice": [0.0]}, ALL),  # what is drawn takes the place of the configuration's own
        (50.0, {"uniform": [0.0, 0.0]}, ALL),
    ],
)
def test_where_astigmatism_is_drawn_any_sample_that_may_have_it_counts(
    own: float, drawn: dict[str, list[float]], expected: tuple[int, ...]
) -> None:
    config = small_config(microscope__astigmatism_angstrom=own, vary={"astigmatism_angstrom": drawn})
    assert symmetries(config) == expected


def test_what_else_is_drawn_leaves_all_symmetries() -> None:
    vary = {"energy_kev": {"choice": [60.0, 80.0]}, "astigmatism_azimuth_rad": {"uniform": [0.0, 1.0]}}
    assert symmetries(small_config(vary=vary)) == ALL
