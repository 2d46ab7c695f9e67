from __future__ import annotations

import io

import pytest
from rich.console import Console

from stemdl.progress import (
    LogProgress,
    SilentProgress,
    TerminalProgress,
    choose_progress,
    format_seconds,
    remaining_seconds,
)


class Clock:
    """A clock that moves only when told."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def lines_of(stream: io.StringIO) -> list[str]:
    return stream.getvalue().splitlines()


def test_a_log_has_few_lines_with_an_estimate() -> None:
    stream, clock = io.StringIO(), Clock()
    progress = LogProgress(stream, every_s=10.0, clock=clock)
    progress.start("train", 100, "steps")
    for done in range(1, 101):
        clock.now_s += 1.0
        progress.advance(done, loss=1.0 / done)
    progress.finish()
    lines = lines_of(stream)
    assert lines[0] == "train: 100 steps"
    assert lines[1] == "train: 10/100 steps, 10.0 s, 1 min 30 s left, loss 0.1"
    assert lines[-1] == "train: 100/100 steps, 1 min 40 s, loss 0.01"
    assert len(lines) == 11


def test_a_resumed_log_does_not_count_old_work_as_speed() -> None:
    stream, clock = io.StringIO(), Clock()
    progress = LogProgress(stream, every_s=10.0, clock=clock)
    progress.start("train", 100, "steps")
    progress.advance(80)
    clock.now_s += 10.0
    progress.advance(90)
    assert lines_of(stream)[-1] == "train: 90/100 steps, 10.0 s, 10.0 s left"


def test_a_log_says_where_a_stage_broke_off() -> None:
    stream = io.StringIO()
    progress = LogProgress(stream, clock=Clock())
    progress.start("simulate", 8, "fields")
    progress.advance(3)
    progress.note("refused: bad.cif: no atoms")
    progress.finish()
    progress.finish()
    assert lines_of(stream)[1:] == ["refused: bad.cif: no atoms", "simulate: ended at 3/8 fields"]


def test_a_terminal_gets_a_bar_and_a_file_gets_lines() -> None:
    terminal = Console(file=io.StringIO(), force_terminal=True, width=120)
    assert isinstance(choose_progress(terminal), TerminalProgress)
    plain = Console(file=io.StringIO(), force_terminal=False)
    assert isinstance(choose_progress(plain), LogProgress)


def test_the_bar_shows_stage_count_figures_and_notes() -> None:
    stream = io.StringIO()
    progress = TerminalProgress(Console(file=stream, force_terminal=True, width=120, color_system=None))
    progress.advance(1)  # before start: nothing to move
    progress.start("simulate", 4, "fields")
    progress.note("a [note] as it is")
    progress.advance(4, per_s=2.5)
    progress.finish()
    text = stream.getvalue()
    assert "a [note] as it is" in text
    assert "4/4" in text
    assert "per_s 2.5" in text
    assert "fields" in text


def test_silence() -> None:
    progress = SilentProgress()
    progress.start("train", 1, "steps")
    progress.advance(1)
    progress.note("nothing")
    progress.finish()


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.04, "0.0 s"), (8.24, "8.2 s"), (59.96, "1 min 00 s"), (185.2, "3 min 05 s"), (7620.0, "2 h 07 min")],
)
def test_times_as_people_read_them(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text


def test_no_estimate_before_the_first_and_after_the_last_unit() -> None:
    assert remaining_seconds(5.0, 0, 10) is None
    assert remaining_seconds(5.0, 10, 0) is None
    assert remaining_seconds(5.0, 2, 4) == pytest.approx(10.0)


def test_a_stage_that_knows_better_says_how_much_time_is_left() -> None:
    """Samples whose costs differ: the largest come first."""
    stream, clock = io.StringIO(), Clock()
    progress = LogProgress(stream, every_s=10.0, clock=clock)
    progress.start("simulate", 100, "fields")
    progress.advance(0, left_s=None)
    clock.now_s += 60.0
    progress.advance(10, left_s=30.0, samples_per_s=0.1667, failed=2)
    assert lines_of(stream)[-1] == "simulate: 10/100 fields, 1 min 00 s, 30.0 s left, samples_per_s 0.1667, failed 2"
    terminal = io.StringIO()
    bar = TerminalProgress(Console(file=terminal, force_terminal=True, width=120, color_system=None))
    bar.start("simulate", 100, "fields")
    bar.advance(10, left_s=75.0)
    bar.finish()
    assert "1 min 15 s left" in terminal.getvalue()


def test_a_count_that_is_told_again_is_no_line_of_its_own() -> None:
    stream, clock = io.StringIO(), Clock()
    progress = LogProgress(stream, every_s=10.0, clock=clock)
    progress.start("simulate", 4, "fields")
    for _ in range(5):
        clock.now_s += 20.0
        progress.advance(2)
    progress.advance(4)
    progress.advance(4)
    assert len(lines_of(stream)) == 3
