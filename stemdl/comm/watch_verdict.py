"""What the stall watch concludes from what the ranks report: reports and times in, a verdict out.

Nothing here knows a clock or a socket: every time is an argument, in seconds of the server's clock. The words are in
`stemdl.comm.watch_words`.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from stemdl.comm import watch_words
from stemdl.comm.errors import CommError

SIGNS_PER_S = 1000.0
"""Signs of life that rank 0 handles in a second at most; with more ranks each gives them less often."""

_KEYS_LOOKED_AT = 8  # of the groups that wait: the oldest; at a stall all later ones wait as well
_SUSPICION = 0.5  # of stall_warn_s: from then on, ranks tell in detail what they have submitted

Key = tuple[int, str]
"""Step and group."""


@dataclass(frozen=True)
class WatchLimits:
    """When a rank is late, and when it is lost.

    stall_warn_s, stall_end_s: how long a group may be waited for before it is reported, and before the job ends.
    silence_s: how long a rank may give no sign of life. grace_s: how long rank 0 outlives a verdict, so that every
    other rank hears of it.

    Raises CommError where a limit is not above 0, or stall_warn_s is not below stall_end_s.
    """

    stall_warn_s: float
    stall_end_s: float
    silence_s: float
    grace_s: float = 5.0

    def __post_init__(self) -> None:
        for name in ("stall_warn_s", "stall_end_s", "silence_s", "grace_s"):
            if not getattr(self, name) > 0:
                raise CommError(f"{name}: {getattr(self, name)}, allowed: above 0")
        if self.stall_warn_s >= self.stall_end_s:
            raise CommError(f"stall_warn_s: {self.stall_warn_s:g}, allowed: below stall_end_s ({self.stall_end_s:g})")

    def sign_period_s(self, size: int) -> float:
        """How often each of `size` ranks gives a sign of life: every second, or as often as rank 0 can stand."""
        return max(size / SIGNS_PER_S, min(1.0, self.silence_s / 5, self.stall_warn_s / 5))

    def for_size(self, size: int) -> WatchLimits:
        """Limits that signs of life are frequent enough for: with some 6000 ranks and more they are longer."""
        period_s = self.sign_period_s(size)
        warn_s = max(self.stall_warn_s, 4 * period_s)
        return WatchLimits(
            warn_s, max(self.stall_end_s, warn_s + 2 * period_s), max(self.silence_s, 3 * period_s), self.grace_s
        )


@dataclass(frozen=True)
class Wait:
    """A group that a rank has submitted and waits for. serial: tells a new wait from an old one of the same name."""

    step: int
    group: str
    serial: int
    age_s: float
    tensors: tuple[str, ...]
    tensor_count: int


@dataclass(frozen=True)
class Report:
    """What a rank says of itself.

    waits: the oldest ones first, perhaps not all. busy: with what, for how long, how long that may take (s).
    excused_ago_s: how long ago a busy phase ended. seen: fingerprints of all groups submitted, by step; when asked for.
    """

    step: int
    waits: tuple[Wait, ...] = ()
    busy: tuple[str, float, float] | None = None
    excused_ago_s: float | None = None
    seen: Mapping[int, frozenset[int]] | None = None


@dataclass(frozen=True)
class Verdict:
    """Why the job ends; or, as a warning, why it may. ranks: at fault, as far as known. age_s: of the wait."""

    kind: Literal["ended", "silent", "absent", "failed", "stall", "exchange"]
    ranks: tuple[int, ...]
    text: str
    step: int | None = None
    group: str | None = None
    age_s: float | None = None


@dataclass
class Waiting:
    """A wait as the server keeps it."""

    since_s: float
    serial: int
    tensors: tuple[str, ...]
    tensor_count: int


@dataclass
class RankState:
    """What is known of a rank. heard_s: time of its last sign of life; for an absent one, of the start."""

    heard_s: float
    presence: Literal["absent", "here", "left", "ended"] = "absent"
    host: str = ""
    pid: int = 0
    step: int = 0
    waiting: dict[Key, Waiting] = field(default_factory=dict)
    busy: tuple[str, float, float] | None = None  # with what, since when, how long it may take
    excused_s: float = float("-inf")  # up to then it was allowed to be late
    seen: Mapping[int, frozenset[int]] | None = None

    def excused_until(self, now_s: float) -> float:
        """A stall caused by this rank counts from here."""
        if self.busy is None:
            return self.excused_s
        _, since_s, allowed_s = self.busy
        return max(self.excused_s, min(now_s, since_s + allowed_s))


@dataclass(frozen=True)
class Stall:
    """A group that does not get on. missing: ranks that have not submitted it; none: the exchange itself hangs."""

    key: Key
    age_s: float
    waiting: tuple[int, ...]
    missing: tuple[int, ...]


@dataclass
class Failure:
    """A rank that cannot go on, and until when a truer cause may turn up. is_own: it is not about another rank."""

    reason: str
    due_s: float
    is_own: bool


def fingerprint(group: str) -> int:
    """A group's name, made small."""
    return zlib.crc32(group.encode())


