"""How a crystal lies in the box: zone axis along the beam, tilt, rotation about the beam, origin."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.random import SeedSequence

from data_gen.materials.geometry import FloatArray


@dataclass(frozen=True)
class Orientation:
    """One drawn orientation.

    Attributes:
        zone_axis: direction [uvw] of the direct lattice that runs along the beam before the tilt.
        tilt_mrad: rotation vector about the box's x and y axes.
        in_plane_rotation_rad: rotation about the beam.
        origin_fractional: the point of the unit cell that lies in the box's corner.
    """

    zone_axis: tuple[int, int, int]
    tilt_mrad: tuple[float, float]
    in_plane_rotation_rad: float
    origin_fractional: tuple[float, float, float]


def draw_orientation(zone_axes: Sequence[tuple[int, int, int]], tilt_mrad: float, seed: SeedSequence) -> Orientation:
    """Draw zone axis, tilts (normal), rotation and origin (uniform).

    Raises:
        ValueError: no zone axis, [000] among them, or a tilt that is negative or not finite.
    """
    axes = [three_integers(axis) for axis in zone_axes]
    if not axes or (0, 0, 0) in axes:
        raise ValueError(f"zone_axes is {list(zone_axes)}; at least one direction [uvw] other than [000] is needed")
    if not (np.isfinite(tilt_mrad) and tilt_mrad >= 0.0):
        raise ValueError(f"tilt_mrad is {tilt_mrad}; a standard deviation >= 0 is needed")
    rng = np.random.default_rng(seed)
    return Orientation(
        zone_axis=axes[int(rng.integers(len(axes)))],
        tilt_mrad=(float(rng.normal(0.0, tilt_mrad)), float(rng.normal(0.0, tilt_mrad))),
        in_plane_rotation_rad=float(rng.uniform(0.0, 2.0 * np.pi)),
        origin_fractional=three_floats(rng.random(3)),
    )


def rotation_matrix(cell_angstrom: FloatArray, orientation: Orientation) -> FloatArray:
    """Rotation matrix (3, 3) from the crystal's frame to the box's, acting on columns: tilt · in-plane · zone axis."""
    beam = np.array(orientation.zone_axis, dtype=np.float64) @ cell_angstrom
    beam /= np.linalg.norm(beam)
    # the lattice vector least parallel to the beam fixes the zero of the in-plane angle
    reference = min(cell_angstrom, key=lambda vector: abs(float(vector @ beam)) / float(np.linalg.norm(vector)))
    x = reference - (reference @ beam) * beam
    x /= np.linalg.norm(x)
    to_zone = np.stack([x, np.cross(beam, x), beam])
    angle = orientation.in_plane_rotation_rad
    in_plane = np.array([[np.cos(angle), -np.sin(angle), 0.0], [np.sin(angle), np.cos(angle), 0.0], [0.0, 0.0, 1.0]])
    return np.asarray(_rotation_about_xy(*orientation.tilt_mrad) @ in_plane @ to_zone)


def _rotation_about_xy(about_x_mrad: float, about_y_mrad: float) -> FloatArray:
    """Rotation by a vector in the plane of the box (Rodrigues' formula)."""
    vector = np.array([about_x_mrad, about_y_mrad, 0.0]) * 1e-3
    angle = float(np.linalg.norm(vector))
    if angle == 0.0:
        return np.eye(3)
    kx, ky = vector[0] / angle, vector[1] / angle
    generator = np.array([[0.0, 0.0, ky], [0.0, 0.0, -kx], [-ky, kx, 0.0]])
    return np.asarray(np.eye(3) + np.sin(angle) * generator + (1.0 - np.cos(angle)) * generator @ generator)


def three_floats(values: Iterable[Any]) -> tuple[float, float, float]:
    """Three numbers as plain floats, as JSON and tuples of a fixed length want them."""
    x, y, z = values
    return float(x), float(y), float(z)


def three_integers(values: Iterable[Any]) -> tuple[int, int, int]:
    """Three numbers as plain integers."""
    x, y, z = values
    return int(x), int(y), int(z)
