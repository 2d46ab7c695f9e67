"""What ranks agree on: groups of gradients, described by everything that must be equal on all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class TensorKey(NamedTuple):
    """One gradient: its parameter's name, its dtype ("float32") and its shape."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.name} {self.dtype} {'x'.join(map(str, self.shape)) or 'scalar'}"


class Item(NamedTuple):
    """A group as the negotiation sees it. Equal items may be reduced together; the name alone is not enough."""

    name: str
    wire: str
    """Number format on the wire."""
    tensors: tuple[TensorKey, ...]

    def difference(self, other: Item) -> str:
        """Where two items of one name differ, in words: "this, there that"."""
        if self.wire != other.wire:
            return f"wire format {self.wire}, there {other.wire}"
        for mine, theirs in zip(self.tensors, other.tensors, strict=False):
            if mine != theirs:
                return f"{mine}, there {theirs}"
        return f"{len(self.tensors)} gradients, there {len(other.tensors)}"


def shortened(names: Sequence[str], most: int = 4) -> str:
    """The first few names, and how many more there are."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")
