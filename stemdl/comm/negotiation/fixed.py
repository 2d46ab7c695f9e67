"""No negotiation: a given order, the same on all ranks by construction. What one allreduce per gradient needs."""

from __future__ import annotations

from collections.abc import Sequence

from stemdl.comm.errors import CommError
from stemdl.comm.items import Item


class Fixed:
    """Groups in the order of the names given to `order`."""

    slow_cycles = 0

    def __init__(self) -> None:
        self._order: tuple[str, ...] = ()
        self._next = 0

    def order(self, names: Sequence[str]) -> None:
        """The order of every step from now on."""
        self._order = tuple(names)
        self._next = 0

    def planned(self, waiting: Sequence[Item]) -> list[str] | None:
        """See `Negotiator`."""
        ready = {item.name for item in waiting}
        names: list[str] = []
        while self._next < len(self._order) and self._order[self._next] in ready:
            names.append(self._order[self._next])
            self._next += 1
        return names

    def cycle(self, waiting: Sequence[Item], *, leaving: bool = False) -> list[str]:
        """Never needed."""
        raise CommError("a fixed order has no cycles")

    def step_done(self) -> None:
        """The order starts again."""
        self._next = 0

    def unsettle(self) -> None:
        """The order stays."""

    def reset(self) -> None:
        """The order stays until another is given."""
