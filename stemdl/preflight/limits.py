"""Checks of values that leave nothing to be seen or learned, or that only a slip explains."""

from __future__ import annotations

import math
from collections.abc import Iterator

from stemdl.config import Config
from stemdl.config.network import ScanField
from stemdl.preflight.findings import Finding

FEWEST_TARGET_PIXELS = 11  # the window of the structural similarity; Fourier ring correlation needs 8
LARGEST_LEARNING_RATE = 1.0
LARGEST_BLUR_SHARE = 0.25  # of the field or the detector, as σ
LARGEST_DISPLACEMENT_ANGSTROM = 0.5
LARGEST_TILT_MRAD = 200.0


def check_limits(config: Config) -> list[Finding]:
    """Fields and blurs that leave nothing, values beyond any use, a run folder that is a file."""
    findings = [*_fields(config), *_blurs(config), *_slips(config), *_slices(config), *_folder(config)]
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
        ("microscope.source_sigma_angstrom", config.microscope.source_sigma_angstrom, field, "Å", "the scan's extent"),
        ("detector.blur_sigma_pixels", config.detector.blur_sigma_pixels, share * pixels, "pixels", "a quarter of it"),
    )
    for key, sigma, limit, unit, what in bounds:
        if sigma > limit:
            right = f"at most {limit:.4g} {unit}, {what}: nothing is left beyond"
            yield Finding("error", f"{key.partition('.')[0]} blur size", f"σ {sigma:g} {unit}", right, key)


def _slips(config: Config) -> Iterator[Finding]:
    rate, specimen = config.train.lr, config.specimen
    displacement, tilt = specimen.displacement_sigma_angstrom, specimen.tilt_mrad
    if rate > LARGEST_LEARNING_RATE:
        right = f"at most {LARGEST_LEARNING_RATE:g}, such as 3e-3: training diverges"
        yield Finding("warning", "learning rate", f"a rate of {rate:g}", right, "train.lr")
    if displacement > LARGEST_DISPLACEMENT_ANGSTROM:
        right = f"at most {LARGEST_DISPLACEMENT_ANGSTROM:g} Å (0.05 to 0.1 Å is usual): a crystal melts before"
        found = f"atoms displaced by σ {displacement:g} Å"
        yield Finding("warning", "displacements", found, right, "specimen.displacement_sigma_angstrom")
    if tilt > LARGEST_TILT_MRAD:
        found = f"a tilt of σ {tilt:g} mrad, which is {tilt * 1e-3:.3g} rad or {math.degrees(tilt * 1e-3):.3g}°"
        right = f"at most {LARGEST_TILT_MRAD:g} mrad: beyond, zone axes mean nothing"
        yield Finding("warning", "tilt", found, right, "specimen.tilt_mrad")


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
