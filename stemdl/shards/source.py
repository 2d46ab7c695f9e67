"""Where the shards of a run are read: the run folder, or the storage of the node where the configuration says so."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from stemdl.config import Config, stage_hash
from stemdl.progress import Progress
from stemdl.shards.burst_buffer import BurstBufferError, find_burst_buffer, node_folder, run_id
from stemdl.shards.manifest import read_manifest
from stemdl.shards.part import require_part
from stemdl.shards.schema import PARTS
from stemdl.shards.staging import StageSummary, staged_folder
from stemdl.shards.staging import stage as stage_shards

__all__ = ["PARTS", "place_on_node", "reading_folder", "shard_folder", "stage_alone", "stage_part"]


def shard_folder(config: Config, part: str) -> Path:
    """Where the shards of a part ("train" or "held_out") are kept."""
    return config.run.folder / "shards" / part


def place_on_node(config: Config, config_hash: str) -> Path:
    """This run's place on the storage of this node; made if it is not there. Raises BurstBufferError."""
    buffer = find_burst_buffer(config.burst_buffer, os.environ)
    return node_folder(buffer, run_id(config.run.folder, config_hash), os.environ)


def reading_folder(config: Config, part: str, *, rank: int = 0, size: int = 1) -> Path:
    """Where this rank reads a part: with a burst buffer its node's storage, never the run folder in its place.

    Raises BurstBufferError where nothing, or not everything, is there; ShardError as `staged_folder`, and where a shard
    is of another part.
    """
    kept = shard_folder(config, part)
    section = config.burst_buffer
    if not section.use or section.drain:
        require_part(kept, part)
    if not section.use:
        return kept
    digest = stage_hash(config, "simulate")
    node = place_on_node(config, digest)
    if section.drain:
        return staged_folder(kept, node, rank=rank, size=size, mode=section.stage, config_hash=digest)
    folder = node / "shards" / part
    if not read_manifest(folder):
        raise BurstBufferError(
            f"{folder}: nothing was simulated on this node, and with burst_buffer.drain: false shards are nowhere else"
        )
    require_part(folder, part)
    return folder


class Ranks(Protocol):
    """Which of how many processes this is, in the job and on its node."""

    rank: int
    size: int
    local_rank: int
    local_size: int


def stage_part(config: Config, part: str, config_hash: str, ranks: Ranks, progress: Progress) -> StageSummary:
    """Copy this rank's share of a part to the storage of its node. Raises as `stemdl.shards.staging.stage`;
    ShardError where a shard is of another part.
    """
    require_part(shard_folder(config, part), part)
    return stage_shards(
        shard_folder(config, part),
        place_on_node(config, config_hash),
        rank=ranks.rank,
        size=ranks.size,
        local_rank=ranks.local_rank,
        local_size=ranks.local_size,
        mode=config.burst_buffer.stage,
        config_hash=config_hash,
        section=config.burst_buffer,
        progress=progress,
    )


@dataclass
class _Alone:
    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1


def stage_alone(config: Config, progress: Progress) -> list[StageSummary]:
    """Copy both parts to the storage of this machine, by this process alone. Raises as `stage_part`."""
    digest = stage_hash(config, "simulate")
    return [stage_part(config, part, digest, _Alone(), progress) for part in PARTS]
