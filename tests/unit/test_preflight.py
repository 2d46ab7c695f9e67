"""The pre-flight: each unsound choice is found with what would be right and the key to change; sound ones pass."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from minimal_config import MINIMAL
from stemdl.config import Config, load_config
from stemdl.preflight import Finding, format_findings, preflight
from stemdl.preflight.limits import check_limits
from stemdl.preflight.network import check_network, check_scanfield, check_training
from stemdl.preflight.optics import check_probe, check_units
from stemdl.preflight.readout import check_dose
from stemdl.preflight.sampling import check_detector, check_grids
from stemdl.preflight.specimen import check_slices, check_target

CONFIGS = Path(__file__).resolve().parents[2] / "configs"


def config_with(*overrides: str) -> Config:
    """The minimal configuration with defocus and with amounts that raise no warning, then changed."""
    amounts = ("train.steps=900", "simulation.samples=1200", "microscope.defocus_angstrom=80")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "minimal.yaml"
        path.write_text(MINIMAL)
        return load_config(path, [*amounts, *overrides])


def physics_checks(config: Config, ranks: int = 1) -> list[Finding]:
    """All checks that depend neither on this machine nor on the library."""
    return [
        *check_units(config),
        *check_limits(config),
        *check_slices(config),
        *check_grids(config),
        *check_detector(config),
        *check_probe(config),
        *check_target(config),
        *check_scanfield(config),
        *check_dose(config),
        *check_training(config, ranks),
    ]


def bad(findings: list[Finding]) -> list[Finding]:
    return [finding for finding in findings if finding.severity != "ok"]


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.yaml")), ids=lambda path: path.name)
def test_every_shipped_file_passes(path: Path) -> None:
    findings = preflight(load_config(path))
    assert [finding for finding in findings if finding.severity == "error"] == []
    assert len(findings) > 25


def test_the_minimal_configuration_is_sound() -> None:
    assert bad(physics_checks(config_with())) == []


def test_quickstart_and_smoke_have_no_warning_about_physics() -> None:
    for file in ("quickstart.yaml", "smoke.yaml"):
        assert bad(physics_checks(load_config(CONFIGS / file))) == []


PIXEL, BP = "simulation.pixel_angstrom", "network.back_projection.pixel_angstrom"


@pytest.mark.parametrize(
    ("overrides", "severity", "check", "found", "right", "key"),
    [
        # units that no range catches
        (["microscope.c3_angstrom=1.2"], "warning", "units", "1.2", "1.2e+07", "microscope.c3_angstrom"),
        (["specimen.tilt_mrad=0.01"], "warning", "units", "0.01", "10 mrad", "specimen.tilt_mrad"),
        (
            ["microscope.astigmatism_azimuth_rad=90"],
            "warning",
            "units",
            "90 rad",
            "1.571 rad",
            "microscope.astigmatism_azimuth_rad",
        ),
        # grids
        ([f"{PIXEL}=0.23"], "error", "simulation: pixels", "104.3", "0.24 (100 pixels)", PIXEL),
        (["held_out.pixel_angstrom=0.13"], "error", "held-out: pixels", "184.6", "(189 p", "held_out.pixel_angstrom"),
        ([f"{BP}=0.35"], "error", "back-projection: pixels", "68.57", "0.375 (64 pixels)", BP),
        (["specimen.box_angstrom=24.25"], "warning", "simulation: pixels", "97 x 97", "98 pixels", PIXEL),
        ([f"{PIXEL}=0.75", "detector.pixels=[8,8]"], "error", "simulation: aperture", "16.45 mrad", "0.6169", PIXEL),
        ([f"{PIXEL}=0.4"], "error", "simulation: detector", "30.8", "0.3333 Å, or a detector of 40", PIXEL),
        (["detector.pixels=[96, 96]"], "error", "held-out: detector", "74.", "0.1667", "held_out.pixel_angstrom"),
        ([f"{PIXEL}=0.3333333333333333"], "warning", "simulation: detector", "22.", "corners", PIXEL),
        ([f"{BP}=0.48"], "warning", "back-projection: detector", "25.7", "masked", BP),
        # the detector's own pixel
        (
            ["detector.dk_per_angstrom=0.05"],
            "error",
            "detector pixel",
            "1.2 steps",
            "0.08333",
            "detector.dk_per_angstrom",
        ),
        (["detector.dk_per_angstrom=0.0416"], "error", "detector pixel", "0.998", "(1)", "detector.dk_per_angstrom"),
        (["detector.pixels=[20, 20]"], "warning", "bright field", "15.4", "more pixels", "detector.pixels"),
        (
            ["detector.dk_per_angstrom=0.16666666666666666", "detector.pixels=[12, 12]"],
            "warning",
            "pattern sampling",
            "6 Å in real space",
            "0.14",
            "detector.dk_per_angstrom",
        ),
        # the probe
        (["microscope.defocus_angstrom=300"], "error", "probe in the box", "= 29.7 Å", "29.7", "specimen.box_angstrom"),
        (["microscope.defocus_angstrom=-300"], "error", "probe in the box", "= 30.5 Å", "", "specimen.box_angstrom"),
        (["microscope.c3_angstrom=1e6"], "error", "probe in the box", "", "less defocus", "specimen.box_angstrom"),
        (["scan.positions=[8, 11]"], "error", "probe in the box", "20 Å", "26.9", "specimen.box_angstrom"),
        (
            ["specimen.thickness_angstrom=[60, 60]"],
            "warning",
            "scattered beams",
            "60 Å",
            "25.3",
            "specimen.box_angstrom",
        ),
        (
            ["scan.step_angstrom=4", "scan.positions=[3, 3]"],
            "warning",
            "probe overlap",
            "42%",
            "3.45",
            "scan.step_angstrom",
        ),
        # the target
        (["scan.positions=[13, 8]"], "error", "field in the box", "26 x 16", "26 Å", "specimen.box_angstrom"),
        (
            ["target.pixel_angstrom=0.6"],
            "error",
            "target pixels",
            "26.66",
            "0.6666666667 or 0.5",
            "target.pixel_angstrom",
        ),
        (["scan.step_angstrom=1.9"], "error", "target pixels", "30.4", "24.7 Å", "specimen.box_angstrom"),
        (["target.blur_sigma_angstrom=0.2"], "warning", "target blur", "0.2 Å", "0.25 Å", "target.blur_sigma_angstrom"),
        # the network
        (
            ["target.pixel_angstrom=0.8"],
            "error",
            "scanfield: upsampling",
            "2.5 target pixels",
            "whole number",
            "target.pixel_angstrom",
        ),
        (["network.pattern_pixels=20"], "warning", "scanfield: patterns", "20 x 20", "16", "network.pattern_pixels"),
        # slices
        (
            ["simulation.slice_angstrom=2.5"],
            "warning",
            "simulation: slices",
            "2.5 Å",
            "2 Å",
            "simulation.slice_angstrom",
        ),
        (["held_out.slice_angstrom=2"], "warning", "held-out: slices", "2 Å", "1 Å", "held_out.slice_angstrom"),
        (
            ["specimen.thickness_angstrom=[15, 21]"],
            "warning",
            "thickness",
            "7.5 to 10.5",
            "[16, 20]",
            "specimen.thickness_angstrom",
        ),
        (
            ["specimen.thickness_angstrom=[20.5, 21.5]"],
            "warning",
            "thickness",
            "10.25",
            "[20, 22]",
            "specimen.thickness_angstrom",
        ),
        (
            ["held_out.slice_angstrom=0.75"],
            "warning",
            "held-out: thickness",
            "26.67 slices",
            "0.740741 Å",
            "held_out.slice_angstrom",
        ),
        (
            ["held_out.slice_angstrom=0.8", "specimen.thickness_angstrom=[16, 20]"],
            "warning",
            "held-out: thickness",
            "20 to 25 slices",
            "0.666667 Å",
            "held_out.slice_angstrom",
        ),
        (
            ["held_out.pixel_angstrom=0.3"],
            "warning",
            "held-out sampling",
            "0.3 Å",
            "as fine",
            "held_out.pixel_angstrom",
        ),
        (
            ["specimen.thickness_angstrom=[80, 80]", "network.back_projection.slices=2"],
            "warning",
            "back-projection slices",
            "2 slices of 40 Å",
            "3 slices",
            "network.back_projection.slices",
        ),
        # noise and amounts
        (["detector.dose_e_per_a2=20"], "warning", "dose", "80 electrons", "25 e/Å²", "detector.dose_e_per_a2"),
        (["train.steps=10", "train.warmup_steps=2"], "warning", "training steps", "", "at least", "train.steps"),
        (["train.warmup_steps=100000"], "warning", "warm-up", "100000 steps", "", "train.warmup_steps"),
        (["simulation.samples=4"], "warning", "batch and samples", "from 4", "at most 4", "train.batch"),
    ],
)
def test_unsound_choices(overrides: list[str], severity: str, check: str, found: str, right: str, key: str) -> None:
    findings = [f for f in bad(physics_checks(config_with(*overrides))) if f.check == check]
    assert len(findings) == 1
    finding = findings[0]
    assert finding.severity == severity
    assert found in finding.found
    assert right in finding.right
    assert finding.key == key


def test_what_is_called_right_is_right() -> None:
    """The values named in `right` pass the check that named them."""
    findings = {f.check: f for f in bad(physics_checks(config_with(f"{PIXEL}=0.23", "detector.dk_per_angstrom=0.05")))}
    pixel = findings["simulation: pixels"].right.split(": ")[1].split(" ")[0]
    dk = findings["detector pixel"].right.split(": ")[1].split(" ")[0]
    mended = {f.check for f in bad(physics_checks(config_with(f"{PIXEL}={pixel}", f"detector.dk_per_angstrom={dk}")))}
    assert not mended & {"simulation: pixels", "detector pixel", "simulation: aperture"}


class TestFcDenseNet:
    """The builder of a network is asked, and its answer is a finding."""

    NETWORK = "network={name: fc_densenet, growth: 4}"

    def test_pools_halve_the_detector(self) -> None:
        findings, description = check_network(config_with(self.NETWORK, "detector.pixels=[36, 36]"))
        assert [(f.check, f.severity, f.key) for f in findings] == [("network", "error", "detector.pixels")]
        assert "36 x 36" in findings[0].found
        assert "multiples of 8" in findings[0].right
        assert description is None

    def test_target_has_the_detectors_pixels(self) -> None:
        findings, _ = check_network(config_with(self.NETWORK))
        assert [(f.severity, f.key) for f in findings] == [("error", "target.pixel_angstrom")]
        assert "0.3333333333 Å" in findings[0].right
        assert bad(check_network(config_with(self.NETWORK, "target.pixel_angstrom=0.333333333333333333"))[0]) == []

    def test_paper(self) -> None:
        config = load_config(CONFIGS / "paper-2019.yaml")
        assert config.scan.positions == (32, 32)
        assert config.detector.pixels == (512, 512)
        findings, description = check_network(config)
        assert findings[0].found == "fc_densenet: 2.29e7 weights, 8.00e12 training FLOP a field of 32 x 32 x 512 x 512"
        assert description is not None


@pytest.mark.parametrize(
    ("override", "key"),
    [
        ("detector.pixels=[48, 1000000000]", "detector.pixels"),
        ("scan.positions=[20000, 8]", "scan.positions"),
        ("simulation.pixel_angstrom=2.5e-9", "simulation.pixel_angstrom"),
        ("network.back_projection.pixel_angstrom=1e-12", "network.back_projection.pixel_angstrom"),
        ("target.pixel_angstrom=5e-4", "target.pixel_angstrom"),
    ],
)
def test_sizes_that_cannot_be_meant_end_the_checks(override: str, key: str) -> None:
    findings = preflight(config_with(override))
    assert {(f.check, f.severity) for f in findings} == {("sizes", "error")}
    assert key in [f.key for f in findings]


def test_a_network_that_torch_refuses_is_a_finding() -> None:
    findings, description = check_network(config_with("network.features=1000000000", "network.hidden=100000000000"))
    assert [(f.check, f.severity) for f in findings if f.severity != "ok"] == [("network", "error")]
    assert description is None


def test_a_detector_of_one_pixel_is_checked_too() -> None:
    assert len(physics_checks(config_with("detector.pixels=[1, 1]", "network.pattern_pixels=1"))) > 20


def test_ranks_share_the_batch() -> None:
    config = config_with("train.batch=16")
    assert bad(check_training(config, 8)) == []
    finding = bad(check_training(config, 6))[0]
    assert (finding.severity, finding.key) == ("error", "train.batch")
    assert "12 or 18" in finding.right
    assert "32 or more" in bad(check_training(config, 32))[0].right
    with pytest.raises(ValueError, match="at least 1"):
        preflight(config, ranks=0)


def test_format_is_aligned_and_complete() -> None:
    findings = [
        Finding("ok", "units", "100 keV", "", "microscope"),
        Finding("error", "probe in the box", "30 Å in a box of 24 Å " * 6, "a box of 30 Å", "specimen.box_angstrom"),
    ]
    lines = format_findings(findings, width=80).splitlines()
    assert all(len(line) <= 80 for line in lines)
    assert lines[0].index("100 keV") == lines[1].index("found")
    assert lines[-3].strip() == "right a box of 30 Å"
    assert lines[-2].strip() == "key   specimen.box_angstrom"
    assert lines[-1] == "2 checks: 1 ok, 0 warnings, 1 error"
    assert format_findings([]).startswith("0 checks")
    assert format_findings(findings[:1]).splitlines()[-1].startswith("1 check: 1 ok")
    assert format_findings(findings[::-1], width=80).splitlines() == lines  # the worst come last
