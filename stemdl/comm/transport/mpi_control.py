"""MPI's part of the control plane; no tensors, and so no torch."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from stemdl.comm.control import Words
from stemdl.comm.errors import CommError

_EAGER_TESTS = 200
"""Looks at a pending message before the core is given to others between two of them."""
_NAP_S = (20e-6, 1e-3)


def open_mpi(rank: int, size: int) -> Any:
    """mpi4py's MPI, started, with the ranks that the launcher has announced.

    Raises CommError where mpi4py is missing, MPI counts other ranks than the launcher (another MPI than its own), or
    allows calls from one thread alone.
    """
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise CommError(
            f"comm.transport: mpi, but mpi4py cannot be used ({error}); install it: pip install 'stemdl[mpi]', or "
            "build mpi4py with the MPI of this site"
        ) from error
    found = (int(MPI.COMM_WORLD.Get_rank()), int(MPI.COMM_WORLD.Get_size()))
    if found != (rank, size):
        raise CommError(
            f"the launcher announces rank {rank} of {size}, MPI ({MPI.Get_library_version().splitlines()[0]}) counts "
            f"{found[0]} of {found[1]}: this is another MPI than the launcher's (Slurm: srun --mpi=list)"
        )
    if MPI.Query_thread() < MPI.THREAD_SERIALIZED:
        raise CommError("this MPI allows calls from one thread alone; set MPI4PY_RC_THREAD_LEVEL=serialized")
    return MPI


class MpiControl:
    """Small messages. A rank that waits gives its core away: others of the node may be computing on it."""

    def __init__(self, mpi: Any, communicator: Any, limit_s: float) -> None:
        self._mpi, self._comm, self._limit_s = mpi, communicator, limit_s
        self.rank, self.size = int(communicator.Get_rank()), int(communicator.Get_size())

    def gather(self, payload: bytes) -> list[bytes] | None:
        """See `Control`."""
        lengths = np.empty(self.size, dtype=np.int64)
        self._wait(lambda: self._comm.Igather(np.array([len(payload)], dtype=np.int64), lengths, root=0))
        if self.rank > 0:
            self._wait(lambda: self._comm.Igatherv([payload, self._mpi.BYTE], None, root=0))
            return None
        data = bytearray(int(lengths.sum()))
        counts = lengths.tolist()
        self._wait(lambda: self._comm.Igatherv([payload, self._mpi.BYTE], [data, counts, None, self._mpi.BYTE], root=0))
        ends = np.cumsum(lengths).tolist()
        return [bytes(data[end - count : end]) for end, count in zip(ends, counts, strict=True)]

    def broadcast(self, payload: bytes | None) -> bytes:
        """See `Control`."""
        length = np.array([len(payload or b"")], dtype=np.int64)
        self._wait(lambda: self._comm.Ibcast(length, root=0))
        data = bytearray(payload) if payload else bytearray(int(length[0]))
        if data:
            self._wait(lambda: self._comm.Ibcast([data, self._mpi.BYTE], root=0))
        return bytes(data)

    def bitwise_and(self, words: Words) -> Words:
        """See `Control`."""
        return self._bitwise(words, self._mpi.BAND)

    def bitwise_or(self, words: Words) -> Words:
        """See `Control`."""
        return self._bitwise(words, self._mpi.BOR)

    def _bitwise(self, words: Words, operation: Any) -> Words:
        result = np.empty_like(words)
        self._wait(lambda: self._comm.Iallreduce(words, result, op=operation))
        return result

    def _wait(self, begin: Callable[[], Any]) -> None:
        try:
            request = begin()
            deadline, tests, nap_s = time.monotonic() + self._limit_s, 0, _NAP_S[0]
            while not request.Test():
                tests += 1
                if tests > _EAGER_TESTS:
                    time.sleep(nap_s)
                    nap_s = min(_NAP_S[1], nap_s * 1.2)
                if time.monotonic() > deadline:
                    raise CommError(f"MPI, small message: no answer for {self._limit_s:g} s")
        except self._mpi.Exception as error:
            raise CommError(f"MPI, small message: {error}") from error
