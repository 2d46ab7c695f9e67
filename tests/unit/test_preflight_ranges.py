"""The pre-flight over what is drawn: what fails anywhere in a range is found, with range and value."""

from __future__ import annotations

import numpy as np
import pytest

from stemdl.config import Config
from stemdl.config.substitute import with_values
from stemdl.preflight import Finding, preflight
from stemdl.preflight.optics import check_probe
from stemdl.preflight.ranges import central, check_ranges, check_varied_units
from test_preflight import bad, config_with, physics_checks


def only(config: Config, check: str) -> Finding:
    findings = [finding for finding in check_ranges(config) if finding.check == check]
    assert len(findings) == 1
    return findings[0]


def test_nothing_is_said_where_nothing_varies() -> None:
    assert check_ranges(config_with()) == []
    config = config_with()
    assert central(config) == config


def test_a_sound_range_is_one_line() -> None:
    config = config_with("vary.energy_kev={uniform: [80, 120]}", "vary.tilt_mrad={choice: [0, 10]}")
    findings = check_ranges(config)
    assert [(f.check, f.severity) for f in findings] == [("ranges", "ok")]
    assert "energy_kev 80 to 120, tilt_mrad 0 or 10" in findings[0].found
    every = preflight(config)
    assert [f for f in every if f.severity == "error"] == []
    assert [f.check for f in every].count("ranges") == 1


@pytest.mark.parametrize(
    ("draw", "severity", "check", "found", "right"),
    [
        # the end of a range, low or high, for each check of the physics
        ("energy_kev={uniform: [80, 300]}", "error", "back-projection: aperture", "energy_kev 300", "pixels below"),
        ("energy_kev={uniform: [80, 300]}", "warning", "bright field", "19.69 mrad (at energy_kev 300", "more pixels"),
        ("energy_kev={uniform: [60, 100]}", "warning", "scattered beams", "(at energy_kev 60)", "a box of"),
        ("energy_kev={uniform: [10, 100]}", "error", "probe in the box", "(at energy_kev 10)", "a box of"),
        ("semiangle_mrad={uniform: [1, 20]}", "error", "probe in the box", "(at semiangle_mrad 1)", ""),
        ("semiangle_mrad={choice: [20, 40]}", "error", "back-projection: aperture", "(at semiangle_mrad 40)", ""),
        ("semiangle_mrad={uniform: [5, 20]}", "warning", "scattered beams", "(at semiangle_mrad 5)", ""),
        ("defocus_angstrom={uniform: [-300, 80]}", "error", "probe in the box", "(at defocus_angstrom -300)", ""),
        ("defocus_angstrom={uniform: [80, 300]}", "error", "probe in the box", "(at defocus_angstrom 300)", ""),
        ("c3_angstrom={uniform: [0, 1e6]}", "error", "probe in the box", "(at c3_angstrom 1e+06)", ""),
        ("astigmatism_angstrom={uniform: [0, 200]}", "error", "probe in the box", "(at astigmatism_angstrom 200)", ""),
        ("step_angstrom={uniform: [2, 3]}", "error", "probe in the box", "scan 21 Å + probe", "a smaller step"),
        ("step_angstrom={uniform: [1.5, 2]}", "warning", "scan and target", "12 Å of a target of 16 Å", "1.75 Å"),
        ("drift_angstrom={uniform: [0, 4]}", "error", "probe in the box", "drift and jitter 4 Å", ""),
        ("drift_angstrom={choice: [0, 9]}", "warning", "drift", "9 Å over a field of 16 Å", "8 Å"),
        ("jitter_sigma_angstrom={uniform: [0, 0.4]}", "error", "probe in the box", "drift and jitter 3.2 Å", ""),
        ("jitter_sigma_angstrom={choice: [0, 1.2]}", "warning", "jitter", "1.2 Å on steps of 2 Å", "1 Å"),
        ("source_sigma_angstrom={uniform: [0, 17]}", "error", "microscope blur size", "σ 17 Å", "16 Å"),
        ("tilt_mrad={uniform: [0, 300]}", "warning", "tilt", "(at tilt_mrad 300)", "200 mrad"),
        ("displacement_sigma_angstrom={uniform: [0, 0.7]}", "warning", "displacements", "0.7 Å", "melts"),
        ("dose_e_per_a2={log_uniform: [10, 1e4]}", "warning", "dose", "40 electrons a pattern", "25 e/Å²"),
    ],
)
def test_the_end_at_which_it_fails_is_named(draw: str, severity: str, check: str, found: str, right: str) -> None:
    config, key = config_with(f"vary.{draw}"), f"vary.{draw.partition('=')[0]}"
    finding = only(config, check)
    assert (finding.severity, finding.key) == (severity, key)
    assert found in finding.found
    assert right in finding.right
    assert f"a narrower range in {key}" in finding.right or check == "scan and target"


def test_the_narrowest_probe_may_lie_between_the_ends() -> None:
    """Out of focus on both sides the probes overlap; in focus they do not."""
    config = config_with("microscope.semiangle_mrad=25", "vary.defocus_angstrom={uniform: [-80, 80]}")
    finding = only(config, "probe overlap")
    assert (finding.severity, finding.key) == ("warning", "vary.defocus_angstrom")
    assert "(at defocus_angstrom 10)" in finding.found, "the focus in the middle of 20 Å"


