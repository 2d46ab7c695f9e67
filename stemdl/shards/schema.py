"""What a shard holds: one sample, the axes, the names of files, and the error for all that can be wrong with them."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, fields

import numpy as np

from stemdl.errors import UserError

SCHEMA_VERSION: int = 1
"""Raised when a reader of the old layout could misread the new one."""

PARTS = ("train", "held_out")
"""Of a run; each has a folder of this name."""

FORMAT = "stemdl-shard"
MANIFEST_NAME = "manifest.jsonl"

_SHARD_NAME = re.compile(r"shard-(\d{5,9})-(\d{5,9})\.h5")


class ShardError(UserError, ValueError):
    """A shard, a manifest or a sample is not what it must be; names the file or item, and the reason."""


@dataclass(frozen=True, eq=False)  # arrays have no single truth value, so two samples compare by identity
class Sample:
    """One field: its diffraction patterns and the potential that made them.

    Attributes
    ----------
    item
        Number in the work list, ≥ 0.
    amplitude
        (scan_y, scan_x, det_y, det_x), √(intensity as fraction of the incident beam); stored as float16.
    potential
        (y, x), projected potential in V·Å; stored as float32.
    parameters
        Optical and specimen parameters; units in the names; the same names for all samples of a shard.
    provenance
        JSON-able; includes "crystal" (name) and "formula", and "part" where it is of a run's part. From it the sample
        can be made again bit for bit.
    """

    item: int
    amplitude: np.ndarray
    potential: np.ndarray
    parameters: dict[str, float]
    provenance: dict[str, object]


@dataclass(frozen=True)
class ShardAxes:
    """Steps of the axes, equal for all samples of a set.

    Attributes
    ----------
    scan_step_angstrom
        Distance of neighbouring scan positions, Å.
    dk_per_angstrom
        Detector pixel, 1/Å without 2π.
    potential_pixel_angstrom
        Pixel of the projected potential, Å.

    Raises
    ------
    ShardError
        A step is not a finite number above zero.
    """

    scan_step_angstrom: float
    dk_per_angstrom: float
    potential_pixel_angstrom: float

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            number = isinstance(value, (int, float)) and not isinstance(value, bool)
            if not number or not math.isfinite(value) or value <= 0:
                raise ShardError(f"axes: {field.name} is {value!r}; a finite number above 0 is needed")


def shard_name(rank: int, number: int) -> str:
    """File name of the shard `number` (from 0) written by `rank`."""
    return f"shard-{rank:05d}-{number:05d}.h5"


def parse_shard_name(name: str) -> tuple[int, int] | None:
    """(rank, number) of a shard's file name, None for any other name (one with a path in it, for instance)."""
    match = _SHARD_NAME.fullmatch(name)
    if match is None:
        return None
    rank, number = int(match[1]), int(match[2])
    return (rank, number) if shard_name(rank, number) == name else None
