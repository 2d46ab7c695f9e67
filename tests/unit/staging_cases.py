"""What the tests of the staging share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from stemdl.config.storage import BurstBuffer
from stemdl.shards.schema import shard_name
from stemdl.shards.staging import StageSummary, stage, staged_folder
from tests.small_shards import CONFIG_HASH, Notes

NO_RESERVE = BurstBuffer(use=True, reserve_gb=0.0)


NAMES = [shard_name(rank, 0) for rank in range(5)]


def stage_it(
    source: Path, node: Path, rank: int = 0, size: int = 1, mode: Any = "whole", **options: Any
) -> StageSummary:
    """All ranks are on one node unless the options say otherwise."""
    ranks = {"rank": rank, "size": size, "local_rank": rank, "local_size": size}
    rest = {"mode": mode, "config_hash": CONFIG_HASH, "section": NO_RESERVE, "progress": Notes()}
    return stage(source, node, **{**ranks, **rest, **options})


def staged_it(source: Path, node: Path, rank: int = 0, size: int = 1, mode: Any = "whole") -> Path:
    return staged_folder(source, node, rank=rank, size=size, mode=mode, config_hash=CONFIG_HASH, file="a.yaml")
