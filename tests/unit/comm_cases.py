"""Ranks as threads of one process: the control plane without a network, for tests of what is said on it."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from stemdl.comm.control import CountedControl, Words
from stemdl.comm.counters import Counters
from stemdl.comm.items import Item, TensorKey

_Result = TypeVar("_Result")
PATIENCE_S = 60.0


class Board:
    """What the ranks of a threaded job share."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.barrier = threading.Barrier(size, timeout=PATIENCE_S)
        self.parts: list[Any] = [None] * size


class ThreadControl:
    """A control plane among threads."""

    def __init__(self, board: Board, rank: int) -> None:
        self._board = board
        self.rank, self.size = rank, board.size

    def _everybody(self, part: Any) -> list[Any]:
        self._board.barrier.wait()
        self._board.parts[self.rank] = part
        self._board.barrier.wait()
        parts = list(self._board.parts)
        self._board.barrier.wait()
        return parts

    def gather(self, payload: bytes) -> list[bytes] | None:
        """See `Control`."""
        parts = self._everybody(payload)
        return parts if self.rank == 0 else None

    def broadcast(self, payload: bytes | None) -> bytes:
        """See `Control`."""
        first: bytes = self._everybody(payload)[0]
        return first

    def bitwise_and(self, words: Words) -> Words:
        """See `Control`."""
        return self._bitwise(np.bitwise_and, words)

    def bitwise_or(self, words: Words) -> Words:
        """See `Control`."""
        return self._bitwise(np.bitwise_or, words)

    def _bitwise(self, operation: np.ufunc, words: Words) -> Words:
        parts = self._everybody(words.copy())
        assert len({len(part) for part in parts}) == 1, "vectors of different lengths"
        result: Words = functools.reduce(operation, parts)
        return result


def on_ranks(size: int, work: Callable[[CountedControl, Counters], _Result]) -> list[_Result | Exception]:
    """What `work` returns, or raises, on each of so many threads."""
    board = Board(size)
    results: list[Any] = [None] * size

    def one(rank: int) -> None:
        counters = Counters()
        try:
            results[rank] = work(CountedControl(ThreadControl(board, rank), counters), counters)
        except Exception as error:  # noqa: BLE001  (the test looks at it)
            results[rank] = error

    threads = [threading.Thread(target=one, args=(rank,), daemon=True) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
        assert not thread.is_alive(), "a rank hangs"
    return results


def item(number: int, *, length: int = 4, dtype: str = "float32") -> Item:
    """A group of two gradients."""
    return Item(
        f"group {number}",
        "none",
        (TensorKey(f"layer{number}.weight", dtype, (length, 3)), TensorKey(f"layer{number}.bias", dtype, (length,))),
    )
