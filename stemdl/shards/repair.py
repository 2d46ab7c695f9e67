"""Bring a folder of shards back to a state in which every line of its manifest names a whole file.

Nothing whole is ever removed. What is damaged goes to `damaged/` beside the shards, for whoever wants to look; its
fields are made again by the next `stemdl simulate`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path

from stemdl.atomic_files import TEMPORARY_PREFIX, fsync_folder, is_of_dead_process
from stemdl.shards.faults import Fault, compare, fields_of
from stemdl.shards.h5_read import ShardFile
from stemdl.shards.locks import MERGE_LOCK_NAME, MergeLock, RankLock, is_held, lock_name
from stemdl.shards.manifest import ManifestEntry, locked_manifest, read_manifest, scan_manifest, take_out
from stemdl.shards.part import part_of
from stemdl.shards.recover import Leftover, entry_of_orphan, leftovers, recover_rank
from stemdl.shards.schema import MANIFEST_NAME, ShardError, parse_shard_name

DAMAGED_FOLDER = "damaged"


@dataclass
class RepairReport:
    """What was done to a folder, or would be."""

    folder: Path
    dry_run: bool
    actions: list[str] = field(default_factory=list)
    """One text for each thing that was done."""
    left_alone: list[str] = field(default_factory=list)
    """What could not or must not be touched, with the reason: a living writer, a file without permission."""
    items_lost: list[int] = field(default_factory=list)
    """Items that the manifest named and that have to be made again."""
    locks_found: frozenset[str] = frozenset()
    """Lock files that were there before."""


def is_shard_folder(folder: Path) -> bool:
    """Whether there is anything to repair: a manifest, shards, or what a writer leaves."""
    return (folder / MANIFEST_NAME).is_file() or bool(leftovers(folder, ()))


def repair_folder(
    folder: Path, *, dry_run: bool = False, on_shard: Callable[[int], None] = lambda done: None
) -> RepairReport:
    """Mend the manifest, set damaged shards aside, and clear up after the dead writers of every rank.

    1. Damaged lines and a torn end leave the manifest (a copy of it stays as `manifest-N.jsonl`).
    2. Shards that are missing, truncated or changed leave it too; their files go to `damaged/`.
    3. For each rank without a living writer: unfinished files are removed, whole shards without a line get one again
       (so a missing manifest is written anew), others go to `damaged/`, and the lock's file is removed.
    A rank whose writer is alive is left alone. Killed at any moment, a second call goes on. `on_shard` is told how many
    shards of the manifest are checked.

    Raises
    ------
    ShardError
        Shards of several configurations, or of several parts, of which none can be told to be the right one: both are
        named.
    OSError
        The disk is full, or the folder read-only.
    """
    report = RepairReport(folder, dry_run)
    config_hash, part = _made_for(folder)
    copy = _mend_manifest(report)
    _set_damage_aside(report, config_hash, copy, on_shard)
    listed = {entry.file for entry in scan_manifest(folder).entries}
    left = leftovers(folder, listed)
    report.locks_found = frozenset(one.file for one in left if one.kind == "lock")
    for rank in sorted({one.rank for one in left if one.rank is not None}):
        _clear_rank(report, rank, config_hash, part)
    _remove_unfinished(report)
    _remove_merge_lock(report)
    return report


def _made_for(folder: Path) -> tuple[str, str]:
    """Configuration hash and part of the manifest's shards; without any, those of all shards that can be opened; empty
    where there are none.
    """
    found: dict[str, str] = {}  # hash to the first file that has it
    entries = scan_manifest(folder).entries
    parts = {part: entry.file for entry in reversed(entries) if (part := part_of(folder, entry)) is not None}
    for entry in entries:
        found.setdefault(entry.config_hash, entry.file)
    if not found:
        for name in sorted(path.name for path in folder.iterdir()):
            if parse_shard_name(name) is None:
                continue
            try:
                shard = ShardFile(folder / name)
            except ShardError:
                continue  # it is set aside below, by name
            shard.close()
            found.setdefault(shard.config_hash, name)
            parts.setdefault(shard.part, name)
    for what, files in (("configurations", found), ("parts", parts)):
        if len(files) > 1:
            named = " and ".join(f"{value or 'none'} ({file})" for value, file in list(files.items())[:2])
            raise ShardError(
                f"{folder}: shards of several {what}: {named}; one folder holds one: move those of the other away"
            )
    return next(iter(found), ""), next(iter(parts), "")


def _mend_manifest(report: RepairReport) -> Path | None:
    """Take damaged lines out; returns the copy of the manifest as it was, if one was made."""
    folder = report.folder
    scan = scan_manifest(folder)
    path = folder / MANIFEST_NAME
    if not scan.faults and not scan.torn:
        return None
    what = [f"{fault}: the line is taken out" for fault in scan.faults]
    if scan.torn:
        what.append(f"{path}: the torn last line ({scan.torn} bytes) is cut off")
    copy = None
    if not report.dry_run:
        _, copy = take_out(folder, lambda entry: False)
        if copy is not None:
            what.append(f"{path}: as it was in {copy.name}")
    report.actions += what
    return copy


def _set_damage_aside(
    report: RepairReport, config_hash: str, earlier: Path | None, on_shard: Callable[[int], None]
) -> None:
    folder = report.folder
    faults: list[tuple[ManifestEntry, Fault]] = []
    for done, (entry, fault) in enumerate(compare(folder, scan_manifest(folder).entries, config_hash), start=1):
        on_shard(done)
        if fault is None:
            continue
        if fault.kind in ("schema", "unreadable"):
            report.left_alone.append(fault.text)
        else:
            faults.append((entry, fault))
    if not faults:
        return
    for entry, fault in faults:
        does = "its line is taken out" if fault.kind == "missing" else f"moved to {DAMAGED_FOLDER}/"
        report.actions.append(f"{folder / entry.file}: {_found(fault)}: {does}; {fields_of(entry.items)} to make again")
        report.items_lost += entry.items
    if report.dry_run:
        return
    # The lines first: a file that is moved away before its line is gone would be a lost shard after a kill, a line that
    # is gone before its file is moved makes it an orphan, which the ranks' part sets aside all the same.
    gone = {entry.file for entry, _ in faults}
    _, copy = take_out(folder, lambda entry: entry.file in gone)
    if copy is not None and earlier is not None:
        copy.unlink()  # the earlier one is the manifest as it was before this call
    elif copy is not None:
        report.actions.append(f"{folder / MANIFEST_NAME}: as it was in {copy.name}")
    for entry, fault in faults:
        if fault.kind != "missing":
            _move_aside(folder / entry.file)


def _found(fault: Fault) -> str:
    words = {"missing": "missing", "length": "truncated or changed", "hash": "changed", "outside": "leads elsewhere"}
    return words[fault.kind]


def _move_aside(path: Path) -> None:
    """Into the folder for damaged files, under its name or with a number behind it."""
    folder = path.parent / DAMAGED_FOLDER
    folder.mkdir(exist_ok=True)
    target, number = folder / path.name, 1
    while os.path.lexists(target):
        target, number = folder / f"{path.name}.{number}", number + 1
    os.rename(path, target)
    fsync_folder(folder)
    fsync_folder(path.parent)


def _clear_rank(report: RepairReport, rank: int, config_hash: str, part: str) -> None:
    """Clear up after the dead writers of a rank, under its lock; in a dry run only say what would be done."""
    folder = report.folder
    if report.dry_run:
        if is_held(folder / lock_name(rank)):
            report.left_alone.append(_alive(folder, rank))
            return
        lost = set(report.items_lost)
        sealed = {item for entry in scan_manifest(folder).entries for item in entry.items} - lost
        report.actions += [_fate(folder, one, config_hash, part, sealed) for one in _of_rank(folder, rank)]
        return
    try:
        lock = RankLock(folder, rank)
    except ShardError:
        report.left_alone.append(_alive(folder, rank))
        return
    try:
        entries = read_manifest(folder)
        before = [one for one in _of_rank(folder, rank) if one.kind != "lock" or one.file in report.locks_found]
        added = recover_rank(folder, rank, config_hash, entries, part=part, aside=_move_aside)
        taken = {entry.file: entry for entry in added}
    finally:
        lock.release()
    for one in before:
        entry = taken.get(one.file)
        report.actions.append(_done(folder / one.file, one, None if entry is None else entry.items))


def _of_rank(folder: Path, rank: int) -> list[Leftover]:
    listed = {entry.file for entry in scan_manifest(folder).entries}
    return [one for one in leftovers(folder, listed) if one.rank == rank]


def _alive(folder: Path, rank: int) -> str:
    return f"{folder}: a writer of rank {rank} is alive: its files are left alone"


def _fate(folder: Path, one: Leftover, config_hash: str, part: str, sealed: Collection[int]) -> str:
    items = None
    if one.kind == "orphan":
        try:
            items = entry_of_orphan(folder / one.file, config_hash, sealed, part).items
        except ShardError as error:
            return f"{error}: not in the manifest; moved to {DAMAGED_FOLDER}/"
    return _done(folder / one.file, one, items)


def _done(path: Path, one: Leftover, items: list[int] | None) -> str:
    """What becomes of a dead writer's file; `items` where it goes into the manifest."""
    if one.kind == "lock":
        return f"{path}: lock of a dead writer: removed"
    if one.kind == "temporary":
        return f"{path}: unfinished shard of a dead writer: removed"
    if items is not None:
        return f"{path}: whole, but not in the manifest: taken in, with {fields_of(items)}"
    return f"{path}: neither in the manifest nor sound: moved to {DAMAGED_FOLDER}/"


