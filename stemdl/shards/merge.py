"""The shards of many folders joined into one, such as those of many nodes' own storage.

Each shard goes in with a writer's safety: under a temporary name first, compared with its hash, then the final name,
then the manifest's line. A kill at any moment leaves the destination valid, and the same call goes on from there.
"""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

from stemdl.atomic_files import fsync_file, sha256_file
from stemdl.shards.copying import (
    DamagedShard,
    copy_checked,
    enter,
    is_full,
    reason_of,
    remove_temporary,
    renamed,
    temporary_path,
)
from stemdl.shards.encode import EncodedSample
from stemdl.shards.faults import fields_of
from stemdl.shards.h5_read import ShardFile
from stemdl.shards.h5_write import ShardFileWriter
from stemdl.shards.locks import MergeLock, RankLock, is_held
from stemdl.shards.manifest import ManifestEntry, read_manifest, scan_manifest
from stemdl.shards.merge_plan import Alike, check_alike, check_layout
from stemdl.shards.recover import entry_of, leftovers, ranks_left_behind, take_over
from stemdl.shards.schema import ShardError, parse_shard_name, shard_name

# What a file system answers that has no hard links, has too many of one file, or forbids them for others' files.
_CANNOT_LINK = frozenset({errno.EXDEV, errno.EPERM, errno.EACCES, errno.EMLINK, errno.EOPNOTSUPP, errno.ENOSYS})


@dataclass
class MergeReport:
    """What became of the shards of the sources."""

    destination: Path
    shards: int = 0
    """Merged now; with `samples` and `bytes`."""
    samples: int = 0
    bytes: int = 0
    linked: int = 0
    """Of the shards, those that are a second name of the source's file, so take no space."""
    rewritten: int = 0
    """Of the shards, those written anew, since part of their items was there."""
    present: int = 0
    """Shards that the destination had, from an earlier call."""
    renamed: list[tuple[str, str]] = field(default_factory=list)
    """Path in the source, and the name at the destination where its own was taken."""
    duplicates: dict[int, str] = field(default_factory=dict)
    """Items left out since another shard of the destination has them, with the path of the shard left out."""
    damaged: list[str] = field(default_factory=list)
    """What could not be merged, with what was found and the items."""
    notes: list[str] = field(default_factory=list)


def merge_folders(
    destination: Path,
    sources: Sequence[Path],
    *,
    hard_links: bool = True,
    on_shard: Callable[[int], None] = lambda done: None,
) -> MergeReport:
    """Take every shard of the sources into the destination, whose folder is made if needed; the sources stay.

    A shard keeps its name unless that is taken: then it gets the next number of its rank. Items that the destination
    has are left out, so that each is there once (a shard of which only part is new is written anew); the samples of one
    item and configuration are the same wherever they were made. Damaged shards are named and left out. Hard links take
    no space; across file systems, or with `hard_links` off, files are copied. `on_shard` is told how many are done.

    Raises
    ------
    ShardError
        Shards of two configurations, of two parts, of two kinds of axes, or of an unknown schema, before anything is
        merged (both are named); writers are at work in the destination; the disk is full: what is merged stays,
        and is valid.
    OSError
        The destination cannot be written.
    """
    if destination.exists() and not destination.is_dir():
        raise ShardError(f"{destination}: a file, where shards are to be merged into a folder")
    plan = [(source, scan_manifest(source)) for source in sources]
    alike = check_alike(destination, [(source, scan.entries) for source, scan in plan])
    report = MergeReport(destination)
    for source, scan in plan:
        report.damaged += [f"{fault}; run `stemdl shards repair {source}` first" for fault in scan.faults]
        left = leftovers(source, {entry.file for entry in scan.entries})
        if any(one.kind == "lock" and is_held(source / one.file) for one in left):
            report.notes.append(f"{source}: a writer is at work in it; what it seals from now on is not merged")
    if not alike.config_hash:
        return report
    destination.mkdir(parents=True, exist_ok=True)
    lock = MergeLock(destination)
    try:
        merger = _Merger(report, alike, hard_links)
        done = 0
        for source, scan in plan:
            for rank, entries in groupby(sorted(scan.entries, key=_place), key=lambda e: _place(e)[0]):
                done = merger.take_rank(rank, source, list(entries), done, on_shard)
    finally:
        lock.release()
    return report


def _place(entry: ManifestEntry) -> tuple[int, int]:
    place = parse_shard_name(entry.file)
    assert place is not None, "a manifest names shards alone"
    return place


