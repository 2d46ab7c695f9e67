"""Checks of beam and lenses: slips of the unit that no range catches, and how wide the probe is."""

from __future__ import annotations

import math

from stemdl.config import Config
from stemdl.physics.constants import wavelength_angstrom
from stemdl.preflight.findings import Finding, judge

_ALPHA_STEPS = 64
JITTER_REACH = 4.0
"""Standard deviations of the jitter that a probe is given room for: 1 position in 8000 is thrown farther."""


def probe_radius_angstrom(config: Config) -> float:
    """Radius in Å that holds the probe at the wider of the specimen's two surfaces.

    The geometric blur, the largest |C3 α³ - (Δf - z) α| + C12 α inside the aperture at depth z = 0 and z = thickness
    (the ray displacement dχ/dk of Kirkland, eq. 2.10), plus the diffraction tails out to λ/α (the second dark ring).
    """
    scope = config.microscope
    alpha_max = scope.semiangle_mrad * 1e-3
    alphas = [alpha_max * step / _ALPHA_STEPS for step in range(1, _ALPHA_STEPS + 1)]
    depths = (0.0, config.specimen.thickness_angstrom[1])
    geometric = max(
        abs(scope.c3_angstrom * alpha**3 - (scope.defocus_angstrom - depth) * alpha)
        + scope.astigmatism_angstrom * alpha
        for alpha in alphas
        for depth in depths
    )
    return geometric + wavelength_angstrom(scope.energy_kev) / alpha_max


def detector_edge_per_angstrom(config: Config) -> float:
    """Distance in 1/Å from the unscattered beam to the farther edge of the detector."""
    return max(config.detector.pixels) / 2 * config.detector.dk_per_angstrom


def mrad_of(config: Config, k_per_angstrom: float) -> float:
    """Scattering angle in mrad of a spatial frequency in 1/Å."""
    return 1e3 * wavelength_angstrom(config.microscope.energy_kev) * k_per_angstrom


def check_units(config: Config) -> list[Finding]:
    """Values that are possible, but look like another unit."""
    scope, specimen = config.microscope, config.specimen
    c3, tilt, azimuth = scope.c3_angstrom, specimen.tilt_mrad, scope.astigmatism_azimuth_rad
    suspects = (
        (0 < abs(c3) < 1e3, f"C3 = {c3:g} Å", f"{c3:g} looks like mm: {c3:g} mm is {c3 * 1e7:g} Å", "c3_angstrom"),
        (
            abs(azimuth) > 2 * math.pi,
            f"an azimuth of {azimuth:g} rad",
            f"{azimuth:g} looks like degrees: that is {math.radians(azimuth):.4g} rad",
            "astigmatism_azimuth_rad",
        ),
    )
    findings = [
        Finding("warning", "units", found, right, f"microscope.{key}") for bad, found, right, key in suspects if bad
    ]
    if 0 < tilt < 0.1:
        right = f"{tilt:g} looks like rad: that is {tilt * 1e3:g} mrad"
        findings.append(Finding("warning", "units", f"a tilt of {tilt:g} mrad", right, "specimen.tilt_mrad"))
    if findings:
        return findings
    wavelength_pm = 100 * wavelength_angstrom(scope.energy_kev)
    found = f"{scope.energy_kev:g} keV (λ {wavelength_pm:.2f} pm), aperture {scope.semiangle_mrad:g} mrad"
    return [Finding("ok", "units", found, "", "microscope")]


def check_probe(config: Config) -> list[Finding]:
    """The probe, with its tails, inside the periodic box around every position; neighbouring probes overlap."""
    box, scan = config.specimen.box_angstrom, config.scan
    noise = scan.drift_angstrom / 2 + JITTER_REACH * scan.jitter_sigma_angstrom
    half_scan = (max(scan.positions) - 1) / 2 * scan.step_angstrom
    radius = probe_radius_angstrom(config)
    need = 2 * (half_scan + noise + radius)
    strays = f" + drift and jitter {2 * noise:.3g} Å" if noise > 0 else ""
    found = (
        f"scan {2 * half_scan:.4g} Å{strays} + probe {2 * radius:.3g} Å across (at the wider surface, with defocus, "
        f"aberrations and tails) = {need:.4g} Å in a box of {box:g} Å"
    )
    right = (
        f"a box of {need:.4g} Å or more, or fewer positions, a smaller step, less defocus: a probe that reaches the "
        "box's border comes in again on the other side"
    )
    bad = need > box * (1 + 1e-9)
    fits = judge(bad, "error", "probe in the box", found, right, "specimen.box_angstrom", need / box - 1)
    return [fits, _scattered_beam(config, half_scan + noise + radius), _overlap(config, radius)]


def _scattered_beam(config: Config, half_width: float) -> Finding:
    """Electrons scattered to the detector's edge at the entrance still leave the specimen inside the box."""
    thickness, box = config.specimen.thickness_angstrom[1], config.specimen.box_angstrom
    angle_mrad = mrad_of(config, detector_edge_per_angstrom(config))
    need = 2 * (half_width + thickness * angle_mrad * 1e-3)
    found = f"beams scattered by {angle_mrad:.4g} mrad over {thickness:g} Å need {need:.4g} Å of {box:g} Å"
    right = f"a box of {need:.4g} Å, if the outermost positions are to be as good as the others"
    bad = need > box * (1 + 1e-9)
    return judge(bad, "warning", "scattered beams", found, right, "specimen.box_angstrom", need / box - 1)


def _overlap(config: Config, radius: float) -> Finding:
    step = config.scan.step_angstrom
    overlap = 1 - step / (2 * radius)
    found = f"steps of {step:g} Å, probe {2 * radius:.3g} Å across: {max(overlap, 0):.0%} linear overlap"
    right = f"half a probe or more: a step of at most {radius:.3g} Å, or more defocus"
    return judge(overlap < 0.5, "warning", "probe overlap", found, right, "scan.step_angstrom", step / radius - 1)
