"""The two ends of a maker's pipe, without a process of its own at the other end."""

from __future__ import annotations

import multiprocessing
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, cast

import pytest

import data_gen.sharing.local as local
from data_gen.sharing.local import LocalMakers, PipeLine
from data_gen.sharing.messages import Alive, Begun, Lost, Seal, Stop, Want
from tests.small_run import small_config


class ModelProcess:
    """In place of a process."""

    def __init__(self, exitcode: int | None = None) -> None:
        self.exitcode = exitcode
        self.killed = False
        self.is_stuck = False

    def is_alive(self) -> bool:
        """Until it has a code."""
        return self.exitcode is None

    def kill(self) -> None:
        """As kill -9 does."""
        self.killed = True
        if not self.is_stuck:
            self.exitcode = -signal.SIGKILL

    def join(self, timeout_s: float | None = None) -> None:
        """It takes no time."""


class Bench:
    """Makers whose processes are models; `theirs` are the far ends of the pipes."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, count: int) -> None:
        self.theirs: dict[int, Connection[Any, Any]] = {}
        self.processes: dict[int, ModelProcess] = {}
        self.starts: list[tuple[int, bool]] = []

        def start(makers: LocalMakers, number: int, *, again: bool = False) -> None:
            ours, theirs = multiprocessing.Pipe()
            local._limit_sending(ours)
            self.theirs[number], self.processes[number] = theirs, ModelProcess()
            self.starts.append((number, again))
            process = local._Process(cast(Any, self.processes[number]), ours)
            makers._processes[number] = process

        monkeypatch.setattr(LocalMakers, "_start", start)
        self.makers = LocalMakers(small_config(folder), count, "0" * 64)

    def close(self) -> None:
        """All ends."""
        self.makers.close()
        for end in self.theirs.values():
            end.close()


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    monkeypatch.setattr(local, "_SEND_TIMEOUT_S", 1)
    bench = Bench(tmp_path, monkeypatch, 2)
    yield bench
    bench.close()


def test_what_makers_say_is_heard_with_their_number(bench: Bench) -> None:
    assert bench.makers.receive(0.0) == []
    bench.theirs[1].send(Want())
    bench.theirs[0].send(Alive())
    assert sorted(bench.makers.receive(5.0), key=lambda heard: heard[0]) == [(0, Alive()), (1, Want())]
    bench.makers.send(1, Seal())
    assert bench.theirs[1].recv() == Seal()


@pytest.mark.parametrize(
    ("code", "how"),
    [
        (-9, r"was killed by signal 9 \(SIGKILL\) \(is the memory full\? then lower simulation\.workers"),
        (-11, r"^was killed by signal 11 \(SIGSEGV\)$"),
        (1, r"^ended with code 1$"),
        (None, r"^closed its pipe$"),
    ],
)
def test_a_dead_maker_is_told_once_with_how_it_died(bench: Bench, code: int | None, how: str) -> None:
    bench.processes[1].exitcode = code
    bench.theirs[1].send(Want())
    bench.theirs[1].close()
    assert bench.makers.receive(5.0) == [(1, Want())], "what it had said comes first"
    ((number, lost),) = bench.makers.receive(5.0)
    assert number == 1
    assert isinstance(lost, Lost)
    assert re.search(how, lost.reason)
    assert bench.makers.receive(0.0) == []
    bench.makers.send(1, Seal())  # into the void


def test_another_is_started_in_the_place_of_one_that_had_come_to_speak(bench: Bench) -> None:
    bench.theirs[1].send(Want())
    bench.makers.receive(5.0)
    bench.makers.give_up(1)
    assert bench.processes[1].killed
    assert bench.makers.restart(1)
    assert bench.starts == [(0, False), (1, False), (1, True)]
    bench.theirs[1].send(Alive())
    assert bench.makers.receive(5.0) == [(1, Alive())]
    bench.makers.give_up(0)
    assert not bench.makers.restart(0), "it never said anything: the next one would be no better"


def test_a_process_that_cannot_be_ended_keeps_its_number(bench: Bench) -> None:
    """It hangs in the system and holds the lock of its shards."""
    bench.theirs[0].send(Want())
    bench.makers.receive(5.0)
    bench.processes[0].is_stuck = True
    bench.makers.give_up(0)
    assert not bench.makers.restart(0)
    bench.processes[0].is_stuck = False


def test_a_maker_that_reads_nothing_cannot_hold_up_the_others(bench: Bench) -> None:
    """Stopped in the middle of a long message: the write ends after a while, and the maker with it."""
    bench.makers.send(1, cast(Any, b"x" * 10_000_000))
    assert bench.processes[1].killed
    bench.makers.send(0, Seal())
    assert bench.theirs[0].recv() == Seal()


def test_nobody_is_left_after_the_end(bench: Bench) -> None:
    bench.processes[0].exitcode = 0
    bench.makers.close()
    assert not bench.processes[0].killed
    assert bench.processes[1].killed


def test_the_environment_of_makers_is_not_ours_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    monkeypatch.delenv("MKL_NUM_THREADS", raising=False)
    with local._environment({"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}):
        assert (os.environ["OMP_NUM_THREADS"], os.environ["MKL_NUM_THREADS"]) == ("1", "1")
    assert os.environ["OMP_NUM_THREADS"] == "7"
    assert "MKL_NUM_THREADS" not in os.environ


# The maker's end


class Exit(BaseException):
    """In place of the end of the process."""


@pytest.fixture
def line(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[PipeLine, Connection[Any, Any], list[int]]]:
    """A maker's end, the parent's, and the codes with which its process would have ended."""
    codes: list[int] = []

    def leave(code: int) -> None:
        codes.append(code)
        raise Exit

    monkeypatch.setattr(local, "_ALIVE_EVERY_S", 0.02)
    monkeypatch.setattr(threading, "excepthook", lambda found: None)  # of Exit in the thread that listens
    monkeypatch.setattr(os, "_exit", leave)
    ours, theirs = multiprocessing.Pipe()
    line = PipeLine(theirs)
    yield line, ours, codes
    ours.close()
    wait_for(lambda: bool(codes))
    theirs.close()


def wait_for(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20.0
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_a_maker_gives_signs_of_life_and_passes_on_what_it_hears(
    line: tuple[PipeLine, Connection[Any, Any], list[int]],
) -> None:
    maker, parent, codes = line
    stops: list[float] = []
    maker.on_stop(stops.append)
    assert parent.recv() == Alive()
    maker.tell(Begun(("train", 3)))
    while (said := parent.recv()) == Alive():
        pass
    assert said == Begun(("train", 3))
    parent.send(Seal())
    parent.send(Stop(7.0))
    assert maker.inbox.get(timeout=20.0) == Seal()
    assert maker.inbox.get(timeout=20.0) == Stop(7.0)
    assert stops == [7.0], "told at once, whatever the main thread does"
    assert codes == []


def test_without_a_parent_a_maker_ends_at_once(line: tuple[PipeLine, Connection[Any, Any], list[int]]) -> None:
    maker, parent, codes = line
    parent.close()
    wait_for(lambda: codes == [1])
    with pytest.raises(Exit):
        maker.tell(Want())
    assert codes == [1, 1]
