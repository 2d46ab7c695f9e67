"""The coordinator without a clock, a process or a channel: whatever comes in whatever order, nothing is lost."""

from __future__ import annotations

import signal
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_gen.sharing.coordinator import MOST_ENDED_PROCESSES, SIGNAL_GRACE_S, START_TIMEOUT_S, Coordinator, Sending
from data_gen.sharing.messages import (
    Alive,
    AllSealed,
    Assign,
    Begun,
    Broken,
    Ended,
    Failure,
    Found,
    Hello,
    ItemKey,
    Lost,
    Made,
    PutBack,
    Seal,
    Sealed,
    Stop,
    Want,
)
from sharing_cases import FINGERPRINT, Disorder, Works, hello, tasks_of


def coordinator_of(costs_s: Sequence[float], makers: int = 2, *, all_first: bool = False) -> Coordinator:
    """All makers have said hello and wait, unless `all_first`."""
    coordinator = Coordinator(
        tasks_of(costs_s), range(makers), item_timeout_s=100.0, maker_timeout_s=50.0, now=0.0, fingerprint=FINGERPRINT,
        all_first=all_first,
    )  # fmt: skip
    if not all_first:
        for number in range(makers):
            assert coordinator.handle(number, hello(number), 0.0) == []
    return coordinator


def items(sendings: Sequence[Sending]) -> dict[int, list[int]]:
    """Who gets which items."""
    return {to: [task.item for task in message.tasks] for to, message in sendings if isinstance(message, Assign)}


def key(item: int) -> ItemKey:
    return "train", item


def make(coordinator: Coordinator, number: int, item: int, *, now: float = 1.0) -> list[Sending]:
    """A maker begins and makes an item; it stays in the open shard."""
    return coordinator.handle(number, Begun(key(item)), now) + coordinator.handle(number, Made(key(item), 1.0), now)


# Whatever happens in whatever order


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 25), st.integers(1, 6))
def test_in_any_order_every_item_is_sealed_or_named(seed: int, count: int, makers: int) -> None:
    disorder = Disorder(seed, items=count, makers=makers, losses=0)
    disorder.run()
    assert disorder.settled == {task.key for task in disorder.tasks}
    assert disorder.coordinator.unfinished == 0
    written = [key for disk in disorder.disks.values() for key in disk]
    assert len(written) == len(set(written)), "made twice"


@settings(max_examples=400, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 25), st.integers(1, 6), st.integers(1, 8))
def test_whoever_dies_hangs_or_comes_back_nothing_is_lost(seed: int, count: int, makers: int, losses: int) -> None:
    """The steps check that no item has two living makers, and that none is forgotten."""
    disorder = Disorder(seed, items=count, makers=makers, losses=losses)
    disorder.run()
    if any(maker.ended for maker in disorder.coordinator.makers.values()):  # else all of them were lost
        assert disorder.settled == {task.key for task in disorder.tasks}


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32), st.sets(st.integers(0, 9), min_size=1, max_size=4), st.integers(1, 4))
def test_items_that_end_every_process_are_named_and_all_others_are_made(
    seed: int, deadly: set[int], makers: int
) -> None:
    disorder = Disorder(seed, items=10, makers=makers, losses=0, deadly=sorted(deadly))
    disorder.run()
    assert disorder.settled == {task.key for task in disorder.tasks}
    named = {failure.key: failure for failure in disorder.coordinator.failures if failure.kind == "rank"}
    assert named.keys() == disorder.deadly
    assert all(count == MOST_ENDED_PROCESSES for count in disorder.deaths.values())
    assert all("the last one was killed" in failure.reason for failure in named.values())


# Who gets what


def test_the_largest_go_first_and_small_ones_in_batches() -> None:
    coordinator = coordinator_of([1.0, 9.0, 0.1, 5.0, 0.1, 0.1, 0.1])
    assert items(coordinator.handle(0, Want(), 0.0)) == {0: [1]}
    assert items(coordinator.handle(1, Want(), 0.0)) == {1: [3]}
    assert coordinator.left_s() == pytest.approx(15.4)
    make(coordinator, 0, 1)
    assert items(coordinator.handle(0, Want(), 1.0)) == {0: [0]}, "no more than a quarter of a maker's share"
    assert coordinator.left_s() == pytest.approx(6.4)
    make(coordinator, 0, 0)
    assert items(coordinator.handle(0, Want(), 2.0)) == {0: [2]}


def test_batches_shrink_towards_the_end() -> None:
    coordinator = coordinator_of([0.01] * 1000)
    sizes = []
    number = 0
    while given := items(coordinator.handle(number, Want(), 0.0)):
        sizes.append(len(given[number]))
        number = 1 - number
    assert sizes[0] == 64, "one message holds no more"
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[-1] == 1
    assert sum(sizes) == 1000


def test_a_message_carries_the_crystals_of_its_items_alone() -> None:
    coordinator = coordinator_of([1.0] * 3)
    ((_, message),) = coordinator.handle(0, Want(), 0.0)
    assert isinstance(message, Assign)
    assert all(len(task.part.crystals) == 1 for task in message.tasks)


