"""The control plane: small messages among all ranks, in lockstep."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from stemdl.comm.counters import Counters

Words = NDArray[np.uint64]


class Control(Protocol):
    """Collective calls: every rank makes the same ones in the same order. Each ends within the transport's time limit
    or raises CommError."""

    rank: int
    size: int

    def gather(self, payload: bytes) -> list[bytes] | None:
        """All ranks' payloads, by rank, on rank 0; None on the others."""
        ...

    def broadcast(self, payload: bytes | None) -> bytes:
        """Rank 0's payload, on every rank. The others give None."""
        ...

    def bitwise_and(self, words: Words) -> Words:
        """The AND over all ranks of vectors of equal length (which is a rule of the caller's, not checked)."""
        ...

    def bitwise_or(self, words: Words) -> Words:
        """The OR over all ranks."""
        ...


class CountedControl:
    """A control plane whose calls are counted (see `Counters`)."""

    def __init__(self, inner: Control, counters: Counters) -> None:
        self._inner, self._counters = inner, counters
        self.rank, self.size = inner.rank, inner.size

    def gather(self, payload: bytes) -> list[bytes] | None:
        """See `Control`."""
        gathered = self._inner.gather(payload)
        self._count(len(payload) if gathered is None else sum(map(len, gathered)) - len(payload))
        return gathered

    def broadcast(self, payload: bytes | None) -> bytes:
        """See `Control`."""
        got = self._inner.broadcast(payload)
        self._count(len(got) * (self.size - 1 if self.rank == 0 else 1))
        return got

    def bitwise_and(self, words: Words) -> Words:
        """See `Control`."""
        self._count(words.nbytes)
        return self._inner.bitwise_and(words)

    def bitwise_or(self, words: Words) -> Words:
        """See `Control`."""
        self._count(words.nbytes)
        return self._inner.bitwise_or(words)

    def allgather(self, payload: bytes) -> list[bytes]:
        """All ranks' payloads, by rank, on every rank: a gather and a broadcast."""
        gathered = self.gather(payload)
        return unpacked(self.broadcast(None if gathered is None else packed(gathered)))

    def _count(self, moved_bytes: int) -> None:
        self._counters.control_messages += 1
        self._counters.control_bytes += moved_bytes


def packed(parts: Sequence[bytes]) -> bytes:
    """Several payloads as one: their number and lengths (uint32, little-endian), then the payloads."""
    lengths = np.array([len(parts), *map(len, parts)], dtype="<u4")
    return lengths.tobytes() + b"".join(parts)


def unpacked(joined: bytes) -> list[bytes]:
    """The payloads that `packed` has joined."""
    count = int(np.frombuffer(joined, dtype="<u4", count=1)[0])
    lengths = np.frombuffer(joined, dtype="<u4", count=count, offset=4)
    ends = np.cumsum(lengths, dtype=np.int64) + 4 * (count + 1)
    return [joined[end - length : end] for end, length in zip(ends.tolist(), lengths.tolist(), strict=True)]
