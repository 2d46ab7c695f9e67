"""What a rank has told its watch: the groups it waits for, its step, and what it is busy with."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count, islice

from stemdl.comm.watch_verdict import Report, Wait, fingerprint
from stemdl.comm.watch_wire import SEEN_MOST, TENSORS_MOST, WAITS_MOST, WAITS_USUAL, short_name

_STEPS_KEPT = 2


class Notes:
    """What a rank has told; under the watch's lock. version: changes with it."""

    def __init__(self) -> None:
        self.version = 0
        self._step = 0
        self._submitted_step = -1
        self._numbers = count()
        self._waits: dict[tuple[int, str], tuple[float, int, Sequence[str]]] = {}
        self._seen: dict[int, set[str]] = {}
        self._busy: dict[int, tuple[str, float, float]] = {}
        self._excused_s: float | None = None

    def submitted(self, step: int, group: str, tensors: Sequence[str], now_s: float) -> None:
        """See `Watch.submitted`."""
        self.version += 1
        self._step = self._submitted_step = step
        self._waits[step, group] = (now_s, next(self._numbers), tensors)
        if step not in self._seen:
            self._seen[step] = set()
            while len(self._seen) > _STEPS_KEPT:
                del self._seen[next(iter(self._seen))]
        self._seen[step].add(group)

    def completed(self, step: int, group: str) -> None:
        """See `Watch.completed`."""
        self.version += 1
        self._waits.pop((step, group), None)

    def step_done(self, step: int) -> None:
        """See `Watch.step_done`."""
        self.version += 1
        self._step = max(step, self._submitted_step + 1)

    def began(self, what: str, allowed_s: float, now_s: float) -> int:
        """See `Watch.busy`; a number to end it with."""
        self.version += 1
        number = next(self._numbers)
        self._busy[number] = (what, now_s, allowed_s)
        return number

    def stopped(self, number: int, now_s: float) -> None:
        """The end of what `began`."""
        self.version += 1
        _, since_s, allowed_s = self._busy.pop(number)
        until_s = min(now_s, since_s + allowed_s)
        self._excused_s = until_s if self._excused_s is None else max(self._excused_s, until_s)

    def paused(self, gap_s: float) -> None:
        """Nobody is to blame for the time in which the process was stopped."""
        self.version += 1
        self._waits = {key: (one[0] + gap_s, one[1], one[2]) for key, one in self._waits.items()}
        self._busy = {key: (one[0], one[1] + gap_s, one[2]) for key, one in self._busy.items()}

    def where(self) -> str:
        """What this rank is at, for a verdict that says nothing of a group."""
        if not self._waits:
            return ""
        step, group = next(iter(self._waits))
        return f" (this rank waits for {group} of step {step})"

    def report(self, now_s: float, *, in_detail: bool) -> Report:
        """For rank 0; in detail: all that it has submitted of late."""
        most = WAITS_MOST if in_detail else WAITS_USUAL
        waits = tuple(
            Wait(step, short_name(group), serial, now_s - since_s, _first(tensors), len(tensors))
            for (step, group), (since_s, serial, tensors) in islice(self._waits.items(), most)
        )
        busy = None
        if self._busy:
            what, since_s, allowed_s = max(self._busy.values(), key=lambda one: one[1] + one[2])
            busy = (short_name(what), now_s - since_s, allowed_s)
        seen = None
        if in_detail:
            names = {step: [short_name(name) for name in names] for step, names in self._seen.items()}
            seen = {step: frozenset(map(fingerprint, some)) for step, some in names.items() if len(some) <= SEEN_MOST}
        excused_ago_s = None if self._excused_s is None else now_s - self._excused_s
        return Report(self._step, waits, busy, excused_ago_s, seen)


def _first(tensors: Sequence[str]) -> tuple[str, ...]:
    return tuple(short_name(name) for name in tensors[:TENSORS_MOST])
