"""A rank that is killed, stopped, late, or different: all end in bounded time, with the rank and the group named."""

from __future__ import annotations

import re

import pytest

from stemdl.comm.errors import EXIT_COMM
from tests.comm_fault_program import STALL_END_S
from tests.comm_jobs import Ranks

pytestmark = pytest.mark.multiproc
WITHIN_S = 30.0


def run(fault: str, rank: int, mode: str, *, ranks: int = 2, ends: bool = True) -> tuple[list[int], str]:
    """Exit codes of the ranks that are not at fault, counted from the fault, and what all have said."""
    with Ranks(ranks, ["-m", "tests.comm_fault_program", fault, str(rank), mode]) as job:
        if fault not in ("shape", "none"):
            job.processes[rank].wait_for(lambda line: line.startswith("now:"))
        codes = job.end_of_all_but(rank, WITHIN_S) if ends else job.end()
        if fault not in ("stop", "kill"):
            codes.append(job.processes[rank].end())
        return codes, job.log


@pytest.mark.parametrize(("rank", "mode"), [(0, "cached"), (2, "planned")])
def test_a_killed_rank_ends_all_with_its_name_and_what_they_wait_for(rank: int, mode: str) -> None:
    codes, log = run("kill", rank, mode, ranks=3)
    assert codes == [EXIT_COMM] * 2, log
    assert f"rank {rank} (" in log, log
    assert "its process ended" in log, log
    assert "group " in log, log


def test_a_stopped_rank_is_told_from_a_slow_one() -> None:
    codes, log = run("stop", 1, "cached")
    assert codes == [EXIT_COMM], log
    assert "no sign of life" in log, log
    assert "group " in log, log


@pytest.mark.parametrize(("fault", "mode"), [("delay", "planned"), ("never", "cached")])
def test_a_late_rank_is_named_with_group_gradients_and_age(fault: str, mode: str) -> None:
    codes, log = run(fault, 1, mode)
    assert codes == [EXIT_COMM] * 2, log
    assert re.search(r"warning: group \d of 3 of step 12 \(\d\.(bias|weight)", log), log
    assert "for rank 1 (" in log, log
    assert "alive, in step 12" in log, log
    assert f"limit {STALL_END_S:.0f} s" in log, log


def test_another_shape_is_refused_before_anything_is_moved() -> None:
    codes, log = run("shape", 1, "cached")
    assert codes == [EXIT_COMM] * 2, log
    assert "rank 1 has another model than rank 0: 2.weight float32 [33, 32], on rank 0 2.weight float32 [32, 32]" in log


def test_a_dtype_that_one_rank_changes_is_named_with_the_group() -> None:
    codes, log = run("dtype", 1, "cached")
    assert codes == [EXIT_COMM] * 2, log
    assert "differs: rank 1 has " in log, log
    assert "float64" in log, log


def test_a_dtype_that_one_rank_changes_under_a_plan_is_named_with_the_group() -> None:
    codes, log = run("dtype", 1, "planned")
    assert codes == [EXIT_COMM] * 2, log
    assert re.search(r"rank 1 is at a cycle, rank 0 at the sum of group \d of 3", log), log


def test_an_exception_of_one_rank_is_the_reason_on_all() -> None:
    codes, log = run("error", 1, "cached")
    assert EXIT_COMM in codes, log
    assert 0 not in codes, log
    assert log.count("ValueError: the user's own fault") >= 2, log


def test_who_ends_early_is_named_to_those_who_wait() -> None:
    codes, log = run("early_end", 1, "cached")
    assert codes == [EXIT_COMM] * 2, log
    assert "rank 1 ended their work while others" in log, log
    assert "group 1 of 3" in log, log


def test_what_is_announced_is_no_stall() -> None:
    codes, log = run("busy", 1, "cached", ends=False)
    assert codes[:2] == [0, 0], log
