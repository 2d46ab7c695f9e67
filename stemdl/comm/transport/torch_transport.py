"""torch.distributed: gloo for CPU tensors and small messages, NCCL (RCCL on AMD) for those of GPUs."""

from __future__ import annotations

import atexit
import datetime
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Literal

import numpy as np
import torch
import torch.distributed as dist

from stemdl.comm.control import Control, Words
from stemdl.comm.errors import CommError
from stemdl.comm.transport.base import Members


class TorchTransport:
    """A job's ranks as torch.distributed knows them.

    address: where rank 0 listens (host, port). A process group that somebody has opened before is used and left open.
    Raises CommError where the ranks do not meet in time.
    """

    def __init__(
        self,
        rank: int,
        size: int,
        address: tuple[str, int],
        *,
        backend: Literal["gloo", "nccl"],
        start_timeout_s: float,
        call_timeout_s: float,
        in_torchrun: bool = False,
    ) -> None:
        self.name: str = backend
        self._limit = datetime.timedelta(seconds=call_timeout_s)
        self._groups: list[dist.ProcessGroup] = []
        try:
            if not dist.is_initialized():
                dist.init_process_group(
                    "gloo" if backend == "gloo" else "cpu:gloo,cuda:nccl",
                    # torchrun has opened the store at this address already.
                    init_method="env://" if in_torchrun else f"tcp://{address[0]}:{address[1]}",
                    rank=rank,
                    world_size=size,
                    timeout=datetime.timedelta(seconds=start_timeout_s),
                )
                atexit.register(_leave)
            self.rank, self.size = dist.get_rank(), dist.get_world_size()
            if (self.rank, self.size) != (rank, size):
                raise CommError(
                    f"torch.distributed counts rank {self.rank} of {self.size}, the launcher {rank} of {size}"
                )
            everybody = list(range(size))
            self.control = _TorchControl(self._group(everybody, "gloo"), rank, size)
            self.everybody: Members = _TorchMembers(self._group(everybody, backend), 0, size)
        except RuntimeError as error:
            raise CommError(
                f"rank {rank} of {size}: not all ranks met at {address[0]}:{address[1]} ({first_line(error)})"
            ) from error

    def members(self, groups: Sequence[Sequence[int]]) -> Members | None:
        """See `Transport`."""
        mine: Members | None = None
        for ranks in groups:
            group = self._group(ranks, self.name)
            if self.rank in ranks:
                mine = _TorchMembers(group, ranks[0], len(ranks))
        return mine

    def control_of(self, ranks: Sequence[int]) -> Control | None:
        """See `Transport`."""
        group = self._group(ranks, "gloo")
        return _TorchControl(group, ranks.index(self.rank), len(ranks)) if self.rank in ranks else None

    def close(self) -> None:
        """See `Transport`. The job's own process group stays: ranks that would meet again at its port could find that
        of a rank which has not left yet."""
        for group in self._groups:
            dist.destroy_process_group(group)
        self._groups.clear()

    def _group(self, ranks: Sequence[int], backend: str) -> dist.ProcessGroup:
        """A group of these ranks; made by all, kept by its members."""
        group: dist.ProcessGroup = dist.new_group(list(ranks), backend=backend, timeout=self._limit)
        if self.rank in ranks:
            self._groups.append(group)
        return group


def _leave() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


class _TorchControl:
    """Small messages over a gloo group of their own."""

    def __init__(self, group: dist.ProcessGroup, rank: int, size: int) -> None:
        self._group = group
        self.rank, self.size = rank, size

    def gather(self, payload: bytes) -> list[bytes] | None:
        """See `Control`. Two gathers: of the lengths, then of the payloads, padded to the longest."""
        lengths = torch.zeros(self.size, dtype=torch.int64)
        lengths[self.rank] = len(payload)
        self._call(dist.all_reduce, lengths)
        longest = int(lengths.max())
        if longest == 0:
            return [b""] * self.size if self.rank == 0 else None
        padded = torch.frombuffer(bytearray(payload.ljust(longest, b"\0")), dtype=torch.uint8)
        parts = [torch.empty(longest, dtype=torch.uint8) for _ in range(self.size)] if self.rank == 0 else None
        self._call(dist.gather, padded, parts, dst=0)
        if parts is None:
            return None
        return [part.numpy().tobytes()[: int(length)] for part, length in zip(parts, lengths, strict=True)]

    def broadcast(self, payload: bytes | None) -> bytes:
        """See `Control`."""
        length = torch.tensor([len(payload or b"")], dtype=torch.int64)
        self._call(dist.broadcast, length, src=0)
        if int(length) == 0:
            return b""
        if self.rank == 0:
            assert payload is not None
            data = torch.frombuffer(bytearray(payload), dtype=torch.uint8)
        else:
            data = torch.empty(int(length), dtype=torch.uint8)
        self._call(dist.broadcast, data, src=0)
        return data.numpy().tobytes()

    def bitwise_and(self, words: Words) -> Words:
        """See `Control`."""
        return self._bitwise(words, dist.ReduceOp.BAND)

    def bitwise_or(self, words: Words) -> Words:
        """See `Control`."""
        return self._bitwise(words, dist.ReduceOp.BOR)

    def _bitwise(self, words: Words, operation: dist.ReduceOp.RedOpType) -> Words:
        data = torch.from_numpy(words.view(np.int64).copy())
        self._call(dist.all_reduce, data, op=operation)
        return data.numpy().view(np.uint64)

    def _call(self, call: Callable[..., object], *arguments: object, **options: object) -> None:
        try:
            call(*arguments, group=self._group, **options)
        except RuntimeError as error:
            raise CommError(f"gloo, small message: {first_line(error)}") from error


class _TorchMembers:
    """Sums over a process group."""

    def __init__(self, group: dist.ProcessGroup, first: int, size: int) -> None:
        self._group, self._first = group, first
        self.size = size

    def all_reduce(self, tensor: torch.Tensor) -> Callable[[], None]:
        """See `Members`."""
        with self._checked():
            work = dist.all_reduce(tensor, group=self._group, async_op=True)

        def wait() -> None:
            with self._checked():
                work.wait()

        return wait

    def reduce(self, tensor: torch.Tensor) -> None:
        """See `Members`."""
        with self._checked():
            dist.reduce(tensor, self._first, group=self._group)

    def broadcast(self, tensor: torch.Tensor) -> None:
        """See `Members`."""
        with self._checked():
            dist.broadcast(tensor, self._first, group=self._group)

    @contextmanager
    def _checked(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            raise CommError(f"allreduce over {self.size} ranks: {first_line(error)}") from error


def first_line(error: BaseException) -> str:
    """What a library says, without its C++ trace."""
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
