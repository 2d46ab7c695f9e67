"""The alarm of a maker: it raises inside an item alone, whatever comes in between."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator

import pytest

from data_gen.sharing import clock as clock_module
from data_gen.sharing.clock import ItemClock, ItemDropped, ItemTimeout


@pytest.fixture
def clock() -> Iterator[ItemClock]:
    before = signal.getsignal(signal.SIGALRM)
    clock = ItemClock()
    yield clock
    clock.close()
    assert signal.getsignal(signal.SIGALRM) == before
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def work(seconds: float = 5.0) -> None:
    """Steps of Python, as an item takes them."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(0.001)


def test_an_item_in_time_is_left_alone(clock: ItemClock) -> None:
    for _ in range(3):
        with clock.item(20.0):
            work(0.002)
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0), "between items no alarm is set"
    assert not clock.stopping


def test_an_item_that_takes_too_long_is_ended_and_the_next_one_has_its_own_time(clock: ItemClock) -> None:
    with pytest.raises(ItemTimeout), clock.item(0.01):
        work()
    with clock.item(20.0):
        work(0.03)
    with pytest.raises(ItemTimeout), clock.item(0.01):
        work()


def test_a_stop_drops_the_item_after_its_grace(clock: ItemClock) -> None:
    with pytest.raises(ItemDropped), clock.item(20.0):
        clock.stop_in(0.01)
        assert clock.stopping
        work()


def test_an_item_done_within_the_grace_is_kept(clock: ItemClock) -> None:
    with clock.item(20.0):
        clock.stop_in(10.0)
        work(0.01)


def test_the_shortest_grace_counts(clock: ItemClock) -> None:
    with pytest.raises(ItemDropped), clock.item(20.0):
        clock.stop_in(30.0)
        clock.stop_in(0.01)
        clock.stop_in(30.0)
        work()


def test_a_stop_before_an_item_drops_it_as_well(clock: ItemClock) -> None:
    clock.stop_in(0.01)
    with pytest.raises(ItemDropped), clock.item(20.0):
        work()


def test_outside_of_an_item_nothing_is_raised(clock: ItemClock) -> None:
    """There files are written."""
    clock.stop_in(0.0)
    work(0.02)
    os.kill(os.getpid(), signal.SIGALRM)
    work(0.002)


def test_an_alarm_just_after_an_item_is_no_alarm_of_the_next(clock: ItemClock) -> None:
    for _ in range(200):
        try:
            with clock.item(1e-3):
                pass
        except ItemTimeout:
            pass
        work(0.0)
    with clock.item(20.0):
        work(0.02)


def test_a_stop_from_another_thread_drops_the_item(clock: ItemClock) -> None:
    stopper = threading.Timer(0.01, clock.stop_in, (0.0,))
    with pytest.raises(ItemDropped), clock.item(20.0):
        stopper.start()
        work()
    stopper.join()


def test_a_stop_while_the_alarm_of_the_item_is_being_set_is_not_lost(
    clock: ItemClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes from a signal handler, or another thread, between the sum and the call."""
    setitimer = signal.setitimer
    calls: list[float] = []

    def interrupted(which: int, seconds: float, interval: float = 0.0) -> tuple[float, float]:
        calls.append(seconds)
        if len(calls) == 1:
            clock.stop_in(0.0)
        return setitimer(which, seconds, interval)

    monkeypatch.setattr(signal, "setitimer", interrupted)
    with pytest.raises(ItemDropped), clock.item(20.0):
        work()
    assert len(calls) > 2


def test_an_alarm_that_a_destructor_swallows_rings_again(clock: ItemClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock_module, "_RING_AGAIN_S", 0.02)
    swallowed = []

    def item() -> None:
        try:
            work()
        except ItemTimeout as error:  # as Python does in a destructor, or a library that catches everything
            swallowed.append(error)
        work()

    with pytest.raises(ItemTimeout), clock.item(0.01):
        item()
    assert len(swallowed) == 1
    work(0.05)  # and not once more afterwards


def test_an_error_of_the_item_itself_comes_through(clock: ItemClock) -> None:
    with pytest.raises(ZeroDivisionError), clock.item(20.0):
        raise ZeroDivisionError
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
