"""Sites that cannot be occupied at the same time: split positions of disordered structures.

A CIF describes an atom that is here or there by two sites a fraction of an Å apart whose occupancies sum to at most 1.
Drawn independently, both would be occupied in some cells. They are therefore drawn together, at most one per cell.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from data_gen.materials.geometry import FloatArray, IntArray, close_pairs

SiteSpecies = tuple[tuple[int, float], ...]
"""What sits on a site: ((atomic number, occupancy), ...); what is missing to 1 is vacancy."""

OVERLAP_ANGSTROM = (0.5, 0.8)
"""Closest approach of two atoms that are there together: with hydrogen (O-H of X-ray structures, 0.6 to 1 Å), without
(the shortest bond of heavier atoms, N-N, is 1.1 Å)."""

SPLIT_ANGSTROM = 1.0
"""Partially occupied sites nearer than this are alternatives (no two atoms but hydrogen come this close)."""

_TOLERANCE = 1e-3


class ExclusiveGroups(NamedTuple):
    """Groups of sites of which at most one is occupied in each cell.

    Attributes:
        of_site: (S,) group of each site, 0..G-1; most groups have one member.
        fractional: (S, 3) coordinates, moved by whole cells so that the members of a group lie side by side.
    """

    of_site: IntArray
    fractional: FloatArray


def occupancy_of(site: SiteSpecies) -> float:
    """Total occupancy of a site, 1 minus its vacancies."""
    return sum(occupancy for _, occupancy in site)


def exclusive_groups(
    cell_angstrom: FloatArray, fractional: FloatArray, species: tuple[SiteSpecies, ...]
) -> ExclusiveGroups:
    """Group split positions: nearest pairs first, as long as all members are near and their occupancies fit into 1.

    Args:
        cell_angstrom: (3, 3), rows are the lattice vectors.
        fractional: (S, 3) site coordinates.
        species: content of each site.
    """
    occupancies = np.array([occupancy_of(site) for site in species])
    moved = np.array(fractional, dtype=np.float64)
    members: dict[int, list[int]] = {site: [site] for site in range(len(species))}
    group_of = list(range(len(species)))
    if (occupancies < 1.0 - _TOLERANCE).any():
        pairs = close_pairs(cell_angstrom, moved, SPLIT_ANGSTROM)
        for k in np.argsort(pairs.distance_angstrom, kind="stable"):
            into, gone = group_of[pairs.first[k]], group_of[pairs.second[k]]
            if into == gone or occupancies[members[into] + members[gone]].sum() > 1.0 + _TOLERANCE:
                continue
            # the shift holds for the coordinates as given; both ends may have been moved since
            first, second = pairs.first[k], pairs.second[k]
            step = pairs.shift[k] + (moved[first] - fractional[first]) - (moved[second] - fractional[second])
            candidate = moved[members[gone]] + np.round(step)
            apart = (candidate[:, None, :] - moved[members[into]][None, :, :]) @ cell_angstrom
            if np.linalg.norm(apart, axis=2).max() >= SPLIT_ANGSTROM:
                continue
            moved[members[gone]] = candidate
            members[into] += members.pop(gone)
            for site in members[into]:
                group_of[site] = into
    number = {group: order for order, group in enumerate(sorted(members))}
    return ExclusiveGroups(np.array([number[group] for group in group_of], dtype=np.int64), moved)
