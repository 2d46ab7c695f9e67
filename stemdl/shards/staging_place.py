"""What a node is given of a set of shards, what it holds of that already, and how much is missing."""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from stemdl.atomic_files import TEMPORARY_PREFIX, sha256_file
from stemdl.shards.burst_buffer import BurstBufferError
from stemdl.shards.copying import forget
from stemdl.shards.locks import RankLock
from stemdl.shards.manifest import ManifestEntry, append_entry, is_lost, read_manifest
from stemdl.shards.recover import check_entries
from stemdl.shards.schema import ShardError, parse_shard_name

_log = logging.getLogger(__name__)

Mode = Literal["whole", "strided"]

_TEMPORARY = re.compile(re.escape(TEMPORARY_PREFIX) + r"(\d{5,9})-stage-.*")
_NUM_NAMED = 5  # of a long list of shards


class Ranks(NamedTuple):
    """Which of how many processes this is, in the job and on its node."""

    rank: int
    size: int
    local_rank: int = 0
    local_size: int = 1


@dataclass(frozen=True)
class Place:
    """One folder on the node.

    Attributes
    ----------
    folder
        For all ranks of the node, or for this one alone.
    goal
        Lines of the source's manifest that are to be there, in its order.
    mine
        Those that this rank brings.
    owns_rest
        Whether this rank removes what is none of the goal.
    """

    folder: Path
    goal: list[ManifestEntry]
    mine: list[ManifestEntry]
    ranks: Ranks
    owns_rest: bool


def place_for(source: Path, node_folder: Path, ranks: Ranks, mode: Mode, config_hash: str) -> Place:
    """Read the source's manifest, and say what of it goes where.

    Raises
    ------
    ShardError
        The source holds no shard, another configuration or a damaged manifest.
    BurstBufferError
        "strided" with fewer shards than ranks.
    """
    entries = read_manifest(source)
    if not entries:
        raise ShardError(f"{source}: no shard is sealed in this folder; run `stemdl simulate` first")
    check_entries(source, entries, config_hash)
    staged = node_folder / "staged" / source.name
    if mode == "whole":
        mine = entries[ranks.local_rank :: ranks.local_size]
        return Place(staged / "whole", entries, mine, ranks, owns_rest=ranks.local_rank == 0)
    if len(entries) < ranks.size:  # the same on every rank, so that all stop
        raise BurstBufferError(
            f"burst_buffer.stage: found strided, {ranks.size} ranks and {len(entries)} shards in {source}, allowed are "
            "as many ranks as shards: use fewer ranks, smaller shards (simulation.samples_per_shard), or stage: whole"
        )
    mine = entries[ranks.rank :: ranks.size]
    return Place(staged / f"rank-{ranks.rank:05d}-of-{ranks.size:05d}", mine, mine, ranks, owns_rest=True)


def same_shard(entry: ManifestEntry, other: ManifestEntry | None) -> bool:
    """Whether two lines are about the same content."""
    return other is not None and (entry.sha256, entry.items) == (other.sha256, other.items)


def some_of(names: Sequence[str]) -> str:
    """The first few names of a list, and how many more there are."""
    more = f" and {len(names) - _NUM_NAMED} more" if len(names) > _NUM_NAMED else ""
    return ", ".join(names[:_NUM_NAMED]) + more


def clear_up(place: Place, verify: Literal["size", "hash"]) -> set[str]:
    """Remove what is unfinished, damaged or not wanted any more; return the names of this rank's that are here.

    Each name has one rank that may remove it, so that nothing is taken from under another one's hands. The caller holds
    the lock of its local rank. Raises ShardError, OSError.
    """
    _remove_unfinished(place)
    goal = {entry.file for entry in place.goal}
    mine = {entry.file: entry for entry in place.mine}
    here, unwanted = set(), []
    for staged in read_manifest(place.folder):
        if staged.file not in mine:
            if staged.file not in goal and place.owns_rest:
                unwanted.append(staged.file)
        elif same_shard(staged, mine[staged.file]) and _is_whole(place.folder, staged, verify):
            here.add(staged.file)
        else:
            unwanted.append(staged.file)
    if unwanted:
        _log.warning("%s: removed, not what the run folder has (any more): %s", place.folder, some_of(unwanted))
        forget(place.folder, unwanted)
    _settle_without_line(place, goal, mine, here)
    return here


