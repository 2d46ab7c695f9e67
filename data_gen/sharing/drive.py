"""The coordinator at work: passes messages on, watches the time, shows progress, puts failures on record."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from data_gen.sharing.coordinator import SIGNAL_GRACE_S, Coordinator, Sending
from data_gen.sharing.messages import Failure, FromMaker, ItemKey, Lost, Said, ToMaker
from stemdl.progress import Progress
from stemdl.time_limit import TimeLimit

_LISTEN_S = 0.25
_LOOK_EVERY_S = 0.1
_LAST_WORDS_S = 10.0
_MOST_FRUITLESS = 3  # processes in a row that die before they come to an item: the next one would as well
_ALL_FAULTS = 20  # so many faults of this program and not one sample: the next would be no better


class Hub(Protocol):
    """The coordinator's side of a transport."""

    @property
    def numbers(self) -> Sequence[int]:
        """The makers."""

    def receive(self, timeout_s: float) -> list[tuple[int, FromMaker]]:
        """What was said; waits for something, but no longer than the time-out."""

    def send(self, number: int, message: ToMaker) -> None:
        """Tell a maker something."""

    def give_up(self, number: int) -> None:
        """A maker counts as lost: it may be ended."""

    def sealed_by(self, number: int) -> Sequence[ItemKey]:
        """Items that a lost maker has sealed, whether it said so or not."""

    def restart(self, number: int) -> bool:
        """Start another in the place of a lost one; False where that cannot be."""

    def close(self) -> None:
        """End what is left."""


@dataclass
class Outcome:
    """How a run of the coordinator ended."""

    sealed: frozenset[ItemKey] = frozenset()
    """Items that are safe, those found so included."""
    lost: list[tuple[int, str]] = field(default_factory=list)
    """Makers that were lost, with the reason; one that was started again may be lost again."""
    out_of_time: str = ""
    """Who set the limit of time that was reached."""
    signal: int = 0
    """The signal of a scheduler that ended it."""
    idle_share: float = 0.0
    """Share of the makers' time after the first item that no item took."""
    end_idle_share: float = 0.0
    """Of it, what came after a maker's last item."""
    work_s: float = 0.0
    """Seconds from the first item to the last."""


