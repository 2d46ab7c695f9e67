"""Which items there are, which crystal each one shows, and what is still to do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from data_gen.materials import BadCrystal, Crystal, collect, split_by_material
from stemdl.config import Config
from stemdl.config.simulation import Sampling
from stemdl.seeds import Purpose
from stemdl.shards.manifest import sealed_items

PartName = Literal["train", "held_out"]


class CrystalSelectionError(ValueError):
    """The crystals asked for cannot make the two sets."""


@dataclass(frozen=True)
class Part:
    """One of the two sets: its crystals, sampling and seeds."""

    name: PartName
    crystals: tuple[Crystal, ...]
    samples: int
    sampling: Sampling
    specimen_purpose: Purpose
    thickness_purpose: Purpose
    phonon_purpose: Purpose

    def crystal_of(self, item: int) -> Crystal:
        """Crystals take turns, so that each has as many fields as any other, give or take one."""
        return self.crystals[item % len(self.crystals)]


def select_crystals(config: Config) -> tuple[list[Crystal], list[BadCrystal]]:
    """Crystals named in the configuration, and those refused with the reason.

    Raises CrystalSelectionError for a name that no crystal has.
    """
    crystals, refused = collect(config.crystals.library, config.crystals.cif_folders)
    names = {crystal.name for crystal in crystals}
    for key in ("include", "exclude"):
        unknown = sorted(set(getattr(config.crystals, key)) - names)
        if unknown:
            raise CrystalSelectionError(f"crystals.{key}: no crystal is called {', '.join(unknown)}")
    chosen = [
        crystal
        for crystal in crystals
        if (not config.crystals.include or crystal.name in config.crystals.include)
        and crystal.name not in config.crystals.exclude
    ]
    return chosen, refused


def parts(config: Config) -> tuple[tuple[Part, Part], list[BadCrystal]]:
    """The training and the held-out part, split by material, and the crystals refused.

    Raises CrystalSelectionError where one of them would be empty.
    """
    chosen, refused = select_crystals(config)
    train, held_out = split_by_material(chosen, config.crystals.held_out_fraction, config.run.seed)
    if not train or not held_out:
        raise CrystalSelectionError(
            f"crystals: {len(chosen)} crystals split into {len(train)} to train on and {len(held_out)} held out "
            f"(crystals.held_out_fraction = {config.crystals.held_out_fraction}); both must have at least one"
        )
    return (
        Part(
            "train",
            _shuffled(train, config.run.seed),
            config.simulation.samples,
            config.simulation,
            Purpose.TRAIN_SPECIMEN,
            Purpose.TRAIN_THICKNESS,
            Purpose.TRAIN_PHONONS,
        ),
        Part(
            "held_out",
            _shuffled(held_out, config.run.seed),
            config.held_out.samples,
            config.held_out,
            Purpose.HELD_OUT_SPECIMEN,
            Purpose.HELD_OUT_THICKNESS,
            Purpose.HELD_OUT_PHONONS,
        ),
    ), refused


def _shuffled(crystals: Sequence[Crystal], seed: int) -> tuple[Crystal, ...]:
    """A seeded order, so that a set smaller than the list of crystals is not the start of the alphabet."""
    rng = np.random.default_rng(np.random.SeedSequence([seed, Purpose.SPLIT, 1]))
    return tuple(crystals[i] for i in rng.permutation(len(crystals)))


def draw_thickness(config: Config, part: Part, item: int) -> float:
    """Thickness in Å of an item's specimen: uniform in the range, a whole number of slices."""
    low, high = config.specimen.thickness_angstrom
    rng = np.random.default_rng(np.random.SeedSequence([config.run.seed, part.thickness_purpose, item]))
    slice_angstrom = config.simulation.slice_angstrom
    return max(1, round(float(rng.uniform(low, high)) / slice_angstrom)) * slice_angstrom


def items_left(part: Part, folder: Path, config_hash: str) -> list[int]:
    """Items of a part that no sealed shard holds."""
    done = sealed_items(folder, config_hash) if folder.exists() else set()
    return [item for item in range(part.samples) if item not in done]
