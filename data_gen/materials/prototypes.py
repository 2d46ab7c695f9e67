"""From a table row to a crystal: a prototype says where the sites are, a row which elements and how large.

A prototype writes its sites as "A 0 0 0; B u u 0": a letter for the element (A is the first of the row's formula, B the
second, ...) and three coordinates, each a number, a fraction, or a multiple of an internal parameter ("u", "-u", "2x").
The row gives the internal parameters in the order in which their names first appear.
"""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Literal, NamedTuple

import numpy as np

from data_gen.materials.crystal import Crystal, formula_of
from data_gen.materials.disorder import SiteSpecies
from data_gen.materials.elements import atomic_number, parse_formula, reduced_formula
from data_gen.materials.geometry import FloatArray, cell_from_parameters
from data_gen.materials.symmetry import Operation, orbit, space_group_operations

System = Literal["cubic", "tetragonal", "hexagonal", "orthorhombic", "monoclinic", "triclinic"]
_PARAMETER = re.compile(r"([+-]?\d*)([a-z]\d*)")


class Prototype(NamedTuple):
    """A structure type.

    Attributes:
        space_group: number in the International Tables.
        system: which lattice constants a row gives (trigonal groups on hexagonal axes: "hexagonal").
        sites: one site per Wyckoff orbit, see the module text.
        setting: origin choice or unique axis, see ``space_group_operations``.
        centring: extra translations for a non-standard cell, such as C-1.
    """

    space_group: int
    system: System
    sites: str
    setting: int = 1
    centring: tuple[tuple[float, float, float], ...] = ()


class Row(NamedTuple):
    """One material.

    Attributes:
        prototype: name of the structure type.
        formula: flat formula; its elements, in order, take the letters A, B, C, ... of the prototype's sites.
        cell: lattice constants in Å and angles in degrees: (a,), (a, c), (a, b, c), (a, b, c, beta), or all six.
        source: where the numbers come from.
        internal: internal parameters in the order of the prototype's text.
        elements: the elements of A, B, C, ... where they differ from the formula's ("Fe Fe O" for a spinel of iron).
    """

    prototype: str
    formula: str
    cell: tuple[float, ...]
    source: str
    internal: tuple[float, ...] = ()
    elements: str = ""


def build(row: Row, prototype: Prototype) -> Crystal:
    """The crystal of a row. Cell contents that disagree with the row's formula are a bug in the table and raise."""
    cell = cell_from_parameters(*_six_parameters(row.cell, prototype.system))
    elements = row.elements.split() or list(parse_formula(row.formula))
    operations = _operations(prototype)
    positions: list[FloatArray] = []
    species: list[SiteSpecies] = []
    for letter, point in _sites(prototype.sites, row.internal):
        images = orbit(operations, point, cell)
        positions.append(images)
        species += [((atomic_number(elements["ABCDEFGH".index(letter)]), 1.0),)] * len(images)
    formula = formula_of(tuple(species))
    written = reduced_formula({atomic_number(s): amount for s, amount in parse_formula(row.formula).items()})
    assert formula == written, f"{row.formula} as {row.prototype} has the cell contents {formula}"
    name = f"{row.formula}-{row.prototype}"
    sites = np.concatenate(positions)
    return Crystal(name, formula, row.prototype, cell, sites, tuple(species), row.source, prototype.space_group)


def _operations(prototype: Prototype) -> tuple[Operation, ...]:
    operations = space_group_operations(prototype.space_group, prototype.setting)
    shifts = [np.zeros(3), *(np.array(shift) for shift in prototype.centring)]
    return tuple((rotation, translation + shift) for rotation, translation in operations for shift in shifts)


def _six_parameters(
    cell: tuple[float, ...], system: System
) -> tuple[tuple[float, float, float], tuple[float, float, float]]:
    """Edges in Å and angles in degrees from the constants that the crystal system leaves free."""
    right, (a, *rest) = (90.0, 90.0, 90.0), cell
    match system, rest:
        case "cubic", []:
            return (a, a, a), right
        case "tetragonal", [c]:
            return (a, a, c), right
        case "hexagonal", [c]:
            return (a, a, c), (90.0, 90.0, 120.0)
        case "orthorhombic", [b, c]:
            return (a, b, c), right
        case "monoclinic", [b, c, beta]:
            return (a, b, c), (90.0, beta, 90.0)
        case "triclinic", [b, c, alpha, beta, gamma]:
            return (a, b, c), (alpha, beta, gamma)
    raise ValueError(f"{len(cell)} lattice constants do not fit the {system} system")


def _sites(text: str, internal: tuple[float, ...]) -> list[tuple[str, FloatArray]]:
    """Letter and coordinates (3,) of each orbit; every internal parameter must be used."""
    words = [site.split() for site in text.split(";")]
    names = list(
        dict.fromkeys(m.group(2) for _, *coordinates in words for c in coordinates if (m := _PARAMETER.fullmatch(c)))
    )
    values = dict(zip(names, internal, strict=True))
    return [(letter, np.array([_coordinate(word, values) for word in coordinates])) for letter, *coordinates in words]


def _coordinate(word: str, values: dict[str, float]) -> float:
    match = _PARAMETER.fullmatch(word)
    if match is None:
        return float(Fraction(word))
    factor = match.group(1)
    return float(factor + "1" if factor in ("", "+", "-") else factor) * values[match.group(2)]
