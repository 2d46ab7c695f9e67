"""When the time given to this process is over: what the user said, or what the scheduler says."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from stemdl.errors import UserError

_UNITS_S = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_CLOCK = re.compile(r"(?:(\d+)-)?(\d+):(\d{2})(?::(\d{2}))?", re.ASCII)
_WITH_UNIT = re.compile(r"(\d+(?:\.\d+)?)\s*(s|m|min|h|d)", re.ASCII)
_ASK_TIMEOUT_S = 20.0
_MARGIN_S = 60.0
"""Schedulers send the end early by up to so long, and sealing takes a moment."""


class TimeLimitError(UserError):
    """A time limit that is none."""


@dataclass(frozen=True)
class TimeLimit:
    """The end of the time given, on `time.monotonic`, and who set it."""

    ends_at: float
    source: str
    margin_s: float

    def left_s(self, now: float) -> float:
        """Seconds left until work has to stop: the margin before the end."""
        return self.ends_at - self.margin_s - now


def parse_duration(text: str) -> float:
    """Seconds of "90s", "45m", "2h", "1d", "HH:MM:SS", "HH:MM" or "D-HH:MM:SS".

    Raises TimeLimitError for anything else; a number without a unit too: Slurm takes it as minutes, LSF as minutes or
    hours, and most programs as seconds.
    """
    clean = text.strip().lower()
    with_unit = _WITH_UNIT.fullmatch(clean)
    if with_unit:
        seconds = float(with_unit[1]) * _UNITS_S[with_unit[2]]
    elif clock := _CLOCK.fullmatch(clean):
        days, hours, minutes, rest = (int(part or 0) for part in clock.groups())
        if minutes > 59 or rest > 59 or (clock[1] is not None and hours > 23):
            raise TimeLimitError(
                f"time limit {text!r}: allowed are at most 59 minutes and 59 seconds, and 23 hours beside days"
            )
        seconds = ((days * 24 + hours) * 60 + minutes) * 60 + rest
    else:
        raise TimeLimitError(f"time limit {text!r}: allowed are 90s, 45m, 2h, HH:MM:SS and D-HH:MM:SS")
    if seconds <= 0:
        raise TimeLimitError(f"time limit {text!r}: more than nothing is needed")
    return seconds


def find_time_limit(
    given: str | None,
    environment: Mapping[str, str],
    *,
    started: float,
    run: Callable[[list[str]], str | None] | None = None,
) -> TimeLimit | None:
    """The limit given by the user, counted from `started` (`time.monotonic`), or else the scheduler's; None for none.

    run: runs a command and returns its output, None where it cannot. Raises TimeLimitError as `parse_duration`.
    """
    if given is not None:
        seconds = parse_duration(given)
        return TimeLimit(started + seconds, f"--time-limit {given}", min(_MARGIN_S, 0.1 * seconds))
    run = run or _output_of
    for ask in (_slurm, _lsf, _pbs, _flux):
        found = ask(environment, run)
        if found is not None:
            left_s, source = found
            return TimeLimit(time.monotonic() + left_s, source, _MARGIN_S)
    return None


_Answer = tuple[float, str] | None
_Run = Callable[[list[str]], str | None]


def _slurm(environment: Mapping[str, str], run: _Run) -> _Answer:
    job = environment.get("SLURM_JOB_ID", "")
    if not job.isdecimal():
        return None
    end = environment.get("SLURM_JOB_END_TIME", "")  # since Slurm 22.05.8, in seconds since 1970
    if end.isdecimal():
        return float(end) - time.time(), f"Slurm job {job}"
    left = (run(["squeue", "--noheader", "--jobs", job, "--Format", "TimeLeft"]) or "").split()
    try:
        return (_slurm_seconds(left[0]), f"Slurm job {job}") if left else None
    except TimeLimitError:
        return None  # UNLIMITED, INVALID


def _slurm_seconds(text: str) -> float:
    """Slurm leaves out leading zeros: "59:30" is minutes and seconds, "45" seconds."""
    if text.isdecimal():
        return float(text)
    if text.count(":") == 1 and "-" not in text:
        minutes, _, seconds = text.partition(":")
        return 60.0 * int(minutes) + int(seconds)
    return parse_duration(text)


def _lsf(environment: Mapping[str, str], run: _Run) -> _Answer:
    job = environment.get("LSB_JOBID", "")
    if not job.isdecimal():
        return None
    answer = (run(["bjobs", "-noheader", "-o", "time_left", job]) or "").split()  # such as "1:26 L"
    clock = re.fullmatch(r"(\d+):(\d{2})", answer[0]) if answer else None
    return (60.0 * (60 * int(clock[1]) + int(clock[2])), f"LSF job {job}") if clock else None


def _pbs(environment: Mapping[str, str], run: _Run) -> _Answer:
    job = environment.get("PBS_JOBID", "")
    if not job:
        return None
    answer = run(["qstat", "-f", job]) or ""
    limit, used = (re.search(rf"{name}\s*=\s*(\d+:\d{{2}}:\d{{2}})", answer) for name in (
        r"Resource_List\.walltime", r"resources_used\.walltime",
    ))  # fmt: skip
    if limit is None:
        return None
    return parse_duration(limit[1]) - (_clock_seconds(used[1]) if used else 0.0), f"PBS job {job}"


def _clock_seconds(text: str) -> float:
    hours, minutes, seconds = (int(part) for part in text.split(":"))
    return 3600.0 * hours + 60.0 * minutes + seconds


def _flux(environment: Mapping[str, str], run: _Run) -> _Answer:
    if "FLUX_JOB_ID" not in environment:
        return None
    answer = (run(["flux", "job", "timeleft"]) or "").strip()
    seconds = float(answer) if answer.replace(".", "", 1).isdecimal() else 0.0
    return (seconds, f"Flux job {environment['FLUX_JOB_ID']}") if seconds > 0 else None


def _output_of(command: list[str]) -> str | None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_ASK_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None  # no such program on this node: then no limit is known, and the scheduler's signal has to do
    return done.stdout if done.returncode == 0 else None
