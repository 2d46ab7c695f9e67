"""The stall watch over real processes: killed, stopped, late, or never calling, each ends in time and says which."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

from stemdl.comm.errors import EXIT_COMM

pytestmark = pytest.mark.multiproc

ROOT = Path(__file__).resolve().parents[2]
GIVE_UP_S = 60.0
SIZE = 4

RANK = """\
import ctypes, os, pathlib, signal, sys, time
from stemdl.comm.watch import Watch, WatchLimits
from stemdl.comm.watch_server import WatchServer

assert not {"torch", "numpy", "mpi4py"} & set(sys.modules)
rank, size, folder = int(sys.argv[1]), int(sys.argv[2]), pathlib.Path(sys.argv[3])
limits = WatchLimits(stall_warn_s=1.0, stall_end_s=4.0, silence_s=SILENCE, grace_s=3.0)
libc = ctypes.CDLL(None)
server, address = None, folder / "port"
if rank == 0:
    server = WatchServer(size=size, token="secret", limits=limits, log=folder / "watch.jsonl")
    (folder / "new").write_text(str(server.start("127.0.0.1")[1]))
    (folder / "new").rename(address)
while not address.exists():
    time.sleep(0.01)
port = int(address.read_text())
watch = Watch(rank=rank, size=size, address=("127.0.0.1", port), token="secret", limits=limits, server=server)

def reduce(step):
    '''In place of an exchange: waits, in C code, until all ranks have come.'''
    watch.submitted(step, "group 1 of 2", ["conv.weight", "conv.bias", "fc.weight", "fc.bias"])
    (folder / f"{step}-{rank}").touch()
    while not all((folder / f"{step}-{other}").exists() for other in range(size)):
        libc.usleep(5000)
    watch.completed(step, "group 1 of 2")
    watch.step_done(step + 1)

def forever():
    while True:
        libc.pause()

def said(what):
    os.write(1, f"{what}\\n".encode())

for step in range(STEPS):
ACT
    reduce(step)
    if step == 2:
        said("started")
watch.close()
if server is not None:
    server.close()
said("ended")
"""


class Job:
    """Ranks whose output goes to files; killed with the block."""

    def __init__(self, folder: Path, act: str, *, steps: int = 10**9, silence_s: float = 3.0) -> None:
        self.folder = folder
        act = "".join(f"    {line}\n" for line in act.splitlines())
        script = RANK.replace("ACT\n", act).replace("STEPS", str(steps)).replace("SILENCE", str(silence_s))
        (folder / "rank.py").write_text(script)
        self.ranks = [self._start(rank) for rank in range(SIZE)]

    def _start(self, rank: int) -> subprocess.Popen[bytes]:
        with self._file(rank).open("wb") as out:
            return subprocess.Popen(
                [sys.executable, "-u", str(self.folder / "rank.py"), str(rank), str(SIZE), str(self.folder)],
                cwd=self.folder,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _file(self, rank: int) -> Path:
        return self.folder / f"out-{rank}"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for rank in self.ranks:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(rank.pid, signal.SIGKILL)
            rank.wait()
        if error is not None:
            print(
                "\n".join(
                    f"rank {rank}: {rank_.returncode}\n{self.said(rank)}" for rank, rank_ in enumerate(self.ranks)
                )
            )

    def said(self, rank: int) -> str:
        """A rank's output so far."""
        return self._file(rank).read_text()

    def wait_for(self, what: str, *ranks: int) -> None:
        """Wait until ranks (by default all) have said something."""
        by_s = time.monotonic() + GIVE_UP_S
        while not all(what in self.said(rank) for rank in ranks or range(SIZE)):
            assert time.monotonic() < by_s, f"{what!r} was never said"
            time.sleep(0.02)

    def signal(self, which: signal.Signals, *ranks: int) -> None:
        """Send a signal to ranks."""
        for rank in ranks:
            self.ranks[rank].send_signal(which)

    def place(self, rank: int) -> str:
        """How a rank is named: a pattern."""
        return rf"rank {rank} \(\S+, pid {self.ranks[rank].pid}\)"

    def all_end(self, why: str, *ranks: int) -> None:
        """Ranks (by default all) end with the code of a lost rank, and each says why, in one line, once."""
        for rank in ranks or range(SIZE):
            assert self.ranks[rank].wait(GIVE_UP_S) == EXIT_COMM, self.said(rank)
            lines = [
                line for line in self.said(rank).splitlines() if line.startswith("stemdl:") and "warning:" not in line
            ]
            assert len(lines) == 1, lines
            waits = r"( \(this rank waits for group \d of \d of step \d+\))?"
            assert re.fullmatch(rf"stemdl: rank {rank}: {why}{waits}", lines[0]), lines[0]
            assert "Traceback" not in self.said(rank)


def test_a_killed_rank(tmp_path: Path) -> None:
    with Job(tmp_path, "") as job:
        job.wait_for("started")
        job.signal(signal.SIGKILL, 2)
        job.all_end(f"{job.place(2)}: its process ended", 0, 1, 3)


def test_a_killed_rank_whose_forked_children_live_on(tmp_path: Path) -> None:
    act = "if step == 0 and os.fork() == 0:\n    forever()"
    with Job(tmp_path, act, silence_s=50.0) as job:
        job.wait_for("started")
        job.signal(signal.SIGKILL, 2)
        job.all_end(f"{job.place(2)}: its process ended", 0, 1, 3)


