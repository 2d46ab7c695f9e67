"""Checks of the crystals that a run would use: names, files, and enough materials on both sides of the split."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from stemdl.config import Config
from stemdl.preflight.findings import Finding, judge

if TYPE_CHECKING:
    from data_gen.materials import BadCrystal, Crystal

FEWEST_TRAINING_MATERIALS = 2  # one of them for the validation curve
_SHOWN = 8


def check_crystals(config: Config) -> list[Finding]:
    """Folders exist, included and excluded names are known, no crystal is broken, the split leaves enough materials."""
    from data_gen.materials import collect  # reads tables and CIF files: only when crystals are asked for

    missing = [folder for folder in config.crystals.cif_folders if not folder.is_dir()]
    if missing:
        found = f"no folder {', '.join(str(folder) for folder in missing)}"
        right = "folders of CIF files; relative paths start at the YAML file"
        return [Finding("error", "crystals", found, right, "crystals.cif_folders")]
    try:
        crystals, refused = collect(config.crystals.library, config.crystals.cif_folders)
    except (OSError, ValueError) as error:  # an empty folder, an unreadable file, no crystal at all
        right = "folders of readable CIF files, or the built-in library"
        return [Finding("error", "crystals", str(error), right, "crystals.cif_folders")]
    findings = [_broken(refused)] if refused else []
    names = [crystal.name for crystal in crystals]
    unknown = [
        *_unknown("include", config.crystals.include, names),
        *_unknown("exclude", config.crystals.exclude, names),
    ]
    return findings + (unknown or _materials(config, chosen_crystals(config, crystals)))


def _broken(refused: Sequence[BadCrystal]) -> Finding:
    found = f"{len(refused)} refused: " + "; ".join(f"{one.name} ({one.reason})" for one in refused[:_SHOWN])
    found += f"; and {len(refused) - _SHOWN} more" if len(refused) > _SHOWN else ""
    return Finding("warning", "broken crystals", found, "mend or remove these files", "crystals.cif_folders")


def chosen_crystals(config: Config, crystals: Sequence[Crystal]) -> list[Crystal]:
    """Those of `crystals` that `include` (all where it is empty) and `exclude` leave."""
    include, exclude = config.crystals.include, config.crystals.exclude
    return [one for one in crystals if (not include or one.name in include) and one.name not in exclude]


def _unknown(key: str, wanted: Sequence[str], names: Collection[str]) -> list[Finding]:
    findings = []
    lowered = {name.lower(): name for name in names}
    for name in wanted:
        if name in names:
            continue
        close = difflib.get_close_matches(name.lower(), lowered, n=3, cutoff=0.4)
        begins = [known for known in names if known.lower().startswith(f"{name.lower()}-")]
        nearest = list(dict.fromkeys([*begins, *(lowered[match] for match in close)]))[:3]
        right = f"one of the {len(names)} crystals" + (f", such as {', '.join(nearest)}" if nearest else "")
        findings.append(Finding("error", "crystal names", f"no crystal called {name!r}", right, f"crystals.{key}"))
    return findings


def _materials(config: Config, chosen: Sequence[Crystal]) -> list[Finding]:
    from data_gen.materials import split_by_material

    formulas = {crystal.formula for crystal in chosen}
    if len(formulas) <= FEWEST_TRAINING_MATERIALS:
        found = f"{len(chosen)} crystals of {len(formulas)} materials"
        right = f"at least {FEWEST_TRAINING_MATERIALS} materials to learn from and 1 held out"
        return [Finding("error", "crystals", found, right, "crystals.include")]
    learn, test = split_by_material(chosen, config.crystals.held_out_fraction, config.run.seed)
    training, held_out = (len({crystal.formula for crystal in side}) for side in (learn, test))
    found = f"{len(chosen)} crystals of {len(formulas)} materials: {training} to learn from, {held_out} held out"
    right = f"at least {FEWEST_TRAINING_MATERIALS} materials to learn from: a smaller share held out"
    bad = training < FEWEST_TRAINING_MATERIALS
    findings = [judge(bad, "error", "crystals", found, right, "crystals.held_out_fraction")]
    each = (config.simulation.samples / training, config.held_out.samples / held_out)
    found = f"{each[0]:.3g} training fields a material, {each[1]:.3g} held-out fields a material"
    right = f"at least one of each material: {training} training samples, {held_out} held-out samples"
    key = "simulation.samples" if each[0] < 1 else "held_out.samples"
    return [*findings, judge(min(each) < 1, "warning", "samples a material", found, right, key)]
