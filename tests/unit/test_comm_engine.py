"""The background thread: what is ready is agreed on and reduced while the rest is on its way; errors are told."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from comm_cases import Board, ThreadControl, item
from stemdl.comm.control import CountedControl
from stemdl.comm.counters import Counters
from stemdl.comm.engine import Engine
from stemdl.comm.errors import CommError
from stemdl.comm.items import Item
from stemdl.comm.negotiation import Cached, Planned
from stemdl.comm.timeline import LANES, Timeline


class Sum:
    """In place of a group: notes that it was reduced."""

    size_bytes = 100
    ready_event = None

    def __init__(self, one: Item, done: list[str], error: Exception | None = None) -> None:
        self.item, self._done, self._error = one, done, error

    def begin(self) -> Callable[[], None]:
        """Reduced at once."""
        if self._error is not None:
            raise self._error
        self._done.append(self.item.name)
        return lambda: None


def engines(size: int, *, planned: bool = False, timeline: Timeline | None = None) -> list[tuple[Engine, Counters]]:
    """One for each rank; ranks are threads."""
    board = Board(size)
    made: list[tuple[Engine, Counters]] = []
    for rank in range(size):
        counters = Counters()
        control = CountedControl(ThreadControl(board, rank), counters)
        negotiator = Planned(control, after_steps=2, check_steps=100) if planned else Cached(control)
        made.append((Engine(negotiator, counters, size=size, cycle_s=1e-3, timeline=timeline), counters))
    return made


def on_all(work: list[Callable[[], None]]) -> list[Exception | None]:
    """Run each in a thread of its own; what it raised."""
    raised: list[Exception | None] = [None] * len(work)

    def one(number: int) -> None:
        try:
            work[number]()
        except CommError as error:
            raised[number] = error

    threads = [threading.Thread(target=one, args=(number,), daemon=True) for number in range(len(work))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30.0)
        assert not thread.is_alive(), "a rank hangs"
    return raised


def submit(engine: Engine, one: Sum) -> None:
    engine.submit(one)  # type: ignore[arg-type]


@pytest.mark.parametrize("planned", [False, True])
def test_groups_submitted_in_any_order_are_reduced_in_one_and_steps_end(planned: bool) -> None:
    pairs = engines(3, planned=planned)
    done: list[list[str]] = [[], [], []]

    def train(rank: int) -> None:
        engine = pairs[rank][0]
        for step in range(6):
            order = [(number + rank + step) % 4 for number in range(4)]
            for number in order:
                submit(engine, Sum(item(number), done[rank]))
                time.sleep(0.001 * rank)
            engine.finish_step()
        engine.close()

    assert on_all([lambda r=rank: train(r) for rank in range(3)]) == [None] * 3  # type: ignore[misc]
    assert done[0] == done[1] == done[2]
    assert len(done[0]) == 24
    assert all(counters.data_bytes == 2400 for _, counters in pairs)


def test_a_group_is_reduced_before_the_last_one_is_submitted() -> None:
    pairs = engines(2)
    done: list[list[str]] = [[], []]

    def train(rank: int) -> None:
        engine = pairs[rank][0]
        submit(engine, Sum(item(0), done[rank]))
        deadline = time.monotonic() + 10.0
        while not done[rank]:
            assert time.monotonic() < deadline, "nothing is reduced before the end"
            time.sleep(0.001)
        submit(engine, Sum(item(1), done[rank]))
        engine.finish_step()
        engine.close()

    assert on_all([lambda: train(0), lambda: train(1)]) == [None, None]


def test_calls_are_made_between_steps_in_the_engine_s_thread_and_their_results_come_back() -> None:
    ((engine, _),) = engines(1)
    assert engine.run(lambda: threading.current_thread().name) == "stemdl-comm"
    with pytest.raises(CommError, match="ZeroDivisionError"):
        engine.run(lambda: 1 / 0)


def test_what_fails_in_the_thread_is_raised_where_the_step_waits_and_told_at_once() -> None:
    told: list[BaseException] = []
    counters = Counters()
    negotiator = Cached(CountedControl(ThreadControl(Board(1), 0), counters))
    engine = Engine(negotiator, counters, size=1, cycle_s=1e-3, on_error=told.append)
    submit(engine, Sum(item(0), [], CommError("the network is gone")))
    with pytest.raises(CommError, match="the network is gone"):
        engine.finish_step()
    deadline = time.monotonic() + 10.0
    while not told and time.monotonic() < deadline:
        time.sleep(0.001)
    assert [str(error) for error in told] == ["the network is gone"]
    with pytest.raises(CommError, match="the network is gone"):
        engine.run(lambda: None)


def test_who_closes_early_is_named_on_both_sides() -> None:
    pairs = engines(2)

    def stays() -> None:
        submit(pairs[0][0], Sum(item(0), []))
        pairs[0][0].finish_step()

    first, second = on_all([stays, pairs[1][0].close])
    assert "rank 1 ended their work while others wait for group 0" in str(first)
    assert "rank 1 ended their work while others go on" in str(second)


def test_the_timeline_shows_all_that_happened(tmp_path: Path) -> None:
    timeline = Timeline(7)
    ((engine, _),) = engines(1, timeline=timeline)
    submit(engine, Sum(item(0), []))
    engine.finish_step()
    with timeline.during("fuse", "layer0.weight"):
        pass
    engine.close()
    timeline.write(tmp_path / "log" / "trace.json")
    events = json.loads((tmp_path / "log" / "trace.json").read_text())["traceEvents"]
    spans = {LANES[event["tid"]]: event for event in events if event["ph"] == "X"}
    assert set(spans) == {"negotiate", "queue", "allreduce", "fuse"}
    assert spans["allreduce"]["name"] == "group 0"
    assert spans["queue"]["ts"] + spans["queue"]["dur"] <= spans["allreduce"]["ts"] + 1
    assert {event["pid"] for event in events} == {7}
