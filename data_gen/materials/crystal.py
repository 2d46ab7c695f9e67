"""One crystal: cell, sites, what sits on them; and the checks that refuse what is no crystal."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np

from data_gen.materials.disorder import OVERLAP_ANGSTROM, SiteSpecies, exclusive_groups, occupancy_of
from data_gen.materials.elements import SYMBOLS, reduced_formula
from data_gen.materials.geometry import FloatArray, cell_heights, close_pairs

OCCUPANCY_TOLERANCE = 1e-3
_SMALLEST_HEIGHT_ANGSTROM = 0.5
_CUBIC_ANGSTROM_PER_CM3 = 1e24
_AVOGADRO = 6.02214076e23


class BadCrystal(ValueError):
    """A structure that cannot be simulated: which one, and why.

    Attributes:
        name: name of the crystal or file.
        reason: one sentence that says what was found.
    """

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"{name}: {reason}")
        self.name = name
        self.reason = reason


@dataclass(frozen=True, eq=False)
class Crystal:
    """An infinite crystal, given by one cell of any shape. The arrays are read-only copies.

    Attributes:
        name: unique, such as "Si-diamond" or "cif:gst".
        formula: reduced formula, least electronegative element first. Polymorphs share it, so that a split by formula
            puts them on the same side.
        prototype: structure type, such as "diamond"; "cif" for files.
        cell_angstrom: (3, 3), rows are the lattice vectors.
        fractional: (S, 3) site coordinates in units of the lattice vectors.
        species: for each site ((atomic number, occupancy), ...); what is missing to 1 is vacancy.
        source: where the numbers come from: a publication, or the file.
        space_group: number in the International Tables as the table or the file states it; 0 where it states none. A
            label, not derived from the sites.
    """

    name: str
    formula: str
    prototype: str
    cell_angstrom: FloatArray
    fractional: FloatArray
    species: tuple[SiteSpecies, ...]
    source: str
    space_group: int = 0

    def __post_init__(self) -> None:
        for field in ("cell_angstrom", "fractional"):
            array = np.array(getattr(self, field), dtype=np.float64)
            array.setflags(write=False)
            object.__setattr__(self, field, array)

    @property
    def volume_a3(self) -> float:
        """Volume of the cell in Å³."""
        return float(abs(np.linalg.det(self.cell_angstrom)))

    @property
    def fully_occupied(self) -> bool:
        """Whether each site holds exactly one species with certainty, so that nothing is drawn at random."""
        return all(len(site) == 1 and site[0][1] >= 1.0 for site in self.species)

    def composition(self) -> dict[int, float]:
        """Atoms per cell by atomic number, weighted by occupancy."""
        return composition_of(self.species)

    def density_atoms_per_a3(self) -> float:
        """Atoms per Å³, weighted by occupancy."""
        return sum(self.composition().values()) / self.volume_a3

    def mass_density_g_per_cm3(self) -> float:
        """Mass density from the cell, the number that handbooks quote."""
        from ase.data import atomic_masses  # ASE only where masses are asked for: its import takes a while

        grams = sum(amount * float(atomic_masses[z]) for z, amount in self.composition().items()) / _AVOGADRO
        return grams / self.volume_a3 * _CUBIC_ANGSTROM_PER_CM3

    def structure_sha256(self) -> str:
        """Hash of cell, sites and occupancies (not of names): equal hashes mean bit-identical structures."""
        digest = hashlib.sha256()
        for array in (self.cell_angstrom, self.fractional):
            digest.update(repr(array.shape).encode())
            digest.update(np.ascontiguousarray(array, dtype="<f8").tobytes())
        digest.update(repr(self.species).encode())
        return digest.hexdigest()


def composition_of(species: tuple[SiteSpecies, ...]) -> dict[int, float]:
    """Atoms per cell by atomic number, weighted by occupancy."""
    amounts: dict[int, float] = {}
    for site in species:
        for number, occupancy in site:
            amounts[number] = amounts.get(number, 0.0) + occupancy
    return amounts


def formula_of(species: tuple[SiteSpecies, ...]) -> str:
    """Reduced formula of a cell's content."""
    return reduced_formula(composition_of(species))


