"""Small fields with exactly known potentials, for tests of the physics' pictures, the networks and the training."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from stemdl.config import Config, stage_hash
from stemdl.config.substitute import with_values
from stemdl.models.scan_physics import ScanPhysics
from stemdl.physics.grid import Grid
from stemdl.physics.misfit import ScanGeometry, ScanModel
from stemdl.physics.probe import Optics
from stemdl.shards import Sample, ShardAxes, ShardWriter
from stemdl.shards.fields import Fields

BOX = 16.0
THICKNESS = 20.0
FORMULAS = ("Al", "MgO", "Si", "Fe")

SECTIONS: dict[str, dict[str, Any]] = {
    "run": {"folder": "/runs/small", "seed": 3},
    "specimen": {"box_angstrom": BOX, "thickness_angstrom": (THICKNESS, THICKNESS)},
    "microscope": {"energy_kev": 100.0, "semiangle_mrad": 20.0, "defocus_angstrom": 80.0},
    "scan": {"positions": (4, 4), "step_angstrom": 2.0},
    "detector": {"pixels": (24, 24), "dk_per_angstrom": 1 / BOX},
    "simulation": {"pixel_angstrom": 0.25, "slice_angstrom": 2.0, "samples": 12},
    "held_out": {"pixel_angstrom": 0.2, "slice_angstrom": 1.0},
    "target": {"pixel_angstrom": 1.0, "blur_sigma_angstrom": 0.35},
    "network": {
        "name": "scanfield",
        "features": 8,
        "hidden": 16,
        "trunk": 8,
        "trunk_blocks": 1,
        "pattern_pixels": 12,
        "stages": 2,
        "back_projection": {"pixel_angstrom": 0.5, "slices": 2, "steps": 3},
    },
    "train": {
        "steps": 6,
        "batch": 4,
        "warmup_steps": 1,
        "validation_fraction": 0.25,
        "validate_every": 3,
        "log_every": 2,
        "threads": 1,
    },
}


def small_config(**changes: Any) -> Config:
    """A configuration of 4 x 4 positions; changes as train__lr=1.0, or a whole section as network={...}."""
    data = {name: dict(section) for name, section in SECTIONS.items()}
    for key, value in changes.items():
        section, _, name = key.partition("__")
        if name:
            data[section] = {**data.get(section, {}), name: value}
        else:
            data[section] = value
    return Config.model_validate(data)


def optics_of(config: Config) -> Optics:
    """The optics of a configuration."""
    scope = config.microscope
    return Optics(
        scope.energy_kev,
        scope.semiangle_mrad,
        scope.defocus_angstrom,
        scope.c3_angstrom,
        scope.astigmatism_angstrom,
        scope.astigmatism_azimuth_rad,
    )


def model_of(config: Config, slices: int = 2, pixel_angstrom: float = 0.5) -> ScanModel:
    """The coarse model of a configuration's scan."""
    geometry = ScanGeometry(config.scan.positions, config.scan.step_angstrom, config.detector.pixels, 1)
    grid = Grid.from_pixel(BOX, pixel_angstrom)
    return ScanModel(optics_of(config), grid, geometry, slices=slices, thickness_angstrom=THICKNESS)


@dataclass(frozen=True)
class Blobs:
    """A potential of Gaussians on a level, periodic in the box: known everywhere, blurred and averaged."""

    centres: NDArray[np.float64]
    """(n, 2) y, x in Å."""
    heights: NDArray[np.float64]
    """(n,) V·Å."""
    width_angstrom: float = 0.6
    level: float = 0.0

    def on_box(self, grid: Grid) -> torch.Tensor:
        """(n, n) float32 values at the points of a grid."""
        points = np.arange(grid.pixels, dtype=np.float64) * grid.pixel_angstrom
        y, x = (self._line(points, axis, self.width_angstrom, 0.0) for axis in (0, 1))
        return torch.from_numpy(self.level + np.einsum("n,ny,nx->yx", self.heights, y, x)).to(torch.float32)

    def on_field(self, config: Config) -> NDArray[np.float64]:
        """(y, x) blurred to the target's resolution and averaged over each of its pixels, in closed form."""
        pixel, width = config.target.pixel_angstrom, math.hypot(self.width_angstrom, config.target.blur_sigma_angstrom)
        lines = []
        for axis, extent in enumerate(config.scan.field_angstrom):
            count = round(extent / pixel)
            centres = BOX / 2 - extent / 2 + (np.arange(count, dtype=np.float64) + 0.5) * pixel
            # The blur keeps the integral of each line: its height falls as its width grows.
            lines.append(self._line(centres, axis, width, pixel) * (self.width_angstrom / width))
        return np.asarray(self.level + np.einsum("n,ny,nx->yx", self.heights, *lines))

    def _line(self, points: NDArray[np.float64], axis: int, width: float, pixel: float) -> NDArray[np.float64]:
        """(n, points) profile along one axis, averaged over `pixel` where that is not zero."""
        images = np.arange(-2, 3) * BOX
        distance = points - self.centres[:, axis, None] + images[:, None, None]
        if pixel == 0:
            return np.asarray(np.exp(-0.5 * (distance / width) ** 2).sum(axis=0))
        low, high = (distance - pixel / 2) / width, (distance + pixel / 2) / width
        edges = _erf(high / np.sqrt(2)) - _erf(low / np.sqrt(2))
        return np.asarray((edges * width * np.sqrt(np.pi / 2) / pixel).sum(axis=0))


