"""Negotiation that ends: once the cache has been stable for some steps, the order is fixed and no message is needed.

A plan is the order of a step that all ranks have agreed on through the cache. While it holds, each rank reduces the
next group of the plan as soon as it has it; ranks cannot get out of order, only wait for one another. All of them take
up and leave a plan in the same step, since they decide on what they have in common: the agreed orders, and reduced
gradients.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np

from stemdl.comm.control import CountedControl
from stemdl.comm.errors import CommError
from stemdl.comm.items import Item
from stemdl.comm.negotiation.cached import Cached


class Planned:
    """See the module. after_steps: stable steps before the order is fixed; check_steps: steps between comparisons."""

    def __init__(self, control: CountedControl, *, after_steps: int, check_steps: int) -> None:
        self._control = control
        self._cached = Cached(control)
        self._after_steps, self._check_steps = after_steps, check_steps
        self._agreed: list[Item] = []
        """Groups of this step so far."""
        self._plan: tuple[Item, ...] = ()
        """The latest order; it is fixed where `_stable` says so."""
        self._stable = 0
        self._next = 0
        self._unchecked = 0

    @property
    def slow_cycles(self) -> int:
        """Cycles that went through rank 0."""
        return self._cached.slow_cycles

    @property
    def is_fixed(self) -> bool:
        """The order is fixed."""
        return self._stable >= self._after_steps

    def planned(self, waiting: Sequence[Item]) -> list[str] | None:
        """See `Negotiator`. Raises CommError where this rank has a group that the plan does not know."""
        if not self.is_fixed:
            return None
        ready = {item.name: item for item in waiting}
        for name, item in ready.items():
            if item not in self._plan:
                raise CommError(
                    f"{name} is not in the order that was fixed ({len(self._plan)} groups): this rank's parameters "
                    "have changed without a word to the reducer"
                )
        names: list[str] = []
        while self._next < len(self._plan) and self._plan[self._next].name in ready:
            names.append(self._plan[self._next].name)
            self._next += 1
        return names

    def cycle(self, waiting: Sequence[Item], *, leaving: bool = False) -> list[str]:
        """See `Negotiator`."""
        names = self._cached.cycle(waiting, leaving=leaving)
        mine = {item.name: item for item in waiting}
        self._agreed += [mine[name] for name in names]
        return names

    def step_done(self) -> None:
        """See `Negotiator`. Raises CommError where a comparison finds ranks with another order."""
        if self.is_fixed:
            self._next = 0
            self._unchecked += 1
            if self._unchecked >= self._check_steps:
                self._compare()
            return
        same = self._agreed and set(self._agreed) == set(self._plan)
        self._stable = self._stable + 1 if same else 0
        self._plan, self._agreed = tuple(self._agreed), []
        if self.is_fixed:
            self._compare()

    def _compare(self) -> None:
        """One AND of a hash and its complement: both survive only where all ranks have the same."""
        self._unchecked = 0
        digest = hashlib.sha256(repr(self._plan).encode()).digest()
        mine = np.frombuffer(digest[:8], dtype=np.uint64)
        words = np.concatenate([mine, ~mine])
        if not np.array_equal(self._control.bitwise_and(words), words):
            raise CommError("the fixed order of groups is not the same on all ranks")

    def unsettle(self) -> None:
        """See `Negotiator`."""
        self._stable = 0
        self._next = 0
        self._agreed = []

    def reset(self) -> None:
        """See `Negotiator`."""
        self.unsettle()
        self._plan = ()
        self._cached.reset()
