"""Processes of a case: each run has a bound, ends with everything that it started, and its log is shown on failure."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

from tests.torture import driver
from tests.torture.scene import CampaignFailure, Said, Scene, Skipped, environment

SCENE_VARIABLE = "TORTURE_SCENE"
"""In the environment of every process that a case starts: its scene's folder."""

TIMEOUT_S = 100.0
_LOOK_S = 0.01
_SESSIONS = "sessions.txt"
_PROGRAM = (sys.executable, "-m", "tests.torture.driver")


class Process(Protocol):
    """What is needed of `subprocess.Popen`."""

    pid: int

    def poll(self) -> int | None:
        """Exit code, None while it is alive."""

    def wait(self) -> int:
        """Exit code, once it has ended."""


class _Forked:
    """A child by fork, in a session of its own."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._code: int | None = None

    def poll(self) -> int | None:
        """See `Process`."""
        if self._code is None:
            ended, status = os.waitpid(self.pid, os.WNOHANG)
            self._code = os.waitstatus_to_exitcode(status) if ended else None
        return self._code

    def wait(self) -> int:
        """See `Process`."""
        if self._code is None:
            self._code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self._code


def _start(arguments: Sequence[str], log: Path, variables: dict[str, str]) -> subprocess.Popen[bytes]:
    root = Path(__file__).resolve().parents[2]
    with log.open("wb") as stream:
        return subprocess.Popen(
            list(arguments), cwd=root, env=environment(**variables), stdout=stream, stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip


def _start_warm(arguments: Sequence[str], log: Path, variables: dict[str, str]) -> _Forked:
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    nothing = os.open(os.devnull, os.O_RDONLY)
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        try:
            os.setsid()
            for descriptor, number in ((nothing, 0), (output, 1), (output, 2)):
                os.dup2(descriptor, number)
            os.environ.update(variables)
            driver.be_the_program(list(arguments[len(_PROGRAM) :]))
        finally:
            os._exit(99)
    os.close(output)
    os.close(nothing)
    return _Forked(child)


class Command:
    """A program at work in a session of its own; its output goes to a file in the scene's folder."""

    def __init__(
        self,
        scene: Scene,
        arguments: Sequence[str],
        *,
        warm: bool = False,
        item_s: float = 0.0,
        acts: str = "",
        grace_s: float = 30.0,
    ) -> None:
        """Start it. warm: as a fork of this process, which has loaded all libraries; for the others see `driver`."""
        number = len(list(scene.folder.glob("command-*.log")))
        self._log = scene.folder / f"command-{number}.log"
        self._words = " ".join(arguments)
        self._run = scene.run
        self._began = time.time()
        self._deadline = time.monotonic() + TIMEOUT_S
        start = _start_warm if warm else _start
        variables = {SCENE_VARIABLE: str(scene.folder), "TORTURE_ITEM_S": str(item_s), "TORTURE_ACTS": acts}
        variables["TORTURE_GRACE_S"] = str(grace_s)
        self.process: Process = start(arguments, self._log, variables)
        with (scene.folder / _SESSIONS).open("a", encoding="ascii") as stream:
            stream.write(f"{self.process.pid}\n")

    @property
    def text(self) -> str:
        """What it has written so far."""
        return self._log.read_text(encoding="utf-8", errors="replace")

    def wait_until(self, true: Callable[[], bool]) -> bool:
        """Wait for something that the run does; False where it ended before."""
        while not true():
            if self.process.poll() is not None:
                return False
            self._check_time()
            time.sleep(_LOOK_S)
        return True

    def end(self) -> Said:
        """Wait for its end; says how it ended."""
        while self.process.poll() is None:
            self._check_time()
            time.sleep(_LOOK_S)
        said = Said(self._words, self.process.wait(), self.text)
        print(f"$ {said.command}\n{said.text}-> {said.code}", flush=True)
        return said

    def _check_time(self) -> None:
        if time.monotonic() > self._deadline:
            raise CampaignFailure(f"not done in time:\n$ {self._words}\n{self.text}")

    def ranks(self) -> dict[int, int]:
        """Process of each rank that has begun in this run and lives."""
        found = {}
        for rank, events in self._events().items():
            starts = [event for event in events if event.get("event") == "start"]
            if starts and is_alive(int(starts[-1]["process"])):  # type: ignore[call-overload]
                found[rank] = int(starts[-1]["process"])  # type: ignore[call-overload]
        return found

    def made(self) -> int:
        """Samples made in this run."""
        return sum(event.get("event") == "made" for events in self._events().values() for event in events)

    def _events(self) -> dict[int, list[dict[str, object]]]:
        found = {}
        for path in sorted((self._run / "log").glob("simulate-rank-*.jsonl")):
            events = []
            for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
                with contextlib.suppress(ValueError):  # torn, or being written just now
                    event = json.loads(line)
                    if isinstance(event, dict) and float(event.get("time", 0)) >= self._began - 0.01:
                        events.append(event)
            found[int(path.stem.rpartition("-")[2])] = events
        return found


