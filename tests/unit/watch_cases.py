"""Judges, servers and ranks of a watch, in this process."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from stemdl.comm.watch import Watch, WatchLimits
from stemdl.comm.watch_server import WatchServer
from stemdl.comm.watch_verdict import Judge, Report, Verdict, Wait
from stemdl.comm.watch_wire import LINE_MOST_BYTES, VERSION, Channel, decode, encode

TOKEN = "a secret"
PATIENT = WatchLimits(50.0, 100.0, 60.0, 1.0)
"""Nothing is late or silent within a test."""
GIVE_UP_S = 30.0


def wait(step: int, group: str, age_s: float = 0.0, serial: int = 0, tensors: Sequence[str] = ("w", "b")) -> Wait:
    """A wait of two tensors."""
    return Wait(step, group, serial, age_s, tuple(tensors[:3]), len(tensors))


class Scene:
    """A judge and a clock of its own. Ranks tell the same again every second, unless something else is said."""

    def __init__(self, size: int, limits: WatchLimits | None = None) -> None:
        self.now_s = 0.0
        self.judge = Judge(size, (limits or WatchLimits(10.0, 25.0, 20.0)).for_size(size), 0.0)
        self.said: list[Verdict] = []
        self.mute: set[int] = set()
        for rank in range(size):
            self.judge.joined(rank, f"node{rank}", 100 + rank, 0.0)

    def waits(self, rank: int, *waits: Wait, step: int | None = None, **more: object) -> None:
        """A rank reports what it waits for."""
        step = step if step is not None else waits[0].step if waits else 0
        self.judge.reported(rank, Report(step, waits, **more), self.now_s)  # type: ignore[arg-type]

    def go_on(self, time_s: float) -> Verdict | None:
        """Let time pass until it is over, or a verdict falls."""
        end_s = self.now_s + time_s
        while self.now_s < end_s:
            self.now_s += 0.5
            for rank, state in enumerate(self.judge.ranks):
                if rank not in self.mute and state.presence == "here":
                    self.judge.heard(rank, self.now_s)
            verdict, warning = self.judge.thorough(self.now_s)
            if warning is not None:
                self.said.append(warning)
            if verdict is not None:
                return verdict
        return None


class Clock:
    """The time of this machine, which may jump."""

    def __init__(self) -> None:
        self.jumped_s = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self.jumped_s


class Ends:
    """In place of the end of a process: takes down what it would have said.

    Returns to a thread of the watch, which then ends by itself; the test's own gets SystemExit.
    """

    def __init__(self) -> None:
        self.said: list[str] = []
        self._came = threading.Event()

    def __call__(self, why: str) -> NoReturn:  # type: ignore[misc]
        self.said.append(why)
        self._came.set()
        if threading.current_thread() is threading.main_thread():
            raise SystemExit

    def wait(self) -> str:
        """What was said."""
        assert self._came.wait(GIVE_UP_S), "no end came"
        return self.said[0]


class Party:
    """A server and ranks of it."""

    def __init__(self, size: int, limits: WatchLimits, log: Path | None = None, join_s: float = 30.0) -> None:
        self.size, self.limits, self.clock = size, limits, Clock()
        self.warned: list[str] = []
        self.server_ends = Ends()
        self.server = WatchServer(
            size=size,
            token=TOKEN,
            limits=limits,
            log=log,
            end=self.server_ends,
            say=self.warned.append,
            clock=self.clock,
            join_s=join_s,
        )
        self.port = self.server.start()[1]
        self.ends = [Ends() for _ in range(size)]
        self.watches: list[Watch] = []

    def join(self, rank: int, *, token: str = TOKEN, size: int | None = None) -> Watch:
        """One more rank."""
        watch = Watch(
            rank=rank,
            size=size or self.size,
            address=("127.0.0.1", self.port),
            token=token,
            limits=self.limits,
            server=self.server if rank == 0 else None,
            end=self.ends[rank],
            clock=self.clock,
            connect_s=GIVE_UP_S,
        )
        self.watches.append(watch)
        return watch

    def stranger(self) -> Channel:
        """A connection that has said nothing."""
        return Channel(socket.create_connection(("127.0.0.1", self.port), timeout=GIVE_UP_S), LINE_MOST_BYTES)

    def guest(self, rank: int, pid: int = 7) -> Channel:
        """A rank that says what the test says."""
        channel = self.stranger()
        channel.send(encode("hello", v=VERSION, token=TOKEN, rank=rank, size=self.size, host="far", pid=pid))
        assert decode(answers(channel)[0])["t"] == "welcome"
        return channel


def answers(channel: Channel) -> list[bytes]:
    """The next lines; none where the other side closed the connection."""
    lines: list[bytes] = []
    is_open = True
    by_s = time.monotonic() + GIVE_UP_S
    while is_open and not lines:
        lines, is_open = channel.receive()
        assert time.monotonic() < by_s, "no answer"
        time.sleep(0.005)
    return lines


def until(true: Callable[[], bool]) -> None:
    """Wait for something to become true."""
    by_s = time.monotonic() + GIVE_UP_S
    while not true():
        assert time.monotonic() < by_s, "what was waited for never came"
        time.sleep(0.01)


@contextmanager
def party(
    size: int, limits: WatchLimits = PATIENT, *, everybody: bool = True, log: Path | None = None, join_s: float = 30.0
) -> Iterator[Party]:
    """A server and its ranks; ended with the block."""
    one = Party(size, limits, log, join_s)
    try:
        for rank in range(size if everybody else 0):
            one.join(rank)
        yield one
    finally:
        for watch in one.watches:
            watch.close()
        one.server.close(wait_s=0.0)
