"""Crystals from CIF files, with their partial occupancies.

ASE keeps the major species of a shared site and leaves the occupancies in a side table (abTEM issue 77); here every
species and vacancy of a site is kept, and the specimen draws among them.
"""

from __future__ import annotations

import math
import os
import re
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from data_gen.materials.cif_symmetry import operations_of, stated_space_group
from data_gen.materials.cif_syntax import Block, parse_blocks
from data_gen.materials.crystal import OCCUPANCY_TOLERANCE, BadCrystal, Crystal, check_cell, check_crystal, formula_of
from data_gen.materials.disorder import SiteSpecies
from data_gen.materials.elements import atomic_number
from data_gen.materials.geometry import FloatArray, cell_from_parameters, close_pairs
from data_gen.materials.symmetry import SAME_POSITION_ANGSTROM, Operation, orbits

LARGEST_FILE_BYTES = 32 * 2**20
LARGEST_SITE_COUNT = 50_000
"""Read in a few seconds; the largest metal-organic frameworks have some 15,000."""
_MOST_IMAGES_PER_SITE = 4
"""Atoms times operations over sites, where most atoms of a large cell lie on special positions."""
_NUMBER = re.compile(
    r"([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)(?:\(\d+\))?"
)  # a number and its uncertainty, 0.25(3)
_UNKNOWN = (".", "?")
_COORDINATES = ("_atom_site_fract_x", "_atom_site_fract_y", "_atom_site_fract_z")


class _Atom(NamedTuple):
    label: str
    number: int
    fractional: FloatArray
    occupancy: float


def read_cif(path: Path | str) -> Crystal:
    """Read the one structure of a CIF file; its name is "cif:" and the file name without ending.

    Raises:
        BadCrystal: the file cannot be read, is no CIF, holds no or several structures, or no valid crystal. The reason
            names the file.
    """
    path = Path(path)
    name = f"cif:{path.stem}"
    try:
        block = _structure_block(parse_blocks(_read_text(path)))
        cell, lengths, angles = _cell(block)
        check_cell(name, cell)
        operations, note = operations_of(block.columns, lengths, angles)
        _check_size(len(block.columns.get(_COORDINATES[0], ())), len(operations))
        atoms = _atoms(block)
        fractional, species = _expand(atoms, operations, cell)
        source = f"{path.name} (data_{block.name}{note})"
        space_group = stated_space_group(block.columns)
        crystal = Crystal(name, formula_of(species), "cif", cell, fractional, species, source, space_group)
        check_crystal(crystal)
    except BadCrystal as error:
        raise BadCrystal(name, f"{path.name}: {error.reason}") from error
    except (OSError, ValueError) as error:
        reason = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else error
        raise BadCrystal(name, f"{path.name}: {reason}") from error
    return crystal


def _read_text(path: Path) -> str:
    # O_NONBLOCK: to open a FIFO would wait for its other end.
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise ValueError("is no regular file (a folder, a pipe, a socket or a device)")
        with os.fdopen(descriptor, "rb", closefd=False) as stream:
            content = stream.read(LARGEST_FILE_BYTES + 1)  # it may grow while it is read
    finally:
        os.close(descriptor)
    if len(content) > LARGEST_FILE_BYTES:
        size = max(found.st_size, len(content))
        raise ValueError(f"the file has {size} bytes, more than the {LARGEST_FILE_BYTES} allowed")
    if not content.strip():
        raise ValueError("the file is empty")
    if b"\0" in content:
        raise ValueError("the file is binary, not text")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        return content.decode("latin-1")  # the encoding of older CIFs; every byte has a meaning in it


def _structure_block(blocks: Sequence[Block]) -> Block:
    """The block that lists atoms: exactly one, since a choice would drop the others silently."""
    structures = [block for block in blocks if any(tag in block.columns for tag in _COORDINATES)]
    if len(structures) > 1:
        names = ", ".join(f"data_{block.name}" for block in structures)
        raise ValueError(f"the file holds {len(structures)} structures ({names}); one file per crystal is needed")
    if structures:
        return structures[0]
    if any("_atom_site_cartn_x" in block.columns for block in blocks):
        raise ValueError("atoms are given by _atom_site_Cartn_*; fractional coordinates are needed")
    raise ValueError("the file lists no atoms (_atom_site_fract_x, _y, _z are missing)")


def _number(text: str, what: str) -> float:
    match = _NUMBER.fullmatch(text)
    if match is None or not math.isfinite(float(match.group(1))):
        raise ValueError(f"{what} is {text!r}, not a number")
    return float(match.group(1))


def _cell(block: Block) -> tuple[FloatArray, tuple[float, float, float], tuple[float, float, float]]:
    """Cell vectors, edge lengths in Å and angles in degrees."""

    def value(tag: str) -> float:
        if not block.columns.get(tag):
            raise ValueError(f"the cell is incomplete: {tag} is missing")
        return _number(block.columns[tag][0], tag)

    lengths = (value("_cell_length_a"), value("_cell_length_b"), value("_cell_length_c"))
    angles = (value("_cell_angle_alpha"), value("_cell_angle_beta"), value("_cell_angle_gamma"))
    for letter, length in zip("abc", lengths, strict=True):
        if abs(length) < 1e-6:
            raise ValueError(f"cell vector {letter} has zero length; a slab needs a cell height as well")
        if length < 0:
            raise ValueError(f"cell vector {letter} has the negative length {length:g}")
    return cell_from_parameters(lengths, angles), lengths, angles


