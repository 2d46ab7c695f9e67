"""Which items there are, which crystal each one shows, and what is still to do."""

from __future__ import annotations

import difflib
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from data_gen.materials import BadCrystal, Crystal, collect, split_by_material
from data_gen.scattering import UnknownElement, scattering_factor
from stemdl.config import Config
from stemdl.config.simulation import Sampling
from stemdl.errors import UserError
from stemdl.seeds import Purpose
from stemdl.shards.manifest import sealed_items

PartName = Literal["train", "held_out"]

_WHOLE_TOLERANCE = 1e-6


class CrystalSelectionError(UserError):
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
    parameter_purpose: Purpose
    scan_noise_purpose: Purpose
    balance: Literal["crystals", "materials"] = "crystals"

    def crystal_of(self, item: int) -> Crystal:
        """Crystals take turns, so that each has as many fields as any other, give or take one.

        Balanced by materials, materials take turns, and within each one its crystals.
        """
        if self.balance == "crystals":
            return self.crystals[item % len(self.crystals)]
        turn, material = divmod(item, len(self._by_material))
        crystals = self._by_material[material]
        return crystals[turn % len(crystals)]

    @cached_property
    def _by_material(self) -> tuple[tuple[Crystal, ...], ...]:
        """The crystals of each formula, both in the order of `crystals`."""
        groups: dict[str, list[Crystal]] = {}
        for crystal in self.crystals:
            groups.setdefault(crystal.formula, []).append(crystal)
        return tuple(tuple(group) for group in groups.values())


def select_crystals(config: Config) -> tuple[list[Crystal], list[BadCrystal]]:
    """Crystals that the configuration names, sorted by name, and those refused with the reason.

    Refused are structures that are no crystals and those with an element that the table of scattering factors lacks;
    one that `exclude` names is not wanted anyway, and not among them.

    Raises CrystalSelectionError for a CIF folder that is missing or empty, for a name that no crystal has, and for a
    name in `include` whose crystal is refused.
    """
    try:
        found, refused = collect(config.crystals.library, config.crystals.cif_folders)
    except (NotADirectoryError, FileNotFoundError) as error:
        raise CrystalSelectionError(f"crystals.cif_folders: {error}; relative paths start at the YAML file") from error
    except ValueError as error:
        raise CrystalSelectionError(f"crystals.cif_folders: {error}") from error
    include, exclude = config.crystals.include, config.crystals.exclude
    names = [crystal.name for crystal in found]
    reasons = {bad.name: bad.reason for bad in refused}
    _check_names("include", include, names, reasons, refused_is_error=True)
    _check_names("exclude", exclude, names, reasons, refused_is_error=False)
    wanted = [one for one in found if (not include or one.name in include) and one.name not in exclude]
    unknown = [bad for crystal in wanted if (bad := _without_factors(config, crystal)) is not None]
    lacking = {bad.name for bad in unknown}
    return (
        [crystal for crystal in wanted if crystal.name not in lacking],
        [bad for bad in refused if bad.name not in exclude] + unknown,
    )


def _check_names(
    key: str, wanted: Sequence[str], names: Collection[str], reasons: dict[str, str], *, refused_is_error: bool
) -> None:
    problems = []
    for name in wanted:
        if name in names:
            continue
        if name in reasons:
            if refused_is_error:
                problems.append(f"{name} is refused: {reasons[name]}")
            continue
        near = nearest_names(name, names)
        meant = f"; near it are {', '.join(near)}" if near else ""
        problems.append(f"no crystal is called {name!r} (there are {len(names)}){meant}")
    if problems:
        raise CrystalSelectionError("\n".join(f"crystals.{key}: {problem}" for problem in problems))


def nearest_names(name: str, names: Collection[str]) -> list[str]:
    """At most three names that were probably meant: those of the same formula first."""
    lowered = {known.lower(): known for known in names}
    begins = [known for known in names if known.lower().startswith(f"{name.lower()}-")]
    close = difflib.get_close_matches(name.lower(), lowered, n=3, cutoff=0.5)
    return list(dict.fromkeys([*begins, *(lowered[match] for match in close)]))[:3]


