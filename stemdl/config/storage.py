"""Section about fast storage that each node has for itself."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from stemdl.config.base import NonNegativeFloat, Section


class BurstBuffer(Section):
    """Node-local storage: shards are written there first, and staged there for training."""

    use: bool = False
    """Use the storage of each node; a node without one is then an error, never a silent use of the slow disk."""
    folder: str | None = Field(default=None, min_length=1)
    """Folder on every node, with $NAMES of its environment filled in. Null: the first there is of /mnt/bb/$USER,
    $SLURM_TMPDIR, $LOCAL_SCRATCH, $TMPDIR."""
    drain: bool = True
    """Copy every sealed shard to the run folder in the background; false leaves them on the nodes alone."""
    reserve_gb: NonNegativeFloat = 1.0
    """Space in GB that stays free for others."""
    least_write_mb_per_s: NonNegativeFloat = 0.0
    """Slower storage than this, in MB/s measured before the first sample, is refused."""
    stage: Literal["whole", "strided"] = "whole"
    """What `stemdl stage` copies to a node: the whole set, the node's ranks sharing the work, or to each rank every
    size-th shard."""