def check_crystal(crystal: Crystal) -> None:
    """Refuse a structure that is no crystal.

    Raises:
        BadCrystal: with the name and the reason, for a cell that is not finite, has a zero-length vector or no volume;
            no atoms; coordinates that are not finite; an unknown element; occupancies outside (0, 1] or summing to more
            than 1; atoms that overlap though they can be there at the same time.
    """
    check_cell(crystal.name, crystal.cell_angstrom)
    _check_sites(crystal)
    _check_overlap(crystal)


def check_cell(name: str, cell: FloatArray) -> None:
    """Refuse a cell that is not finite, has a zero-length vector, no volume, or is thinner than any lattice plane.

    Raises:
        BadCrystal: with the name and the reason.
    """
    if cell.shape != (3, 3) or not np.isfinite(cell).all():
        raise BadCrystal(name, f"the cell is not three finite vectors: {cell.tolist()}")
    for letter, length in zip("abc", np.linalg.norm(cell, axis=1), strict=True):
        if length < 1e-6:
            raise BadCrystal(name, f"cell vector {letter} has zero length; a slab needs a cell height as well")
    # the determinant against the edge lengths, before an inverse is taken
    if abs(float(np.linalg.det(cell))) < 1e-6 * float(np.prod(np.linalg.norm(cell, axis=1))):
        raise BadCrystal(name, "the cell vectors lie in one plane: the cell has no volume")
    height = float(cell_heights(cell).min())
    if height < _SMALLEST_HEIGHT_ANGSTROM:
        raise BadCrystal(
            name,
            f"the cell is {height:.3g} Å thin; lattice planes are at least {_SMALLEST_HEIGHT_ANGSTROM} Å apart",
        )


def _check_sites(crystal: Crystal) -> None:
    if len(crystal.species) == 0:
        raise BadCrystal(crystal.name, "the cell holds no atoms")
    if crystal.fractional.shape != (len(crystal.species), 3):
        raise BadCrystal(
            crystal.name, f"coordinates of shape {crystal.fractional.shape} do not fit {len(crystal.species)} sites"
        )
    for index, site in enumerate(crystal.species):
        if not np.isfinite(crystal.fractional[index]).all():
            raise BadCrystal(crystal.name, f"site {index} has coordinates {crystal.fractional[index].tolist()}")
        if not site:
            raise BadCrystal(crystal.name, f"site {index} names no element")
        for number, occupancy in site:
            if not 1 <= number < len(SYMBOLS):
                raise BadCrystal(crystal.name, f"site {index} has the unknown element of atomic number {number}")
            if not 0.0 < occupancy <= 1.0 + OCCUPANCY_TOLERANCE:
                raise BadCrystal(
                    crystal.name, f"site {index} ({SYMBOLS[number]}) has occupancy {occupancy:g}, outside (0, 1]"
                )
        if occupancy_of(site) > 1.0 + OCCUPANCY_TOLERANCE:
            names = " + ".join(f"{SYMBOLS[z]} {occupancy:g}" for z, occupancy in site)
            raise BadCrystal(
                crystal.name, f"the occupancies of site {index} ({names}) sum to {occupancy_of(site):g}, more than 1"
            )


def _check_overlap(crystal: Crystal) -> None:
    pairs = close_pairs(crystal.cell_angstrom, crystal.fractional, max(OVERLAP_ANGSTROM))
    if pairs.first.size == 0:
        return
    groups = exclusive_groups(crystal.cell_angstrom, crystal.fractional, crystal.species)
    for first, second, shift, distance in zip(*pairs, strict=True):
        numbers = [z for index in (first, second) for z, _ in crystal.species[index]]
        limit = OVERLAP_ANGSTROM[0] if 1 in numbers else OVERLAP_ANGSTROM[1]
        # alternatives of one group exclude each other in their own cell, not in the neighbouring one
        step = crystal.fractional[second] + shift - crystal.fractional[first]
        own_cell = np.allclose(groups.fractional[second] - groups.fractional[first], step, rtol=0.0, atol=1e-6)
        exclusive = first != second and groups.of_site[first] == groups.of_site[second] and own_cell
        if distance < limit and not exclusive:
            names = " and ".join(f"{SYMBOLS[crystal.species[i][0][0]]} (site {i})" for i in (first, second))
            raise BadCrystal(crystal.name, f"atoms overlap: {names} are {distance:.3f} Å apart, less than {limit} Å")