@pytest.mark.parametrize("makers", [2, 4, 16])
def test_makers_are_idle_for_little_time_at_the_end(makers: int) -> None:
    """Costs spread 30 to 1, estimates are off by a third, makers start one after the other."""
    rng = np.random.default_rng(makers)
    true_s = np.exp(rng.uniform(np.log(0.5), np.log(15.0), 24 * makers))
    works = Works(
        (true_s * rng.uniform(0.75, 1.33, true_s.size)).tolist(), true_s.tolist(), [0.2 * n for n in range(makers)]
    )
    assert works.run() < 0.05


@pytest.mark.parametrize("makers", [2, 16])
def test_quick_items_do_not_wait_for_messages(makers: int) -> None:
    """Twenty milliseconds each, and a message takes half of that."""
    works = Works([0.02] * 4000, [0.02] * 4000, [0.0] * makers, latency_s=0.01, per_shard=1000)
    works.run()
    assert max(works.idle_since.values()) < 1.02 * 0.02 * 4000 / makers + 0.1


def test_one_after_the_other_they_are_made_largest_first() -> None:
    costs = [0.3, 4.0, 2.0, 0.2, 8.0]
    works = Works(costs, costs, [0.0])
    works.run()
    assert works.order == [4, 1, 2, 0, 3]


# The end of a set


def test_idle_makers_stay_until_everything_is_sealed() -> None:
    coordinator = coordinator_of([2.0, 1.0])
    for number, item in ((0, 0), (1, 1)):
        assert items(coordinator.handle(number, Want(), 0.0)) == {number: [item]}
    make(coordinator, 0, 0)
    assert coordinator.handle(0, Want(), 1.0) == [(0, Seal())]
    assert coordinator.handle(0, Alive(), 1.0) == [], "told once"
    assert coordinator.handle(0, Sealed((key(0),)), 1.0) == []
    assert coordinator.handle(0, AllSealed(), 1.0) == []
    coordinator.handle(1, Begun(key(1)), 2.0)
    assert items(coordinator.handle(1, Lost("was killed"), 2.0)) == {0: [1]}, "it was still there"
    make(coordinator, 0, 1)
    assert coordinator.handle(0, Want(), 3.0) == [(0, Seal())]
    assert coordinator.handle(0, Sealed((key(1),)), 3.0) == [(0, Stop(0.0))]
    assert not coordinator.finished
    coordinator.handle(0, Ended(), 4.0)
    assert coordinator.finished
    assert coordinator.unfinished == 0


def test_what_a_maker_had_made_and_not_sealed_is_made_by_another() -> None:
    coordinator = coordinator_of([2.0, 1.0])
    coordinator.handle(0, Want(), 0.0)
    coordinator.handle(1, Want(), 0.0)
    make(coordinator, 1, 1)
    assert coordinator.made == 1
    coordinator.handle(1, Lost("was killed"), 1.0)
    assert coordinator.made == 0
    make(coordinator, 0, 0)
    assert items(coordinator.handle(0, Want(), 2.0)) == {0: [1]}


def test_what_was_sealed_without_a_word_is_not_made_again() -> None:
    coordinator = coordinator_of([3.0, 2.0, 1.0])
    coordinator.handle(0, Want(), 0.0)
    coordinator.handle(1, Want(), 0.0)
    make(coordinator, 1, 1)
    coordinator.handle(1, Lost("was killed", sealed=(key(1),)), 1.0)
    make(coordinator, 0, 0)
    assert items(coordinator.handle(0, Want(), 2.0)) == {0: [2]}
    assert coordinator.unfinished == 2


def test_a_maker_that_was_given_up_and_comes_back_takes_its_items_off_the_list() -> None:
    coordinator = coordinator_of([3.0, 2.0, 1.0])
    coordinator.handle(0, Want(), 0.0)
    coordinator.handle(1, Want(), 0.0)
    for now in range(0, 51, 3):
        coordinator.handle(0, Alive(), now)
        assert coordinator.overdue(now) == []
    ((number, lost),) = coordinator.overdue(51.0)
    coordinator.handle(number, lost, 51.0)
    assert coordinator.makers[1].lost == "gave no sign of life for 51 s"
    assert make(coordinator, 1, 1, now=60.0) == []
    assert coordinator.handle(1, Sealed((key(1),)), 60.0) == []
    make(coordinator, 0, 0, now=60.0)
    assert items(coordinator.handle(0, Want(), 60.0)) == {0: [2]}, "item 1 is sealed"
    assert coordinator.sealed == {key(1)}
    assert coordinator.left_s() == pytest.approx(1.0)


def test_nothing_to_do_ends_at_once() -> None:
    coordinator = coordinator_of([])
    assert coordinator.handle(0, Want(), 0.0) == [(0, Stop(0.0)), (1, Stop(0.0))]


# Failures, losses, faults


def test_a_failure_is_kept_and_ends_the_set_as_well() -> None:
    coordinator = coordinator_of([1.0], makers=1)
    coordinator.handle(0, Want(), 0.0)
    failure = Failure("train", 0, "Po-sc", "no atoms")
    assert coordinator.handle(0, failure, 1.0) == [(0, Stop(0.0))]
    assert coordinator.failures == [failure]


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


# Stops


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


# Sets on the storage of nodes


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
