"""Specimens: a box of exactly known size cut out of an infinite crystal in any orientation.

The crystal is rotated, not deformed: lattice translations are enumerated until every cell that can touch the box is
there, and the atoms inside the box are kept. No orthogonal supercell is built, so any lattice works and nothing is
strained. The box is not periodic with the crystal: at its side faces, where a periodic simulation joins them, atoms of
opposite faces do not match; keep the field of interest a probe radius away from the edge.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.random import SeedSequence

from data_gen.materials.crystal import OCCUPANCY_TOLERANCE, BadCrystal, Crystal
from data_gen.materials.disorder import exclusive_groups
from data_gen.materials.geometry import FloatArray, IntArray
from data_gen.orientation import Orientation, draw_orientation, rotation_matrix, three_floats, three_integers

_LARGEST_ATOM_COUNT = 50_000_000
_ORIENTATION, _OCCUPANCY, _DISPLACEMENT = (0,), (1,), (2,)  # spawn keys: one independent stream for each kind of draw


@dataclass(frozen=True, eq=False)
class Specimen:
    """Atoms in a box. The beam runs along +z and enters at z = 0.

    Attributes:
        crystal: name of the crystal.
        numbers: (N,) atomic numbers.
        positions_angstrom: (N, 3) x, y, z in Å, all in [0, box).
        box_angstrom: (x, y, thickness) in Å, exactly as asked for.
        zone_axis: lattice direction [uvw] along the beam, before the tilt.
        provenance: JSON-able; with the crystal enough for ``remake`` to give the same specimen bit for bit.
    """

    crystal: str
    numbers: IntArray
    positions_angstrom: FloatArray
    box_angstrom: tuple[float, float, float]
    zone_axis: tuple[int, int, int]
    provenance: dict[str, object]


def cut_specimen(
    crystal: Crystal,
    box_angstrom: tuple[float, float, float],
    *,
    zone_axes: Sequence[tuple[int, int, int]],
    tilt_mrad: float,
    displacement_sigma_angstrom: float,
    rng_seed: Sequence[int],
) -> Specimen:
    """Cut a box out of the crystal: random orientation, origin, occupancy and thermal displacements.

    The zone axis is drawn uniformly from the list, the rotation about the beam uniformly in [0, 2π), the origin
    uniformly in the unit cell (so that the expected number of atoms is density times volume), the occupancy of every
    site of every cell independently; split positions of one disordered atom are drawn together, see
    ``materials.disorder``.

    Args:
        crystal: what to cut from.
        box_angstrom: (x, y, thickness) in Å.
        zone_axes: candidate directions [uvw] of the direct lattice (three indices, hexagonal crystals too).
        tilt_mrad: standard deviation of each of the two tilts away from the zone axis, mrad.
        displacement_sigma_angstrom: see ``displaced``; 0 gives the specimen at rest.
        rng_seed: integers >= 0, such as (seed, purpose, item).

    Raises:
        ValueError: box, zone axes, tilt or sigma are out of range.
        BadCrystal: no atom lies in the box, or more than 50 million could.
    """
    box = _checked_box(box_angstrom)
    seed = [int(value) for value in rng_seed]
    orientation = draw_orientation(zone_axes, tilt_mrad, SeedSequence(seed, spawn_key=_ORIENTATION))
    at_rest = _cut(crystal, box, orientation, seed)
    if displacement_sigma_angstrom == 0.0:
        return at_rest
    return _displace(at_rest, displacement_sigma_angstrom, seed, _DISPLACEMENT)


def displaced(specimen: Specimen, sigma_angstrom: float, rng_seed: Sequence[int]) -> Specimen:
    """One frozen-phonon configuration of a specimen at rest: independent normal displacements of every atom.

    Einstein model: the same standard deviation along each axis, no correlation between atoms (Loane, Xu and Silcox,
    Acta Cryst. A47 (1991) 267). An atom that leaves the box sideways comes in again at the opposite face, since the
    simulation is periodic there; along the beam it is put back on the face, where it still scatters at its lateral
    position.

    Args:
        specimen: at rest, from ``cut_specimen(..., displacement_sigma_angstrom=0)``.
        sigma_angstrom: standard deviation per axis in Å, >= 0.
        rng_seed: integers >= 0, such as (seed, purpose, item, configuration).

    Raises:
        ValueError: sigma is negative or not finite, or the specimen is displaced already.
    """
    return _displace(specimen, sigma_angstrom, [int(value) for value in rng_seed], ())


def remake(crystal: Crystal, provenance: Mapping[str, Any]) -> Specimen:
    """The specimen that a provenance record describes, bit for bit.

    Raises:
        BadCrystal: the crystal is not the one that the record was made from (structure hashes differ).
        KeyError: the record lacks an entry.
    """
    if crystal.structure_sha256() != provenance["structure_sha256"]:
        raise BadCrystal(
            crystal.name, f"its structure differs from that of the record (made from {provenance['crystal']})"
        )
    orientation = Orientation(
        zone_axis=three_integers(provenance["zone_axis"]),
        tilt_mrad=(float(provenance["tilt_mrad"][0]), float(provenance["tilt_mrad"][1])),
        in_plane_rotation_rad=float(provenance["in_plane_rotation_rad"]),
        origin_fractional=three_floats(provenance["origin_fractional"]),
    )
    at_rest = _cut(crystal, three_floats(provenance["box_angstrom"]), orientation, list(provenance["seed"]))
    record = provenance["displacement"]
    if record is None:
        return at_rest
    return _displace(at_rest, float(record["sigma_angstrom"]), list(record["seed"]), tuple(record["spawn_key"]))


def _checked_box(box: tuple[float, float, float]) -> tuple[float, float, float]:
    if len(box) != 3 or not all(np.isfinite(length) and length > 0 for length in box):
        raise ValueError(f"box_angstrom is {box}; three positive lengths (x, y, thickness) are needed")
    return three_floats(box)


def _cut(crystal: Crystal, box: tuple[float, float, float], orientation: Orientation, seed: Sequence[int]) -> Specimen:
    """The atoms at rest inside the box, and the record of how they were chosen."""
    lattice = crystal.cell_angstrom @ rotation_matrix(crystal.cell_angstrom, orientation).T  # rows, in the box's frame
    groups = exclusive_groups(crystal.cell_angstrom, crystal.fractional - np.floor(crystal.fractional), crystal.species)
    corners = _cells_touching(crystal, box, lattice, groups.fractional, orientation.origin_fractional)
    rng = np.random.default_rng(SeedSequence(list(seed), spawn_key=_OCCUPANCY))
    occupants = _draw_occupants(crystal, groups.of_site, len(corners), rng)  # (cells, sites), 0 is vacancy
    positions = corners[:, None, :] + (groups.fractional @ lattice)[None, :, :]  # (cells, sites, 3)
    inside = (occupants > 0) & (positions >= 0.0).all(axis=2) & (positions < np.array(box)).all(axis=2)
    if not inside.any():
        raise BadCrystal(crystal.name, f"no atom lies in the box of {box[0]:g} x {box[1]:g} x {box[2]:g} Å")
    provenance: dict[str, object] = {
        "crystal": crystal.name,
        "source": crystal.source,
        "structure_sha256": crystal.structure_sha256(),
        "box_angstrom": list(box),
        "zone_axis": list(orientation.zone_axis),
        "tilt_mrad": list(orientation.tilt_mrad),
        "in_plane_rotation_rad": orientation.in_plane_rotation_rad,
        "origin_fractional": list(orientation.origin_fractional),
        "seed": list(seed),
        "occupancy_spawn_key": list(_OCCUPANCY),
        "displacement": None,
    }
    return Specimen(crystal.name, occupants[inside], positions[inside], box, orientation.zone_axis, provenance)


def _cells_touching(
    crystal: Crystal,
    box: tuple[float, float, float],
    lattice: FloatArray,
    fractional: FloatArray,
    origin_fractional: tuple[float, float, float],
) -> FloatArray:
    """Corners (M, 3) in Å of all cells that may have an atom in the box, in a fixed order."""
    expected = crystal.density_atoms_per_a3() * box[0] * box[1] * box[2]
    if expected > _LARGEST_ATOM_COUNT:
        raise BadCrystal(crystal.name, f"the box would hold {expected:.2g} atoms, more than {_LARGEST_ATOM_COUNT:.2g}")
    box_corners = np.array(list(itertools.product(*((0.0, length) for length in box))))
    reach = box_corners @ np.linalg.inv(lattice) + np.array(origin_fractional)
    first = np.floor(reach.min(axis=0) - fractional.max(axis=0)).astype(int)
    last = np.ceil(reach.max(axis=0) - fractional.min(axis=0)).astype(int)
    ranges = [np.arange(low, high + 1) for low, high in zip(first, last, strict=True)]
    cells = np.stack(np.meshgrid(*ranges, indexing="ij"), axis=-1).reshape(-1, 3)
    corners = (cells - np.array(origin_fractional)) @ lattice
    sites = fractional @ lattice
    touches = (corners + sites.max(axis=0) >= 0.0).all(axis=1) & (corners + sites.min(axis=0) < np.array(box)).all(
        axis=1
    )
    return np.asarray(corners[touches])


def _draw_occupants(crystal: Crystal, group_of_site: IntArray, cell_count: int, rng: np.random.Generator) -> IntArray:
    """Atomic number on every site of every cell (M, S), 0 for a vacancy."""
    occupants = np.tile(np.array([site[0][0] for site in crystal.species], dtype=np.int64), (cell_count, 1))
    if crystal.fully_occupied:
        return occupants
    for group in range(int(group_of_site.max()) + 1):
        sites = np.flatnonzero(group_of_site == group)
        choices = [(site, number, occupancy) for site in sites for number, occupancy in crystal.species[site]]
        edges = np.cumsum([occupancy for _, _, occupancy in choices])
        if edges[-1] > 1.0 - OCCUPANCY_TOLERANCE:
            edges /= edges[-1]  # thirds written as 0.333 leave no vacancies
        if len(choices) == 1 and edges[-1] == 1.0:
            continue
        chosen = np.searchsorted(edges, rng.random(cell_count), side="right")
        occupants[:, sites] = 0
        for index, (site, number, _) in enumerate(choices):
            occupants[chosen == index, site] = number
    return occupants


def _displace(specimen: Specimen, sigma_angstrom: float, seed: list[int], spawn_key: tuple[int, ...]) -> Specimen:
    if not (np.isfinite(sigma_angstrom) and sigma_angstrom >= 0.0):
        raise ValueError(f"the displacement sigma is {sigma_angstrom} Å; a finite value >= 0 is needed")
    if specimen.provenance["displacement"] is not None:
        raise ValueError(f"the specimen of {specimen.crystal} is displaced already; start from the one at rest")
    rng = np.random.default_rng(SeedSequence(seed, spawn_key=spawn_key))
    moved = specimen.positions_angstrom + rng.normal(0.0, sigma_angstrom, specimen.positions_angstrom.shape)
    box = np.array(specimen.box_angstrom)
    sideways = np.mod(moved[:, :2], box[:2])
    sideways[sideways >= box[:2]] = 0.0  # np.mod rounds tiny negative numbers up to the modulus itself
    depth = np.clip(moved[:, 2], 0.0, np.nextafter(box[2], 0.0))
    record = {"sigma_angstrom": float(sigma_angstrom), "seed": seed, "spawn_key": list(spawn_key)}
    return replace(
        specimen,
        positions_angstrom=np.column_stack([sideways, depth]),
        provenance={**specimen.provenance, "displacement": record},
    )
