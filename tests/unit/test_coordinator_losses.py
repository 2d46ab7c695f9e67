"""The coordinator without a clock, a process or a channel: whatever comes in whatever order, nothing is lost."""

from __future__ import annotations

import signal

import numpy as np
import pytest

from coordinator_cases import coordinator_of, items, key, make
from data_gen.sharing.coordinator import MOST_ENDED_PROCESSES, SIGNAL_GRACE_S, START_TIMEOUT_S, Coordinator
from data_gen.sharing.messages import (
    Alive,
    Begun,
    Broken,
    Ended,
    Found,
    Hello,
    Lost,
    PutBack,
    Sealed,
    Stop,
    Want,
)
from sharing_cases import hello, tasks_of


def test_the_second_lost_process_gives_an_item_up() -> None:
    coordinator = coordinator_of([2.0, 1.0, 0.9], makers=1)
    for death in range(MOST_ENDED_PROCESSES):
        assert coordinator.failures == []
        assert items(coordinator.handle(0, Want(), death)) == {0: [0]}
        coordinator.handle(0, Begun(key(0)), death)
        coordinator.handle(0, Lost("was killed by signal 11 (SIGSEGV)"), death)
        coordinator.join(0, death)
        coordinator.handle(0, hello(0), death)
    (failure,) = coordinator.failures
    assert (failure.key, failure.kind, failure.crystal) == (key(0), "rank", "Po-sc")
    assert "in 2 processes" in failure.reason
    assert "SIGSEGV" in failure.reason
    assert items(coordinator.handle(0, Want(), 9.0)) == {0: [1]}


def test_a_process_that_dies_between_two_items_costs_no_item_its_name() -> None:
    coordinator = coordinator_of([2.0], makers=1)
    for death in range(5):
        coordinator.handle(0, Want(), death)
        coordinator.handle(0, Lost("was killed"), death)
        coordinator.join(0, death)
        coordinator.handle(0, hello(0), death)
    assert coordinator.failures == []
    assert items(coordinator.handle(0, Want(), 9.0)) == {0: [0]}


def test_who_says_nothing_is_overdue_and_who_hangs_at_an_item_too() -> None:
    coordinator = coordinator_of([2.0, 1.0, 1.0, 1.0], makers=3)
    coordinator.handle(0, Want(), 0.0)
    coordinator.handle(0, Begun(key(0)), 0.0)
    for now in np.arange(0.0, 131.0, 2.0):
        coordinator.handle(0, Alive(), float(now))
        coordinator.handle(1, Alive(), float(now))
        found = coordinator.overdue(float(now))
        if now <= 50.0:
            assert found == []
        elif now <= 130.0:
            assert [number for number, _ in found] == [2]
            assert "no sign of life" in found[0][1].reason
    coordinator.handle(1, Alive(), 132.0)
    coordinator.handle(0, Alive(), 132.0)
    (first, _) = coordinator.overdue(132.0)
    assert first == (0, Lost("hangs: 132 s at train item 0"))


def test_a_maker_may_take_its_time_to_start() -> None:
    coordinator = Coordinator(tasks_of([1.0]), (), item_timeout_s=9.0, maker_timeout_s=5.0, now=0.0)
    coordinator.join(0, 10.0)
    for now in np.arange(0.0, START_TIMEOUT_S + 10.0, 4.0):
        assert coordinator.overdue(float(now)) == []
    assert [number for number, _ in coordinator.overdue(START_TIMEOUT_S + 13.0)] == [0]


def test_a_job_that_was_stopped_as_a_whole_goes_on() -> None:
    """Ctrl-Z and fg, a suspended job, a disk that held the coordinator up: nobody listened to anybody."""
    coordinator = coordinator_of([2.0, 1.0])
    coordinator.handle(0, Want(), 0.0)
    coordinator.handle(0, Begun(key(0)), 0.0)
    assert coordinator.overdue(1.0) == []
    assert coordinator.overdue(1000.0) == []
    for now in np.arange(1000.0, 1044.0, 2.0):
        assert coordinator.overdue(float(now)) == []
    late = [number for now in np.arange(1044.0, 1056.0, 2.0) for number, _ in coordinator.overdue(float(now))]
    assert set(late) == {0, 1}, "from then on silence counts"


