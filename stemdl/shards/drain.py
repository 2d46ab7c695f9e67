"""Sealed shards from a node's own storage to the run folder, in the background, while the next are being made."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from stemdl.disks import free_space
from stemdl.progress import Progress
from stemdl.shards.copying import DamagedShard, Destination, forget, reason_of, undrained, why_stopped
from stemdl.shards.locks import RankLock
from stemdl.shards.manifest import ManifestEntry, is_lost, read_manifest
from stemdl.shards.recover import check_entries, ranks_left_behind, recover_rank
from stemdl.shards.schema import ShardError, parse_shard_name

_log = logging.getLogger(__name__)

CLOSE_TIMEOUT_S = 600.0
ROOM_TIMEOUT_S = 600.0
"""How long `submit` waits for room on the node before it lets the writer find out."""


@dataclass
class DrainSummary:
    """What was copied; names are those on the node.

    Attributes
    ----------
    drained
        Copied now: name on the node to name at the destination.
    there
        Left aside, since the destination has the same shard, or all its items.
    damaged
        Not what they were when sealed, with what was found; their items are to be made again.
    removed
        Drained and then removed from the node to make room.
    bytes
        Copied.
    seconds
        Spent copying.
    """

    drained: dict[str, str] = field(default_factory=dict)
    there: list[str] = field(default_factory=list)
    damaged: dict[str, str] = field(default_factory=dict)
    removed: list[str] = field(default_factory=list)
    bytes: int = 0
    seconds: float = 0.0


class Drain:
    """One rank's background copies from its node to the run folder.

    `submit` is made for `ShardWriter(on_seal=...)`. Use it as a context manager around the writer, so that the last
    shard is sealed before the drain is closed. What could not be copied stays whole on the node, and is an error at the
    next `submit` and at `close`; `drain_left` copies it later.
    """

    def __init__(
        self,
        source: Path,
        destination: Path,
        *,
        rank: int,
        config_hash: str,
        reserve_bytes: float = 0.0,
        make_room: bool = False,
        close_timeout_s: float = CLOSE_TIMEOUT_S,
    ) -> None:
        """Take the rank's lock at the destination, and start the thread.

        With `make_room`, whenever less than `reserve_bytes` are free on the node, drained shards are removed there, the
        oldest first (said in the log), and `submit` waits while undrained ones are still on their way. Without, all
        stay, to be trained from. `close_timeout_s` is how long the end of the `with` block waits for the last copies.

        Raises ShardError as `ShardWriter` does on the destination.
        """
        self.source = source
        self._destination = Destination(destination, rank, config_hash)
        self._reserve_bytes = reserve_bytes
        self._make_room = make_room
        self._close_timeout_s = close_timeout_s
        self._process = os.getpid()
        self._summary = DrainSummary()
        self._drained: deque[tuple[str, ManifestEntry]] = deque()  # still on the node, the oldest first
        self._changed = threading.Condition()
        self._waiting: deque[ManifestEntry] = deque()  # the first is being copied
        self._safe: list[ManifestEntry] = []  # since `take_safe` was called
        self._stopped = ""  # why nothing more can be copied
        self._fault: BaseException | None = None  # one of ours, not the disk's
        self._closing = self._giving_up = False
        # A daemon: a thread that hangs in a dead file system must not keep the process. Ending at any moment is safe.
        self._thread = threading.Thread(target=self._run, name=f"drain-{rank}", daemon=True)
        try:
            self._thread.start()
        except BaseException:
            self._destination.release()
            raise

    def submit(self, entry: ManifestEntry) -> None:
        """Let a sealed shard of the source folder be copied; returns at once, unless room is being made.

        Raises
        ------
        ShardError
            An earlier shard could not be copied: all that are not at the destination are named, this one included.
        """
        assert os.getpid() == self._process, "a drain belongs to the process that made it"
        with self._changed:
            assert not self._closing, "submit after close"
            self._waiting.append(entry)
            self._changed.notify_all()
            self._raise_problems()
            if self._make_room:
                self._wait_for_room()

    def take_safe(self) -> list[ManifestEntry]:
        """Return what has got to the destination since the last call, as it was submitted; a damaged shard never is."""
        with self._changed:
            safe, self._safe = self._safe, []
            return safe

    def check(self) -> None:
        """Raise ShardError, as `submit` does, where a shard could not be copied."""
        with self._changed:
            self._raise_problems()

    @property
    def waiting(self) -> tuple[int, int]:
        """Shards whose turn has not come or is now, and their bytes."""
        with self._changed:
            return len(self._waiting), sum(entry.bytes for entry in self._waiting)

    def close(self, timeout_s: float | None = None) -> DrainSummary:
        """Wait until all is copied, and say what was; a second call says the same.

        Raises
        ------
        ShardError
            Some could not be copied, or not within `timeout_s` (None: what was given at the start): all are named, with
            the reason.
        """
        timeout_s = self._close_timeout_s if timeout_s is None else timeout_s
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join(timeout_s)
        with self._changed:
            if self._thread.is_alive():
                self._giving_up = True  # after the shard that it is at
                self._stopped = self._stopped or f"not copied within {timeout_s:g} s"
            self._raise_problems()
            return self._summary

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
            return
        try:  # what is sealed is worth its copy whatever went wrong elsewhere
            self.close()
        except ShardError as problem:
            _log.error("%s", problem)

    def _run(self) -> None:
        try:
            while (entry := self._next()) is not None:
                self._drain(entry)
        except Exception as error:  # noqa: BLE001  (whatever it is, the next `submit` or `close` raises it)
            self._fault = error
        finally:
            self._destination.release()
            with self._changed:
                self._changed.notify_all()

    def _next(self) -> ManifestEntry | None:
        with self._changed:
            while not self._waiting and not self._closing:
                self._changed.wait()
            return self._waiting[0] if self._waiting and not self._stopped and not self._giving_up else None

    def _drain(self, entry: ManifestEntry) -> None:
        began = time.monotonic()
        summary = self._summary
        try:
            if self._destination.has(entry):
                summary.there.append(entry.file)
            else:
                new = self._destination.take(entry, self.source)
                summary.drained[entry.file] = new.file
                summary.bytes += entry.bytes
                self._drained.append((entry.file, new))
        except DamagedShard as error:
            _log.error("%s; left out, its items are to be made again", error)
            summary.damaged[entry.file] = str(error)
        except (OSError, ShardError) as error:
            with self._changed:
                self._stopped = self._stopped or why_stopped(error, entry, self._destination.folder)
                self._changed.notify_all()
            return
        summary.seconds += time.monotonic() - began
        if self._make_room:
            self._remove_oldest()
        with self._changed:
            self._waiting.popleft()
            if entry.file not in summary.damaged:
                self._safe.append(entry)
            self._changed.notify_all()

    def _remove_oldest(self) -> None:
        """Remove drained shards from the node while too little is free there."""
        try:
            while self._drained and self._is_short():
                file, new = self._drained.popleft()
                if is_lost(self._destination.folder, new):
                    _log.warning("%s: kept, since its copy %s is gone", self.source / file, new.file)
                    continue
                forget(self.source, [file])
                self._summary.removed.append(file)
                _log.warning("%s: drained, and removed here to make room", self.source / file)
        except (OSError, ShardError) as error:  # the writer will meet a full disk, and say so
            _log.warning("%s: no room can be made: %s", self.source, error)

    def _is_short(self) -> bool:
        return free_space(self.source).bytes < self._reserve_bytes

    def _wait_for_room(self) -> None:
        """Hold the writer back while the node is short of space and shards are on their way from it."""
        end = time.monotonic() + ROOM_TIMEOUT_S
        while self._waiting and not self._stopped and self._thread.is_alive() and self._is_short():
            left_s = end - time.monotonic()
            if left_s <= 0:
                _log.warning("%s: waited %g s for room; going on without", self.source, ROOM_TIMEOUT_S)
                return
            self._changed.wait(left_s)

    def _raise_problems(self) -> None:
        if self._fault is not None:
            raise self._fault
        problems = list(self._summary.damaged.values())
        if self._stopped and self._waiting:
            problems.append(undrained(self._waiting, self.source, self._destination.folder, self._stopped))
        if problems:
            raise ShardError("; ".join(problems))


def drain_left(
    source: Path,
    destination: Path,
    config_hash: str,
    *,
    rank: int,
    local_rank: int,
    local_size: int,
    progress: Progress,
) -> DrainSummary:
    """Copy what killed processes left sealed on this node; the node's ranks share the work.

    Each rank calls it before any writer of its node starts (a barrier between), and after `drop_lost` at the
    destination: a lost shard that is still on the node is then copied once more. Also clears up after dead writers in
    `source`; a damaged shard is named, removed from the node and left out: its items are to be made again. Does nothing
    where there is no `source`.

    Raises
    ------
    ShardError
        Writers are at work in `source`; or the destination cannot be written (full, quota, read-only): all that are
        left on the node are named, and stay whole there.
    """
    summary = DrainSummary()
    if not source.is_dir():
        return summary
    locks: list[RankLock] = []
    try:
        left = _left_on_node(source, config_hash, local_rank, local_size, locks)
        if left:
            target = Destination(destination, rank, config_hash)
            try:
                _drain_all(left, source, target, summary, progress)
            finally:
                target.release()
        if summary.damaged:
            forget(source, summary.damaged)
    except OSError as error:
        raise ShardError(f"{source}: what is left here cannot be cleared up: {reason_of(error)}") from error
    finally:
        for lock in locks:
            lock.release()
    return summary


def _left_on_node(
    source: Path, config_hash: str, local_rank: int, local_size: int, locks: list[RankLock]
) -> list[ManifestEntry]:
    """Shards of the ranks that this process takes care of, whose locks are added to `locks`.

    By rank, and not by line: nobody else then touches what this process clears up.
    """
    ranks = {_rank_of(entry) for entry in read_manifest(source)} | set(ranks_left_behind(source))
    mine = sorted(rank for rank in ranks if rank % local_size == local_rank)
    locks += [RankLock(source, rank) for rank in mine]
    entries = read_manifest(source)  # after the locks: what these ranks have sealed changes no more
    check_entries(source, entries, config_hash)
    left = [entry for entry in entries if _rank_of(entry) in mine]
    for rank in mine:
        left += recover_rank(source, rank, config_hash, entries)
    return left


def _rank_of(entry: ManifestEntry) -> int:
    name = parse_shard_name(entry.file)
    assert name is not None  # the manifest refuses other names
    return name[0]


def _drain_all(
    left: Sequence[ManifestEntry], source: Path, target: Destination, summary: DrainSummary, progress: Progress
) -> None:
    began = time.monotonic()
    progress.start("drain", len(left), "shards")
    for done, entry in enumerate(left):
        progress.advance(done)
        if target.has(entry):
            summary.there.append(entry.file)
            continue
        try:
            summary.drained[entry.file] = target.take(entry, source).file
            summary.bytes += entry.bytes
        except DamagedShard as error:
            progress.note(f"{error}; left out and removed, its {entry.count} fields are to be made again")
            summary.damaged[entry.file] = str(error)
        except (OSError, ShardError) as error:
            why = why_stopped(error, entry, target.folder)
            rest = [one for one in left[done:] if not target.has(one)]
            raise ShardError(undrained(rest, source, target.folder, why)) from error
    summary.seconds = time.monotonic() - began
    progress.advance(len(left))
    progress.finish()
