"""Ends an item that takes too long, or that a stop does not wait for, by an exception in the main thread."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

_RING_AGAIN_S = 1.0  # what the alarm raises is lost where it rings in a destructor or a callback


class ItemTimeout(Exception):
    """The item under way has taken longer than it may."""


class ItemDropped(Exception):
    """The item under way is dropped, since its process is to end."""


class ItemClock:
    """The alarm of a process that makes items; its main thread makes the clock and the items.

    SIGALRM raises between two steps of Python, so a single long call of a library ends first. It raises inside `item`
    alone: files are written outside of it.
    """

    def __init__(self) -> None:
        assert threading.current_thread() is threading.main_thread()
        self._inside = self._closed = False
        self._timeout_at = self._stop_at = float("inf")
        # A thread may ask for a stop while the main thread closes the clock, or a handler while it does anything.
        self._setting = threading.RLock()
        self._before = signal.signal(signal.SIGALRM, self._ring)

    def close(self) -> None:
        """Give the signal back; a stop that comes later sets no alarm."""
        with self._setting:
            self._closed = True
            signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, self._before)

    @property
    def stopping(self) -> bool:
        """Whether a stop was asked for."""
        return self._stop_at < float("inf")

    def stop_in(self, grace_s: float) -> None:
        """Drop the item under way if it is not done in so many seconds; from any thread, or a signal handler."""
        with self._setting:
            self._stop_at = min(self._stop_at, time.monotonic() + grace_s)
            self._set()

    @contextmanager
    def item(self, timeout_s: float) -> Iterator[None]:
        """Make one item inside. Raises ItemTimeout or ItemDropped there."""
        try:
            try:
                self._timeout_at = time.monotonic() + timeout_s
                self._inside = True
                self._set()
                yield
            finally:
                self._inside = False
        finally:  # where the alarm rang just before the line above, that has been left out
            self._inside = False
            self._timeout_at = float("inf")
            signal.setitimer(signal.ITIMER_REAL, 0)

    def _set(self) -> None:
        with self._setting:
            while True:
                next_at = min(self._timeout_at, self._stop_at)
                if next_at < float("inf") and not self._closed:
                    signal.setitimer(signal.ITIMER_REAL, max(next_at - time.monotonic(), 1e-3), _RING_AGAIN_S)
                if min(self._timeout_at, self._stop_at) >= next_at:
                    return  # else a signal handler of this thread, which has the lock, has set a stop in between

    def _ring(self, number: int, frame: object) -> None:
        if not self._inside:
            signal.setitimer(signal.ITIMER_REAL, 0)
            return
        now = time.monotonic()
        if now >= self._stop_at:
            raise ItemDropped
        if now >= self._timeout_at:
            raise ItemTimeout
        self._set()  # an alarm of an earlier deadline
