"""How long work says how far it is: a bar with an estimate on a terminal, plain lines in a log, or nothing."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import IO, TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID


class Progress(Protocol):
    """What a stage tells about its work. One stage at a time; `done` counts from 0 to `total`."""

    def start(self, stage: str, total: int, unit: str) -> None:
        """Begin a stage of `total` units of work, such as "fields" or "steps"."""

    def advance(self, done: int, *, left_s: float | None = None, **figures: float) -> None:
        """Say that `done` units in all are finished, with figures worth showing, such as loss=0.3.

        left_s: the time left, where the stage knows better than from the speed so far.
        """

    def note(self, text: str) -> None:
        """Say something worth a line of its own."""

    def finish(self) -> None:
        """End the stage; harmless where none was begun."""


class SilentProgress:
    """Says nothing: for tests and for every rank but the first."""

    def start(self, stage: str, total: int, unit: str) -> None:
        """Say nothing."""

    def advance(self, done: int, *, left_s: float | None = None, **figures: float) -> None:
        """Say nothing."""

    def note(self, text: str) -> None:
        """Say nothing."""

    def finish(self) -> None:
        """Say nothing."""


class LogProgress:
    """Plain lines for a log, at most one every `every_s` seconds, besides the notes and the first and last line."""

    def __init__(
        self, stream: IO[str] | None = None, every_s: float = 15.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._stream = stream if stream is not None else sys.stdout
        self._every_s = every_s
        self._clock = clock
        self._stage = ""
        self._unit = ""
        self._total = 0
        self._done: int | None = None
        self._first = 0
        self._first_at = self._began = self._last = 0.0

    def start(self, stage: str, total: int, unit: str) -> None:
        """Begin a stage: one line."""
        self._stage, self._total, self._unit, self._done = stage, total, unit, None
        self._began = self._last = self._clock()
        self._line(f"{stage}: {total} {unit}")

    def advance(self, done: int, *, left_s: float | None = None, **figures: float) -> None:
        """Write a line if the last one is old enough, or if the work is complete."""
        if self._done is None:
            # What a resumed stage found done says nothing about its speed: that is counted from here.
            self._first, self._first_at = done, self._clock()
        if done == self._done:
            return
        self._done = done
        now = self._clock()
        if now - self._last < self._every_s and done < self._total:
            return
        self._last = now
        parts = [f"{self._stage}: {done}/{self._total} {self._unit}", format_seconds(now - self._began)]
        if left_s is None:
            left_s = remaining_seconds(now - self._first_at, done - self._first, self._total - done)
        if left_s is not None and done < self._total:
            parts.append(f"{format_seconds(left_s)} left")
        self._line(", ".join(parts + format_figures(figures)))

    def note(self, text: str) -> None:
        """Write the text as a line."""
        self._line(text)

    def finish(self) -> None:
        """Say so if the stage ends before its work is complete."""
        if self._stage and (self._done or 0) < self._total:
            self._line(f"{self._stage}: ended at {self._done or 0}/{self._total} {self._unit}")
        self._stage = ""

    def _line(self, text: str) -> None:
        print(text, file=self._stream, flush=True)


class TerminalProgress:
    """A bar with an estimate of the time left, and the latest figures; it stays on the screen when done."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bar: RichProgress | None = None
        self._task: TaskID | None = None
        self._total = 0
        self._done: int | None = None
        self._first_at = 0.0

    def start(self, stage: str, total: int, unit: str) -> None:
        """Draw an empty bar."""
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            TextColumn,
            TimeElapsedColumn,
        )
        from rich.progress import Progress as RichProgress

        self.finish()
        self._bar = RichProgress(
            TextColumn("{task.description:<12}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[unit]}"),
            TimeElapsedColumn(),
            TextColumn("{task.fields[left]}"),
            TextColumn("{task.fields[figures]}"),
            console=self._console,
        )
        self._bar.start()
        self._total, self._done = total, None
        self._task = self._bar.add_task(stage, total=total, unit=unit, left="", figures="")

    def advance(self, done: int, *, left_s: float | None = None, **figures: float) -> None:
        """Move the bar."""
        if self._bar is not None and self._task is not None:
            if self._done is None:
                self._done, self._first_at = done, time.monotonic()
            if left_s is None:
                left_s = remaining_seconds(time.monotonic() - self._first_at, done - self._done, self._total - done)
            left = "" if left_s is None else f"{format_seconds(left_s)} left"
            self._bar.update(self._task, completed=done, left=left, figures=" ".join(format_figures(figures)))

    def note(self, text: str) -> None:
        """Print a line above the bar."""
        self._console.print(text, markup=False, highlight=False)

    def finish(self) -> None:
        """Leave the bar as it is."""
        if self._bar is not None:
            self._bar.stop()
        self._bar = self._task = None


def choose_progress(console: Console) -> Progress:
    """Return a bar where the console is a terminal, and plain lines where it is not."""
    return TerminalProgress(console) if console.is_terminal else LogProgress(console.file)


def remaining_seconds(elapsed_s: float, done: int, left: int) -> float | None:
    """Estimate the time left from the speed so far; None where nothing is done yet or nothing is left."""
    if done <= 0 or left <= 0:
        return None
    return elapsed_s / done * left


def format_seconds(seconds: float) -> str:
    """Return a time as people read it: "8.2 s", "3 min 05 s", "2 h 07 min"."""
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def format_figures(figures: dict[str, float]) -> list[str]:
    """Return "name value" with four significant digits for each figure."""
    return [f"{name} {value:.4g}" for name, value in figures.items()]