def run_simulate(
    scene: Scene, *more: str, item_s: float = 0.0, acts: str = "", grace_s: float = 30.0
) -> Command:  # fmt: skip
    """`stemdl simulate` as a process, with makers of its own."""
    words = [*_PROGRAM, *scene.arguments("simulate", *more)]
    return Command(scene, words, warm=scene.warm, item_s=item_s, acts=acts, grace_s=grace_s)


def mpirun() -> str:
    """The launcher. Raises Skipped, with the reason, where there is none, or no mpi4py."""
    try:
        import mpi4py  # noqa: F401
    except ImportError as error:
        raise Skipped(f"mpi4py cannot be imported: {error}") from error
    beside = Path(sys.executable).parent / "mpirun"
    found = str(beside) if beside.is_file() else shutil.which("mpirun")
    if found is None:
        raise Skipped("there is no mpirun (pip install .[mpi])")
    return found


def run_ranks(scene: Scene, ranks: int, *more: str, keep: bool = False, item_s: float = 0.0) -> Command:
    """The same under mpirun; keep: a rank that dies does not end the others."""
    launcher = [mpirun(), *(["-disable-auto-cleanup"] if keep else []), "-n", str(ranks)]
    return Command(scene, [*launcher, *_PROGRAM, *scene.arguments("simulate", *more)], item_s=item_s)


def is_alive(process: int) -> bool:
    """Whether there is such a process, and it is no zombie."""
    try:
        return _stat(process)[0] not in ("Z", "X")
    except OSError:
        return False


def send_signal(process: int, number: signal.Signals) -> bool:
    """Signal one process of a case by its number; False where it has ended."""
    try:
        os.kill(process, number)
    except ProcessLookupError:
        return False
    return True


def of_scene(folder: Path) -> Iterator[int]:
    """Living processes that were started for a scene, by their environment or the session that they are in."""
    mark = f"{SCENE_VARIABLE}={folder}".encode()
    sessions = _sessions(folder)
    for path in Path("/proc").iterdir():
        if not path.name.isdecimal() or int(path.name) == os.getpid():
            continue
        with contextlib.suppress(OSError):  # ended meanwhile, or somebody else's
            marked = mark in (path / "environ").read_bytes().split(b"\0")
            if (marked or _stat(int(path.name))[3] in sessions) and is_alive(int(path.name)):
                yield int(path.name)


def _sessions(folder: Path) -> set[str]:
    path = folder / _SESSIONS
    return set(path.read_text(encoding="ascii").split()) if path.is_file() else set()


def _stat(process: int) -> list[str]:
    """State, parent, group, session, ... Raises OSError."""
    text = Path(f"/proc/{process}/stat").read_text(encoding="ascii", errors="replace")
    return text.rpartition(")")[2].split()


def wait_for_the_end(folder: Path, timeout_s: float = 30.0) -> list[int]:
    """Processes of a scene that do not end by themselves."""
    deadline = time.monotonic() + timeout_s
    while left := list(of_scene(folder)):
        if time.monotonic() > deadline:
            return left
        time.sleep(0.05)
    return []


def kill_all(folder: Path) -> None:
    """kill -9 of every process of a scene."""
    for process in of_scene(folder):
        send_signal(process, signal.SIGKILL)


def children_of(process: int) -> list[int]:
    """Processes that a process has started, and theirs."""
    found = []
    for path in Path(f"/proc/{process}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for child in map(int, path.read_text(encoding="ascii").split()):
                found += [child, *children_of(child)]
    return found
