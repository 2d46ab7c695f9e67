"""Checks of what `vary` draws: every check of the physics holds at the ends of every range, whatever comes together."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from stemdl.config import Config
from stemdl.config.substitute import with_values
from stemdl.config.variation import SECTION_OF, Draw
from stemdl.preflight.algorithm import check_probe_window
from stemdl.preflight.findings import Finding, judge
from stemdl.preflight.limits import check_values
from stemdl.preflight.optics import check_probe, check_units
from stemdl.preflight.readout import check_dose, check_readings
from stemdl.preflight.sampling import check_apertures, check_patterns
from stemdl.preflight.specimen import check_coarse_slices

Check = Callable[[Config], list[Finding]]
Values = Mapping[str, float]

_BEAM = ("energy_kev", "semiangle_mrad")
_PROBE = (*_BEAM, "defocus_angstrom", "c3_angstrom", "astigmatism_angstrom")
_SCAN = ("step_angstrom", "jitter_sigma_angstrom", "drift_angstrom")
_DOSE = ("dose_e_per_a2", "step_angstrom")

_CHECKS: tuple[tuple[Check, tuple[str, ...]], ...] = (
    (check_apertures, _BEAM),
    (check_patterns, _PROBE),
    (check_probe, (*_PROBE, *_SCAN)),
    (check_probe_window, _PROBE),
    (check_values, ("source_sigma_angstrom", *_SCAN, "tilt_mrad", "displacement_sigma_angstrom")),
    (check_coarse_slices, ("energy_kev",)),
    (check_dose, _DOSE),
    (check_readings, (*_DOSE, *_BEAM)),
)
"""Checks and the keys of `vary` that they depend on; what the number of pixels alone decides is not among them."""

_MINOR = 0.02  # of what the most important value contributes: not worth its words


class _Worst(NamedTuple):
    finding: Finding
    values: Values


def central(config: Config) -> Config:
    """The configuration with nothing to vary: everything that is drawn at the possible value nearest to its usual one.

    The step is the usual one, which says what field the target has. A dose where there is none is the highest.
    """
    values = {}
    for name, draw in config.vary.draws.items():
        usual = getattr(getattr(config, SECTION_OF[name]), name)
        if name != "step_angstrom":
            values[name] = draw.limits[1] if usual is None else draw.nearest(usual)
    return with_values(config, values)


def check_varied_units(config: Config) -> list[Finding]:
    """`check_units` for the largest values that are drawn: a range that begins at almost nothing can be meant."""
    largest = {name: max(draw.limits, key=abs) for name, draw in config.vary.draws.items()}
    drawn = {f"{SECTION_OF[name]}.{name}": f"vary.{name}" for name in largest}
    findings = check_units(with_values(config, largest))
    return [replace(finding, key=drawn.get(finding.key, finding.key)) for finding in findings]


def check_ranges(config: Config) -> list[Finding]:
    """What is wrong at some setting that can be drawn, each check once, at its worst; nothing where nothing varies.

    A finding names the range that matters most and the values at which it was found. One that is no worse than for
    `central(config)` is left out: it does not come from a range.
    """
    draws = config.vary.draws
    if not draws:
        return []
    base, count = central(config), 1
    findings = [_coverage(config)] if "step_angstrom" in draws else []
    for check, keys in _CHECKS:
        settings = list(_settings(config, [name for name in keys if name in draws]))
        count += len(settings)
        findings += _beyond(check, base, settings)
    words = ", ".join(_in_words(name, draw) for name, draw in draws.items())
    return [*findings, Finding("ok", "ranges", f"{words}: {count} extreme settings checked", "", "vary")]


def _settings(config: Config, names: Sequence[str]) -> Iterator[Values]:
    """Every combination of the extremes of these draws."""
    points = [_extremes(config, name, config.vary.draws[name]) for name in names]
    for values in itertools.product(*points):
        yield dict(zip(names, values, strict=True))


def _extremes(config: Config, name: str, draw: Draw) -> list[float]:
    """Both ends of what is drawn; and where the probe is narrowest between them, if that can be.

    All that is checked grows or falls with a single value from end to end, except for the width of the probe: over the
    defocus it is least with the focus in mid-specimen, over the aperture where blur and diffraction balance.
    """
    low, high = draw.limits
    points = [low, high]
    if name == "defocus_angstrom":
        points.append(draw.nearest(config.specimen.thickness_angstrom[1] / 2))
    if name == "semiangle_mrad":
        points.append(draw.nearest(math.sqrt(low * high)))
    return list(dict.fromkeys(points))


def _beyond(check: Check, base: Config, settings: Sequence[Values]) -> list[Finding]:
    """The findings of a check that are worse at one of the settings than they are at the base."""
    at_base = {finding.check: finding for finding in check(base)}
    worst: dict[str, _Worst] = {}
    for values in settings:
        for finding in check(with_values(base, values)):
            before = worst[finding.check].finding if finding.check in worst else at_base.get(finding.check)
            if before is None or (finding.rank, finding.excess) > (before.rank, before.excess + 1e-9):
                worst[finding.check] = _Worst(finding, values)
    found = [(one, at_base.get(name)) for name, one in worst.items() if one.finding.rank > 0]
    return [_named(check, base, one, usual is None or usual.rank < one.finding.rank) for one, usual in found]


def _named(check: Check, base: Config, worst: _Worst, from_ranges: bool) -> Finding:
    """The finding with the values that it comes from, the one that matters most first.

    from_ranges: whether it is well at the base, so that the ranges are to blame and not the rest.
    """
    finding, values = worst

    def excess(changed: Values) -> float:
        found = [one.excess for one in check(with_values(base, changed)) if one.check == finding.check]
        return found[0] if found else -math.inf

    usual = {name: getattr(getattr(base, SECTION_OF[name]), name) for name in values}
    relief = {name: finding.excess - excess({**values, name: usual[name]}) for name in values}
    least = _MINOR * max(relief.values())
    names = [name for name in sorted(relief, key=lambda name: -relief[name]) if relief[name] > least] or list(values)
    where = ", ".join(f"{name} {values[name]:g}" for name in names)
    finding = replace(finding, found=f"{finding.found} (at {where})")
    if not from_ranges:
        return finding
    return replace(finding, right=f"{finding.right}; or a narrower range in vary.{names[0]}", key=f"vary.{names[0]}")


def _coverage(config: Config) -> Finding:
    """A scan of smaller steps than the usual one does not reach the border of the target."""
    draw, scan = config.vary.draws["step_angstrom"], config.scan
    step, usual, count = draw.limits[0], scan.step_angstrom, min(scan.positions)
    found = f"a scan of {count} steps of {step:g} Å covers {count * step:.4g} Å of a target of {count * usual:.4g} Å"
    least = usual * (1 - 1 / count)
    right = f"steps of at least {least:.4g} Å, or a smaller scan.step_angstrom, which says how large the target is"
    bad = step < least * (1 - 1e-9)
    return judge(bad, "warning", "scan and target", found, f"{right}: its border was not seen", "vary.step_angstrom")


def _in_words(name: str, draw: Draw) -> str:
    if draw.choice is not None:
        return (
            f"{name} {' or '.join(f'{value:g}' for value in draw.choice[:8])}{' ...' if len(draw.choice) > 8 else ''}"
        )
    return f"{name} {draw.limits[0]:g} to {draw.limits[1]:g}"