def _settle_without_line(place: Place, goal: set[str], mine: dict[str, ManifestEntry], here: set[str]) -> None:
    """Files of ranks killed between a rename and its line, or between a line's end and the file's."""
    for path in sorted(place.folder.iterdir()):
        if parse_shard_name(path.name) is None or path.name in here:
            continue
        if path.name in mine and _is_whole(place.folder, mine[path.name], "hash"):
            append_entry(place.folder, mine[path.name])
            here.add(path.name)
        elif path.name in mine or (path.name not in goal and place.owns_rest):
            path.unlink()


def _remove_unfinished(place: Place) -> None:
    for path in place.folder.iterdir():
        match = _TEMPORARY.fullmatch(path.name)
        if match is None or int(match[1]) % place.ranks.local_size != place.ranks.local_rank:
            continue
        if int(match[1]) == place.ranks.local_rank:
            path.unlink(missing_ok=True)
            continue
        # Of a rank that this job does not have on the node: an earlier one with more of them, dead unless locked.
        with contextlib.suppress(ShardError):
            lock = RankLock(place.folder, int(match[1]))
            try:
                path.unlink(missing_ok=True)
            finally:
                lock.release()


def _is_whole(folder: Path, entry: ManifestEntry, verify: Literal["size", "hash"]) -> bool:
    path = folder / entry.file
    try:
        if path.is_symlink() or is_lost(folder, entry):
            return False
        return verify == "size" or sha256_file(path) == entry.sha256
    except OSError as error:
        _log.warning("%s: cannot be read (%s); brought again", path, error)
        return False


def on_this_node(node_folder: Path, part: str, place: Place) -> dict[str, Path]:
    """Shards of the part that are elsewhere on the node, by sha256: written here, or staged for another set of ranks.

    Taken from there, they cost neither the network nor space.
    """
    found: dict[str, Path] = {}
    staged = node_folder / "staged" / part
    for folder in [node_folder / "shards" / part, *sorted(path for path in staged.glob("*") if path.is_dir())]:
        if folder == place.folder:
            continue
        try:
            entries = read_manifest(folder)
        except ShardError as error:
            _log.warning("%s; nothing is taken from there", error)
            continue
        found.update((entry.sha256, folder / entry.file) for entry in entries if not is_lost(folder, entry))
    return found


def bytes_needed(place: Place, elsewhere: dict[str, Path], mode: Mode) -> int:
    """Bytes that the node still has to take, its other ranks included, who may be at work already.

    "strided": which ranks share the node is not known here; each is taken to need as much as this one, less what the
    folders of others on this node hold by now. Unfinished files are counted before finished ones: one that is finished
    in between then counts twice as present, which at worst lets a full disk stop the copy later.
    """
    wanted = [entry for entry in place.goal if entry.sha256 not in elsewhere]
    if mode == "whole":
        unfinished = _unfinished_bytes(place.folder)
        return max(0, sum(entry.bytes for entry in wanted if is_lost(place.folder, entry)) - unfinished)
    others = sum(entry.bytes for entry in wanted) * (place.ranks.local_size - 1)
    for folder in place.folder.parent.glob(f"rank-*-of-{place.ranks.size:05d}"):
        if folder != place.folder:
            others -= _unfinished_bytes(folder)
            others -= sum(entry.bytes for entry in read_manifest(folder) if not is_lost(folder, entry))
    return sum(entry.bytes for entry in wanted if is_lost(place.folder, entry)) + max(0, others)


def _unfinished_bytes(folder: Path) -> int:
    total = 0
    for path in folder.iterdir():
        if _TEMPORARY.fullmatch(path.name):
            with contextlib.suppress(FileNotFoundError):  # finished meanwhile
                total += path.stat().st_size
    return total