def _without_factors(config: Config, crystal: Crystal) -> BadCrystal | None:
    """Why a crystal cannot be simulated with the configured table; None where it can."""
    for number in sorted(crystal.composition()):
        try:
            scattering_factor(number, torch.zeros(1), config.simulation.parametrization)
        except UnknownElement as error:
            return BadCrystal(crystal.name, f"{error}; see simulation.parametrization")
    return None


def parts(config: Config) -> tuple[tuple[Part, Part], list[BadCrystal]]:
    """The training and the held-out part, split by material, and the crystals refused.

    Raises CrystalSelectionError as `select_crystals`, and where one of the two would be empty.
    """
    chosen, refused = select_crystals(config)
    formulas = {crystal.formula for crystal in chosen}
    if len(formulas) < 2:
        named = "; ".join(f"{bad.name} ({bad.reason})" for bad in refused[:5])
        raise CrystalSelectionError(
            f"crystals: {len(chosen)} crystals of {len(formulas)} materials are left ({len(refused)} refused"
            f"{': ' + named if named else ''}); at least 2 materials are needed, one of them held out: "
            "see crystals.include and crystals.exclude"
        )
    train, held_out = split_by_material(chosen, config.crystals.held_out_fraction, config.run.seed)
    return (
        Part(
            "train",
            _shuffled(train, config.run.seed),
            config.simulation.samples,
            config.simulation,
            Purpose.TRAIN_SPECIMEN,
            Purpose.TRAIN_THICKNESS,
            Purpose.TRAIN_PHONONS,
            Purpose.TRAIN_PARAMETERS,
            Purpose.TRAIN_SCAN_NOISE,
            config.crystals.balance,
        ),
        Part(
            "held_out",
            _shuffled(held_out, config.run.seed),
            config.held_out.samples,
            config.held_out,
            Purpose.HELD_OUT_SPECIMEN,
            Purpose.HELD_OUT_THICKNESS,
            Purpose.HELD_OUT_PHONONS,
            Purpose.HELD_OUT_PARAMETERS,
            Purpose.HELD_OUT_SCAN_NOISE,
            config.crystals.balance,
        ),
    ), refused


def _shuffled(crystals: Sequence[Crystal], seed: int) -> tuple[Crystal, ...]:
    """A seeded order, so that a set smaller than the list of crystals is not the start of the alphabet."""
    rng = np.random.default_rng(np.random.SeedSequence([seed, Purpose.SPLIT, 1]))
    return tuple(crystals[i] for i in rng.permutation(len(crystals)))


def thickness_in_slices(config: Config) -> tuple[int, int]:
    """Smallest and largest number of the training set's slices that a specimen may have.

    All thicknesses inside the range that are whole slices; where there is none, the ends of the range rounded.
    """
    slab = config.simulation.slice_angstrom
    low, high = (limit / slab for limit in config.specimen.thickness_angstrom)
    first, last = math.ceil(low * (1 - _WHOLE_TOLERANCE)), math.floor(high * (1 + _WHOLE_TOLERANCE))
    if first > last:
        first, last = round(low), round(high)
    return max(1, first), max(1, last)


def draw_thickness(config: Config, part: Part, item: int) -> float:
    """Thickness in Å of an item's specimen: whole slices of the training set, every number of them equally likely."""
    first, last = thickness_in_slices(config)
    rng = np.random.default_rng(np.random.SeedSequence([config.run.seed, part.thickness_purpose, item]))
    return int(rng.integers(first, last + 1)) * config.simulation.slice_angstrom


def items_left(part: Part, folder: Path, config_hash: str) -> list[int]:
    """Items of a part that no sealed shard holds. Raises ShardError where the manifest is damaged."""
    done = sealed_items(folder, config_hash) if folder.is_dir() else set()
    return [item for item in range(part.samples) if item not in done]
