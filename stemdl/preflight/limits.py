"""Checks of values that leave nothing to be seen or learned, or that only a slip explains."""

from __future__ import annotations

import math
from collections.abc import Iterator

from stemdl.config import Config
from stemdl.config.network import ScanField
from stemdl.preflight.findings import Finding, Severity, judge

FEWEST_TARGET_PIXELS = 11  # the window of the structural similarity; Fourier ring correlation needs 8
LARGEST_LEARNING_RATE = 1.0
LARGEST_BLUR_SHARE = 0.25  # of the field or the detector, as σ
LARGEST_DISPLACEMENT_ANGSTROM = 0.5
LARGEST_TILT_MRAD = 200.0
LARGEST_JITTER_SHARE = 0.5  # of a step, as σ
LARGEST_DRIFT_SHARE = 0.5  # of the field


def check_limits(config: Config) -> list[Finding]:
    """Fields and blurs that leave nothing, values beyond any use, a run folder that is a file."""
    of_values = [finding for finding in check_values(config) if finding.severity != "ok"]
    findings = [*_fields(config), *_blurs(config), *of_values, *_training(config), *_slices(config), *_folder(config)]
    if findings:
        return findings
    rows, columns = _target_pixels(config)
    found = f"a target of {rows:.4g} x {columns:.4g} pixels, blurs and rates within bounds"
    return [Finding("ok", "limits", found, "", "target.pixel_angstrom")]


def _target_pixels(config: Config) -> tuple[float, float]:
    rows, columns = config.scan.field_angstrom
    return rows / config.target.pixel_angstrom, columns / config.target.pixel_angstrom


def _fields(config: Config) -> Iterator[Finding]:
    positions, pixels = config.scan.positions, config.detector.pixels
    if max(positions) == 1:
        right = "several positions on each side: neighbouring probes are what the network learns from"
        yield Finding("error", "scan field", "a single scan position", right, "scan.positions")
    rows, columns = _target_pixels(config)
    if round(min(rows, columns), 6) < FEWEST_TARGET_PIXELS:
        largest = min(config.scan.field_angstrom) / FEWEST_TARGET_PIXELS
        found = f"a target of {rows:.4g} x {columns:.4g} pixels"
        right = f"at least {FEWEST_TARGET_PIXELS} pixels on each side, the window of the structural similarity (SSIM): "
        right += f"pixels of at most {largest:.4g} Å, or more scan.positions"
        yield Finding("error", "target field", found, right, "target.pixel_angstrom")
    if max(pixels) == 1:
        right = "a detector of many pixels: patterns are what the network looks at"
        yield Finding("error", "detector", "a detector of one pixel", right, "detector.pixels")


def _blurs(config: Config) -> Iterator[Finding]:
    field, pixels = min(config.scan.field_angstrom), min(config.detector.pixels)
    share = LARGEST_BLUR_SHARE
    bounds = (
        ("target.blur_sigma_angstrom", config.target.blur_sigma_angstrom, share * field, "Å", "a quarter of the field"),
        ("detector.blur_sigma_pixels", config.detector.blur_sigma_pixels, share * pixels, "pixels", "a quarter of it"),
    )
    for key, sigma, limit, unit, what in bounds:
        if sigma > limit:
            right = f"at most {limit:.4g} {unit}, {what}: nothing is left beyond"
            yield Finding("error", f"{key.partition('.')[0]} blur size", f"σ {sigma:g} {unit}", right, key)


def check_values(config: Config) -> list[Finding]:
    """Values that may be drawn for every sample, and that leave nothing to be seen or only a slip explains."""
    specimen, scan = config.specimen, config.scan
    field, displacement, tilt = min(scan.field_angstrom), specimen.displacement_sigma_angstrom, specimen.tilt_mrad
    source, jitter, drift = config.microscope.source_sigma_angstrom, scan.jitter_sigma_angstrom, scan.drift_angstrom
    step = scan.step_angstrom
    return [
        _bounded("error", "microscope blur size", "microscope.source_sigma_angstrom", source, field,
                 f"σ {source:g} Å", f"at most {field:.4g} Å, the scan's extent: nothing is left beyond"),
        _bounded("warning", "displacements", "specimen.displacement_sigma_angstrom", displacement,
                 LARGEST_DISPLACEMENT_ANGSTROM, f"atoms displaced by σ {displacement:g} Å",
                 f"at most {LARGEST_DISPLACEMENT_ANGSTROM:g} Å (0.05 to 0.1 Å is usual): a crystal melts before"),
        _bounded("warning", "tilt", "specimen.tilt_mrad", tilt, LARGEST_TILT_MRAD,
                 f"a tilt of σ {tilt:g} mrad, which is {tilt * 1e-3:.3g} rad or {math.degrees(tilt * 1e-3):.3g}°",
                 f"at most {LARGEST_TILT_MRAD:g} mrad: beyond, zone axes mean nothing"),
        _bounded("warning", "jitter", "scan.jitter_sigma_angstrom", jitter, LARGEST_JITTER_SHARE * step,
                 f"jitter of σ {jitter:g} Å on steps of {step:g} Å",
                 f"at most {LARGEST_JITTER_SHARE * step:.4g} Å: neighbouring positions change places"),
        _bounded("warning", "drift", "scan.drift_angstrom", drift, LARGEST_DRIFT_SHARE * field,
                 f"a drift of {drift:g} Å over a field of {field:g} Å",
                 f"at most {LARGEST_DRIFT_SHARE * field:.4g} Å: the scan leaves the field that it is to show"),
    ]  # fmt: skip


def _bounded(severity: Severity, check: str, key: str, value: float, limit: float, found: str, right: str) -> Finding:
    return judge(value > limit * (1 + 1e-9), severity, check, found, right, key, value / limit - 1)


def _training(config: Config) -> Iterator[Finding]:
    rate = config.train.lr
    if rate > LARGEST_LEARNING_RATE:
        right = f"at most {LARGEST_LEARNING_RATE:g}, such as 3e-3: training diverges"
        yield Finding("warning", "learning rate", f"a rate of {rate:g}", right, "train.lr")


def _slices(config: Config) -> Iterator[Finding]:
    slab = config.simulation.slice_angstrom
    thinnest, thickest = config.specimen.thickness_angstrom
    if slab > thinnest * (1 + 1e-9):
        found, right = f"slices of {slab:g} Å in a specimen of {thinnest:g} Å", f"at most {thinnest:g} Å"
        yield Finding("error", "slice and specimen", found, right, "simulation.slice_angstrom")
    if isinstance(config.network, ScanField):
        coarse, count = config.network.back_projection.slices, max(1, round(thickest / slab))
        if coarse > count:
            found = f"{coarse} slices in the back-projection, {count} in the simulation"
            right = f"at most {count}: finer slices than the patterns were made with cost time alone"
            yield Finding("warning", "back-projection depth", found, right, "network.back_projection.slices")


def _folder(config: Config) -> Iterator[Finding]:
    folder = config.run.folder
    there = next(place for place in (folder, *folder.parents) if place.exists())
    if not there.is_dir():
        yield Finding("error", "run folder", f"{there} is a file", "a folder, or a path to be made", "run.folder")
