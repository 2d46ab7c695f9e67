"""Checks of how patterns are made: what PRISM's interpolation asks of grids and probe."""

from __future__ import annotations

from stemdl.config import Config
from stemdl.preflight.findings import Finding, judge
from stemdl.preflight.optics import probe_radius_angstrom
from stemdl.preflight.sampling import is_whole

_KEY = "simulation.prism_interpolation"


def check_algorithm(config: Config) -> list[Finding]:
    """PRISM is asked of an engine that has it; its interpolation divides the grids, and the probe fits its window."""
    simulation = config.simulation
    factor, reference = simulation.prism_interpolation, simulation.engine == "abtem"
    findings = []
    if reference and simulation.algorithm == "prism":
        right = "simulation.engine: torch, or simulation.algorithm: multislice, which the reference does in any case"
        findings.append(Finding("warning", "algorithm", "PRISM with the engine abtem", right, "simulation.algorithm"))
    elif factor > 1 and not _interpolates(config):
        found = f"an interpolation of {factor} with the algorithm {simulation.algorithm}"
        right = "simulation.algorithm: prism, or an interpolation of 1: nothing reads another"
        findings.append(Finding("warning", "algorithm", found, right, _KEY))
    if not _interpolates(config):
        return findings
    for section, pixel in (("simulation", simulation.pixel_angstrom), ("held_out", config.held_out.pixel_angstrom)):
        pixels = config.specimen.box_angstrom / pixel
        found = f"an interpolation of {factor} on a grid of {pixels:.6g} pixels ({section}.pixel_angstrom)"
        right = f"one that divides the pixels, such as {_divisor(round(pixels), factor)}, or other pixels"
        findings.append(judge(not is_whole(pixels / factor), "error", f"prism: {section} grid", found, right, _KEY))
    return [*findings, *check_probe_window(config)]


def check_probe_window(config: Config) -> list[Finding]:
    """With an interpolation, the probe sees a part of the box alone: a window that it must fit into."""
    if not _interpolates(config):
        return []
    box, factor, width = config.specimen.box_angstrom, config.simulation.prism_interpolation, _width(config)
    window = box / factor
    found = f"a probe {width:.3g} Å across in a window of {window:.4g} Å, 1/{factor} of the box"
    right = f"an interpolation of at most {max(1, int(box / width))}: beyond the window the probe is cut off"
    return [judge(width > window * (1 + 1e-9), "error", "prism: window", found, right, _KEY, width / window - 1)]


def _interpolates(config: Config) -> bool:
    simulation = config.simulation
    return simulation.engine == "torch" and simulation.algorithm == "prism" and simulation.prism_interpolation > 1


def _width(config: Config) -> float:
    return 2 * probe_radius_angstrom(config)


def _divisor(pixels: int, factor: int) -> int:
    """The largest number up to a factor that divides the pixels."""
    return next(number for number in range(min(factor, pixels), 0, -1) if pixels % number == 0)
