"""The pre-flight on what the detector makes of the electrons, and on how patterns are made."""

from __future__ import annotations

import pytest

from stemdl.preflight import preflight
from stemdl.preflight.algorithm import check_algorithm
from stemdl.preflight.ranges import check_ranges
from stemdl.preflight.readout import check_dose_limits, check_readout
from test_preflight import bad, config_with

DOSE = "detector.dose_e_per_a2=1e4"  # 4e4 electrons a pattern of 525 pixels of bright field: 76 in each
GAIN = "detector.adu_per_electron=4"


@pytest.mark.parametrize(
    ("overrides", "severity", "check", "found", "right", "key"),
    [
        (["saturation_electrons=100"], "error", "readout", "saturation without a dose", "vary.dose", ""),
        (["adu_per_electron=4"], "error", "readout", "a gain without a dose", "detector.dose", ""),
        (["hot_fraction=0.01"], "error", "readout", "hot pixels without a dose", "detector.dose", ""),
        (["readout_sigma_adu=2", "dose_e_per_a2=1e4"], "error", "readout", "2 ADU without a gain", "adu_per", ""),
        (["dead_fraction=0.5"], "warning", "bad pixels", "0.5 of the detector", "0.5 % is 0.005", ""),
        (["hot_fraction=0.3", "dose_e_per_a2=1e4"], "warning", "bad pixels", "0.3", "0.2", ""),
        (["saturation_electrons=50", "dose_e_per_a2=1e4"], "warning", "saturation", "75.7 el", "least 75.7", ""),
        (["adu_per_electron=0.01", "dose_e_per_a2=1e4"], "warning", "gain", "0.01 ADU each", "0.013", ""),
        (
            ["adu_per_electron=4", "readout_sigma_adu=400", "dose_e_per_a2=1e4"],
            "warning",
            "readout noise",
            "noise of 100",
            "",
            "readout_sigma_adu",
        ),
    ],
)
def test_unsound_detectors(overrides: list[str], severity: str, check: str, found: str, right: str, key: str) -> None:
    config = config_with(*(f"detector.{override}" for override in overrides))
    findings, key = bad(check_readout(config)), key or overrides[0].partition("=")[0]
    assert [(f.severity, f.check, f.key) for f in findings] == [(severity, check, f"detector.{key}")]
    assert found in findings[0].found
    assert right in findings[0].right


def test_sound_detectors() -> None:
    assert bad(check_readout(config_with())) == []
    effects = ["detector.saturation_electrons=4095", "detector.hot_fraction=0.001", "detector.dead_fraction=0.002"]
    full = config_with(DOSE, GAIN, "detector.readout_sigma_adu=2", *effects)
    assert bad(check_readout(full)) == []
    assert check_dose_limits(full) == []
    drawn = config_with("vary.dose_e_per_a2={log_uniform: [1e3, 1e5]}", GAIN, *effects)
    assert [f for f in preflight(drawn) if f.severity == "error"] == [], "a dose that is drawn is a dose"


def test_a_detector_is_judged_at_every_dose_that_is_drawn() -> None:
    config = config_with("vary.dose_e_per_a2={log_uniform: [1e3, 1e5]}", DOSE, "detector.saturation_electrons=100")
    findings = [f for f in check_ranges(config) if f.check == "saturation"]
    assert [(f.severity, f.key) for f in findings] == [("warning", "vary.dose_e_per_a2")]
    assert "(at dose_e_per_a2 100000)" in findings[0].found


def test_numbers_of_electrons_that_cannot_be_drawn() -> None:
    for override, key in (
        ("detector.dose_e_per_a2=1e30", "detector.dose_e_per_a2"),
        ("vary.dose_e_per_a2={log_uniform: [1, 1e30]}", "vary.dose_e_per_a2"),
    ):
        findings = check_dose_limits(config_with(override))
        assert [(f.severity, f.key) for f in findings] == [("error", key)]
        assert "4e+30 electrons a pattern" in findings[0].found
        assert "1e+18" in findings[0].right


class TestAlgorithm:
    PRISM = "simulation.algorithm=prism"
    HALF = "simulation.prism_interpolation=2"

    def test_exact_ones_pass(self) -> None:
        for override in ("simulation.algorithm=auto", "simulation.algorithm=multislice", self.PRISM):
            assert check_algorithm(config_with(override)) == []

    @pytest.mark.parametrize("algorithm", ["auto", "multislice"])
    def test_an_interpolation_that_nothing_reads(self, algorithm: str) -> None:
        finding = bad(check_algorithm(config_with(self.HALF, f"simulation.algorithm={algorithm}")))[0]
        assert (finding.severity, finding.key) == ("warning", "simulation.prism_interpolation")
        assert f"algorithm {algorithm}" in finding.found

    def test_the_probe_fits_its_window(self) -> None:
        assert bad(check_algorithm(config_with(self.PRISM, self.HALF))) == []
        finding = bad(check_algorithm(config_with(self.PRISM, "simulation.prism_interpolation=4")))[0]
        assert (finding.severity, finding.check) == ("error", "prism: window")
        assert finding.key == "simulation.prism_interpolation"
        assert "a probe 6.9 Å across in a window of 6 Å" in finding.found
        assert "at most 3" in finding.right

    def test_the_factor_divides_both_grids(self) -> None:
        overrides = [
            "simulation.pixel_angstrom=0.24",
            "held_out.pixel_angstrom=0.16",
            "simulation.prism_interpolation=3",
        ]
        findings = bad(check_algorithm(config_with(self.PRISM, *overrides)))
        assert [(f.severity, f.check) for f in findings] == [("error", "prism: simulation grid")]
        assert "a grid of 100 pixels" in findings[0].found
        assert "such as 2" in findings[0].right
        test = bad(check_algorithm(config_with(self.PRISM, self.HALF, "held_out.pixel_angstrom=0.192")))
        assert [f.check for f in test] == ["prism: held_out grid"]

    def test_the_window_holds_every_probe_that_is_drawn(self) -> None:
        config = config_with(self.PRISM, self.HALF, "vary.defocus_angstrom={uniform: [80, 220]}")
        findings = [f for f in check_ranges(config) if f.check == "prism: window"]
        assert [(f.severity, f.key) for f in findings] == [("error", "vary.defocus_angstrom")]
        assert "defocus_angstrom 220" in findings[0].found

    def test_the_reference_does_multislice_whatever_is_said(self) -> None:
        findings = check_algorithm(config_with(self.PRISM, self.HALF, "simulation.engine=abtem"))
        assert [(f.severity, f.key) for f in findings] == [("warning", "simulation.algorithm")]
