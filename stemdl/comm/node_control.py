"""Bit vectors combined inside each node first, and across nodes by the first rank of each."""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np

from stemdl.comm.control import Control, Words
from stemdl.comm.node import NodeLink


class NodeControl:
    """A control plane whose bitwise calls meet on the node; requests to rank 0 go through `flat` as they are.

    leaders: of the first rank of every node; None on other ranks, and with one node alone.
    """

    def __init__(self, link: NodeLink, leaders: Control | None, flat: Control) -> None:
        self._link, self._leaders, self._flat = link, leaders, flat
        self.rank, self.size = flat.rank, flat.size

    def gather(self, payload: bytes) -> list[bytes] | None:
        """See `Control`."""
        return self._flat.gather(payload)

    def broadcast(self, payload: bytes | None) -> bytes:
        """See `Control`."""
        return self._flat.broadcast(payload)

    def bitwise_and(self, words: Words) -> Words:
        """See `Control`."""
        return self._combine(
            "a cycle", words, np.bitwise_and, None if self._leaders is None else self._leaders.bitwise_and
        )

    def bitwise_or(self, words: Words) -> Words:
        """See `Control`."""
        return self._combine(
            "what is invalid", words, np.bitwise_or, None if self._leaders is None else self._leaders.bitwise_or
        )

    def _combine(
        self, purpose: str, words: Words, operation: np.ufunc, across: Callable[[Words], Words] | None
    ) -> Words:
        def combine(parts: list[bytes]) -> bytes:
            vectors = [np.frombuffer(part, dtype=np.uint64) for part in parts]
            inside: Words = functools.reduce(operation, vectors)
            return (inside if across is None else across(inside)).tobytes()

        return np.frombuffer(self._link.meet(purpose, words.tobytes(), combine), dtype=np.uint64)
