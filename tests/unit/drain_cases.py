"""What the tests of the drain share."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from stemdl.disks import FreeSpace
from stemdl.shards import drain
from stemdl.shards.drain import Drain, DrainSummary, drain_left
from tests.small_shards import CONFIG_HASH, Notes


def drain_it(node: Path, run: Path, rank: int = 0, reserve_bytes: float = 0.0, make_room: bool = False) -> Drain:
    return Drain(node, run, rank=rank, config_hash=CONFIG_HASH, reserve_bytes=reserve_bytes, make_room=make_room)


def left_it(node: Path, run: Path, rank: int = 0, local_rank: int = 0, local_size: int = 1) -> DrainSummary:
    return drain_left(node, run, CONFIG_HASH, rank=rank, local_rank=local_rank, local_size=local_size, progress=Notes())


def refuse_writes(monkeypatch: pytest.MonkeyPatch, folder: Path, number: int) -> None:
    """Files of a folder cannot be written any more, as with a quota that is used up."""
    real_write = os.write

    def write(descriptor: int, content: bytes) -> int:
        if folder in Path(os.readlink(f"/proc/self/fd/{descriptor}")).parents:
            raise OSError(number, os.strerror(number))
        return real_write(descriptor, content)

    monkeypatch.setattr(os, "write", write)


def wait_it(until: Callable[[], bool]) -> None:
    tick = threading.Event()
    for _ in range(2000):
        if until():
            return
        tick.wait(0.01)
    pytest.fail("waited 20 s in vain")


def disk_of(monkeypatch: pytest.MonkeyPatch, node: Path, room_for: int) -> None:
    """The node has space for so many shards, and nothing else is on its disk."""
    monkeypatch.setattr(
        drain, "free_space", lambda folder: FreeSpace(room_for - len(list(folder.glob("shard-*.h5"))), None)
    )
