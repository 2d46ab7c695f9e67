"""A job of one rank: the planes with nobody at the other end."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from stemdl.comm.control import Control, Words
from stemdl.comm.transport.base import Members


class Alone:
    """A control plane of one rank."""

    rank, size = 0, 1

    def gather(self, payload: bytes) -> list[bytes] | None:
        """See `Control`."""
        return [payload]

    def broadcast(self, payload: bytes | None) -> bytes:
        """See `Control`."""
        return payload or b""

    def bitwise_and(self, words: Words) -> Words:
        """See `Control`."""
        return words

    def bitwise_or(self, words: Words) -> Words:
        """See `Control`."""
        return words


class AloneMembers:
    """The sums of one rank."""

    size = 1

    def all_reduce(self, tensor: torch.Tensor) -> Callable[[], None]:
        """See `Members`."""
        return lambda: None

    def reduce(self, tensor: torch.Tensor) -> None:
        """See `Members`."""

    def broadcast(self, tensor: torch.Tensor) -> None:
        """See `Members`."""


class AloneTransport:
    """The transport of one rank."""

    name = "none"
    rank, size = 0, 1

    def __init__(self) -> None:
        self.control: Control = Alone()
        self.everybody: Members = AloneMembers()

    def members(self, groups: Sequence[Sequence[int]]) -> Members | None:
        """See `Transport`."""
        return self.everybody

    def control_of(self, ranks: Sequence[int]) -> Control | None:
        """See `Transport`."""
        return self.control

    def close(self) -> None:
        """See `Transport`."""
