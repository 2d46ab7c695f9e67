"""Sealed shards from one folder to another: hashed on the way, and with the safety of a writer's seal at the end."""

from __future__ import annotations

import dataclasses
import errno
import hashlib
import logging
import os
from collections.abc import Collection, Iterable
from pathlib import Path

from stemdl.atomic_files import fsync_folder, temporary_name, write_all
from stemdl.disks import free_space
from stemdl.shards.faults import bytes_in_words
from stemdl.shards.locks import RankLock
from stemdl.shards.manifest import ManifestEntry, append_entry, take_out
from stemdl.shards.recover import next_number, take_over
from stemdl.shards.schema import ShardError, shard_name

_log = logging.getLogger(__name__)

PIECE_BYTES = 4 * 1024**2

_NUM_NAMED = 10  # of a long list of shards

_DISK_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class DamagedShard(ShardError):
    """The shard to be copied is missing, truncated, changed or unreadable; the message names it and what was found."""


def temporary_path(folder: Path, rank: int, what: str) -> Path:
    """Name of an unfinished copy, which `recover_rank` of that rank removes after a kill."""
    return folder / f"{temporary_name(f'{rank:05d}-{what}')}.h5"


def copy_checked(entry: ManifestEntry, path: Path, temporary: Path) -> None:
    """Copy the shard at `path` to a temporary name, durably, comparing length and sha256 with its manifest line.

    Raises
    ------
    DamagedShard
        The shard is not what the line says, or cannot be read; nothing is left under the temporary name.
    OSError
        The copy cannot be written (disk full, quota, read-only); nothing is left if it can be removed.
    """
    source = _open_source(entry, path)
    try:
        # No O_EXCL: a file of this name can only be the remains of a dead process that had our number.
        copy = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
        try:
            try:
                _pump(source, copy, entry, path)
                os.fsync(copy)
            finally:
                os.close(copy)
        except BaseException:
            remove_temporary(temporary)
            raise
    finally:
        os.close(source)


def enter(folder: Path, temporary: Path, entry: ManifestEntry) -> None:
    """Give a durable copy its final name and its line in the folder's manifest, in a writer's order.

    Raises
    ------
    ShardError
        The name is taken, or the manifest's lock was held too long.
    OSError
        The disk is full or failed; a file with its final name but no line is found by the next one of its rank.
    """
    final = folder / entry.file
    if final.exists():  # only where the file system has no locks
        remove_temporary(temporary)
        raise ShardError(f"{final}: another process made it; two must not have the same rank")
    os.rename(temporary, final)
    fsync_folder(folder)
    append_entry(folder, entry)


def renamed(entry: ManifestEntry, name: str) -> ManifestEntry:
    """Return the line of the same shard under another name."""
    return dataclasses.replace(entry, file=name)


def forget(folder: Path, files: Iterable[str]) -> None:
    """Take shards out of the manifest, then remove their files: killed in between, a file without a line is left.

    Raises
    ------
    ShardError
        The manifest's lock was held too long.
    OSError
        The folder is read-only, or the disk failed.
    """
    names = frozenset(files)
    _, before = take_out(folder, lambda entry: entry.file in names)
    if before is not None:
        before.unlink()  # a copy of the manifest for each removal would fill a disk that is short already
    for name in sorted(names):
        (folder / name).unlink(missing_ok=True)
    fsync_folder(folder)


def remove_temporary(temporary: Path) -> None:
    """Remove an unfinished copy; its own errors go to the log, since another is on its way."""
    try:
        temporary.unlink(missing_ok=True)
    except OSError as error:
        _log.warning("%s: could not be removed (%s); the next one of this rank will try again", temporary, error)


def is_full(error: OSError) -> bool:
    """Say whether a write failed for want of space: the disk's, or a quota's."""
    return error.errno in _DISK_FULL


def reason_of(error: Exception) -> str:
    """What the system says, without the file's name."""
    return os.strerror(error.errno) if isinstance(error, OSError) and error.errno else str(error)


