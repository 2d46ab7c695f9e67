"""MPI through mpi4py: small messages and sums of CPU tensors in fp32 and fp64 (and fp16 where the MPI knows it)."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from stemdl.comm.control import Control
from stemdl.comm.errors import CommError
from stemdl.comm.transport.base import Members
from stemdl.comm.transport.mpi_control import MpiControl, open_mpi


class MpiTransport:
    """The ranks of COMM_WORLD, on communicators of our own.

    Raises CommError where mpi4py is missing, counts other ranks than the launcher (another MPI than the launcher's), or
    allows calls from one thread alone.
    """

    name = "mpi"

    def __init__(self, rank: int, size: int, *, call_timeout_s: float) -> None:
        mpi = open_mpi(rank, size)
        self._mpi: Any = mpi
        world = mpi.COMM_WORLD
        self.rank, self.size = rank, size
        self._limit_s = call_timeout_s
        self._opened = [self._communicator(world.Dup()), self._communicator(world.Dup())]
        self.control = MpiControl(mpi, self._opened[0], call_timeout_s)
        self.everybody: Members = _MpiMembers(mpi, self._opened[1])

    def members(self, groups: Sequence[Sequence[int]]) -> Members | None:
        """See `Transport`."""
        colour = next((number for number, ranks in enumerate(groups) if self.rank in ranks), self._mpi.UNDEFINED)
        part = self._opened[1].Split(colour, self.rank)
        if part == self._mpi.COMM_NULL:
            return None
        self._opened.append(self._communicator(part))
        return _MpiMembers(self._mpi, part)

    def control_of(self, ranks: Sequence[int]) -> Control | None:
        """See `Transport`."""
        part = self._opened[0].Split(0 if self.rank in ranks else self._mpi.UNDEFINED, self.rank)
        if part == self._mpi.COMM_NULL:
            return None
        self._opened.append(self._communicator(part))
        return MpiControl(self._mpi, part, self._limit_s)

    def close(self) -> None:
        """See `Transport`. MPI itself ends with the process."""
        for communicator in self._opened:
            communicator.Free()
        self._opened.clear()

    def _communicator(self, communicator: Any) -> Any:
        communicator.Set_errhandler(self._mpi.ERRORS_RETURN)
        return communicator


def told_by_rank_zero(rank: int, size: int) -> tuple[str, int]:
    """A meeting point for another transport: rank 0's host and a port that is free there, told to all through MPI.

    Raises CommError as `MpiTransport`.
    """
    transport = MpiTransport(rank, size, call_timeout_s=60.0)
    payload = None
    if rank == 0:
        with socket.socket() as probe:
            probe.bind(("", 0))
            payload = f"{socket.gethostname()} {probe.getsockname()[1]}".encode()
    host, port = transport.control.broadcast(payload).decode().split()
    transport.close()
    return host, int(port)


class _MpiMembers:
    """Sums of tensors over a communicator."""

    def __init__(self, mpi: Any, communicator: Any) -> None:
        self._mpi, self._comm = mpi, communicator
        self.size = int(communicator.Get_size())

    def all_reduce(self, tensor: torch.Tensor) -> Callable[[], None]:
        """See `Members`. The sum is made here and now: MPI moves data only while it is called."""
        self._checked(lambda: self._comm.Allreduce(self._mpi.IN_PLACE, array_of(tensor)))
        return lambda: None

    def reduce(self, tensor: torch.Tensor) -> None:
        """See `Members`."""
        array = array_of(tensor)
        if self._comm.Get_rank() == 0:
            self._checked(lambda: self._comm.Reduce(self._mpi.IN_PLACE, array, root=0))
        else:
            self._checked(lambda: self._comm.Reduce(array, None, root=0))

    def broadcast(self, tensor: torch.Tensor) -> None:
        """See `Members`."""
        self._checked(lambda: self._comm.Bcast(array_of(tensor), root=0))

    def _checked(self, call: Callable[[], object]) -> None:
        try:
            call()
        except (self._mpi.Exception, KeyError) as error:
            raise CommError(f"MPI over {self.size} ranks: {error}") from error


def array_of(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    """The tensor's memory as an array. Raises CommError for what mpi4py would take and get wrong or refuse."""
    if tensor.device.type != "cpu":
        raise CommError(f"comm.transport: mpi moves CPU tensors, found one on {tensor.device}; use nccl")
    if tensor.dtype == torch.bfloat16:
        raise CommError("comm.transport: mpi has no bfloat16, which it would add as bytes; use fp16, none, or gloo")
    assert tensor.is_contiguous()
    array: np.ndarray[Any, Any] = tensor.detach().numpy()
    return array