class _Merger:
    """One merge: the state of the destination, and a shard at a time into it."""

    def __init__(self, report: MergeReport, alike: Alike, hard_links: bool) -> None:
        """Clear up after dead writers and merges of every rank. Raises ShardError where writers are at work."""
        self._report = report
        self._folder = report.destination
        self._alike = alike
        self._hard_links = hard_links
        locks = [one for one in leftovers(self._folder, ()) if one.kind == "lock" and one.rank is not None]
        alive = [str(one.rank) for one in locks if is_held(self._folder / one.file)]
        if alive:
            raise ShardError(f"{self._folder}: writers of rank {', '.join(alive)} are at work in it; wait for them")
        for rank in ranks_left_behind(self._folder):
            rank_lock = RankLock(self._folder, rank)
            try:
                take_over(self._folder, rank, alike.config_hash, alike.part)
            finally:
                rank_lock.release()
        entries = read_manifest(self._folder)
        self._names = {entry.file for entry in entries}
        self._hashes = {entry.sha256 for entry in entries}
        self._items = {item for entry in entries for item in entry.items}
        self._next_number: dict[int, int] = {}

    def take_rank(
        self, rank: int, source: Path, entries: Sequence[ManifestEntry], done: int, on_shard: Callable[[int], None]
    ) -> int:
        """Merge a rank's shards of one source, under the rank's lock at the destination; returns how many are done."""
        lock = RankLock(self._folder, rank)
        try:
            for entry in entries:
                self._take(entry, source, rank)
                done += 1
                on_shard(done)
        except OSError as error:
            if not is_full(error):
                raise
            raise ShardError(
                f"{self._folder}: {reason_of(error)} at {source / entry.file}; {self._report.shards} shards are merged "
                "and valid; make room and run the same command again"
            ) from error
        finally:
            lock.release()
        return done

    def _take(self, entry: ManifestEntry, source: Path, rank: int) -> None:
        report, path = self._report, source / entry.file
        if entry.sha256 in self._hashes:
            report.present += 1
            return
        twice = self._items.intersection(entry.items)
        report.duplicates.update((item, str(path)) for item in sorted(twice))
        if len(twice) == entry.count:
            return
        temporary = temporary_path(self._folder, rank, "merge")
        try:
            linked = self._fetch(entry, path, temporary)
            new = self._checked(entry, path, temporary, rank, twice)
        except DamagedShard as error:
            report.damaged.append(f"{error}; {fields_of(entry.items)} left out")
            for item in twice:
                del report.duplicates[item]
            return
        report.linked += linked and not twice
        report.rewritten += bool(twice)
        self._enter(new, path, temporary)

    def _enter(self, new: ManifestEntry, path: Path, temporary: Path) -> None:
        report = self._report
        if new.file != path.name:
            report.renamed.append((str(path), new.file))
        enter(self._folder, temporary, new)
        self._names.add(new.file)
        self._hashes.add(new.sha256)
        self._items.update(new.items)
        report.shards += 1
        report.samples += new.count
        report.bytes += new.bytes

    def _fetch(self, entry: ManifestEntry, path: Path, temporary: Path) -> bool:
        """Put the shard under the temporary name, compared with its line; returns whether as a hard link."""
        if self._hard_links and not path.is_symlink():
            temporary.unlink(missing_ok=True)
            try:
                os.link(path, temporary)
            except FileNotFoundError as error:
                raise DamagedShard(f"{path}: missing, though the manifest names it") from error
            except OSError as error:
                if error.errno not in _CANNOT_LINK:
                    raise
            else:
                if temporary.stat().st_size == entry.bytes and sha256_file(temporary) == entry.sha256:
                    return True
                remove_temporary(temporary)
                raise DamagedShard(f"{path}: length or sha256 differs from the one when it was sealed")
        if shutil.disk_usage(self._folder).free < entry.bytes:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        copy_checked(entry, path, temporary)
        return False

    def _checked(self, entry: ManifestEntry, path: Path, temporary: Path, rank: int, twice: set[int]) -> ManifestEntry:
        """The line for what lies under the temporary name, once that is known to be the shard; without `twice`."""
        try:
            shard = ShardFile(temporary)
        except ShardError as error:
            remove_temporary(temporary)
            raise DamagedShard(str(error).replace(str(temporary), str(path))) from error
        try:
            if shard.items != entry.items or shard.config_hash != entry.config_hash:
                raise DamagedShard(f"{path}: its config hash or items are not those in the manifest")
            check_layout(shard, path, self._alike.layout)
            if shard.part != self._alike.part:  # the manifest had said another, or could not be asked
                raise DamagedShard(f"{path}: is of the part {shard.part!r}, the others of {self._alike.part!r}")
            name = self._free_name(entry.file, rank)
            if not twice:
                return dataclasses.replace(entry, file=name, part=shard.part)
            rows = [row for row, item in enumerate(entry.items) if item not in twice]
            return renamed(self._rewritten(shard, rows, temporary, rank), name)
        except BaseException:
            remove_temporary(temporary)
            raise
        finally:
            shard.close()

    def _rewritten(self, shard: ShardFile, rows: Sequence[int], temporary: Path, rank: int) -> ManifestEntry:
        """Put in the place of the temporary file one with some of its rows, bit for bit."""
        part = temporary_path(self._folder, rank, "part")
        file: ShardFileWriter | None = None
        try:
            for row in rows:
                encoded = _encoded(shard, row)
                if file is None:
                    file = ShardFileWriter(
                        part, encoded, capacity=len(rows), axes=shard.axes, config_hash=shard.config_hash
                    )
                file.append(encoded)
            assert file is not None, "some rows are new"
            file.finish()
        except BaseException:
            if file is not None:
                file.abandon()
            raise
        fsync_file(part)
        os.replace(part, temporary)
        return entry_of(temporary, [shard.items[row] for row in rows], shard.config_hash, shard.part)

    def _free_name(self, wanted: str, rank: int) -> str:
        if self._is_free(wanted):
            return wanted
        number = self._next_number.get(rank, 0)
        while not self._is_free(shard_name(rank, number)):
            number += 1
        self._next_number[rank] = number + 1
        return shard_name(rank, number)

    def _is_free(self, name: str) -> bool:
        """Whether no shard has this name, and none had whose file is lost."""
        return name not in self._names and not os.path.lexists(self._folder / name)


def _encoded(shard: ShardFile, row: int) -> EncodedSample:
    """A row as it is stored; its values were checked when it was sealed, and its bytes by the hash."""
    provenance = json.dumps(shard.provenance(row), sort_keys=True, allow_nan=False, separators=(",", ":"))
    return EncodedSample(
        shard.items[row], shard.amplitude(row), shard.potential(row), shard.parameters(row), provenance, shard.part
    )
