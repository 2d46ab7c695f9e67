"""The coordinator without a clock, a process or a channel: whatever comes in whatever order, nothing is lost."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator_cases import coordinator_of, items, key, make
from data_gen.sharing.coordinator import MOST_ENDED_PROCESSES
from data_gen.sharing.messages import (
    Alive,
    AllSealed,
    Assign,
    Begun,
    Ended,
    Failure,
    Lost,
    Seal,
    Sealed,
    Stop,
    Want,
)
from sharing_cases import Disorder, Works


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


def test_a_failure_is_kept_and_ends_the_set_as_well() -> None:
    coordinator = coordinator_of([1.0], makers=1)
    coordinator.handle(0, Want(), 0.0)
    failure = Failure("train", 0, "Po-sc", "no atoms")
    assert coordinator.handle(0, failure, 1.0) == [(0, Stop(0.0))]
    assert coordinator.failures == [failure]