class Drive:
    """One run of a coordinator over a transport.

    stop_asked: returns the number of a signal that asks for the end, 0 for none. put_on_record: called with all
    failures whenever there is a new one.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        hub: Hub,
        progress: Progress,
        *,
        done: int,
        limit: TimeLimit | None,
        stop_asked: Callable[[], int],
        put_on_record: Callable[[Sequence[Failure]], None],
    ) -> None:
        self._coordinator = coordinator
        self._hub = hub
        self._progress = progress
        self._done = done
        self._limit = limit
        self._stop_asked = stop_asked
        self._put_on_record = put_on_record
        self._recorded = 0
        self._fruitless: dict[int, int] = {}
        self._looked_at = 0.0
        self._first_begun = 0.0
        self._estimated_s = coordinator.left_s()
        self._outcome = Outcome()

    def run(self) -> Outcome:
        """Until every maker has ended or is lost. On an exception makers are told to seal what they have."""
        try:
            while not self._coordinator.finished:
                self._turn(_LISTEN_S)
                self._watch()
        except BaseException:
            self._last_words()
            raise
        self._show()
        return self._sum_up()

    def _turn(self, timeout_s: float) -> None:
        for number, message in self._hub.receive(timeout_s):
            if isinstance(message, Said):
                self._progress.note(message.text)
            elif isinstance(message, Lost):
                self._lose(number, message)
            else:
                self._send(self._coordinator.handle(number, message, time.monotonic()))
        if len(self._coordinator.failures) > self._recorded:
            self._recorded = len(self._coordinator.failures)
            self._put_on_record(self._coordinator.failures)
        if time.monotonic() - self._looked_at > _LOOK_EVERY_S:
            self._look()

    def _look(self) -> None:
        """What goes through all makers, and so cannot be done at every message of thousands."""
        self._looked_at = time.monotonic()
        for number, lost in self._coordinator.overdue(self._looked_at):
            self._hub.give_up(number)  # before its items are given to others
            self._lose(number, lost)
        self._show()

    def _watch(self) -> None:
        """Stop for the time limit, for a signal, or because nothing at all works."""
        if self._coordinator.stopping:
            return
        asked = self._stop_asked()
        if asked:
            self._coordinator.signal = self._coordinator.signal or asked
            self._send(self._coordinator.stop(grace_s=SIGNAL_GRACE_S))
        elif self._limit is not None and self._limit.left_s(time.monotonic()) <= 0:
            self._outcome.out_of_time = self._limit.source
            self._progress.note(f"time is up ({self._limit.source}): sealing what is made")
            self._send(self._coordinator.stop(grace_s=self._limit.margin_s / 2))
        elif self._coordinator.made == 0:
            faults = [failure for failure in self._coordinator.failures if failure.kind == "fault"]
            if len(faults) >= _ALL_FAULTS:
                self._send(self._coordinator.stop(grace_s=0.0))

    def _send(self, sendings: Sequence[Sending]) -> None:
        for number, message in sendings:
            self._hub.send(number, message)

    def _lose(self, number: int, lost: Lost) -> None:
        """A maker is gone; one that had ended by itself is none to speak of."""
        maker = self._coordinator.makers[number]
        if not maker.at_work:
            return
        self._fruitless[number] = 0 if maker.made or maker.begun else self._fruitless.get(number, 0) + 1
        lost = replace(lost, sealed=tuple(self._hub.sealed_by(number)))
        self._send(self._coordinator.handle(number, lost, time.monotonic()))
        self._outcome.lost.append((number, lost.reason))
        again = not self._coordinator.stopping and self._fruitless[number] < _MOST_FRUITLESS
        again = again and self._hub.restart(number)
        if again:
            self._coordinator.join(number, time.monotonic())
        others = "another process takes its place" if again else "others do its items"
        self._progress.note(f"rank {number} {lost.reason}; {others}")

    def _show(self) -> None:
        coordinator = self._coordinator
        made, failed = coordinator.made, len(coordinator.failures)
        makers = coordinator.makers.values()
        now = time.monotonic()
        if not self._first_begun and any(maker.begun_at for maker in makers):
            self._first_begun = min(maker.begun_at for maker in makers if maker.begun_at)
        busy_s = sum(maker.busy_s for maker in makers)
        left_s, speed = None, 0.0
        estimated_done_s = self._estimated_s - coordinator.left_s()
        if made and estimated_done_s > 0 and busy_s > 0:
            at_work = max(1, sum(maker.at_work for maker in makers))
            left_s = coordinator.left_s() * busy_s / estimated_done_s / at_work
            speed = made / max(now - self._first_begun, 1e-9)
        figures = {"samples_per_s": speed} if speed else {}
        if failed:
            figures["failed"] = failed
        self._progress.advance(self._done + made + failed, left_s=left_s, **figures)

    def _last_words(self) -> None:
        """Ended from outside: give the makers a moment to seal."""
        self._send(self._coordinator.stop(grace_s=0.0))
        deadline = time.monotonic() + _LAST_WORDS_S
        while not self._coordinator.finished and time.monotonic() < deadline:
            for number, message in self._hub.receive(_LISTEN_S):
                self._send(self._coordinator.handle(number, message, time.monotonic()))

    def _sum_up(self) -> Outcome:
        outcome, makers = self._outcome, [maker for maker in self._coordinator.makers.values() if maker.made]
        outcome.signal = self._coordinator.signal
        outcome.sealed = frozenset(self._coordinator.sealed)
        if makers:
            end = max(maker.idle_since for maker in makers)
            outcome.work_s = end - self._first_begun
            total = max(outcome.work_s * len(makers), 1e-9)
            outcome.idle_share = 1 - sum(maker.busy_s for maker in makers) / total
            outcome.end_idle_share = sum(end - maker.idle_since for maker in makers) / total
        return outcome