def test_what_is_found_is_said_once_and_not_for_the_usual_value_too() -> None:
    config = config_with("vary.energy_kev={uniform: [80, 300]}", "vary.step_angstrom={uniform: [2, 3]}")
    every = preflight(config)
    for check in ("back-projection: aperture", "bright field", "probe in the box"):
        assert [f for f in every if f.check == check] == [only(config, check)]
    checks = [f.check for f in every if f.check not in ("crystals", "samples a material")]
    assert len(checks) == len(set(checks))


def test_ends_that_fail_only_together_are_found_together() -> None:
    """Neither the highest energy with the usual aperture nor the widest aperture at the usual energy is too much."""
    energy, aperture = "vary.energy_kev={uniform: [60, 140]}", "vary.semiangle_mrad={uniform: [10, 26]}"
    pixel = "network.back_projection.pixel_angstrom=0.25"
    for one in (energy, aperture):
        assert [f for f in check_ranges(config_with(one, pixel)) if f.check == "simulation: aperture"] == []
    finding = only(config_with(energy, aperture, "simulation.pixel_angstrom=0.4", pixel), "simulation: aperture")
    assert finding.severity == "error"
    assert "semiangle_mrad 26" in finding.found
    assert "energy_kev 140" in finding.found


def test_the_range_that_matters_most_is_named_first_and_trifles_not_at_all() -> None:
    vary = "vary={tilt_mrad: {uniform: [0, 5]}, c3_angstrom: {uniform: [0, 10]}, energy_kev: {uniform: [95, 105]}, "
    config = config_with(vary + "astigmatism_angstrom: {uniform: [0, 40]}, defocus_angstrom: {uniform: [-300, 80]}}")
    finding = only(config, "probe in the box")
    assert finding.key == "vary.defocus_angstrom"
    assert finding.found.endswith("(at defocus_angstrom -300, astigmatism_angstrom 40)")


def test_no_draw_is_worse_than_what_was_found() -> None:
    """A thousand random settings: none needs a larger box than the one that is named."""
    vary = (
        "vary={energy_kev: {uniform: [60, 200]}, semiangle_mrad: {uniform: [5, 20]}, c3_angstrom: {uniform: [0, 2e5]}, "
        "defocus_angstrom: {uniform: [-200, 300]}, astigmatism_angstrom: {uniform: [0, 50]}, "
        "step_angstrom: {uniform: [1.9, 2.3]}, jitter_sigma_angstrom: {uniform: [0, 0.2]}, "
        "drift_angstrom: {uniform: [0, 2]}}"
    )
    config = config_with(vary)
    named = only(config, "probe in the box")
    rng = np.random.default_rng(0)
    for _ in range(1000):
        values = {name: draw.at(rng.random()) for name, draw in config.vary.draws.items()}
        assert check_probe(with_values(config, values))[0].excess <= named.excess
    assert named.excess > 0.5


def test_what_fails_at_the_usual_value_too_keeps_its_key_and_the_worst_value() -> None:
    box = "specimen.box_angstrom=20"
    config = config_with(box, "vary.defocus_angstrom={uniform: [0, 100]}")
    finding = only(config, "probe in the box")
    assert (finding.severity, finding.key) == ("error", "specimen.box_angstrom")
    assert "(at defocus_angstrom 100)" in finding.found
    assert "narrower" not in finding.right


def test_a_usual_value_outside_its_range_is_not_what_is_checked() -> None:
    """The value in the section is never simulated: 300 keV would lose the aperture, the range does not."""
    config = config_with("microscope.energy_kev=300", "vary.energy_kev={uniform: [80, 120]}")
    assert central(config).microscope.energy_kev == 120
    assert [f.check for f in preflight(config) if f.severity == "error"] == []
    assert "simulation: aperture" in [f.check for f in preflight(config)]
    dosed = config_with("vary.dose_e_per_a2={choice: [1e3, 1e4]}")
    assert central(dosed).detector.dose_e_per_a2 == 1e4
    stepped = config_with("vary.step_angstrom={choice: [2.1, 2.2]}")
    assert central(stepped).scan.step_angstrom == 2.0, "the target keeps its field"


def test_the_target_is_that_of_the_usual_step() -> None:
    """Steps that are no whole number of pixels of the target are no mistake where they are drawn."""
    config = config_with("vary.step_angstrom={uniform: [1.93, 2.07]}")
    assert bad(physics_checks(config)) == []
    assert bad(check_ranges(config)) == []


def test_units_are_judged_by_the_largest_value() -> None:
    small = config_with("vary.c3_angstrom={uniform: [0, 1.2]}")
    assert [(f.severity, f.key) for f in check_varied_units(small)] == [("warning", "vary.c3_angstrom")]
    wide = config_with("vary.c3_angstrom={uniform: [-10, 1e4]}", "vary.tilt_mrad={uniform: [0.01, 10]}")
    assert bad(check_varied_units(wide)) == []
    azimuth = config_with("vary.astigmatism_azimuth_rad={uniform: [0, 180]}")
    assert [f.key for f in check_varied_units(azimuth)] == ["vary.astigmatism_azimuth_rad"]
    assert [f.key for f in preflight(azimuth) if f.check == "units"] == ["vary.astigmatism_azimuth_rad"]


def test_scan_noise_needs_room_without_any_range_too() -> None:
    finding = bad(check_probe(config_with("scan.drift_angstrom=3", "scan.jitter_sigma_angstrom=0.2")))[0]
    assert (finding.severity, finding.key) == ("error", "specimen.box_angstrom")
    assert "scan 14 Å + drift and jitter 4.6 Å + probe" in finding.found
