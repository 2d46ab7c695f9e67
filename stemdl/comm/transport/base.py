"""What a transport offers: small messages among all ranks, and sums of tensors over all or some of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch

from stemdl.comm.control import Control


class Members(Protocol):
    """Some ranks of the job, and their sums of tensors. All members make the same calls in the same order.

    Tensors are contiguous, of one dtype and length on all members, on the device that the transport serves. A call that
    fails raises CommError.
    """

    size: int

    def all_reduce(self, tensor: torch.Tensor) -> Callable[[], None]:
        """Begin to replace the tensor by the sum over the members; the call returned waits for it."""
        ...

    def reduce(self, tensor: torch.Tensor) -> None:
        """Replace the first member's tensor by the sum; those of the others are undefined afterwards."""
        ...

    def broadcast(self, tensor: torch.Tensor) -> None:
        """Replace the tensor by the first member's."""
        ...


class Transport(Protocol):
    """Messages between all ranks of a job."""

    rank: int
    size: int
    everybody: Members
    """For data: separate from the control plane, so that a long sum does not hold up a message."""

    @property
    def name(self) -> str:
        """As in `comm.transport`."""
        ...

    @property
    def control(self) -> Control:
        """Small messages among all ranks."""
        ...

    def members(self, groups: Sequence[Sequence[int]]) -> Members | None:
        """The group of ranks that this rank belongs to, or None. Called by all ranks, with the same lists."""
        ...

    def control_of(self, ranks: Sequence[int]) -> Control | None:
        """A control plane of these ranks alone, numbered in their order; None on the others. Called by all ranks."""
        ...

    def close(self) -> None:
        """Free what the transport holds, at an orderly end, on all ranks."""
        ...
