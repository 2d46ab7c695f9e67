"""Negotiation through rank 0: what every step cost before there was a cache.

Each cycle, every rank sends the descriptions of its newly ready groups to rank 0; rank 0 counts them, compares them,
and broadcasts which are ready everywhere, and in which order (Sergeev and Del Balso, arXiv 1802.05799, section 3).
"""

from __future__ import annotations

from collections.abc import Sequence

from stemdl.comm.control import CountedControl
from stemdl.comm.errors import CommError
from stemdl.comm.items import Item
from stemdl.comm.negotiation.base import leaving_ranks
from stemdl.comm.negotiation.wire import Answer, decode_answer, decode_requests, encode_answer, encode_requests

_LEAVING = Item("\0leaving", "", ())


class RankZero:
    """Rank 0's books: who has announced which group."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._announced: dict[str, dict[int, Item]] = {}

    def take(self, requests: Sequence[Sequence[Item]]) -> Answer:
        """Requests by rank -> groups that all ranks have announced by now, in the order in which they became so."""
        ready: list[str] = []
        for rank, items in enumerate(requests):
            for item in items:
                ranks = self._announced.setdefault(item.name, {})
                if rank in ranks:
                    return Answer(error=f"rank {rank} announced {item.name} twice in one step")
                ranks[rank] = item
        if error := self._difference():
            return Answer(error=error)
        for name, ranks in list(self._announced.items()):
            if len(ranks) == self._size:
                ready.append(name)
                del self._announced[name]
        return Answer(tuple(ready))

    def _difference(self) -> str:
        """Groups of one name that differ, or of different names that share a gradient: they would wait for ever."""
        owners: dict[str, tuple[int, Item]] = {}
        for name, ranks in self._announced.items():
            first_rank, first = next(iter(ranks.items()))
            for rank, item in ranks.items():
                if item != first:
                    return f"{name} differs: rank {rank} has {item.difference(first)} (rank {first_rank})"
            for tensor in first.tensors:
                owner_rank, owner = owners.setdefault(tensor.name, (first_rank, first))
                if owner is not first:
                    there = next(one for one in owner.tensors if one.name == tensor.name)
                    return (
                        f"{name} differs: rank {first_rank} has {tensor} in it, rank {owner_rank} has {there} in "
                        f"{owner.name}"
                    )
        return ""


class Coordinator:
    """See the module. One round of messages to and from rank 0 in every cycle."""

    def __init__(self, control: CountedControl) -> None:
        self._control = control
        self.slow_cycles = 0
        self._books = RankZero(control.size)
        self._sent: set[str] = set()

    def planned(self, waiting: Sequence[Item]) -> list[str] | None:
        """Never: see `Negotiator`."""
        return None

    def cycle(self, waiting: Sequence[Item], *, leaving: bool = False) -> list[str]:
        """See `Negotiator`."""
        self.slow_cycles += 1
        new = [item for item in waiting if item.name not in self._sent]
        self._sent.update(item.name for item in new)
        gathered = self._control.gather(encode_requests([*new, _LEAVING] if leaving else new))
        payload = None
        if gathered is not None:
            requests = [decode_requests(part) for part in gathered]
            if any(_LEAVING in items for items in requests):
                payload = encode_answer(Answer((_LEAVING.name,)))
            else:
                payload = encode_answer(self._books.take(requests))
        answer = decode_answer(self._control.broadcast(payload))
        if answer.error:
            raise CommError(answer.error)
        if answer.ready == (_LEAVING.name,):
            raise leaving_ranks(self._control, leaving)
        self._sent.difference_update(answer.ready)
        return list(answer.ready)

    def step_done(self) -> None:
        """Nothing is kept from step to step."""

    def unsettle(self) -> None:
        """Nothing is fixed."""

    def reset(self) -> None:
        """Forget what was announced and not yet reduced."""
        self._books = RankZero(self._control.size)
        self._sent.clear()
