"""Sealed shards from the run folder to the nodes' own storage, before training reads them there.

A node holds what it was given under `staged/PART/whole`, or for each rank under `staged/PART/rank-RRRRR-of-SSSSS`, with
a manifest of its own: the shards, names and hashes of the source. There a reader finds all that it is to read, or an
error (`staged_folder`); the slow disk is never read in its place.
"""

from __future__ import annotations

import logging
import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from stemdl.atomic_files import sha256_file
from stemdl.config.storage import BurstBuffer
from stemdl.disks import free_space
from stemdl.progress import Progress
from stemdl.shards.burst_buffer import LEAST_FREE_FILES, BurstBufferError, require_space
from stemdl.shards.copying import (
    DamagedShard,
    copy_checked,
    enter,
    reason_of,
    remove_temporary,
    temporary_path,
    why_stopped,
)
from stemdl.shards.locks import RankLock
from stemdl.shards.manifest import ManifestEntry, is_lost, read_manifest
from stemdl.shards.staging_place import (
    Mode,
    Place,
    Ranks,
    bytes_needed,
    clear_up,
    on_this_node,
    place_for,
    same_shard,
    some_of,
)

_log = logging.getLogger(__name__)


@dataclass
class StageSummary:
    """What one rank did.

    Attributes
    ----------
    folder
        Where a reader finds the shards (see `staged_folder`).
    copied
        Read from the source, hashed, and sealed here.
    linked
        On this node already, in another folder of the run: hashed, and given a second name.
    kept
        Staged here before.
    damaged
        Left out, since the source's file is not what was sealed: name to what was found.
    bytes
        Copied.
    seconds
        Spent.
    """

    folder: Path
    copied: list[str] = field(default_factory=list)
    linked: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    damaged: dict[str, str] = field(default_factory=dict)
    bytes: int = 0
    seconds: float = 0.0

    @property
    def complete(self) -> bool:
        """Whether this rank's share of the source's manifest is here; other ranks of the node have theirs."""
        return not self.damaged

    def line(self) -> str:
        """One line for people."""
        speed = f", {self.bytes / 1e6 / self.seconds:.0f} MB/s" if self.seconds > 0 and self.bytes else ""
        text = (
            f"staged in {self.folder}: {len(self.copied)} shards copied ({self.bytes / 1e9:.2f} GB{speed}), "
            f"{len(self.linked)} taken from this node, {len(self.kept)} there before"
        )
        if self.damaged:
            text += f"; INCOMPLETE, {len(self.damaged)} damaged and left out: {'; '.join(self.damaged.values())}"
        return text


def stage(
    source: Path,
    node_folder: Path,
    *,
    rank: int,
    size: int,
    local_rank: int,
    local_size: int,
    mode: Mode,
    config_hash: str,
    section: BurstBuffer,
    progress: Progress,
    verify: Literal["size", "hash"] = "size",
) -> StageSummary:
    """Copy this rank's share of the shards that the manifest in `source` names to the node; all ranks call it.

    "whole": the node gets every shard, its ranks sharing the work. "strided": each rank gets every size-th shard, for
    itself. Free space is checked first for all that the node gets. What is staged already is kept, if its length is
    right (verify="hash": if its sha256 is); what the source does not name any more is removed. A damaged shard of the
    source is named and left out, and the rest goes on: the summary is then not `complete`. May be killed at any moment;
    call `staged_folder` after a barrier of the node's ranks.

    Raises ShardError where the source holds no shard, another configuration or a damaged manifest, or another process
    stages as this rank; BurstBufferError where too little space is free, or the node's disk is full, read-only or
    failed: what is staged stays whole.
    """
    began = time.monotonic()
    place = place_for(source, node_folder, Ranks(rank, size, local_rank, local_size), mode, config_hash)
    summary = StageSummary(place.folder)
    try:
        place.folder.mkdir(parents=True, exist_ok=True)
        lock = RankLock(place.folder, local_rank)
    except OSError as error:
        raise BurstBufferError(f"{place.folder}: nothing can be staged here: {reason_of(error)}") from error
    try:
        here = clear_up(place, verify)
        elsewhere = on_this_node(node_folder, source.name, place)
        free = free_space(node_folder)  # first: what others take from here on, they need no more
        needed_files = len(place.goal) - len(here) + LEAST_FREE_FILES
        require_space(node_folder, free, bytes_needed(place, elsewhere, mode), section, needed_files=needed_files)
        _bring_all(source, place, here, elsewhere, summary, progress)
    except OSError as error:
        raise BurstBufferError(f"{place.folder}: staging stopped: {error}") from error
    finally:
        progress.finish()
        lock.release()
    summary.seconds = time.monotonic() - began
    return summary