def _remove_unfinished(report: RepairReport) -> None:
    """Temporary files that are no shards: the manifest's own, and those of dead processes of this host."""
    folder = report.folder
    unfinished = [folder / one.file for one in leftovers(folder, ()) if one.kind == "unfinished"]
    of_manifest = [path for path in unfinished if path.name.startswith(f"{TEMPORARY_PREFIX}manifest")]
    dead = [path for path in unfinished if path not in of_manifest and is_of_dead_process(path.name)]
    report.left_alone += [
        f"{path}: an unfinished file of a process that lives, or of another host: left alone"
        for path in unfinished
        if path not in of_manifest and path not in dead
    ]
    report.actions += [f"{path}: unfinished file of a dead process: removed" for path in (*of_manifest, *dead)]
    if report.dry_run:
        return
    if of_manifest:
        with locked_manifest(folder / MANIFEST_NAME):  # whoever holds it writes the only one that is not dead
            for path in of_manifest:
                path.unlink(missing_ok=True)
    for path in dead:
        path.unlink(missing_ok=True)


def _remove_merge_lock(report: RepairReport) -> None:
    path = report.folder / MERGE_LOCK_NAME
    if not path.exists():
        return
    if is_held(path):
        report.left_alone.append(f"{report.folder}: a merge into it is at work")
        return
    report.actions.append(f"{path}: lock of a dead merge: removed")
    if not report.dry_run:
        MergeLock(report.folder).release()
