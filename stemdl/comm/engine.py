"""The background thread that agrees with the other ranks and reduces groups while the backward pass goes on."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch

from stemdl.comm.buffers import FlatGroup
from stemdl.comm.counters import Counters
from stemdl.comm.errors import CommError
from stemdl.comm.items import shortened
from stemdl.comm.negotiation import Left, Negotiator
from stemdl.comm.timeline import Timeline

_Result = TypeVar("_Result")


class Engine:
    """Owns the planes of a rank: every message and every sum is sent from its thread, in one order.

    on_error: called in the thread with what went wrong, at once, since the main thread may be busy for long.
    """

    def __init__(
        self,
        negotiator: Negotiator,
        counters: Counters,
        *,
        size: int,
        cycle_s: float,
        timeline: Timeline | None = None,
        completed: Callable[[FlatGroup], None] = lambda group: None,
        on_error: Callable[[BaseException], None] = lambda error: None,
    ) -> None:
        self._negotiator, self._counters, self._timeline = negotiator, counters, timeline
        self._size = size
        self._cycle_s, self._completed, self._on_error = cycle_s, completed, on_error
        self._changed = threading.Condition()
        self._submitted: deque[FlatGroup] = deque()
        self._calls: deque[Callable[[], None]] = deque()
        self._since: dict[str, float] = {}
        self._step_ends = False
        self._error: BaseException | None = None
        self._is_ending = False
        self._stream: Any = None
        self._thread = threading.Thread(target=self._main, name="stemdl-comm", daemon=True)
        self._thread.start()

    def submit(self, group: FlatGroup) -> None:
        """A group is ready on this rank. Does not wait. Raises CommError after `close`."""
        with self._changed:
            self._refuse_closed()
            self._submitted.append(group)
            self._since[group.item.name] = time.perf_counter()
            self._changed.notify_all()

    def finish_step(self) -> None:
        """Wait until all submitted groups are reduced, and end the step on this rank. Raises CommError."""
        with self._changed:
            self._refuse_closed()
            self._step_ends = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._step_ends or self._error is not None)
            self._raise()

    def run(self, call: Callable[[], _Result]) -> _Result:
        """Have the thread make a call (of the planes, on all ranks) and wait for what it returns. Raises CommError."""
        results: list[_Result] = []
        with self._changed:
            self._raise()
            self._refuse_closed()
            self._calls.append(lambda: results.append(call()))
            self._changed.notify_all()
            self._changed.wait_for(lambda: bool(results) or self._error is not None)
            self._raise()
        return results[0]

    def close(self) -> None:
        """End the thread; `Left` reaches ranks that still wait for a group."""
        with self._changed:
            self._is_ending = True
            self._changed.notify_all()
        self._thread.join()
        self._raise()

    def _refuse_closed(self) -> None:
        if self._is_ending:
            raise CommError("the reducer is closed: nothing can be reduced or agreed on after close()")

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error if isinstance(self._error, CommError) else CommError(repr(self._error)) from self._error

    def _main(self) -> None:
        try:
            self._serve()
        except Exception as error:  # noqa: BLE001  (whatever it is, the main thread must not wait for ever)
            with self._changed:
                self._error = error
                self._changed.notify_all()
            self._on_error(error)

    def _serve(self) -> None:
        waiting: dict[str, FlatGroup] = {}
        pause_s: float | None = None  # None: nothing to do before something new comes
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._has_work(bool(waiting)), pause_s)
                while self._submitted:
                    group = self._submitted.popleft()
                    waiting[group.item.name] = group
            if waiting:
                pause_s = self._advance(waiting)
                continue
            pause_s = None
            if self._step_ends:
                self._negotiator.step_done()
                self._step_ends = False
            elif self._calls:
                self._calls.popleft()()
            elif self._is_ending:
                self._leave()
                return
            with self._changed:
                self._changed.notify_all()

    def _has_work(self, is_waiting: bool) -> bool:
        """Something new has come; what is not about groups comes after them."""
        return bool(self._submitted) or (not is_waiting and (self._step_ends or bool(self._calls) or self._is_ending))

    def _advance(self, waiting: dict[str, FlatGroup]) -> float | None:
        """Agree on what to reduce, and reduce it; returns how long to wait for more before the next try."""
        items = [group.item for group in waiting.values()]
        names = self._negotiator.planned(items)
        is_planned = names is not None
        if names is None:
            names = self._cycle(items)
        if names:
            self._reduce([waiting.pop(name) for name in names])
        if not waiting or (is_planned and not names):
            return None
        return self._cycle_s if not names else 0.0

    def _cycle(self, items: list[Any]) -> list[str]:
        start_s = time.perf_counter()
        try:
            names = self._negotiator.cycle(items)
        except Left as left:
            waited = shortened([item.name for item in items])
            raise CommError(f"{_said(left.ranks)} ended their work while others wait for {waited}") from None
        self._counters.cycles += 1
        if self._timeline is not None:
            self._timeline.add("negotiate", f"{len(items)} waiting, {len(names)} ready", start_s, time.perf_counter())
        return names

    def _reduce(self, groups: list[FlatGroup]) -> None:
        started_s = time.perf_counter()
        ends = [self._begin(group) for group in groups]
        for group, end in zip(groups, ends, strict=True):
            end()
            self._counters.data_messages += 1
            self._counters.data_bytes += group.size_bytes
            self._completed(group)
            if self._timeline is not None:
                self._timeline.add("queue", group.item.name, self._since[group.item.name], started_s)
                self._timeline.add("allreduce", group.item.name, started_s, time.perf_counter())

    def _begin(self, group: FlatGroup) -> Callable[[], None]:
        """On an accelerator the sum runs on a stream of its own, behind the kernels that made the gradients."""
        if group.ready_event is None:
            return group.begin()
        if self._stream is None:
            self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self._stream.wait_event(group.ready_event)
        with torch.cuda.stream(self._stream):
            group.begin()()
            group.ready_event.record(self._stream)
        return lambda: None

    def _leave(self) -> None:
        self._negotiator.unsettle()
        if self._negotiator.planned([]) is None:
            try:
                while True:
                    self._negotiator.cycle([], leaving=True)
            except Left as left:
                if len(left.ranks) < self._size:
                    raise CommError(f"{_said(left.ranks)} ended their work while others go on") from None


def _said(ranks: Sequence[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {shortened([str(rank) for rank in ranks])}"
