"""The cost model: it grows with the work, chooses by the numbers alone, and takes no time itself."""

from __future__ import annotations

from dataclasses import replace

import pytest

from data_gen.engines import ImagingSetup
from data_gen.engines.cost_model import (
    beam_count,
    chosen_algorithm,
    estimated_seconds,
    multislice_seconds,
    potential_seconds,
    prism_seconds,
    propagation_seconds,
)
from data_gen.engines.prism import beams_of
from physics_cases import OPTICS
from stemdl.errors import UserError
from stemdl.physics.grid import Grid

SETUP = ImagingSetup(
    optics=OPTICS,
    grid=Grid(96, 24.0),
    scan_shape=(8, 8),
    scan_step_angstrom=2.0,
    detector_pixels=(48, 48),
    detector_binning=1,
    slice_angstrom=2.0,
    parametrization="kirkland",
)


def test_more_work_takes_longer() -> None:
    assert multislice_seconds(96, 10, 64) < multislice_seconds(128, 10, 64) < multislice_seconds(128, 20, 64)
    assert multislice_seconds(96, 10, 64) < multislice_seconds(96, 10, 65)
    assert potential_seconds(1000, 96, 10) < potential_seconds(2000, 96, 10) < potential_seconds(2000, 96, 20)
    assert prism_seconds(96, 10, 64, 500, 2500) < prism_seconds(96, 10, 1024, 500, 2500)
    assert prism_seconds(96, 10, 64, 500, 2500) < prism_seconds(96, 10, 64, 600, 2500)


def test_a_thick_specimen_and_frozen_phonons_multiply_the_time_of_an_item() -> None:
    once = estimated_seconds(SETUP, 1000, 20.0, 1)
    assert estimated_seconds(SETUP, 1000, 20.0, 8) == pytest.approx(8 * once, rel=0.02)
    assert estimated_seconds(SETUP, 30000, 600.0, 1) == pytest.approx(30 * once, rel=0.2)
    assert 0.001 < once < 10  # seconds, on any machine


@pytest.mark.parametrize("semiangle_mrad", [2.0, 10.0, 25.0])
@pytest.mark.parametrize("interpolation", [1, 2])
def test_beams_are_counted_from_the_area_of_the_aperture(semiangle_mrad: float, interpolation: int) -> None:
    setup = replace(SETUP, optics=replace(OPTICS, semiangle_mrad=semiangle_mrad))
    beams, _ = beams_of(setup.optics, setup.grid, interpolation)
    assert beam_count(setup, interpolation) == pytest.approx(len(beams), rel=0.1, abs=4)


def test_prism_is_chosen_for_many_probes_of_a_thick_specimen() -> None:
    assert chosen_algorithm(SETUP, 10) == "multislice"
    many = replace(SETUP, scan_shape=(32, 32), scan_step_angstrom=0.5)
    assert chosen_algorithm(many, 100) == "prism"
    assert chosen_algorithm(replace(many, optics=replace(OPTICS, semiangle_mrad=40.0)), 100) == "multislice"
    assert chosen_algorithm(replace(many, scan_shape=(8, 8)), 100) == "multislice"


def test_the_choice_is_the_cheaper_one_by_the_model_itself() -> None:
    for side in (4, 16, 24, 28, 32, 64):
        for slices in (1, 10, 100):
            setup = replace(SETUP, scan_shape=(side, side), scan_step_angstrom=16 / side)
            cheaper = min(("multislice", "prism"), key=lambda name: propagation_seconds(setup, slices, name))
            assert chosen_algorithm(setup, slices) == cheaper


def test_what_the_setup_asks_for_is_done() -> None:
    assert chosen_algorithm(replace(SETUP, algorithm="prism"), 1) == "prism"
    many = replace(SETUP, scan_shape=(64, 64), algorithm="multislice")
    assert chosen_algorithm(many, 100) == "multislice"
    with pytest.raises(UserError, match="'bloch'; known are 'auto', 'multislice', 'prism'"):
        chosen_algorithm(replace(SETUP, algorithm="bloch"), 1)


def test_exit_waves_of_beams_that_fill_the_memory_are_not_chosen() -> None:
    """3800 beams on 256 x 256 frequencies are 2 GB."""
    wide = replace(SETUP, grid=Grid(384, 64.0), detector_pixels=(256, 256), scan_shape=(128, 128))
    assert propagation_seconds(wide, 100, "prism") < propagation_seconds(wide, 100, "multislice")
    assert chosen_algorithm(wide, 100) == "multislice"


def test_interpolation_counts_only_where_prism_was_asked_for() -> None:
    interpolated = replace(SETUP, prism_interpolation=2)
    assert estimated_seconds(interpolated, 1000, 20.0, 1) == estimated_seconds(SETUP, 1000, 20.0, 1)
    exact = replace(SETUP, algorithm="prism")
    assert estimated_seconds(replace(exact, prism_interpolation=2), 1000, 20.0, 1) < estimated_seconds(
        exact, 1000, 20.0, 1
    )
