"""What is drawn anew for every sample: the quantities of the section `vary`, and the noise of the scan.

Everything follows from (seed, purpose, item). Each quantity has a place of its own in an item's stream of random
numbers, so that another quantity that is drawn, or no longer drawn, changes none of the others.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.random import SeedSequence

from data_gen.worklist import Part
from stemdl.config import Config
from stemdl.config.instrument import Scan

_PLACES = (
    "dose_e_per_a2",
    "energy_kev",
    "semiangle_mrad",
    "defocus_angstrom",
    "c3_angstrom",
    "astigmatism_angstrom",
    "astigmatism_azimuth_rad",
    "source_sigma_angstrom",
    "step_angstrom",
    "jitter_sigma_angstrom",
    "drift_angstrom",
    "tilt_mrad",
    "displacement_sigma_angstrom",
)
"""The order of the quantities in an item's stream. It is part of the format: new ones come at the end."""

PLACE_OF: Mapping[str, int] = {name: place for place, name in enumerate(_PLACES)}
"""Which of an item's random numbers each key of `vary` takes."""

_DIRECTION, _JITTER = (0,), (1,)  # spawn keys: one independent stream for each kind of scan noise


def draw_parameters(config: Config, part: Part, item: int) -> dict[str, float]:
    """The value of everything that `vary` draws for an item of a part, by the name of its key, and `dose_quantile`.

    The dose is applied when samples are loaded: a sample has the quantile in [0, 1) at which the range that is then
    configured is to be taken (``vary.dose_e_per_a2.at(dose_quantile)``), whether or not there is one now.
    """
    quantiles = _quantiles(config.run.seed, int(part.parameter_purpose), item)
    drawn = {
        name: draw.at(quantiles[PLACE_OF[name]]) for name, draw in config.vary.draws.items() if name != "dose_e_per_a2"
    }
    return {**drawn, "dose_quantile": quantiles[PLACE_OF["dose_e_per_a2"]]}


def _quantiles(seed: int, purpose: int, item: int) -> list[float]:
    """A number in [0, 1) for every place; a longer list starts with the same numbers."""
    numbers: list[float] = np.random.default_rng(SeedSequence([seed, purpose, item])).random(len(_PLACES)).tolist()
    return numbers


@dataclass(frozen=True)
class ScanNoise:
    """Where the probe really stands.

    Attributes:
        offsets_angstrom: what is added (y, x) to each position of the raster in Å, row by row; empty for none.
        drift_azimuth_rad: direction in which the probe drifts over the specimen, from x towards y; 0 without drift.
    """

    offsets_angstrom: tuple[tuple[float, float], ...]
    drift_azimuth_rad: float


def scan_noise(scan: Scan, rng_seed: Sequence[int]) -> ScanNoise:
    """Drift and jitter of one scan.

    The drift is linear in time: positions are visited row by row, evenly, and `drift_angstrom` is the way from the
    first to the last; its mean is taken out, as the scan is where the specimen is on average. Its direction is uniform
    in [0, 2π). The jitter is normal and independent, `jitter_sigma_angstrom` along each axis.

    Args:
        scan: positions, drift and jitter of the sample.
        rng_seed: integers >= 0, such as (seed, purpose, item).
    """
    seed = [int(value) for value in rng_seed]
    count = math.prod(scan.positions)
    offsets, azimuth = np.zeros((count, 2)), 0.0
    if scan.drift_angstrom > 0:
        azimuth = float(np.random.default_rng(SeedSequence(seed, spawn_key=_DIRECTION)).uniform(0.0, 2 * math.pi))
        way = scan.drift_angstrom * np.array([math.sin(azimuth), math.cos(azimuth)])
        offsets += (np.arange(count)[:, None] / max(1, count - 1) - 0.5) * way * (count > 1)
    if scan.jitter_sigma_angstrom > 0:
        rng = np.random.default_rng(SeedSequence(seed, spawn_key=_JITTER))
        offsets += rng.normal(0.0, scan.jitter_sigma_angstrom, offsets.shape)
    if not offsets.any():  # the raster itself
        return ScanNoise((), azimuth)
    return ScanNoise(tuple((y, x) for y, x in offsets.tolist()), azimuth)
