"""When the time is over: what a user may write, and what the schedulers say."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping

import pytest

from stemdl.time_limit import TimeLimitError, find_time_limit, parse_duration


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90s", 90.0), ("45m", 2700.0), ("45 min", 2700.0), ("2h", 7200.0), ("1.5h", 5400.0), ("1d", 86400.0),
        (" 2H ", 7200.0), ("01:30", 5400.0), ("00:00:10", 10.0), ("12:00:00", 43200.0), ("2-12:00:00", 216000.0),
    ],
)  # fmt: skip
def test_times_that_are_understood(text: str, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["90", "", "2 hours", "-5m", "0s", "1:2:3", "inf", "nan", "1e3s", "2h30m", "00:00",
                                  "99:99:99", "1:60", "1:00:60", "1-24:00:00", "٤٥m", "٠١:٠٠"])  # fmt: skip
def test_anything_else_is_refused_with_what_is_allowed(text: str) -> None:
    allowed = "allowed are 90s, 45m, 2h|allowed are at most 59 minutes|more than nothing"
    with pytest.raises(TimeLimitError, match=rf"time limit '.*': ({allowed})"):
        parse_duration(text)


def test_the_limit_of_the_user_counts_from_the_start_of_the_process() -> None:
    limit = find_time_limit("2h", {"SLURM_JOB_ID": "7", "SLURM_JOB_END_TIME": "1"}, started=100.0)
    assert limit is not None
    assert limit.source == "--time-limit 2h"
    assert limit.ends_at == pytest.approx(7300.0)
    assert limit.left_s(100.0) == pytest.approx(7140.0), "a minute is kept for sealing"
    short = find_time_limit("20s", {}, started=100.0)
    assert short is not None
    assert short.left_s(100.0) == pytest.approx(18.0), "or a tenth of little time"


IN_AN_HOUR = "in an hour"
"""Filled in when the test runs: it may be long after it was collected."""


def answers(**outputs: str) -> Callable[[list[str]], str | None]:
    """Programs by their name; others are not there."""
    return lambda command: outputs.get(command[0])


@pytest.mark.parametrize(
    ("environment", "outputs", "left_s", "source"),
    [
        ({"SLURM_JOB_ID": "7", "SLURM_JOB_END_TIME": IN_AN_HOUR}, {}, 3600.0, "Slurm job 7"),
        ({"SLURM_JOB_ID": "7"}, {"squeue": "1-02:03:04\n"}, 93784.0, "Slurm job 7"),
        ({"SLURM_JOB_ID": "7"}, {"squeue": "59:30\n"}, 3570.0, "Slurm job 7"),
        ({"SLURM_JOB_ID": "7"}, {"squeue": "45\n"}, 45.0, "Slurm job 7"),
        ({"LSB_JOBID": "8"}, {"bjobs": "1:26 L\n"}, 5160.0, "LSF job 8"),
        (
            {"PBS_JOBID": "9.server"},
            {"qstat": "  Resource_List.walltime = 10:00:00\n  resources_used.walltime = 01:00:30\n"},
            32370.0,
            "PBS job 9.server",
        ),
        ({"PBS_JOBID": "9"}, {"qstat": "  Resource_List.walltime = 10:00:00\n"}, 36000.0, "PBS job 9"),
        ({"FLUX_JOB_ID": "f3"}, {"flux": "1234.5\n"}, 1234.5, "Flux job f3"),
    ],
)
def test_what_schedulers_say(
    environment: Mapping[str, str], outputs: dict[str, str], left_s: float, source: str
) -> None:
    environment = {
        name: str(int(time.time()) + 3600) if value == IN_AN_HOUR else value for name, value in environment.items()
    }
    limit = find_time_limit(None, environment, started=0.0, run=answers(**outputs))
    assert limit is not None
    assert limit.source == source
    assert limit.ends_at - time.monotonic() == pytest.approx(left_s, abs=30.0)
    assert limit.margin_s == pytest.approx(60.0)


@pytest.mark.parametrize(
    ("environment", "outputs"),
    [
        ({}, {}),
        ({"SLURM_JOB_ID": "7"}, {}),
        ({"SLURM_JOB_ID": "7"}, {"squeue": "UNLIMITED\n"}),
        ({"SLURM_JOB_ID": "7"}, {"squeue": "INVALID\n"}),
        ({"SLURM_JOB_ID": "7"}, {"squeue": ""}),
        ({"SLURM_JOB_ID": "seven"}, {"squeue": "45\n"}),
        ({"LSB_JOBID": "8"}, {"bjobs": "-\n"}),
        ({"LSB_JOBID": "8"}, {"bjobs": ""}),
        ({"PBS_JOBID": "9"}, {"qstat": "no such job"}),
        ({"FLUX_JOB_ID": "f3"}, {"flux": "0\n"}),
        ({"FLUX_JOB_ID": "f3"}, {}),
    ],
)
def test_where_nothing_is_known_there_is_no_limit(environment: Mapping[str, str], outputs: dict[str, str]) -> None:
    assert find_time_limit(None, environment, started=0.0, run=answers(**outputs)) is None


def test_programs_are_asked_for_real_and_may_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    import stemdl.time_limit as module

    assert module._output_of([sys.executable, "-c", "print('1:26 L')"]) == "1:26 L\n"
    assert module._output_of([sys.executable, "-c", "import sys; sys.exit(1)"]) is None
    assert module._output_of(["no-such-scheduler-here"]) is None
    monkeypatch.setattr(module, "_ASK_TIMEOUT_S", 0.05)
    assert module._output_of([sys.executable, "-c", "import time; time.sleep(30)"]) is None