def test_rank_zero_killed(tmp_path: Path) -> None:
    with Job(tmp_path, "") as job:
        job.wait_for("started")
        job.signal(signal.SIGKILL, 0)
        job.all_end(f"{job.place(0)}: its process ended", 1, 2, 3)


def test_a_rank_that_ends_without_goodbye(tmp_path: Path) -> None:
    with Job(tmp_path, "if step == 3 and rank == 1:\n    sys.exit(0)") as job:
        job.all_end(f"{job.place(1)}: its process ended", 0, 2, 3)


def test_a_stopped_rank_and_what_it_does_when_it_goes_on(tmp_path: Path) -> None:
    with Job(tmp_path, "") as job:
        job.wait_for("started")
        job.signal(signal.SIGSTOP, 1)
        why = rf"{job.place(1)}: no sign of life for \d.\d s \(stopped, or its node or network is gone\)"
        job.all_end(why, 0, 2, 3)
        job.signal(signal.SIGCONT, 1)
        job.all_end(why, 1)


def test_rank_zero_stopped_and_what_it_does_when_it_goes_on(tmp_path: Path) -> None:
    with Job(tmp_path, "") as job:
        job.wait_for("started")
        job.signal(signal.SIGSTOP, 0)
        why = rf"{job.place(0)}: no sign of life for \d.\d s \(stopped, or its node or network is gone\)"
        job.all_end(why, 1, 2, 3)
        job.signal(signal.SIGCONT, 0)
        job.all_end(why, 0)


def test_all_stopped_for_long_and_all_go_on(tmp_path: Path) -> None:
    with Job(tmp_path, "", steps=10**9) as job:
        job.wait_for("started")
        job.signal(signal.SIGSTOP, 3, 1, 2, 0)
        time.sleep(6.0)  # longer than silence_s and stall_end_s
        before = len(list(tmp_path.glob("*-0")))
        job.signal(signal.SIGCONT, 0, 1, 2, 3)
        by_s = time.monotonic() + GIVE_UP_S
        while len(list(tmp_path.glob("*-0"))) < before + 20:
            assert all(rank.poll() is None for rank in job.ranks)
            assert time.monotonic() < by_s
            time.sleep(0.05)
        time.sleep(2.0)
        assert all(rank.poll() is None for rank in job.ranks)


def test_a_rank_late_by_three_times_the_limit(tmp_path: Path) -> None:
    with Job(tmp_path, "if step == 3 and rank == 3:\n    libc.sleep(12)") as job:
        job.all_end(
            r"group 1 of 2 of step 3 \(conv.weight, conv.bias, fc.weight ... and 1 more\): 3 of 4 ranks \(0, 1, 2\) "
            rf"wait for 4.\d s \(limit 4.0 s\) for {job.place(3)}: alive, in step 3, computing. Likely a slow rank, .*"
        )
        assert "warning: group 1 of 2 of step 3" in job.said(0)
        assert [job.said(rank).count("warning") for rank in (1, 2, 3)] == [0, 0, 0]
        log = (tmp_path / "watch.jsonl").read_text().splitlines()
        assert '"event": "verdict"' in log[-1]


def test_a_rank_that_is_late_and_has_said_so(tmp_path: Path) -> None:
    act = "if step == 3 and rank == 3:\n    with watch.busy('validation', 30.0):\n        libc.sleep(6)"
    with Job(tmp_path, act, steps=6) as job:
        assert [rank.wait(GIVE_UP_S) for rank in job.ranks] == [0] * SIZE
        assert [job.said(rank) for rank in range(SIZE)] == ["started\nended\n"] * SIZE


def test_a_rank_that_never_calls(tmp_path: Path) -> None:
    with Job(tmp_path, "if rank == 0:\n    forever()") as job:
        job.all_end(rf"group 1 of 2 of step 0 .*: 3 of 4 ranks \(1, 2, 3\) wait .* for {job.place(0)}: alive, .*")


def test_a_rank_that_fails_is_named_and_not_its_victims(tmp_path: Path) -> None:
    act = "if step == 3:\n    if rank == 2:\n        watch.fail('fc.weight is 4x4, on rank 0 4x5')\n    forever()"
    with Job(tmp_path, act) as job:
        job.all_end(f"{job.place(2)} failed: fc.weight is 4x4, on rank 0 4x5")


def test_broken_connections_are_not_taken_for_the_cause(tmp_path: Path) -> None:
    act = """\
if step == 3 and rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
if step == 3:
    watch.fail('Connection closed by peer', wait_s=10.0)"""
    with Job(tmp_path, act) as job:
        job.all_end(f"{job.place(1)}: its process ended", 0, 2, 3)


def test_an_orderly_end_in_any_order_is_silent(tmp_path: Path) -> None:
    with Job(tmp_path, "", steps=4) as job:
        assert [rank.wait(GIVE_UP_S) for rank in job.ranks] == [0] * SIZE
        assert [job.said(rank) for rank in range(SIZE)] == ["started\nended\n"] * SIZE


def test_output_that_nobody_takes_does_not_keep_a_rank_alive(tmp_path: Path) -> None:
    act = """\
if step == 3 and rank == 1:
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    try:
        while True:
            os.write(writer, b'x' * 4096)
    except BlockingIOError:
        os.set_blocking(writer, True)
    os.dup2(writer, 2)
    watch.fail('no way')"""
    with Job(tmp_path, act) as job:
        job.all_end(f"{job.place(1)} failed: no way", 0, 2, 3)
        assert job.ranks[1].wait(GIVE_UP_S) == EXIT_COMM
