"""What every way to agree has in common."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from stemdl.comm.control import CountedControl
from stemdl.comm.items import Item


class Negotiator(Protocol):
    """Ranks agree on groups that all of them have ready, and on the order in which all of them reduce these.

    A step is: cycles until every group of the step is agreed on, then `step_done`. All ranks make the same calls; in a
    cycle each may bring other groups.
    """

    @property
    def slow_cycles(self) -> int:
        """Cycles that went through rank 0."""
        ...

    def planned(self, waiting: Sequence[Item]) -> list[str] | None:
        """Groups among the waiting ones that go next without a message; None where a cycle is needed to know."""
        ...

    def cycle(self, waiting: Sequence[Item], *, leaving: bool = False) -> list[str]:
        """One round with all ranks: names of groups to reduce now, in order, the same on every rank.

        waiting: all groups that are ready on this rank and not yet agreed on, those of earlier cycles included.
        leaving: this rank ends its work; once any rank does, `Left` is raised on all of them, with the ranks that do.
        Raises CommError where ranks bring groups of one name that differ, or the transport fails.
        """
        ...

    def step_done(self) -> None:
        """All groups of a step are reduced, on all ranks."""
        ...

    def unsettle(self) -> None:
        """Something has changed, on all ranks in the same step: a fixed order is no longer relied on."""
        ...

    def reset(self) -> None:
        """Forget all groups, on all ranks in the same step."""
        ...


class Left(Exception):
    """Ranks have ended their work in this cycle: `ranks`, in order."""

    def __init__(self, ranks: Sequence[int]) -> None:
        super().__init__(ranks)
        self.ranks = tuple(ranks)


def leaving_ranks(control: CountedControl, leaving: bool) -> Left:
    """Who leaves: one more round in the cycle in which somebody does."""
    said = control.allgather(b"\1" if leaving else b"")
    return Left([rank for rank, word in enumerate(said) if word])