def staged_folder(
    source: Path, node_folder: Path, *, rank: int, size: int, mode: Mode, config_hash: str, file: str = "FILE"
) -> Path:
    """Return the folder on this node that this rank reads instead of `source`; `file` is the configuration's name.

    Raises
    ------
    ShardError
        The source holds no shard, another configuration or a damaged manifest.
    BurstBufferError
        The node does not hold exactly what the source's manifest names for it: nothing was staged here, or not all, or
        it was staged for other shards.
    """
    place = place_for(source, node_folder, Ranks(rank, size), mode, config_hash)
    how = f"run `stemdl stage {file}` on every node of this job first (shards are never read from {source} instead)"
    here = {entry.file: entry for entry in read_manifest(place.folder)}
    if not here:
        raise BurstBufferError(f"{place.folder}: nothing is staged on this node; {how}")
    missing = [e.file for e in place.goal if not same_shard(e, here.get(e.file)) or is_lost(place.folder, e)]
    if missing:
        count = f"{len(missing)} of {len(place.goal)} shards"
        raise BurstBufferError(
            f"{place.folder}: {count} are not staged on this node, or damaged there: {some_of(missing)}; {how}"
        )
    rest = sorted(here.keys() - {entry.file for entry in place.goal})
    if rest:
        raise BurstBufferError(f"{place.folder}: holds shards that {source} does not name: {some_of(rest)}; {how}")
    return place.folder


def _bring_all(
    source: Path,
    place: Place,
    here: set[str],
    elsewhere: dict[str, Path],
    summary: StageSummary,
    progress: Progress,
) -> None:
    progress.start("stage", len(place.mine), "shards")
    for done, entry in enumerate(place.mine):
        progress.advance(done)
        if entry.file in here:
            summary.kept.append(entry.file)
        else:
            _bring(entry, source, place, elsewhere, summary, progress)
    progress.advance(len(place.mine))


def _bring(
    entry: ManifestEntry,
    source: Path,
    place: Place,
    elsewhere: dict[str, Path],
    summary: StageSummary,
    progress: Progress,
) -> None:
    """Get one shard to the node: from another folder there, else from the source."""
    temporary = temporary_path(place.folder, place.ranks.local_rank, "stage")
    near = elsewhere.get(entry.sha256)
    if near is not None and _link(entry, near, temporary):
        into = summary.linked
    else:
        into = summary.copied
        try:
            copy_checked(entry, source / entry.file, temporary)
        except DamagedShard as error:
            progress.note(f"{error}; left out: run `stemdl shards repair {source}`, then `stemdl simulate`")
            summary.damaged[entry.file] = str(error)
            return
        except OSError as error:
            raise _stopped(error, entry, place.folder) from error
        summary.bytes += entry.bytes
    try:
        enter(place.folder, temporary, entry)
    except OSError as error:
        raise _stopped(error, entry, place.folder) from error
    into.append(entry.file)


def _link(entry: ManifestEntry, near: Path, temporary: Path) -> bool:
    """Give a shard on this node a second name, if its content is right; False where that cannot be."""
    try:
        if near.is_symlink() or sha256_file(near) != entry.sha256:
            _log.warning("%s: sha256 differs from the one when it was sealed; copied again instead", near)
            return False
        remove_temporary(temporary)
        os.link(near, temporary)
    except OSError as error:  # gone meanwhile, or a file system without second names
        _log.info("%s: cannot be taken (%s); copied instead", near, error)
        return False
    return True


def _stopped(error: OSError, entry: ManifestEntry, folder: Path) -> BurstBufferError:
    return BurstBufferError(
        f"{folder}: staging stopped: {why_stopped(error, entry, folder)}; the shards staged here are whole and stay; "
        "make room or use more nodes, then run `stemdl stage` again"
    )
