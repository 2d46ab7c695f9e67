"""Negotiation with a response cache: one bit for each known group, one bitwise AND, and no coordinator.

Ranks number the groups that they have once agreed on, all in the same way. From then on a cycle is one allreduce of
a vector with a bit for each of them, 8 * ceil((n + 3) / 64) bytes; what is still set after the AND is ready everywhere.
Three bits more carry the states that somebody has raised, stored inverted so that the AND works as an OR on them. Only
groups that are not in the cache go through rank 0, in the same cycle. (Laanait et al., arXiv 1909.11150; Romero et al.,
NSDI 2022, section 4.)
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from stemdl.comm.control import CountedControl, Words
from stemdl.comm.items import Item
from stemdl.comm.negotiation.base import leaving_ranks
from stemdl.comm.negotiation.coordinator import Coordinator

_LEAVING, _UNCACHED, _INVALID = range(3)
_STATUS_BITS = 3


def word_count(groups: int) -> int:
    """64-bit words of a cycle's vector with so many groups in the cache."""
    return -(-(groups + _STATUS_BITS) // 64)


class Cached:
    """See the module."""

    def __init__(self, control: CountedControl) -> None:
        self._control = control
        self._slow = Coordinator(control)
        self._items: list[Item] = []
        self._bits: dict[str, int] = {}
        self._owner: dict[str, str] = {}
        """The group of each known gradient."""

    @property
    def slow_cycles(self) -> int:
        """Cycles that went through rank 0."""
        return self._slow.slow_cycles

    @property
    def known(self) -> int:
        """Groups in the cache."""
        return len(self._items)

    def planned(self, waiting: Sequence[Item]) -> list[str] | None:
        """Never: see `Negotiator`."""
        return None

    def cycle(self, waiting: Sequence[Item], *, leaving: bool = False) -> list[str]:
        """See `Negotiator`."""
        hits: list[int] = []
        invalid: list[int] = []
        misses = False
        for item in waiting:
            bit = self._bits.get(item.name)
            if bit is None:
                misses = True
                invalid += self._sharing(item)
            elif self._items[bit] == item:
                hits.append(bit)
            else:
                invalid.append(bit)
        raised = {_LEAVING: leaving, _UNCACHED: misses or bool(invalid), _INVALID: bool(invalid)}
        status, common = self._agree(hits, raised)
        if status[_LEAVING]:
            raise leaving_ranks(self._control, leaving)
        if status[_INVALID]:
            erased = self._erase(invalid)
            common = [name for name in common if name not in erased]
        if status[_UNCACHED]:
            common += self._learn([item for item in waiting if item.name not in self._bits], waiting)
        return common

    def _sharing(self, item: Item) -> set[int]:
        """Bits of groups that hold a gradient of an unknown one: gradients have been grouped anew, or this rank's have
        and others' not, which rank 0 will see once all of them are unknown."""
        owners = {self._owner[tensor.name] for tensor in item.tensors if tensor.name in self._owner}
        return {self._bits[name] for name in owners}

    def _agree(self, hits: Sequence[int], raised: dict[int, bool]) -> tuple[list[bool], list[str]]:
        """The AND: which states anybody has raised, and the groups ready on all ranks, in order of their bits."""
        words = _vector(len(self._items), [_STATUS_BITS + bit for bit in hits])
        words |= _vector(len(self._items), [bit for bit, is_raised in raised.items() if not is_raised])
        left = _set_bits(self._control.bitwise_and(words), len(self._items))
        status = [not left[bit] for bit in range(_STATUS_BITS)]
        return status, [item.name for item, is_set in zip(self._items, left[_STATUS_BITS:], strict=True) if is_set]

    def _erase(self, invalid: Sequence[int]) -> set[str]:
        """Drop what any rank found changed, on all of them; the rest moves up."""
        words = _vector(len(self._items), [_STATUS_BITS + bit for bit in invalid])
        gone = _set_bits(self._control.bitwise_or(words), len(self._items))[_STATUS_BITS:]
        erased = {item.name for item, is_gone in zip(self._items, gone, strict=True) if is_gone}
        self._items = [item for item in self._items if item.name not in erased]
        self._bits = {item.name: bit for bit, item in enumerate(self._items)}
        self._owner = {tensor.name: item.name for item in self._items for tensor in item.tensors}
        return erased

    def _learn(self, misses: Sequence[Item], waiting: Sequence[Item]) -> list[str]:
        """Through rank 0; what comes back is in the cache from now on, in the same order on all ranks."""
        names = self._slow.cycle(misses)
        mine = {item.name: item for item in waiting}
        for name in names:
            self._bits[name] = len(self._items)
            self._items.append(mine[name])
            self._owner.update({tensor.name: name for tensor in mine[name].tensors})
        return names

    def step_done(self) -> None:
        """Nothing changes from step to step."""

    def unsettle(self) -> None:
        """No order is fixed."""

    def reset(self) -> None:
        """Empty the cache."""
        self._items.clear()
        self._bits.clear()
        self._owner.clear()
        self._slow.reset()


def _vector(groups: int, bits: Sequence[int]) -> Words:
    words = np.zeros(word_count(groups), dtype=np.uint64)
    for bit in bits:
        words[bit // 64] |= np.uint64(1 << (bit % 64))
    return words


def _set_bits(words: Words, groups: int) -> list[bool]:
    octets = words.astype("<u8").view(np.uint8)
    return [bool(bit) for bit in np.unpackbits(octets, bitorder="little")[: groups + _STATUS_BITS]]
