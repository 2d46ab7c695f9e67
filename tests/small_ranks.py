"""Small simulations by one rank in this process, by processes of this machine, and by ranks of an mpirun."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self, cast
from uuid import uuid4

import pytest
import torch

from data_gen.generate import SimulationSummary, simulate
from data_gen.sharing.crew import RankCrew
from data_gen.sharing.ranks import Team
from stemdl.config import Config
from stemdl.shards import ShardSet
from tests.small_run import Process, Recorder, small_config

# The command line, but for what the makers do: their processes begin by importing this very file.
DRIVER = """\
import os, pathlib, signal, sys, time
import data_gen.sharing.maker

FLAGS = pathlib.Path({flags!r})
real = data_gen.sharing.maker.make_sample

def first_time(what):
    try:
        (FLAGS / what).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True

def say(what):
    os.write(1, (what + "\\n").encode())  # one piece, whoever else writes

def changed(config, part, item, engine):
    key = (part.name, item)
{act}
    return real(config, part, item, engine)

data_gen.sharing.maker.make_sample = changed
{header}

if __name__ == "__main__":
    from stemdl.cli import main
    sys.exit(main())
"""

BLOCK_AFTER_SIX = """\
(FLAGS / f"begun-{part.name}-{item}").touch()
if len(list(FLAGS.glob("begun-*"))) > 6:
    say("blocked")
    time.sleep(1000)
"""
"""Every maker stops at an item once six have been begun."""

MARK = "STEMDL_TEST_PROCESSES"


class LoneTeam:
    """In place of `Team`: a job of one rank."""

    rank = local_rank = 0
    size = local_size = 1

    def __init__(self) -> None:
        self.lost: set[int] = set()

    def send(self, rank: int, message: object) -> None:
        """There is nobody to send to."""
        raise AssertionError(f"rank {rank} was sent {message}, and there is none")

    def receive(self) -> None:
        """Nobody says anything."""

    def alive_every_s(self) -> float:
        """As seldom as real ones."""
        return 2.0

    def abandon(self, reason: str, code: int) -> None:
        """It is not to come to that."""
        raise AssertionError(reason)


def team_of_one() -> RankCrew:
    """A crew whose one rank is this process: its maker runs in the main thread, the drive in another."""
    return RankCrew(cast(Team, LoneTeam()))


def one_thread() -> Iterator[None]:
    """For a fixture: a maker sets the number of threads of its process; here it gets it back."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def finish_here(folder: Path, *overrides: str) -> SimulationSummary:
    """The rest of a set, made in this process."""
    before = torch.get_num_threads()
    try:
        return simulate(small_config(folder, *overrides), progress=Recorder(), crew=team_of_one())
    finally:
        torch.set_num_threads(before)


class Job(Process):
    """A command and all its processes, wherever they went: known by a mark in their environment, and ended at the end.

    A context manager.
    """

    def __init__(self, arguments: list[str | Path], *, timeout_s: float = 150.0, **environment: str) -> None:
        self._mark = uuid4().hex
        super().__init__(arguments, timeout_s=timeout_s, **{MARK: self._mark}, **environment)

    @property
    def pids(self) -> list[int]:
        """All processes that are alive, zombies not counted."""
        return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdecimal() and self._is_mine(path)]

    def kill_all(self) -> None:
        """kill -9 of every process, the launcher's first: it starts nothing more."""
        for _ in range(50):
            pids = self.pids
            if not pids:
                return
            for pid in sorted(pids):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.02)
        raise AssertionError(f"processes {self.pids} cannot be killed")

    def nobody_is_left(self) -> None:
        """Wait for the last process; fails the test when time is up."""
        while self.pids:
            if time.monotonic() > self._deadline:
                self._fail(f"processes {self.pids} are left")
            time.sleep(0.05)

    def _is_mine(self, process: Path) -> bool:
        try:
            return f"{MARK}={self._mark}".encode() in (process / "environ").read_bytes()  # empty of a zombie
        except OSError:
            return False

    def _fail(self, why: str) -> None:
        self.kill_all()
        super()._fail(why)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.kill_all()
        self.popen.wait(10.0)
        self.close()


def write_driver(folder: Path, act: str = "", header: str = "") -> Path:
    """A script that is the command line, but for what happens before an item `key` is made, and what is changed."""
    flags, script = folder / "flags", folder / "driver.py"
    flags.mkdir(exist_ok=True)
    lines = "\n".join(f"    {line}" for line in act.splitlines())
    script.write_text(DRIVER.format(flags=str(flags), act=lines, header=header))
    return script


def simulate_arguments(folder: Path, *overrides: str, script: Path | None = None) -> list[str | Path]:
    """Of a Python that simulates the small set in a folder."""
    small_config(folder, *overrides)
    program: list[str | Path] = ["-m", "stemdl.cli"] if script is None else [script]
    sets = [part for override in overrides for part in ("--set", override)]
    return [*program, "simulate", folder / "config.yaml", *sets]


def mpirun(ranks: int, arguments: list[str | Path], *options: str) -> list[str | Path]:
    """Arguments of a Python that becomes an mpirun of so many Pythons. Skips the test where there is no MPI."""
    pytest.importorskip("mpi4py", reason="no mpi4py here: pip install 'stemdl[mpi]'", exc_type=ImportError)
    launcher = Path(sys.executable).with_name("mpirun")
    if not launcher.exists():
        found = shutil.which("mpirun")
        if found is None:
            pytest.skip("no mpirun here: pip install 'stemdl[mpi]'")
        launcher = Path(found)
    become = "import os, sys; os.execv(sys.argv[1], sys.argv[1:])"
    return ["-c", become, launcher, *options, "-n", str(ranks), sys.executable, "-u", *arguments]


def sealed_items(folder: Path) -> set[tuple[str, int]]:
    """Items in the shards of a run folder, each of them whole and there once."""
    found: set[tuple[str, int]] = set()
    for part in ("train", "held_out"):
        if (folder / "shards" / part / "manifest.jsonl").exists():
            with ShardSet(folder / "shards" / part, verify="hash") as shards:
                assert not shards.duplicates
                found |= {(part, item) for item in shards.items}
    return found


def log_events(folder: Path, event: str) -> list[dict[str, Any]]:
    """What the ranks' logs say of one kind of event."""
    lines: list[dict[str, Any]] = []
    for path in sorted((folder / "log").glob("simulate-rank-*.jsonl")):
        lines += [json.loads(line) for line in path.read_text().splitlines()]
    return [line for line in lines if line["event"] == event]


def made_items(folder: Path) -> set[tuple[str, int]]:
    """Items that the ranks' logs call made."""
    return {(line["part"], line["item"]) for line in log_events(folder, "made")}


def failed_items(config: Config) -> dict[tuple[str, int], str]:
    """The items on record as failed, with the kind."""
    record = json.loads((config.run.folder / "shards" / "failed.json").read_text())
    return {(one["part"], one["item"]): one["kind"] for one in record["failed"]}
