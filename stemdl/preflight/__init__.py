"""Checks of a configuration before anything long: what was found, what would be right, which key to change."""

from __future__ import annotations

from stemdl.config import Config
from stemdl.preflight.algorithm import check_algorithm
from stemdl.preflight.crystals import check_crystals
from stemdl.preflight.findings import Finding, Severity, format_findings
from stemdl.preflight.limits import check_limits
from stemdl.preflight.network import check_network, check_training
from stemdl.preflight.optics import check_probe
from stemdl.preflight.ranges import central, check_ranges, check_varied_units
from stemdl.preflight.readout import check_dose, check_dose_limits, check_readout
from stemdl.preflight.resources import check_resources
from stemdl.preflight.sampling import check_detector, check_grids, check_sizes
from stemdl.preflight.specimen import check_slices, check_target

__all__ = ["Finding", "Severity", "format_findings", "preflight"]


def preflight(config: Config, ranks: int = 1) -> list[Finding]:
    """Every check of a valid configuration, in the order of its sections; changes nothing and takes seconds.

    `ranks` is the number of training processes. Raises ValueError where it is below 1.
    """
    if ranks < 1:
        raise ValueError(f"ranks must be at least 1, found {ranks}")
    oversized = check_sizes(config)
    if oversized:
        return oversized
    base = central(config)
    network, description = check_network(config)
    readout = check_readout(base)
    if not any(finding.severity == "error" for finding in readout):
        readout += check_dose_limits(config)
    ranges = check_ranges(config)
    worse = {finding.check for finding in ranges if finding.severity != "ok"}
    findings = [
        *check_varied_units(config),
        *check_limits(base),
        *check_crystals(config),
        *check_slices(base),
        *check_grids(base),
        *check_detector(base),
        *check_probe(base),
        *check_algorithm(base),
        *check_target(config),
        *network,
        *check_dose(base),
        *readout,
        *check_training(config, ranks),
        *check_resources(config, ranks, description),
    ]
    return [finding for finding in findings if finding.check not in worse] + ranges
