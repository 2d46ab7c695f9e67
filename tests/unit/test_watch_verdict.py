"""What the stall watch concludes from reports: late or lost, who, at which group; no clock and no socket."""

from __future__ import annotations

import pytest

from stemdl.comm.errors import CommError
from stemdl.comm.watch_verdict import WatchLimits, fingerprint
from watch_cases import Scene, wait


def test_a_rank_that_computes_is_named_with_the_group_and_its_tensors() -> None:
    scene = Scene(4)
    for rank in (0, 1, 3):
        scene.waits(rank, wait(6, "group 2 of 8", tensors=[f"layer{n}.weight" for n in range(9)]))
    scene.waits(2, step=6)
    verdict = scene.go_on(60)
    assert verdict is not None
    assert (verdict.kind, verdict.ranks, verdict.step, verdict.group) == ("stall", (2,), 6, "group 2 of 8")
    assert verdict.text == (
        "group 2 of 8 of step 6 (layer0.weight, layer1.weight, layer2.weight ... and 6 more): 3 of 4 ranks (0, 1, 3) "
        "wait for 25 s (limit 25 s) for rank 2 (node2, pid 102): alive, in step 6, computing. Likely a slow rank, or a "
        "branch that depends on the rank"
    )


def test_warnings_come_before_the_end_once_in_their_time_and_once_for_all_groups_of_a_stall() -> None:
    scene = Scene(3, WatchLimits(10.0, 35.0, 20.0))
    for rank in (0, 1):
        scene.waits(rank, *(wait(0, f"group {n} of 5", serial=n, age_s=0.1 * (5 - n)) for n in range(5)))
    assert scene.go_on(9) is None
    assert scene.said == []
    assert scene.go_on(20) is None
    assert [warning.group for warning in scene.said] == ["group 0 of 5", "group 0 of 5"]
    assert "the job ends at 35 s" in scene.said[0].text
    assert "4 other groups wait too" in scene.said[1].text
    scene.waits(2, step=0)
    assert scene.go_on(20) is not None


def test_a_group_of_a_later_step_is_warned_of_anew() -> None:
    scene = Scene(2)
    for step in range(2):
        scene.waits(0, wait(step, "group 1 of 1", serial=step))
        assert scene.go_on(12) is None
        scene.waits(0, step=step + 1)
        assert scene.go_on(1) is None
    assert [warning.step for warning in scene.said] == [0, 1]


def test_short_waits_one_after_the_other_are_no_stall_even_under_one_name() -> None:
    scene = Scene(2)
    for serial in range(60):
        scene.waits(0, wait(0, "group 1 of 1", serial=serial))
        assert scene.go_on(1) is None
    assert scene.said == []


def test_ranks_that_wait_for_different_groups() -> None:
    scene = Scene(2)
    scene.waits(0, wait(3, "group 1 of 2"))
    scene.now_s = 1.0
    scene.waits(1, wait(3, "group 2 of 2"))
    verdict = scene.go_on(60)
    assert verdict is not None
    assert "rank 1 (node1, pid 101): alive, in step 3, waits itself for group 2 of 2 for 24 s" in verdict.text
    assert "Likely a branch that depends on the rank, so that ranks use different parameters" in verdict.text


def test_different_numbers_of_batches() -> None:
    scene = Scene(2)
    scene.waits(0, wait(3, "group 1 of 2"))
    scene.judge.left(1)
    verdict = scene.go_on(60)
    assert verdict is not None
    assert "rank 1 (node1, pid 101), which has ended its work in good order" in verdict.text
    assert "Likely different numbers of batches" in verdict.text


def test_many_missing_ranks_are_counted() -> None:
    scene = Scene(100)
    scene.waits(7, wait(0, "loss"))
    verdict = scene.go_on(60)
    assert verdict is not None
    assert "group 'loss' of step 0 (w, b): 1 of 100 ranks (7) waits for 25 s" in verdict.text
    assert "rank 2 (node2, pid 102): alive, in step 0, computing; and 96 more" in verdict.text