class Destination:
    """A folder of shards as one rank drains into it: its names, its lock, its clearing up after a kill."""

    def __init__(self, folder: Path, rank: int, config_hash: str) -> None:
        """Make the folder if needed and take the rank's lock; raises ShardError as `ShardWriter` does."""
        self.folder = folder
        self._rank = rank
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._lock = RankLock(folder, rank)
        except OSError as error:
            raise ShardError(f"{folder}: shards cannot be copied here: {reason_of(error)}") from error
        try:
            entries = take_over(folder, rank, config_hash)
        except OSError as error:
            self._lock.release()
            raise ShardError(f"{folder}: shards cannot be copied here: {reason_of(error)}") from error
        except BaseException:
            self._lock.release()
            raise
        self._items = {item for entry in entries for item in entry.items}
        self._number = next_number(entries, rank)

    def has(self, entry: ManifestEntry) -> bool:
        """Whether all its items are here: in this very shard, or in others (made again meanwhile: the same bits)."""
        return self._items.issuperset(entry.items)

    def take(self, entry: ManifestEntry, source: Path) -> ManifestEntry:
        """Copy one shard from the folder `source` under this rank's next number; returns its new line.

        Raises DamagedShard where the shard on the node is damaged; ShardError or OSError where the copy fails. In both
        cases nothing half has a final name.
        """
        name = shard_name(self._rank, self._number)
        temporary = temporary_path(self.folder, self._rank, "drain")
        copy_checked(entry, source / entry.file, temporary)
        new = renamed(entry, name)
        enter(self.folder, temporary, new)
        self._number += 1
        self._items.update(entry.items)
        _log.info("%s: drained to %s, %.1f MB", source / entry.file, self.folder / name, entry.bytes / 1e6)
        return new

    def release(self) -> None:
        """Let another one of this rank come."""
        self._lock.release()


def why_stopped(error: Exception, entry: ManifestEntry, folder: Path) -> str:
    """Why a shard could not be copied into a folder, with what it takes and what is free."""
    if not isinstance(error, OSError):
        return str(error)
    text = f"{entry.file}: {reason_of(error)}"
    if not is_full(error):
        return text
    try:
        free = bytes_in_words(free_space(folder).bytes)
    except OSError as unknown:
        free = f"unknown ({reason_of(unknown)})"
    return f"{text} (it takes {bytes_in_words(entry.bytes)}, free: {free}; a quota may be less)"


def undrained(entries: Collection[ManifestEntry], source: Path, folder: Path, why: str) -> str:
    """The message about shards that are on the node alone."""
    names = ", ".join(entry.file for entry in list(entries)[:_NUM_NAMED])
    more = f" and {len(entries) - _NUM_NAMED} more" if len(entries) > _NUM_NAMED else ""
    return (
        f"{folder}: sealed shards could not be drained here: {why}; on this node alone, and whole, in {source}: "
        f"{names}{more}; once this is mended, run the same command on this node again"
    )


def _open_source(entry: ManifestEntry, path: Path) -> int:
    try:
        # A link could lead out of the folder, to a file that is none of this set's.
        source = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError as error:
        raise DamagedShard(f"{path}: missing, though the manifest names it") from error
    except OSError as error:
        what = "a link, which no writer makes" if error.errno == errno.ELOOP else f"cannot be read: {reason_of(error)}"
        raise DamagedShard(f"{path}: {what}") from error
    num_bytes = os.fstat(source).st_size
    if num_bytes != entry.bytes:
        os.close(source)
        raise DamagedShard(f"{path}: {num_bytes} bytes long, {entry.bytes} when it was sealed (truncated or changed)")
    return source


def _pump(source: int, copy: int, entry: ManifestEntry, path: Path) -> None:
    digest = hashlib.sha256()
    while True:
        try:
            piece = os.read(source, PIECE_BYTES)
        except OSError as error:  # a bad sector, or a server that went away
            raise DamagedShard(f"{path}: cannot be read: {reason_of(error)}") from error
        if not piece:
            break
        digest.update(piece)
        write_all(copy, piece)
    if digest.hexdigest() != entry.sha256:
        raise DamagedShard(f"{path}: sha256 differs from the one when it was sealed (changed or damaged)")