def _erf(x: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(torch.erf(torch.from_numpy(x)).numpy())


def blobs(seed: int, count: int = 24, height: float = 300.0, level: float = 200.0) -> Blobs:
    """Blobs anywhere in the box."""
    rng = np.random.default_rng(seed)
    return Blobs(rng.random((count, 2)) * BOX, height * rng.uniform(0.3, 1.0, count), level=level)


def fields_of(config: Config, count: int = 12, **drawn: Sequence[float]) -> Fields:
    """Fields of blobs and their patterns by the coarse model itself; formulas in turn.

    drawn: parameters that differ from field to field, by the names that shards keep them under; the potential is that
    of the configuration's field all the same.
    """
    potentials = [blobs(seed) for seed in range(count)]
    columns = {name: np.array(values, dtype=np.float64) for name, values in drawn.items()}
    amplitude = []
    for index, potential in enumerate(potentials):
        model = model_of(with_values(config, {name: float(column[index]) for name, column in columns.items()}))
        amplitude.append(model.amplitudes(potential.on_box(model.grid)).numpy())
    thickness = np.full(count, THICKNESS)
    return Fields(
        items=tuple(range(count)),
        amplitude=np.stack(amplitude).astype(np.float16),
        potential=np.stack([potential.on_field(config) for potential in potentials]).astype(np.float32),
        thickness_angstrom=thickness,
        crystals=tuple(f"{FORMULAS[i % len(FORMULAS)]}-blobs" for i in range(count)),
        formulas=tuple(FORMULAS[i % len(FORMULAS)] for i in range(count)),
        zone_axes=((0, 0, 1),) * count,
        parameters={"thickness_angstrom": thickness, **columns},
    )


def write_fields(config: Config, fields: Fields, part: str = "train") -> Path:
    """Seal fields as the shards of a part of a run; returns their folder."""
    folder = config.run.folder / "shards" / part
    axes = ShardAxes(config.scan.step_angstrom, config.detector.dk_per_angstrom, config.target.pixel_angstrom)
    digest = stage_hash(config, "simulate")
    with ShardWriter(folder, rank=0, axes=axes, config_hash=digest, samples_per_shard=5) as writer:
        for index in range(len(fields)):
            writer.add(sample_of(fields, index, part))
    return folder


def sample_of(fields: Fields, index: int, part: str = "train") -> Sample:
    """One of the fields as a shard keeps it."""
    return Sample(
        item=fields.items[index],
        amplitude=fields.amplitude[index],
        potential=fields.potential[index],
        parameters={**fields.parameters_of(index), "thickness_angstrom": float(fields.thickness_angstrom[index])},
        provenance={
            "part": part,
            "crystal": fields.crystals[index],
            "formula": fields.formulas[index],
            "specimen": {"zone_axis": list(fields.zone_axes[index] or ())},
        },
    )


def pictures_of(config: Config, fields: Fields) -> torch.Tensor:
    """(N, c, y, x) first pictures of the physics."""
    physics = ScanPhysics(config)
    return torch.stack(
        [physics.first(torch.from_numpy(a.astype(np.float32)), THICKNESS).pictures for a in fields.amplitude]
    )


def correlation(a: Any, b: Any) -> float:
    """Pearson's r of two pictures."""
    return float(np.corrcoef(np.asarray(a, dtype=np.float64).ravel(), np.asarray(b, dtype=np.float64).ravel())[0, 1])
