"""Checks of what the detector makes of the electrons: the dose, and the effects applied when samples are loaded."""

from __future__ import annotations

import math

from stemdl.config import Config
from stemdl.physics.constants import wavelength_angstrom
from stemdl.preflight.findings import Finding, judge
from stemdl.shards.detector import DetectorError, detector_model

FEWEST_ELECTRONS = 100
LARGEST_BAD_SHARE = 0.2  # of the detector's pixels: a percentage that was meant as one would be far above


def check_dose(config: Config) -> list[Finding]:
    """Electrons per pattern, which is what a dose means for the network."""
    dose, step = config.detector.dose_e_per_a2, config.scan.step_angstrom
    key = "detector.dose_e_per_a2"
    if dose is None:
        return [Finding("ok", "dose", "no shot noise", "", key)]
    electrons = dose * step**2
    pixels = config.detector.pixels[0] * config.detector.pixels[1]
    found = (
        f"{dose:g} e/Å² on steps of {step:g} Å: {electrons:.4g} electrons a pattern, {electrons / pixels:.3g} a pixel"
    )
    right = (
        f"at least {FEWEST_ELECTRONS} electrons a pattern ({FEWEST_ELECTRONS / step**2:.4g} e/Å²): this is shot noise"
    )
    bad, excess = electrons < FEWEST_ELECTRONS, FEWEST_ELECTRONS / electrons - 1
    return [judge(bad, "warning", "dose", found, right, key, excess)]


def check_readout(config: Config) -> list[Finding]:
    """Effects that need a dose or a gain have it, and leave something to be seen."""
    detector = config.detector
    findings = [*_without_dose(config), *_without_gain(config)]
    share = detector.dead_fraction + detector.hot_fraction
    found = f"{share:.3g} of the detector's pixels dead or hot"
    right = f"at most {LARGEST_BAD_SHARE:g}: shares are fractions, so 0.5 % is 0.005"
    key = "detector.dead_fraction" if detector.dead_fraction >= detector.hot_fraction else "detector.hot_fraction"
    findings.append(judge(share > LARGEST_BAD_SHARE, "warning", "bad pixels", found, right, key))
    return findings if any(finding.rank == 2 for finding in findings) else [*findings, *check_readings(config)]


def check_dose_limits(config: Config) -> list[Finding]:
    """Numbers of electrons, at any dose and step that may be drawn, that can be drawn at random and kept."""
    try:
        detector_model(config, "train")
    except DetectorError as error:
        named, _, rest = str(error).partition(": found ")
        found, _, right = rest.partition("; allowed ")
        key = "vary.dose_e_per_a2" if config.vary.dose_e_per_a2 is not None else named.partition(" ")[0].rstrip(",")
        return [Finding("error", "readout", found, right, key)]
    return []


def check_readings(config: Config) -> list[Finding]:
    """Saturation, gain and readout noise against the electrons in a pixel of the bright field, where there are all
    that they need."""
    detector, dose = config.detector, config.detector.dose_e_per_a2
    if dose is None:
        return []
    mean = dose * config.scan.step_angstrom**2 / _bright_pixels(config)
    spread = f"{mean:.3g} electrons in a pixel of the bright field without a specimen"
    findings = []
    if detector.saturation_electrons is not None:
        limit, key = detector.saturation_electrons, "detector.saturation_electrons"
        found, right = f"{spread}, saturation at {limit:g}", f"at least {mean:.3g}, or a lower dose: it is cut off"
        findings.append(judge(mean > limit, "warning", "saturation", found, right, key, mean / limit - 1))
    gain = detector.adu_per_electron
    if gain is not None:
        found, right = f"{spread}, {gain:g} ADU each", f"a gain of at least {1 / mean:.3g}: it is rounded to nothing"
        excess = 1 / (gain * mean) - 1
        findings.append(judge(excess > 0, "warning", "gain", found, right, "detector.adu_per_electron", excess))
        sigma, key = detector.readout_sigma_adu / gain, "detector.readout_sigma_adu"
        found, right = f"{spread}, readout noise of {sigma:.3g}", "less noise or a higher dose: nothing stands out"
        findings.append(judge(sigma > mean, "warning", "readout noise", found, right, key, sigma / mean - 1))
    return findings


def _bright_pixels(config: Config) -> float:
    """Area of the bright field in detector pixels, at least one and at most the detector."""
    scope, detector = config.microscope, config.detector
    radius = scope.semiangle_mrad * 1e-3 / wavelength_angstrom(scope.energy_kev) / detector.dk_per_angstrom
    return min(max(1.0, math.pi * radius**2), math.prod(detector.pixels))


def _without_dose(config: Config) -> list[Finding]:
    detector = config.detector
    if detector.dose_e_per_a2 is not None:
        return []
    wanting = (
        ("saturation_electrons", detector.saturation_electrons is not None, "saturation"),
        ("adu_per_electron", detector.adu_per_electron is not None, "a gain"),
        ("hot_fraction", detector.hot_fraction > 0, "hot pixels"),
    )
    right = "detector.dose_e_per_a2 or vary.dose_e_per_a2 as well, which say how many electrons there are"
    return [
        Finding("error", "readout", f"{what} without a dose", right, f"detector.{key}")
        for key, asked, what in wanting
        if asked
    ]


def _without_gain(config: Config) -> list[Finding]:
    sigma = config.detector.readout_sigma_adu
    if sigma == 0 or config.detector.adu_per_electron is not None:
        return []
    found = f"readout noise of {sigma:g} ADU without a gain"
    right = "detector.adu_per_electron as well, which says what an ADU is"
    return [Finding("error", "readout", found, right, "detector.readout_sigma_adu")]
