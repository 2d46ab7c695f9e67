"""Values that leave nothing to be seen, or that only a slip explains, are found with the key to change."""

from __future__ import annotations

from pathlib import Path

import pytest

from stemdl.preflight.crystals import check_crystals
from stemdl.preflight.limits import check_limits
from stemdl.preflight.network import check_scanfield
from test_preflight import bad, config_with


@pytest.mark.parametrize(
    ("overrides", "severity", "found", "right", "key"),
    [
        (["scan.positions=[8, 2]"], "error", "32 x 8 pixels", "11 pixels", "target.pixel_angstrom"),
        (["scan.positions=[2, 8]"], "error", "8 x 32 pixels", "0.3636 Å", "target.pixel_angstrom"),
        (["target.blur_sigma_angstrom=4.1"], "error", "4.1 Å", "at most 4 Å", "target.blur_sigma_angstrom"),
        (["microscope.source_sigma_angstrom=17"], "error", "17 Å", "16 Å", "microscope.source_sigma_angstrom"),
        (["detector.blur_sigma_pixels=12.5"], "error", "12.5 pixels", "12 pixels", "detector.blur_sigma_pixels"),
        (["simulation.slice_angstrom=21"], "error", "21 Å", "20 Å", "simulation.slice_angstrom"),
        (["train.lr=3"], "warning", "rate of 3", "3e-3", "train.lr"),
        (["specimen.tilt_mrad=300"], "warning", "0.3 rad or 17.2°", "200 mrad", "specimen.tilt_mrad"),
        (["network.back_projection.slices=11"], "warning", "11 slices", "10", "network.back_projection.slices"),
        (
            ["specimen.displacement_sigma_angstrom=0.7"],
            "warning",
            "0.7 Å",
            "melts",
            "specimen.displacement_sigma_angstrom",
        ),
    ],
)
def test_limits(overrides: list[str], severity: str, found: str, right: str, key: str) -> None:
    findings = check_limits(config_with(*overrides))
    assert [(f.severity, f.key) for f in findings] == [(severity, key)]
    assert found in findings[0].found
    assert right in findings[0].right


def test_values_at_the_limits_pass() -> None:
    at = ["target.blur_sigma_angstrom=4", "microscope.source_sigma_angstrom=16", "detector.blur_sigma_pixels=12"]
    at += ["simulation.slice_angstrom=20", "train.lr=1", "specimen.tilt_mrad=200"]
    assert bad(check_limits(config_with(*at))) == []
    eleven = config_with("scan.positions=[11, 11]", "scan.step_angstrom=0.3", "target.pixel_angstrom=0.3")
    assert bad(check_limits(eleven)) == []


def test_a_single_position_and_a_single_detector_pixel() -> None:
    keys = {f.key for f in check_limits(config_with("scan.positions=[1, 1]")) if f.severity == "error"}
    assert keys == {"scan.positions", "target.pixel_angstrom"}
    assert [f.key for f in check_limits(config_with("detector.pixels=[1, 1]"))] == ["detector.pixels"]


def test_a_run_folder_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        findings = check_limits(config_with(f"run.folder={folder}"))
        assert [(f.severity, f.key) for f in findings] == [("error", "run.folder")]
    assert bad(check_limits(config_with(f"run.folder={tmp_path / 'new'}"))) == []


@pytest.mark.parametrize("pixels", ["[31, 33]", "[1, 1]"])
def test_patterns_are_never_to_be_binned_to_one_pixel(pixels: str) -> None:
    finding = bad(check_scanfield(config_with(f"detector.pixels={pixels}")))[0]
    assert finding.key == "detector.pixels"
    assert "24 x 24" in finding.right


def test_the_nearest_crystal_ignores_case() -> None:
    finding = bad(check_crystals(config_with("crystals.include=[al-fcc]")))[0]
    assert "such as Al-fcc" in finding.right