def test_what_all_have_submitted_and_nobody_gets_is_the_exchange() -> None:
    scene = Scene(3)
    scene.waits(0, wait(1, "group 1 of 2"))
    scene.waits(1, wait(1, "group 1 of 2"))
    assert scene.go_on(15) is None
    scene.waits(2, wait(1, "group 1 of 2"))
    assert scene.go_on(20) is None, "the last has come late, and from then on it counts"
    verdict = scene.go_on(20)
    assert verdict is not None
    assert (verdict.kind, verdict.ranks) == ("exchange", ())
    assert (
        "for its sum for 25 s (limit 25 s), and all ranks have submitted it: the exchange itself hangs" in verdict.text
    )


def test_a_rank_that_has_completed_the_group_is_not_missing() -> None:
    for seen in (None, {5: frozenset([fingerprint("group 1 of 2")])}):
        scene = Scene(2)
        scene.waits(0, wait(5, "group 1 of 2"))
        scene.waits(1, step=6 if seen is None else 5, seen=seen)
        verdict = scene.go_on(60)
        assert verdict is not None
        assert verdict.kind == "exchange"
        assert "1 of 2 ranks (0) waits for its sum" in verdict.text


def test_a_rank_that_went_on_without_the_group_is_missing() -> None:
    scene = Scene(2)
    scene.waits(0, wait(5, "group 1 of 2"))
    scene.waits(1, step=6, seen={5: frozenset([fingerprint("group 2 of 2")])})
    verdict = scene.go_on(60)
    assert verdict is not None
    assert (verdict.kind, verdict.ranks) == ("stall", (1,))


def test_details_are_asked_for_only_when_a_group_is_late() -> None:
    scene = Scene(2)
    scene.waits(0, wait(5, "group 1 of 2"))
    scene.go_on(2)
    assert not scene.judge.wants_detail
    scene.go_on(4)
    assert scene.judge.wants_detail
    scene.waits(0, step=6)
    scene.go_on(1)
    assert not scene.judge.wants_detail


@pytest.mark.parametrize("allowed_s", [30.0, 1000.0])
def test_a_busy_rank_is_late_only_when_its_time_is_over(allowed_s: float) -> None:
    scene = Scene(2)
    scene.waits(0, wait(5, "group 1 of 2"))
    scene.waits(1, step=5, busy=("validation", 0.0, allowed_s))
    verdict = scene.go_on(70)
    assert all(warning.age_s is not None and scene.now_s >= 40 for warning in scene.said)
    if allowed_s == 30:
        assert verdict is not None
        assert scene.now_s == 55
        assert "alive, in step 5, busy with 'validation' for 55 s (30 s allowed)" in verdict.text
    else:
        assert verdict is None
        assert scene.said == []
        scene.waits(1, step=5, excused_ago_s=0.0)
        assert scene.go_on(24) is None, "it needs time for its step as well"
        assert scene.go_on(2) is not None


def test_another_rank_that_is_late_is_not_excused_by_a_busy_one() -> None:
    scene = Scene(3)
    scene.waits(0, wait(5, "group 1 of 2"), busy=("checkpoint", 0.0, 1000.0))
    verdict = scene.go_on(60)
    assert verdict is not None
    assert verdict.ranks == (1, 2)


def test_a_process_that_ended_without_goodbye() -> None:
    scene = Scene(4)
    scene.judge.closed(3, 1.0)
    verdict = scene.judge.quick(1.0)
    assert verdict is not None
    assert (verdict.kind, verdict.text) == ("ended", "rank 3 (node3, pid 103): its process ended")


def test_after_a_goodbye_a_closed_connection_is_no_fault() -> None:
    scene = Scene(2)
    scene.judge.left(1)
    scene.judge.closed(1, 1.0)
    assert scene.go_on(100) is None


def test_a_silent_rank_is_told_from_a_slow_one() -> None:
    scene = Scene(4)
    scene.waits(0, wait(5, "group 1 of 2"))
    scene.mute.add(3)
    verdict = scene.go_on(60)
    assert verdict is not None
    assert (verdict.kind, verdict.ranks) == ("silent", (3,))
    lost = "(stopped, or its node or network is gone)"
    assert verdict.text == f"rank 3 (node3, pid 103): no sign of life for 20 s {lost}"
    assert "for rank 1 (node1, pid 101): alive, in step 0, computing; rank 2" in scene.said[0].text
    assert f"rank 3 (node3, pid 103): no sign of life for 10 s {lost}" in scene.said[0].text