def _atoms(block: Block) -> list[_Atom]:
    columns = block.columns
    missing = [tag for tag in _COORDINATES if tag not in columns]
    if missing:
        raise ValueError(f"{', '.join(missing)} is missing")
    count = len(columns[_COORDINATES[0]])
    for tag in (*_COORDINATES, "_atom_site_label", "_atom_site_type_symbol", "_atom_site_occupancy"):
        if tag in columns and len(columns[tag]) != count:
            raise ValueError(f"{tag} has {len(columns[tag])} values for {count} atoms")
    labels = columns.get("_atom_site_label")
    symbols = columns.get("_atom_site_type_symbol")
    if labels is None and symbols is None:
        raise ValueError("neither _atom_site_type_symbol nor _atom_site_label says which atoms these are")
    occupancies = columns.get("_atom_site_occupancy")
    if count == 0:
        raise ValueError("the atom list is empty")
    atoms: list[_Atom] = []
    for row in range(count):
        label = labels[row] if labels else f"{symbols[row] if symbols else ''} in row {row + 1}"
        position = [_number(columns[tag][row], f"{tag} of {label}") for tag in _COORDINATES]
        # 1 is the default of the CIF dictionary
        text = "1" if occupancies is None or occupancies[row] in _UNKNOWN else occupancies[row]
        occupancy = _number(text, f"_atom_site_occupancy of {label}")
        if not 0.0 < occupancy <= 1.0 + OCCUPANCY_TOLERANCE:
            raise ValueError(f"atom {label} has occupancy {occupancy:g}, outside (0, 1]")
        number = _element(symbols[row], label) if symbols else _element_of_label(label)
        atoms.append(_Atom(label, number, np.array(position), occupancy))
    return atoms


def _element(symbol: str, label: str) -> int:
    """Atomic number of a type symbol, which may carry a charge ("Zr4+") or an isotope ("D")."""
    letters = re.match(r"[A-Za-z]*", symbol)
    plain = letters.group(0).capitalize() if letters else ""
    try:
        return atomic_number({"D": "H", "T": "H"}.get(plain, plain))
    except KeyError:
        raise ValueError(f"atom {label} is of the unknown element {symbol!r}") from None


def _element_of_label(label: str) -> int:
    match = re.match(r"[A-Z][a-z]?", label)
    if match is None:
        raise ValueError(f"atom {label} names no element; give _atom_site_type_symbol")
    return _element(match.group(0), label)


def _check_size(atoms: int, operations: int) -> None:
    """Refuse what is far too large before atoms are read or images made. Raises ValueError."""
    if atoms > LARGEST_SITE_COUNT or atoms * operations > _MOST_IMAGES_PER_SITE * LARGEST_SITE_COUNT:
        raise ValueError(
            f"{atoms} atoms and {operations} symmetry operations make up to {atoms * operations} sites; the cell may "
            f"hold {LARGEST_SITE_COUNT}"
        )


def _expand(
    atoms: Sequence[_Atom], operations: Sequence[Operation], cell: FloatArray
) -> tuple[FloatArray, tuple[SiteSpecies, ...]]:
    """All sites of the cell (S, 3) and what sits on them; rows at one position share the site."""
    fractional, row_of = orbits(operations, np.array([atom.fractional for atom in atoms]), cell)
    if len(fractional) > LARGEST_SITE_COUNT:
        raise ValueError(f"the cell holds {len(fractional)} sites, more than the {LARGEST_SITE_COUNT} allowed")
    pairs = close_pairs(cell, fractional, SAME_POSITION_ANGSTROM)
    site_of = list(range(len(fractional)))
    for first, second in zip(pairs.first.tolist(), pairs.second.tolist(), strict=True):
        site_of[second] = min(site_of[second], site_of[first])
    rows_of_site: dict[int, list[_Atom]] = {}
    for image, site in enumerate(site_of):
        rows_of_site.setdefault(site, []).append(atoms[row_of[image]])
    species = tuple(_share(rows) for rows in rows_of_site.values())
    return fractional[list(rows_of_site)], species


def _share(rows: Sequence[_Atom]) -> SiteSpecies:
    """Species of one site; the same element in two rows (Fe2+ and Fe3+) adds up."""
    amounts: dict[int, float] = {}
    for atom in rows:
        amounts[atom.number] = amounts.get(atom.number, 0.0) + atom.occupancy
    total = sum(amounts.values())
    if total > 1.0 + OCCUPANCY_TOLERANCE:
        labels = ", ".join(atom.label for atom in rows)
        raise ValueError(f"atoms {labels} lie at one position and their occupancies sum to {total:g}, more than 1")
    return tuple(amounts.items())
