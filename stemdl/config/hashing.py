"""Hashes of parts of a configuration: what a stage read decides whether its output is still good."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from stemdl import __version__
from stemdl.atomic_files import sha256_file
from stemdl.config.root import Config

_SPECIMEN_TO_PATTERN = (
    "crystals", "specimen", "microscope", "scan", "detector", "vary", "simulation", "held_out", "target",
)  # fmt: skip
STAGE_SECTIONS: Mapping[str, tuple[str, ...]] = {
    "simulate": _SPECIMEN_TO_PATTERN,
    "train": (*_SPECIMEN_TO_PATTERN, "network", "train"),
    "reconstruct": (*_SPECIMEN_TO_PATTERN, "network", "train", "reconstruct"),
    "report": (*_SPECIMEN_TO_PATTERN, "network", "train", "reconstruct", "report"),
}
"""The sections of the configuration that decide the result of each stage."""

_APPLIED_LATER: Mapping[str, tuple[tuple[str, str], ...]] = {
    "simulate": (
        ("detector", "blur_sigma_pixels"),
        ("detector", "dose_e_per_a2"),
        ("detector", "dead_fraction"),
        ("detector", "hot_fraction"),
        ("detector", "hot_electrons"),
        ("detector", "saturation_electrons"),
        ("detector", "adu_per_electron"),
        ("detector", "readout_sigma_adu"),
        ("vary", "dose_e_per_a2"),
    )
}
"""Keys of those sections that a stage does not read: shards hold what reaches the detector; what that makes of it is
applied when they are loaded, so that one set serves many detectors."""

_HOW_NOT_WHAT = ("workers", "probe_chunk", "samples_per_shard", "item_timeout_s", "rank_timeout_s")


def stage_hash(config: Config, stage: str) -> str:
    """The hash that the results of a stage carry; `stage` is one of `STAGE_SECTIONS`."""
    return config_hash(config, STAGE_SECTIONS[stage], _APPLIED_LATER.get(stage, ()))


def fingerprint(config: Config) -> str:
    """sha256 (hex) over the whole configuration and the version of this program; no file is read for it.

    Ranks of one job compare it: all of them must have read the same.
    """
    return hashlib.sha256(f"{__version__} {config.model_dump_json()}".encode()).hexdigest()


def config_hash(config: Config, sections: Sequence[str], leave_out: Sequence[tuple[str, str]] = ()) -> str:
    """sha256 (hex) over the named top-level sections and the seed, independent of key order and of the run's folder.

    Processes and chunk sizes are left out: they change how a result is made, never the result. Of the folders of CIF
    files it is the content that counts, wherever they lie: each file there is read. `leave_out` names further keys as
    (section, key). Raises KeyError for a section or key that there is none of.
    """
    data = config.model_dump(mode="json")
    picked = {name: data[name] for name in sections}
    if "crystals" in picked:
        picked["crystals"]["cif_folders"] = [_cif_content(folder) for folder in config.crystals.cif_folders]
    for key in _HOW_NOT_WHAT:
        picked.get("simulation", {}).pop(key, None)
    for section, key in leave_out:
        del picked[section][key]
    picked["seed"] = config.run.seed
    text = json.dumps(picked, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _cif_content(folder: Path) -> Any:
    """Names and hashes of the CIF files of a folder (those that the simulation reads), sorted by name.

    What cannot be read has a name and no hash: the stage that needs the file says what is wrong with it.
    """
    try:
        files = sorted((path for path in folder.iterdir() if path.suffix.lower() == ".cif"), key=lambda path: path.name)
    except OSError:
        return {"unreadable": folder.name}
    return [[path.name, _content_hash(path)] for path in files]


def _content_hash(path: Path) -> str | None:
    # A pipe or a device of this name would be read for ever.
    if not path.is_file():
        return None
    try:
        return sha256_file(path)
    except OSError:
        return None