def test_when_nearly_all_are_silent_it_may_be_the_network_of_rank_zero() -> None:
    scene = Scene(8)
    scene.mute |= set(range(1, 8))
    verdict = scene.go_on(60)
    assert verdict is not None
    assert "rank 3 (node3, pid 103) and 4 more: no sign of life for 20 s" in verdict.text
    assert "perhaps it is the network of rank 0's node" in verdict.text


def test_waits_told_by_a_rank_that_is_silent_since_do_not_age() -> None:
    scene = Scene(2, WatchLimits(2.0, 5.0, 20.0))
    scene.waits(0, wait(5, "group 1 of 2"))
    scene.mute.add(0)
    verdict = scene.go_on(60)
    assert scene.said == []
    assert verdict is not None
    assert verdict.kind == "silent"


def test_the_true_cause_is_named_where_it_turns_up_in_time() -> None:
    scene = Scene(3)
    scene.judge.failed(0, "Connection closed by peer [10.0.0.3]", 2.0, 1.0)
    assert scene.judge.quick(1.5) is None
    scene.judge.closed(2, 1.6)
    verdict = scene.judge.quick(1.7)
    assert verdict is not None
    assert verdict.text == "rank 2 (node2, pid 102): its process ended"


def test_without_a_truer_one_the_first_reason_is_everybodys() -> None:
    scene = Scene(3)
    scene.judge.failed(2, "gradients of fc.weight are 4x4, on rank 0 4x5", 2.0, 1.0)
    scene.judge.failed(1, "aborted", 2.0, 1.5)
    assert scene.judge.quick(2.9) is None
    verdict = scene.judge.quick(3.0)
    assert verdict is not None
    assert verdict.kind == "failed"
    assert verdict.text == (
        "rank 2 (node2, pid 102) failed: gradients of fc.weight are 4x4, on rank 0 4x5 (after it 1 other rank failed "
        "too)"
    )


def test_where_all_have_failed_there_is_nothing_to_wait_for() -> None:
    scene = Scene(2)
    scene.judge.failed(1, "mismatch", 2.0, 1.0)
    scene.judge.failed(0, "mismatch", 2.0, 1.0)
    assert scene.judge.quick(1.0) is not None


def test_a_rank_that_failed_and_has_gone_is_not_waited_for() -> None:
    scene = Scene(3)
    scene.judge.failed(1, "rank 0 (node0, pid 100): no sign of life for 20 s", 30.0, 1.0, is_own=False)
    scene.judge.closed(1, 1.0)
    verdict = scene.judge.quick(1.0)
    assert verdict is not None
    assert (verdict.kind, verdict.text) == ("failed", "rank 0 (node0, pid 100): no sign of life for 20 s")


def test_time_in_which_the_server_was_stopped_is_nobodys_fault() -> None:
    scene = Scene(3)
    scene.waits(0, wait(5, "group 1 of 2"))
    scene.waits(1, step=5, busy=("validation", 0.0, 8.0))
    scene.judge.failed(2, "broken", 30.0, 0.0)
    scene.now_s += 1000
    scene.judge.paused(1000)
    assert scene.judge.thorough(scene.now_s) == (None, None)
    assert scene.go_on(20) is None


def test_a_rank_that_never_came() -> None:
    scene = Scene(3)
    scene.judge.ranks[1].presence = "absent"
    scene.mute.add(1)
    verdict = scene.go_on(60)
    assert verdict is not None
    assert scene.now_s > scene.judge.join_s
    assert (verdict.kind, verdict.text) == ("absent", "rank 1: has not joined the watch within 30 s")


def test_limits_follow_the_number_of_ranks() -> None:
    limits = WatchLimits(10.0, 25.0, 20.0)
    assert limits.for_size(1024) == limits
    assert limits.sign_period_s(4) == 1
    large = limits.for_size(27600)
    period_s = large.sign_period_s(27600)
    assert 27600 / period_s <= 1000
    assert large.stall_warn_s > 3 * period_s
    assert large.stall_end_s > large.stall_warn_s + period_s
    assert large.silence_s > 2 * period_s


@pytest.mark.parametrize("numbers", [(0.0, 1.0, 1.0), (1.0, 1.0, 1.0), (1.0, 2.0, -1.0), (1.0, 2.0, float("nan"))])
def test_limits_that_make_no_sense_are_refused(numbers: tuple[float, float, float]) -> None:
    with pytest.raises(CommError, match="allowed"):
        WatchLimits(*numbers)
