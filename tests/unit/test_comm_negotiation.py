"""Negotiation: what ranks agree on, in which order, and what it costs to the byte."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable

import pytest

from comm_cases import item, on_ranks
from stemdl.comm.control import CountedControl, packed, unpacked
from stemdl.comm.counters import Counters
from stemdl.comm.errors import CommError
from stemdl.comm.items import Item
from stemdl.comm.negotiation import Cached, Coordinator, Left, Negotiator, Planned
from stemdl.comm.negotiation.cached import word_count
from stemdl.comm.negotiation.wire import Answer, encode_answer, encode_requests

Make = Callable[[CountedControl], Negotiator]
MAKERS: dict[str, Make] = {
    "coordinator": Coordinator,
    "cached": Cached,
    "planned": lambda control: Planned(control, after_steps=3, check_steps=4),
}


def step(negotiator: Negotiator, items: list[Item], rng: random.Random) -> list[str]:
    """One training step of a rank: groups become ready in its own order, some at a time; the agreed order."""
    coming = list(items)
    rng.shuffle(coming)
    waiting: dict[str, Item] = {}
    agreed: list[str] = []
    while coming or waiting:
        for _ in range(rng.randint(1, 3)):
            if coming:
                one = coming.pop()
                waiting[one.name] = one
        names = negotiator.planned(list(waiting.values()))
        if names is None:
            names = negotiator.cycle(list(waiting.values()))
        for name in names:
            del waiting[name]
        agreed += names
    negotiator.step_done()
    return agreed


@pytest.mark.parametrize("mode", MAKERS)
@pytest.mark.parametrize("size", [1, 2, 5])
def test_all_ranks_reduce_all_groups_in_one_order_whatever_order_they_become_ready_in(mode: str, size: int) -> None:
    items = [item(number) for number in range(9)]

    def work(control: CountedControl, _: Counters) -> list[list[str]]:
        rng = random.Random(control.rank)
        negotiator = MAKERS[mode](control)
        return [step(negotiator, items, rng) for _ in range(12)]

    first, *others = on_ranks(size, work)
    assert isinstance(first, list)
    assert all(other == first for other in others)
    for agreed in first:
        assert sorted(agreed) == sorted(one.name for one in items)


@pytest.mark.parametrize("groups", [1, 52, 61, 62, 144])
@pytest.mark.parametrize("size", [2, 64])
def test_a_cached_cycle_is_eight_bytes_for_each_64_bits(groups: int, size: int) -> None:
    items = [item(number) for number in range(groups)]

    def work(control: CountedControl, counters: Counters) -> tuple[int, int, int]:
        negotiator = Cached(control)
        negotiator.cycle(items)
        bytes_before, messages_before = counters.control_bytes, counters.control_messages
        assert negotiator.cycle(items) == [one.name for one in items]
        assert negotiator.slow_cycles == 1
        return counters.control_bytes - bytes_before, counters.control_messages - messages_before, negotiator.known

    assert set(on_ranks(size, work)) == {(8 * -(-(groups + 3) // 64), 1, groups)}


def test_the_coordinator_moves_all_descriptions_to_rank_zero_and_the_answer_to_all() -> None:
    size, items = 6, [item(number) for number in range(10)]

    def work(control: CountedControl, counters: Counters) -> int:
        negotiator = Coordinator(control)
        for _ in range(3):
            negotiator.cycle(items)
        return counters.control_bytes

    requests = len(encode_requests(items))
    answer = len(encode_answer(Answer(tuple(one.name for one in items))))
    at_zero = 3 * (size - 1) * (requests + answer)
    assert on_ranks(size, work) == [at_zero] + [3 * (requests + answer)] * (size - 1)


def test_a_plan_needs_no_message_but_one_comparison_now_and_then() -> None:
    items = [item(number) for number in range(5)]

    def work(control: CountedControl, counters: Counters) -> list[int]:
        negotiator = Planned(control, after_steps=2, check_steps=4)
        rng, costs = random.Random(control.rank), []
        for _ in range(14):
            before = counters.control_bytes
            step(negotiator, items, rng)
            costs.append(counters.control_bytes - before)
        return costs

    for costs in on_ranks(3, work):
        assert isinstance(costs, list)
        # Step 1 learns, 2 and 3 confirm (and the plan is compared at the end), then 16 bytes in every fourth.
        assert all(costs[:3])
        assert costs[3:] == [0, 0, 0, 16, 0, 0, 0, 16, 0, 0, 0]


def test_a_plan_is_left_and_taken_up_again() -> None:
    items = [item(number) for number in range(5)]

    def work(control: CountedControl, counters: Counters) -> list[bool]:
        negotiator = Planned(control, after_steps=2, check_steps=100)
        rng, fixed = random.Random(control.rank), []
        for number in range(12):
            step(negotiator, items, rng)
            if number == 5:
                negotiator.unsettle()
            fixed.append(negotiator.is_fixed)
        return fixed

    expected = [False, False, True, True, True, False, False, True, True, True, True, True]
    assert on_ranks(3, work) == [expected] * 3


@pytest.mark.parametrize("mode", ["cached", "planned"])
def test_a_changed_group_is_erased_everywhere_and_learnt_again(mode: str) -> None:
    before = [item(number) for number in range(4)]
    after = [before[0], item(1, length=7), before[2], before[3]]

    def work(control: CountedControl, counters: Counters) -> list[str]:
        negotiator = MAKERS[mode](control)
        rng = random.Random(control.rank)
        for _ in range(2):
            step(negotiator, before, rng)
        slow: int = negotiator.slow_cycles
        agreed = step(negotiator, after, rng)
        assert negotiator.slow_cycles > slow
        slow = negotiator.slow_cycles
        step(negotiator, after, rng)
        assert negotiator.slow_cycles == slow, "known again"
        return sorted(agreed)

    assert on_ranks(3, work) == [sorted(one.name for one in after)] * 3


def test_groups_cut_anew_on_all_ranks_take_the_place_of_the_old() -> None:
    before, after = [item(0), item(1)], [item(0)._replace(name="group A"), item(1)._replace(name="group B")]

    def work(control: CountedControl, _: Counters) -> tuple[list[str], int]:
        negotiator = Cached(control)
        negotiator.cycle(before)
        return negotiator.cycle(after), negotiator.known

    assert on_ranks(3, work) == [(["group A", "group B"], 2)] * 3


@pytest.mark.parametrize("mode", MAKERS)
@pytest.mark.parametrize("learnt", [False, True])
def test_a_group_that_differs_ends_the_job_on_all_ranks_with_rank_group_and_gradient(mode: str, learnt: bool) -> None:
    def work(control: CountedControl, _: Counters) -> None:
        negotiator = MAKERS[mode](control)
        if learnt:
            negotiator.cycle([item(0), item(1)])
        mine = item(1, dtype="float64") if control.rank == 2 else item(1)
        waiting = [item(0), mine]
        for _cycle in range(4):
            names = negotiator.cycle(waiting)
            waiting = [one for one in waiting if one.name not in names]

    for error in on_ranks(4, work):
        assert isinstance(error, CommError)
        assert "group 1 differs" in str(error)
        assert "rank 2 has layer1.weight float64 4x3" in str(error)


@pytest.mark.parametrize("learnt", [False, True])
@pytest.mark.parametrize("mode", MAKERS)
def test_a_gradient_in_two_groups_ends_the_job_instead_of_waiting_for_ever(mode: str, learnt: bool) -> None:
    """Ranks whose parameters differ in size cut them into another number of groups, of other names."""

    def work(control: CountedControl, _: Counters) -> None:
        negotiator = MAKERS[mode](control)
        if learnt:
            negotiator.cycle([item(1)._replace(name="group 1 of 3")])
        mine = item(1)._replace(name="group 1 of 4") if control.rank == 2 else item(1)._replace(name="group 1 of 3")
        for _cycle in range(4):
            negotiator.cycle([mine])

    for error in on_ranks(3, work):
        assert isinstance(error, CommError)
        assert "group 1 of 4 differs: rank 2 has layer1.weight float32 4x3 in it" in str(error)
        assert "rank 0 has layer1.weight float32 4x3 in group 1 of 3" in str(error)


@pytest.mark.parametrize("mode", MAKERS)
def test_who_leaves_while_others_wait_ends_their_waiting(mode: str) -> None:
    def work(control: CountedControl, _: Counters) -> None:
        negotiator = MAKERS[mode](control)
        negotiator.cycle([item(0)])
        if control.rank == 1:
            negotiator.cycle([], leaving=True)
        else:
            negotiator.cycle([item(0)])

    for error in on_ranks(3, work):
        assert isinstance(error, Left)
        assert error.ranks == (1,)


def test_groups_that_are_not_ready_everywhere_wait_for_the_next_cycle() -> None:
    def work(control: CountedControl, _: Counters) -> list[list[str]]:
        negotiator = Cached(control)
        negotiator.cycle([item(0), item(1), item(2)])
        mine = [[item(0), item(1)], [item(1), item(2)]][control.rank % 2]
        return [negotiator.cycle(mine), negotiator.cycle([item(0), item(2)])]

    assert on_ranks(4, work) == [[["group 1"], ["group 0", "group 2"]]] * 4


def test_words_hold_three_bits_more_than_there_are_groups() -> None:
    assert [word_count(groups) for groups in (0, 1, 61, 62, 125, 126)] == [1, 1, 1, 2, 2, 3]


def test_payloads_of_any_length_are_packed_and_unpacked() -> None:
    for parts in itertools.product([b"", b"a", bytes(1000)], repeat=3):
        assert unpacked(packed(parts)) == list(parts)
    assert unpacked(packed([])) == []
