"""What our own negotiation moves through rank 0, to the byte: to be compared with what the program counts.

The lengths of requests and answers are those of the encoding itself; what is predicted is who sends what, and when.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from stemdl.bench.comm_counts import PLAN_AFTER_STEPS, WARM_UP_STEPS, Counted, items_of
from stemdl.comm.items import Item
from stemdl.comm.negotiation.cached import word_count
from stemdl.comm.negotiation.wire import Answer, encode_answer, encode_requests

Negotiation = Literal["coordinator", "cached", "planned", "per_tensor", "ddp"]
Arrivals = Sequence[Sequence[Sequence[Item]]]
"""By cycle and rank: the groups that have become ready there since the cycle before."""
WORD_BYTES = 8
_HASH_WORDS = 2


@dataclass(frozen=True)
class ControlCounts:
    """Control messages (collective calls) and their bytes through rank 0, as `stemdl.comm.counters` counts them."""

    messages: int = 0
    rank0_bytes: int = 0

    def __add__(self, other: ControlCounts) -> ControlCounts:
        return ControlCounts(self.messages + other.messages, self.rank0_bytes + other.rank0_bytes)


def control_counts(mode: Negotiation, ranks: int, items: Sequence[Item]) -> ControlCounts:
    """A cycle of the steady state in which the groups `items`, all there are, become ready on all ranks.

    coordinator: (ranks - 1) times the requests and the answer; cached: 8 ⌈(n + 3)/64⌉ bytes, whatever `ranks`;
    planned, and what needs no agreement: nothing.
    """
    if mode == "coordinator":
        return _through_rank_zero([list(items)] * ranks, [item.name for item in items])
    if mode == "cached":
        return ControlCounts(1, WORD_BYTES * word_count(len(items)))
    return ControlCounts()


def _through_rank_zero(requests: Sequence[Sequence[Item]], ready: Sequence[str]) -> ControlCounts:
    """A gather of requests, by rank, and the broadcast of the answer."""
    gathered = sum(len(encode_requests(items)) for items in requests[1:])
    return ControlCounts(2, gathered + (len(requests) - 1) * len(encode_answer(Answer(tuple(ready)))))


class Replay:
    """The messages of a job, step after step, from what became ready when; nothing is sent."""

    def __init__(self, mode: Negotiation, ranks: int, *, after_steps: int = 5, check_steps: int = 100) -> None:
        self._mode, self._ranks = mode, ranks
        self._after_steps, self._check_steps = after_steps, check_steps
        self._known: list[str] = []
        self._plan: set[str] = set()
        self._stable = self._unchecked = 0

    def step(self, arrivals: Arrivals) -> ControlCounts:
        """One training step. Cycles go on, without arrivals, until all groups are agreed on."""
        if self._mode in ("per_tensor", "ddp"):
            return ControlCounts()
        if self._is_fixed:
            self._unchecked += 1
            return self._compared() if self._unchecked >= self._check_steps else ControlCounts()
        total = ControlCounts()
        waiting: list[dict[str, Item]] = [{} for _ in range(self._ranks)]
        announced: list[set[str]] = [set() for _ in range(self._ranks)]
        agreed: set[str] = set()
        cycle = 0
        while cycle < len(arrivals) or any(waiting):
            if cycle < len(arrivals):
                for mine, new in zip(waiting, arrivals[cycle], strict=True):
                    mine.update({item.name: item for item in new})
            counts, names = self._cycle(waiting, announced)
            total += counts
            assert names or cycle < len(arrivals), "a group that not all ranks bring"
            agreed.update(names)
            for mine in waiting:
                for name in names:
                    del mine[name]
            cycle += 1
        return total + self._ended(agreed)

    @property
    def _is_fixed(self) -> bool:
        return self._mode == "planned" and self._stable >= self._after_steps

    def _cycle(self, waiting: Sequence[dict[str, Item]], announced: list[set[str]]) -> tuple[ControlCounts, list[str]]:
        """Messages of a cycle, and the groups agreed on in it."""
        common = [name for name in waiting[0] if all(name in mine for mine in waiting)]
        if self._mode == "coordinator":
            return self._slow(waiting, announced)
        counts = ControlCounts(1, WORD_BYTES * word_count(len(self._known)))
        hits = [name for name in common if name in self._known]
        misses = [{name: item for name, item in mine.items() if name not in self._known} for mine in waiting]
        if not any(misses):
            return counts, hits
        slow, learned = self._slow(misses, announced)
        self._known += learned
        return counts + slow, hits + learned

    def _slow(self, waiting: Sequence[dict[str, Item]], announced: list[set[str]]) -> tuple[ControlCounts, list[str]]:
        """Through rank 0: what each rank has not announced yet."""
        new = [
            [item for name, item in mine.items() if name not in told]
            for mine, told in zip(waiting, announced, strict=True)
        ]
        for told, items in zip(announced, new, strict=True):
            told.update(item.name for item in items)
        ready = [name for name in waiting[0] if all(name in told for told in announced)]
        for told in announced:
            told.difference_update(ready)
        return _through_rank_zero(new, ready), ready

    def _ended(self, agreed: set[str]) -> ControlCounts:
        """The end of a step whose order was not fixed."""
        if self._mode != "planned":
            return ControlCounts()
        self._stable = self._stable + 1 if agreed and agreed == self._plan else 0
        self._plan = agreed
        return self._compared() if self._is_fixed else ControlCounts()

    def _compared(self) -> ControlCounts:
        """One AND of a hash and its complement."""
        self._unchecked = 0
        return ControlCounts(1, WORD_BYTES * _HASH_WORDS)


def shuffled_arrivals(items: Sequence[Item], generators: Sequence[random.Random]) -> list[list[list[Item]]]:
    """A step of `stemdl.bench.comm_counts`: an order of each rank's own, a quarter of the groups before each cycle."""
    orders = []
    for generator in generators:
        order = list(items)
        generator.shuffle(order)
        orders.append(order)
    quarter = -(-len(items) // 4)
    return [[order[first : first + quarter] for order in orders] for first in range(0, len(items), quarter)]


@dataclass(frozen=True)
class Compared:
    """A run of `stemdl.bench.comm_counts` beside what is predicted for it: totals of its counted steps."""

    mode: str
    ranks: int
    items: int
    counted: ControlCounts
    predicted: ControlCounts

    @property
    def is_equal(self) -> bool:
        """To the message and to the byte."""
        return self.counted == self.predicted


def compare_counts(runs: Sequence[Counted]) -> list[Compared]:
    """What the program counted on real ranks, and what the model says of the same random orders."""
    return [
        Compared(
            run.mode,
            run.ranks,
            run.items,
            ControlCounts(round(run.messages_per_step * run.steps), round(run.bytes_per_step * run.steps)),
            _predicted(run),
        )
        for run in runs
    ]


def format_comparison(compared: Sequence[Compared]) -> str:
    """One line: whether the model counts what the program has counted, and where not."""
    wrong = [one for one in compared if one.counted != one.predicted]
    if not wrong:
        return f"the model's messages and bytes agree exactly in all {len(compared)} cases"
    return "\n".join(
        f"the model differs: {one.mode}, {one.ranks} ranks, {one.items} items: counted {one.counted}, "
        f"predicted {one.predicted}"
        for one in wrong
    )


def _predicted(run: Counted) -> ControlCounts:
    assert run.mode in ("coordinator", "cached", "planned")
    mode: Negotiation = run.mode  # type: ignore[assignment]
    items = items_of(run.tensors, run.items)
    generators = [random.Random(rank) for rank in range(run.ranks)]
    replay = Replay(mode, run.ranks, after_steps=PLAN_AFTER_STEPS, check_steps=WARM_UP_STEPS + run.steps + 1)
    total = ControlCounts()
    for step in range(WARM_UP_STEPS + run.steps):
        counts = replay.step(shuffled_arrivals(items, generators))
        if step >= WARM_UP_STEPS:
            total += counts
    return total
