"""The data plane: sums of flat buffers over all ranks of the job, straight or first inside each node."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch

from stemdl.comm.node import NodeLink
from stemdl.comm.transport.base import Members

_CHUNK_BYTES = 256 * 1024
"""What is added up at once in shared memory, so that it is still in the core's cache when it is copied back."""
_ALIGNED_BYTES = 64


class Arena(Protocol):
    """Memory for flat buffers, and the sums of its parts. All ranks make the same calls in the same order."""

    tensor: torch.Tensor
    """(elements,) of one dtype."""

    def all_reduce(self, start: int, stop: int, scale: float, what: str) -> Callable[[], None]:
        """Begin to replace elements start to stop by `scale` times their sum over all ranks; the call returned waits
        for it. `what` is summed, for messages. The sum has the same bits on all ranks, and in every run of as many
        ranks on as many nodes."""
        ...

    def close(self) -> None:
        """Give the memory back."""
        ...


class FlatArena:
    """One allreduce over the members of a transport."""

    def __init__(self, members: Members, elements: int, dtype: torch.dtype, device: torch.device) -> None:
        self.tensor = torch.zeros(elements, dtype=dtype, device=device)
        self._members = members

    def all_reduce(self, start: int, stop: int, scale: float, what: str) -> Callable[[], None]:
        """See `Arena`."""
        part = self.tensor[start:stop]
        wait = self._members.all_reduce(part)

        def finish() -> None:
            wait()
            if scale != 1:
                part.mul_(scale)

        return finish

    def close(self) -> None:
        """See `Arena`."""


class NodeArena:
    """Reduce inside the node, allreduce across the nodes' first ranks, broadcast inside: all by the transport.

    across: None on ranks that are not their node's first, or with one node alone.
    """

    def __init__(
        self, inside: Members, across: Members | None, elements: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.tensor = torch.zeros(elements, dtype=dtype, device=device)
        self._inside, self._across = inside, across

    def all_reduce(self, start: int, stop: int, scale: float, what: str) -> Callable[[], None]:
        """See `Arena`."""
        part = self.tensor[start:stop]
        self._inside.reduce(part)
        if self._across is not None:
            self._across.all_reduce(part)()
        self._inside.broadcast(part)
        if scale != 1:
            part.mul_(scale)
        return lambda: None

    def close(self) -> None:
        """See `Arena`."""


class SharedArena:
    """Ranks of a node add up in memory they share: each rank sums its stripe over all of them, in order of the ranks.

    On one node every rank writes the sum of its stripe to all. On several, the stripes go to the node's first rank,
    which adds those of the other nodes through the transport, and the others copy from it. Device: CPU.
    """

    def __init__(
        self, link: NodeLink, across: Members | None, several_nodes: bool, elements: int, dtype: torch.dtype
    ) -> None:
        self._link, self._across, self._several_nodes = link, across, several_nodes
        memories = link.share(max(_ALIGNED_BYTES, elements * dtype.itemsize))
        self._tensors = [torch.frombuffer(memory, dtype=dtype, count=elements) for memory in memories]
        self.tensor = self._tensors[link.local_rank]
        self._chunk = _CHUNK_BYTES // dtype.itemsize

    def all_reduce(self, start: int, stop: int, scale: float, what: str) -> Callable[[], None]:
        """See `Arena`. Done when it returns."""
        self._link.meet(f"the sum of {what}")  # everybody's part is there
        first, end = stripe(start, stop, self._link.local_rank, self._link.size, self.tensor.dtype.itemsize)
        for low in range(first, end, self._chunk):
            high = min(end, low + self._chunk)
            parts = [tensor[low:high] for tensor in self._tensors]
            total = _added(parts, 1.0 if self._several_nodes else scale)
            if not self._several_nodes:
                for part in parts[1:]:
                    part.copy_(total)
        self._link.meet(f"the sum of {what}")  # every stripe is there
        if self._several_nodes:
            self._exchange(start, stop, scale, what)
        return lambda: None

    def _exchange(self, start: int, stop: int, scale: float, what: str) -> None:
        """With the other nodes, by the first rank of each."""
        if self._across is not None:
            self._across.all_reduce(self.tensor[start:stop])()
            self.tensor[start:stop].mul_(scale)
        self._link.meet(f"the sum of {what}")
        if not self._link.leads:
            self.tensor[start:stop].copy_(self._tensors[0][start:stop])
        self._link.meet(f"the sum of {what}")  # the first rank's part may change again

    def close(self) -> None:
        """See `Arena`. The memory goes when nothing points to it any more."""
        self._tensors.clear()


def _added(parts: Sequence[torch.Tensor], scale: float) -> torch.Tensor:
    """The sum in the order of the ranks, in the first part's memory."""
    total = parts[0]
    for part in parts[1:]:
        total.add_(part)
    return total.mul_(scale) if scale != 1 else total


def stripe(start: int, stop: int, number: int, count: int, itemsize: int) -> tuple[int, int]:
    """Share `number` of `count` of the elements start to stop, cut at cache lines."""
    line = _ALIGNED_BYTES // itemsize
    lines = -(-(stop - start) // line)
    first, end = lines * number // count, lines * (number + 1) // count
    return min(stop, start + first * line), min(stop, start + end * line)
