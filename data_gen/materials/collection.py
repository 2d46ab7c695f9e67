"""Which crystals a run uses, and which of them the network never sees in training."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from data_gen.materials.cif_folder import read_cif_folder
from data_gen.materials.crystal import BadCrystal, Crystal
from data_gen.materials.library import library

SPLIT_PURPOSE = 0x5B117
"""Second integer of the split's seed sequence: keeps its draw apart from every other one made with the same seed."""


def collect(use_library: bool, cif_folders: Sequence[Path]) -> tuple[list[Crystal], list[BadCrystal]]:
    """The crystals of a run, sorted by name, and the structures that were refused.

    A file whose name is taken (the same file name in two folders) is refused, since names identify crystals in shards
    and reports.

    Args:
        use_library: take the built-in crystals.
        cif_folders: folders whose CIF files are read.

    Raises:
        NotADirectoryError: a folder does not exist.
        FileNotFoundError: a folder holds no CIF file.
        ValueError: no crystal is left; the message names the refused ones.
    """
    by_name: dict[str, Crystal] = {crystal.name: crystal for crystal in library()} if use_library else {}
    refused: list[BadCrystal] = []
    for folder in cif_folders:
        crystals, bad = read_cif_folder(folder)
        refused += bad
        for crystal in crystals:
            if crystal.name in by_name:
                reason = (
                    f"{folder}: the name is already taken by {by_name[crystal.name].source}; rename one of the files"
                )
                refused.append(BadCrystal(crystal.name, reason))
            else:
                by_name[crystal.name] = crystal
    if not by_name:
        reasons = "; ".join(str(error) for error in refused) or "the library is off and no CIF folder is given"
        raise ValueError(f"no crystal to simulate: {reasons}")
    return [by_name[name] for name in sorted(by_name)], refused


def split_by_material(
    crystals: Sequence[Crystal], held_out_fraction: float, seed: int
) -> tuple[list[Crystal], list[Crystal]]:
    """Split by reduced formula, so that no polymorph of a held-out material is trained on.

    The sorted formulas are permuted by the seed and the first ones held out: the result depends on the set of formulas,
    not on the order of the crystals. With a fraction above 0 at least one formula is held out and one is kept.

    Args:
        crystals: the crystals to split.
        held_out_fraction: part of the formulas to hold out, 0 <= fraction < 1.
        seed: seed of the run.

    Returns:
        Crystals to train on and crystals held out, each in the given order.

    Raises:
        ValueError: the fraction is out of range, or there is but one formula to split.
    """
    if not 0.0 <= held_out_fraction < 1.0:
        raise ValueError(f"held_out_fraction is {held_out_fraction}; 0 <= fraction < 1 is allowed")
    formulas = sorted({crystal.formula for crystal in crystals})
    if held_out_fraction > 0.0 and len(formulas) < 2:
        raise ValueError(f"{len(formulas)} formula(s) cannot be split into training and held-out materials")
    count = round(held_out_fraction * len(formulas))
    if held_out_fraction > 0.0:
        count = min(max(count, 1), len(formulas) - 1)
    order = np.random.default_rng(np.random.SeedSequence([seed, SPLIT_PURPOSE])).permutation(len(formulas))
    held_out = {formulas[index] for index in order[:count]}
    return (
        [crystal for crystal in crystals if crystal.formula not in held_out],
        [crystal for crystal in crystals if crystal.formula in held_out],
    )
