"""What a killed writer leaves behind, and what becomes of it."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Literal, NamedTuple

from stemdl.atomic_files import TEMPORARY_PREFIX, fsync_file, fsync_folder, sha256_file
from stemdl.shards.h5_read import verify_whole
from stemdl.shards.locks import MERGE_LOCK_NAME, parse_lock_name
from stemdl.shards.manifest import ManifestEntry, append_entry, read_manifest
from stemdl.shards.part import require_part
from stemdl.shards.schema import SCHEMA_VERSION, ShardError, parse_shard_name

_log = logging.getLogger(__name__)

_TEMPORARY_SHARD = re.compile(re.escape(TEMPORARY_PREFIX) + r"(\d{5,9})-.*")


def take_over(folder: Path, rank: int, config_hash: str, part: str = "") -> list[ManifestEntry]:
    """Check that a folder holds this configuration alone, clear up after dead writers of a rank, and list its shards.

    The caller holds the rank's lock. part: that no shard may be of another one than; not looked at where empty.

    Raises
    ------
    ShardError
        A shard has an unknown schema or another configuration, or its line says another part; or as `recover_rank`.
    OSError
        As `recover_rank`.
    """
    entries = read_manifest(folder)
    check_entries(folder, entries, config_hash)
    if part:  # by the lines alone: thousands of ranks start at once, and the old lines are looked into before
        require_part(folder, part, [entry for entry in entries if entry.part])
    return entries + recover_rank(folder, rank, config_hash, entries, part=part)


def check_entries(folder: Path, entries: list[ManifestEntry], config_hash: str) -> None:
    """Raise ShardError, naming the first, unless all shards are of this version's schema and this configuration."""
    for entry in entries:
        if entry.schema != SCHEMA_VERSION:
            raise ShardError(
                f"{folder / entry.file}: schema {entry.schema} is unknown; this version writes {SCHEMA_VERSION}"
            )
        if entry.config_hash != config_hash:
            raise ShardError(
                f"{folder / entry.file}: made with config hash {entry.config_hash}; this run has {config_hash}; one "
                "folder holds one configuration: use another folder, or remove this one"
            )


def next_number(entries: list[ManifestEntry], rank: int) -> int:
    """Return the first number that no shard of a rank had."""
    names = [parse_shard_name(entry.file) for entry in entries]
    return max((name[1] + 1 for name in names if name is not None and name[0] == rank), default=0)


class Leftover(NamedTuple):
    """A file that no finished writer leaves."""

    file: str
    kind: Literal["temporary", "orphan", "lock", "unfinished"]
    """A shard under a temporary name; a final name without a line in the manifest; a lock; another temporary file."""
    rank: int | None


def leftovers(folder: Path, listed: Collection[str]) -> list[Leftover]:
    """Files of dead writers, or of living ones, sorted by name; `listed` are the files that the manifest names."""
    found = []
    for name in sorted(path.name for path in folder.iterdir()):
        shard, lock, temporary = parse_shard_name(name), parse_lock_name(name), _TEMPORARY_SHARD.fullmatch(name)
        if temporary is not None:
            found.append(Leftover(name, "temporary", int(temporary[1])))
        elif shard is not None and name not in listed:
            found.append(Leftover(name, "orphan", shard[0]))
        elif lock is not None or name == MERGE_LOCK_NAME:
            found.append(Leftover(name, "lock", lock))
        elif name.startswith(TEMPORARY_PREFIX):
            found.append(Leftover(name, "unfinished", None))
    return found


def recover_rank(
    folder: Path,
    rank: int,
    config_hash: str,
    entries: list[ManifestEntry],
    *,
    part: str = "",
    aside: Callable[[Path], None] | None = None,
) -> list[ManifestEntry]:
    """Clear up after dead writers of a rank; the caller holds the rank's lock, so that none is alive.

    Temporary files are removed. A file under a final name without a line in the manifest (the writer died between the
    rename and the line) gets its line if it is whole, of this configuration and (unless empty) this part, and
    none of its items is sealed elsewhere; otherwise it is removed, or given to `aside` to be moved.
    Each is said in the log.

    Returns the entries added to the manifest. Raises OSError or ShardError where a file cannot be removed, or the
    manifest not be written.
    """
    listed, sealed = {entry.file for entry in entries}, {item for entry in entries for item in entry.items}
    added: list[ManifestEntry] = []
    removed = False
    for path in sorted(folder.iterdir()):
        temporary = _TEMPORARY_SHARD.fullmatch(path.name)
        if temporary is not None and int(temporary[1]) == rank:
            _log.warning("%s: unfinished shard of a dead writer; removed, its samples will be made again", path)
            path.unlink()
            removed = True
        name = parse_shard_name(path.name)
        if name is None or name[0] != rank or path.name in listed:
            continue
        try:
            entry = entry_of_orphan(path, config_hash, sealed, part)
        except ShardError as error:
            _put_away(path, error, aside)
            removed = True
            continue
        append_entry(folder, entry)
        _log.warning("%s: whole but not in the manifest (its writer was killed); added, %d samples", path, entry.count)
        sealed.update(entry.items)
        added.append(entry)
    if removed:
        fsync_folder(folder)
    return added


def _put_away(path: Path, error: ShardError, aside: Callable[[Path], None] | None) -> None:
    does = "removed" if aside is None else "set aside"
    _log.warning("%s: not in the manifest and %s, its samples will be made again: %s", path, does, error)
    if aside is None:
        path.unlink()
    else:
        aside(path)


def ranks_left_behind(folder: Path) -> list[int]:
    """Ranks of which dead writers may have left something: unfinished files, or whole ones without a manifest line.

    Opening a `ShardWriter` of that rank clears it up. Empty where the folder does not exist. Raises ShardError where
    the manifest is damaged.
    """
    if not folder.is_dir():
        return []
    left = leftovers(folder, {entry.file for entry in read_manifest(folder)})
    return sorted({one.rank for one in left if one.rank is not None and one.kind in ("temporary", "orphan")})


def entry_of(path: Path, items: list[int], config_hash: str, part: str) -> ManifestEntry:
    """The manifest's line for a finished file; reads all of it for the hash. Raises OSError."""
    return ManifestEntry(
        file=path.name,
        sha256=sha256_file(path),
        bytes=path.stat().st_size,
        count=len(items),
        items=list(items),
        config_hash=config_hash,
        schema=SCHEMA_VERSION,
        part=part,
    )


def entry_of_orphan(path: Path, config_hash: str, sealed: Collection[int], part: str = "") -> ManifestEntry:
    """The line for a shard under its final name that has none; all of it is read.

    Raises ShardError where it is damaged, a link, of another configuration or part, or an item of it is in `sealed`.
    """
    if path.is_symlink():
        raise ShardError(f"{path}: a link, which no writer makes")
    shard = verify_whole(path)
    if shard.config_hash != config_hash:
        raise ShardError(f"{path}: made with config hash {shard.config_hash}; this run has {config_hash}")
    if part and shard.part != part:
        raise ShardError(f"{path}: is of the part {shard.part!r}; the others here are of {part!r}")
    twice = sorted(set(shard.items).intersection(sealed))
    if twice:
        raise ShardError(f"{path}: items {twice[:10]} are sealed in another shard")
    fsync_file(path)
    fsync_folder(path.parent)
    return entry_of(path, shard.items, config_hash, shard.part)