def test_a_rank_with_another_configuration_stops_all() -> None:
    coordinator = coordinator_of([1.0], makers=3)
    coordinator.join(2, 0.0)
    sendings = coordinator.handle(2, Hello("node7", 1, "another"), 0.0)
    assert sendings == [(number, Stop(0.0)) for number in range(3)]
    (broken,) = coordinator.broken
    assert not broken.is_ours
    assert "rank 2 on node7 reads another configuration than rank 0" in broken.text
    assert coordinator.handle(0, Want(), 0.0) == []


def test_a_broken_maker_stops_all_and_the_others_seal() -> None:
    coordinator = coordinator_of([2.0, 1.0])
    coordinator.handle(0, Want(), 0.0)
    coordinator.handle(1, Want(), 0.0)
    ((number, message),) = coordinator.handle(1, Broken("disk full", is_ours=False), 1.0)
    assert number == 0
    assert isinstance(message, Stop)
    assert coordinator.broken == [Broken("disk full", is_ours=False)]
    make(coordinator, 0, 0)
    coordinator.handle(0, Sealed((key(0),)), 2.0)
    coordinator.handle(0, Ended(), 2.0)
    assert coordinator.finished
    assert coordinator.sealed == {key(0)}
    assert coordinator.unfinished == 1


def test_after_a_stop_nothing_is_handed_out_and_dropped_items_are_left() -> None:
    coordinator = coordinator_of([2.0, 1.0, 0.5])
    coordinator.handle(0, Want(), 0.0)
    coordinator.handle(1, Want(), 0.0)
    coordinator.handle(0, Begun(key(0)), 0.0)
    assert coordinator.stop(grace_s=7.0) == [(0, Stop(7.0)), (1, Stop(7.0))]
    assert coordinator.handle(0, PutBack(key(0)), 1.0) == []
    assert coordinator.handle(1, Want(), 1.0) == []
    assert coordinator.handle(0, Ended(), 1.0) == []
    assert coordinator.handle(1, Lost("was killed"), 1.0) == []
    assert coordinator.finished
    assert coordinator.unfinished == 3
    assert coordinator.failures == []


@pytest.mark.parametrize(
    ("number", "which", "stops"),
    [(1, signal.SIGUSR2, True), (0, signal.SIGUSR2, True), (0, signal.SIGTERM, True), (1, signal.SIGTERM, False)],
)
def test_the_signal_of_one_rank_may_be_meant_for_all(number: int, which: signal.Signals, stops: bool) -> None:
    coordinator = coordinator_of([2.0, 1.0])
    coordinator.handle(number, Want(), 0.0)
    coordinator.handle(number, Begun(key(0)), 0.0)
    coordinator.handle(number, PutBack(key(0)), 1.0)
    sendings = coordinator.handle(number, Ended(which), 1.0)
    other = 1 - number
    if stops:
        assert sendings == [(other, Stop(SIGNAL_GRACE_S))]
        assert coordinator.signal == which
    else:
        assert sendings == []
        assert coordinator.signal == 0
        assert items(coordinator.handle(other, Want(), 2.0)) == {other: [0]}


def test_items_of_a_maker_that_leaves_go_to_those_who_wait() -> None:
    coordinator = coordinator_of([2.0], makers=3)
    coordinator.handle(1, Want(), 0.0)
    coordinator.handle(2, Want(), 0.0)
    coordinator.handle(1, Begun(key(0)), 0.0)
    assert coordinator.handle(1, PutBack(key(0)), 1.0) == []
    assert items(coordinator.handle(1, Ended(signal.SIGTERM), 1.0)) == {2: [0]}


def test_with_storage_on_nodes_nothing_is_handed_out_before_all_have_looked_there() -> None:
    coordinator = coordinator_of([3.0, 2.0, 1.0], makers=3, all_first=True)
    assert coordinator.handle(0, hello(0), 0.0) == []
    assert coordinator.handle(0, Want(), 0.0) == []
    assert coordinator.handle(1, Found((key(0), key(2))), 1.0) == []
    assert coordinator.handle(1, hello(1), 1.0) == []
    assert coordinator.made == 2
    assert items(coordinator.handle(2, Lost("was killed"), 2.0)) == {0: [1]}, "the last one that was waited for"
    make(coordinator, 0, 1)
    coordinator.handle(0, Want(), 3.0)
    assert (0, Stop(0.0)) in coordinator.handle(0, Sealed((key(1),)), 4.0)
    assert coordinator.sealed == {key(0), key(1), key(2)}