class Judge:
    """Keeps what the ranks have reported, and judges.

    limits: already right for the number of ranks (`WatchLimits.for_size`). join_s: how long a rank may take to come.
    """

    def __init__(self, size: int, limits: WatchLimits, now_s: float, join_s: float = 30.0) -> None:
        self.limits = limits
        self.join_s = join_s
        self.ranks = [RankState(now_s) for _ in range(size)]
        self.failures: dict[int, Failure] = {}
        self._waits: dict[Key, dict[int, Waiting]] = {}
        self._here = 0
        self._ended: list[int] = []
        self._warned: dict[Key, float] = {}
        self.wants_detail = False

    # -- what happens --------------------------------------------------------------------------------------------------

    def joined(self, rank: int, host: str, pid: int, now_s: float) -> None:
        """A rank has come."""
        state = self.ranks[rank]
        self._here += 1
        state.presence, state.host, state.pid, state.heard_s = "here", host, pid, now_s

    def heard(self, rank: int, now_s: float) -> None:
        """A sign of life: nothing has changed."""
        self.ranks[rank].heard_s = now_s

    def reported(self, rank: int, report: Report, now_s: float) -> None:
        """A sign of life, with what has changed."""
        state = self.ranks[rank]
        state.heard_s, state.step, state.seen = now_s, report.step, report.seen
        state.busy = None
        if report.busy is not None:
            what, for_s, allowed_s = report.busy
            state.busy = (what, now_s - for_s, allowed_s)
        if report.excused_ago_s is not None:
            state.excused_s = max(state.excused_s, now_s - report.excused_ago_s)
        before, state.waiting = state.waiting, {}
        for wait in report.waits:
            key = (wait.step, wait.group)
            one = before.get(key)
            if one is None or one.serial != wait.serial:
                one = Waiting(now_s - wait.age_s, wait.serial, wait.tensors, wait.tensor_count)
            state.waiting[key] = one
            self._waits.setdefault(key, {})[rank] = one
        for key in before.keys() - state.waiting.keys():
            self._forget(key, rank)

    def left(self, rank: int) -> None:
        """An orderly goodbye."""
        self._gone(rank, "left")

    def closed(self, rank: int, now_s: float) -> None:
        """A connection has closed: no fault of a rank that has said goodbye or that it fails."""
        if self.ranks[rank].presence != "here":
            return
        self._gone(rank, "ended")
        if rank in self.failures:
            self.failures[rank].due_s = min(self.failures[rank].due_s, now_s)
        else:
            self._ended.append(rank)

    def failed(self, rank: int, reason: str, wait_s: float, now_s: float, *, is_own: bool = True) -> None:
        """A rank has met an error, and gives others `wait_s` to turn out to be the cause."""
        self.failures.setdefault(rank, Failure(reason, now_s + wait_s, is_own))

    def paused(self, gap_s: float) -> None:
        """The server itself did not run for so long, and heard nobody: no rank is to blame for that time."""
        for state in self.ranks:
            state.heard_s += gap_s
            state.excused_s += gap_s
            if state.busy is not None:
                state.busy = (state.busy[0], state.busy[1] + gap_s, state.busy[2])
            for one in state.waiting.values():
                one.since_s += gap_s
        for failure in self.failures.values():
            failure.due_s += gap_s
        self._warned = {key: at_s + gap_s for key, at_s in self._warned.items()}

    # -- what follows --------------------------------------------------------------------------------------------------

    def quick(self, now_s: float) -> Verdict | None:
        """Ranks that have ended or failed. Costs nothing where none has."""
        if self._ended:
            return Verdict("ended", tuple(self._ended), watch_words.ended(self, self._ended))
        if not self.failures:
            return None
        if len(self.failures) >= self._here or now_s >= min(one.due_s for one in self.failures.values()):
            first = next(iter(self.failures))
            return Verdict("failed", (first,), watch_words.failed(self, first))
        return None

    def thorough(self, now_s: float) -> tuple[Verdict | None, Verdict | None]:
        """Silent and late ranks too: a verdict, and a warning that is due now."""
        verdict = self.quick(now_s) or self._silent(now_s)
        if verdict is not None:
            return verdict, None
        return self._stalled(now_s)

    def stall_of(self, key: Key, now_s: float) -> Stall:
        """Who waits for a group, who is missing, and for how long the wait counts."""
        waits = self._waits[key]
        missing = [rank for rank in range(len(self.ranks)) if rank not in waits and not self._has_submitted(rank, key)]
        late = missing or waits
        since_s = max(self.ranks[rank].excused_until(now_s) for rank in late)
        if not missing:
            since_s = max(since_s, *(one.since_s for one in waits.values()))
        age_s = max(self.ranks[rank].heard_s - max(one.since_s, since_s) for rank, one in waits.items())
        return Stall(key, age_s, tuple(sorted(waits)), tuple(missing))

    def tensors_of(self, key: Key) -> tuple[tuple[str, ...], int]:
        """The first tensors of a group that is waited for, and how many it has."""
        one = next(iter(self._waits[key].values()))
        return one.tensors, one.tensor_count

    # -- inside --------------------------------------------------------------------------------------------------------

    def _gone(self, rank: int, presence: Literal["left", "ended"]) -> None:
        state = self.ranks[rank]
        self._here -= 1
        state.presence = presence
        for key in state.waiting:
            self._forget(key, rank)
        state.waiting = {}

    def _forget(self, key: Key, rank: int) -> None:
        del self._waits[key][rank]
        if not self._waits[key]:
            del self._waits[key]
            self._warned.pop(key, None)

    def _has_submitted(self, rank: int, key: Key) -> bool:
        """For a rank that does not wait for the group. Without details, one that is further has had it."""
        state, (step, group) = self.ranks[rank], key
        if state.presence == "absent":
            return False
        if state.seen is not None and step in state.seen:
            return fingerprint(group) in state.seen[step]
        return state.step > step

    def _silent(self, now_s: float) -> Verdict | None:
        here = [(now_s - state.heard_s, rank) for rank, state in enumerate(self.ranks) if state.presence == "here"]
        if any(silence_s > self.limits.silence_s for silence_s, _ in here):
            ranks = [rank for silence_s, rank in here if silence_s > 0.75 * self.limits.silence_s]
            text = watch_words.silent(self, ranks, now_s)
            return Verdict("silent", tuple(ranks), text, age_s=max(here)[0])
        absent = [rank for rank, state in enumerate(self.ranks) if state.presence == "absent"]
        if absent and now_s - self.ranks[absent[0]].heard_s > self.join_s:
            return Verdict("absent", tuple(absent), watch_words.absent(absent, self.join_s))
        return None

    def _stalled(self, now_s: float) -> tuple[Verdict | None, Verdict | None]:
        """The verdict, and the warning, on the oldest group that does not get on."""
        ages = {
            key: max(self.ranks[rank].heard_s - one.since_s for rank, one in waits.items())
            for key, waits in self._waits.items()
        }
        oldest = sorted(
            (key for key in ages if ages[key] >= _SUSPICION * self.limits.stall_warn_s), key=ages.__getitem__
        )
        self.wants_detail = bool(oldest)
        stalls = [self.stall_of(key, now_s) for key in oldest[: -_KEYS_LOOKED_AT - 1 : -1]]
        stalls = [stall for stall in stalls if stall.age_s >= self.limits.stall_warn_s]
        if not stalls:
            return None, None
        worst = max(stalls, key=lambda stall: stall.age_s)
        is_end = worst.age_s >= self.limits.stall_end_s
        if not is_end and now_s < self._warned.get(worst.key, float("-inf")) + self.limits.stall_warn_s:
            return None, None
        self._warned.update(dict.fromkeys(oldest, now_s))  # they are one stall, and one warning
        others = sum(age_s >= self.limits.stall_warn_s for age_s in ages.values()) - 1
        text = watch_words.stalled(self, worst, others, now_s, is_end=is_end)
        kind: Literal["stall", "exchange"] = "stall" if worst.missing else "exchange"
        found = Verdict(kind, worst.missing, text, worst.key[0], worst.key[1], worst.age_s)
        return (found, None) if is_end else (None, found)
