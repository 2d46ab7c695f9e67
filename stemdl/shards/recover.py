"""What a killed writer leaves behind, and what becomes of it."""

from __future__ import annotations

import logging
import re
from pathlib import Path

from stemdl.atomic_files import TEMPORARY_PREFIX, fsync_file, fsync_folder, sha256_file
from stemdl.shards.h5_read import verify_whole
from stemdl.shards.manifest import ManifestEntry, append_entry, read_manifest
from stemdl.shards.schema import SCHEMA_VERSION, ShardError, parse_shard_name

_log = logging.getLogger(__name__)

_TEMPORARY_SHARD = re.compile(re.escape(TEMPORARY_PREFIX) + r"(\d{5,9})-.*")


def recover_rank(folder: Path, rank: int, config_hash: str, entries: list[ManifestEntry]) -> list[ManifestEntry]:
    """Clear up after dead writers of a rank; the caller holds the rank's lock, so that none is alive.

    Temporary files are removed. A file under a final name without a line in the manifest (the writer died between the
    rename and the line) gets its line if it is whole, of this configuration, and none of its items is sealed elsewhere;
    otherwise it is removed. Each is said in the log.

    Returns
    -------
    list of ManifestEntry
        The entries added to the manifest.

    Raises
    ------
    OSError, ShardError
        A file cannot be removed, or the manifest not be written.
    """
    listed = {entry.file for entry in entries}
    sealed = {item for entry in entries for item in entry.items}
    added: list[ManifestEntry] = []
    removed = False
    for path in sorted(folder.iterdir()):
        temporary = _TEMPORARY_SHARD.fullmatch(path.name)
        if temporary is not None and int(temporary[1]) == rank:
            _log.warning("%s: unfinished shard of a dead writer; removed, its samples will be made again", path)
            path.unlink()
            removed = True
            continue
        name = parse_shard_name(path.name)
        if name is None or name[0] != rank or path.name in listed:
            continue
        try:
            entry = _entry_of_orphan(path, config_hash, sealed)
        except ShardError as error:
            _log.warning("%s: not in the manifest and removed, its samples will be made again: %s", path, error)
            path.unlink()
            removed = True
            continue
        append_entry(folder, entry)
        _log.warning("%s: whole but not in the manifest (its writer was killed); added, %d samples", path, entry.count)
        sealed.update(entry.items)
        added.append(entry)
    if removed:
        fsync_folder(folder)
    return added


def ranks_left_behind(folder: Path) -> list[int]:
    """Ranks of which dead writers may have left something: unfinished files, or whole ones without a manifest line.

    Opening a `ShardWriter` of that rank clears it up. Empty where the folder does not exist. Raises ShardError where
    the manifest is damaged.
    """
    if not folder.is_dir():
        return []
    listed = {entry.file for entry in read_manifest(folder)}
    ranks = set()
    for path in folder.iterdir():
        temporary, name = _TEMPORARY_SHARD.fullmatch(path.name), parse_shard_name(path.name)
        if temporary is not None:
            ranks.add(int(temporary[1]))
        elif name is not None and path.name not in listed:
            ranks.add(name[0])
    return sorted(ranks)


def entry_of(path: Path, items: list[int], config_hash: str) -> ManifestEntry:
    """The manifest's line for a finished file; reads all of it for the hash. Raises OSError."""
    return ManifestEntry(
        file=path.name,
        sha256=sha256_file(path),
        bytes=path.stat().st_size,
        count=len(items),
        items=list(items),
        config_hash=config_hash,
        schema=SCHEMA_VERSION,
    )


def _entry_of_orphan(path: Path, config_hash: str, sealed: set[int]) -> ManifestEntry:
    if path.is_symlink():
        raise ShardError(f"{path}: a link, which no writer makes")
    shard = verify_whole(path)
    if shard.config_hash != config_hash:
        raise ShardError(f"{path}: made with config hash {shard.config_hash}; this run has {config_hash}")
    twice = sorted(sealed.intersection(shard.items))
    if twice:
        raise ShardError(f"{path}: items {twice[:10]} are sealed in another shard")
    fsync_file(path)
    fsync_folder(path.parent)
    return entry_of(path, shard.items, config_hash)
