"""Hashes of parts of a configuration: what a stage read decides whether its output is still good."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence

from stemdl.config.root import Config

_SPECIMEN_TO_PATTERN = (
    "crystals", "specimen", "microscope", "scan", "detector", "simulation", "held_out", "target",
)  # fmt: skip
STAGE_SECTIONS: Mapping[str, tuple[str, ...]] = {
    "simulate": _SPECIMEN_TO_PATTERN,
    "train": (*_SPECIMEN_TO_PATTERN, "network", "train"),
    "reconstruct": (*_SPECIMEN_TO_PATTERN, "network", "train", "reconstruct"),
    "report": (*_SPECIMEN_TO_PATTERN, "network", "train", "reconstruct", "report"),
}
"""The sections of the configuration that decide the result of each stage."""


def stage_hash(config: Config, stage: str) -> str:
    """The hash that the results of a stage carry; `stage` is one of `STAGE_SECTIONS`."""
    return config_hash(config, STAGE_SECTIONS[stage])


def config_hash(config: Config, sections: Sequence[str]) -> str:
    """sha256 (hex) over the named top-level sections and the seed, independent of key order and of the run's folder.

    Processes and chunk sizes are left out: they change how a result is made, never the result.
    """
    data = config.model_dump(mode="json")
    picked = {name: data[name] for name in sections}
    for key in ("workers", "probe_chunk", "samples_per_shard"):
        picked.get("simulation", {}).pop(key, None)
    picked["seed"] = config.run.seed
    text = json.dumps(picked, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
