"""Shards kept open for reading: lazily, a bounded number, and never across a fork."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from stemdl.shards.h5_read import ShardFile

T = TypeVar("T")

# One lock for all sets: a file must not be closed for one thread while another reads it, and HDF5 lets only one in
# anyway. A fork waits for it. Otherwise a child could be born while another thread of its parent holds the locks inside
# h5py and HDF5, and would wait for them for ever (1 child in 40, measured beside a thread that reads without a pause).
_reading = threading.RLock()
os.register_at_fork(before=_reading.acquire, after_in_parent=_reading.release, after_in_child=_reading.release)

# Handles of a parent process, kept here so that a forked child never touches them, not even to close them.
_left_to_the_parent: list[OrderedDict[Path, ShardFile]] = []


class OpenFiles:
    """Open shards of one process, the least recently used closed first.

    Shared handles across a fork gave corrupt reads or a hang in more than one project, so they are bound to the process
    that opened them; the owner asks `is_mine` before each use and makes a new one in a child.
    """

    def __init__(self, limit: int) -> None:
        """Keep at most `limit` files open."""
        self.limit = limit
        self._process = os.getpid()
        self._files: OrderedDict[Path, ShardFile] = OrderedDict()

    def is_mine(self) -> bool:
        """False in a process forked from the one that made this."""
        return self._process == os.getpid()

    def abandon(self) -> None:
        """Let go of a parent's files without touching them."""
        _left_to_the_parent.append(self._files)

    def use(self, path: Path, check: Callable[[ShardFile], None], read: Callable[[ShardFile], T]) -> T:
        """Run `read` on the open shard; when it is opened, `check` first. Raises ShardError as both do."""
        with _reading:
            shard = self._files.get(path)
            if shard is None:
                shard = self._open(path, check)
            self._files.move_to_end(path)
            return read(shard)

    def close(self) -> None:
        """Close all."""
        with _reading:
            while self._files:
                self._files.popitem()[1].close()

    def _open(self, path: Path, check: Callable[[ShardFile], None]) -> ShardFile:
        while len(self._files) >= self.limit:
            self._files.popitem(last=False)[1].close()
        shard = ShardFile(path)
        try:
            check(shard)
        except BaseException:
            shard.close()
            raise
        self._files[path] = shard
        return shard
