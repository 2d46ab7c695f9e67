"""The campaign: which faults are injected, each in a process and a folder of its own, and what came of them.

A fault has a number; seed and number give the same fault again. A case is what one process does: one fault, or several
that follow one another in the same run.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import traceback
import zlib
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from tests.torture.processes import kill_all, wait_for_the_end
from tests.torture.scene import CampaignFailure, Reference, Scene, Skipped

CASE_TIMEOUT_S = 300.0
_LOOK_S = 0.02


@dataclass(frozen=True)
class Kind:
    """A kind of fault: what injects it, how many make a full campaign, how many go into one case."""

    name: str
    act: Callable[[Scene], None]
    full: int
    batch: int = 1
    short: int = 1
    """How many in the short form."""
    slow: bool = False
    """Whether it waits for processes to start."""


@dataclass(frozen=True)
class Case:
    """Faults `first` to `first + count - 1`."""

    kind: Kind
    first: int
    count: int
    index: int
    """Among the cases of its kind."""
    warm: bool
    """See `Scene`: the short form's all are, and two of three in a full campaign."""


@dataclass
class Result:
    """What came of a case."""

    case: Case
    injected: list[str] = field(default_factory=list)
    survived: int = 0
    seconds: float = 0.0
    skipped: str = ""
    failure: str = ""


def plan(kinds: Sequence[Kind], faults: int | None) -> list[Case]:
    """All cases: `faults` shared out among the kinds as in the full campaign, or the short form (None)."""
    total = sum(kind.full for kind in kinds)
    cases: list[Case] = []
    number = 1
    for kind in kinds:
        left = kind.short if faults is None else max(1, -(-kind.full * faults // total))
        index = 0
        while left > 0:
            count = min(kind.batch, left)
            cases.append(Case(kind, number, count, index, faults is None or index % 3 > 0))
            number, left, index = number + count, left - count, index + 1
    return cases


def run_cases(
    cases: Sequence[Case], reference: Reference, folder: Path, seed: int, jobs: int, *, keep: bool = False
) -> Generator[Result, None, None]:
    """Run all cases, so many at a time, and give each result as it comes; nothing is left behind but failed folders."""
    waiting = list(cases)
    running: dict[int, tuple[Case, Path, float]] = {}
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                case = waiting.pop(0)
                place = folder / f"fault-{case.first:03d}"
                running[_start(case, reference, place, seed)] = (case, place, time.monotonic())
            for child, (case, place, began) in list(running.items()):
                ended, status = os.waitpid(child, os.WNOHANG)
                late = time.monotonic() - began > CASE_TIMEOUT_S
                if late and not ended:
                    os.kill(child, signal.SIGKILL)
                    _, status = os.waitpid(child, 0)
                if ended or late:
                    del running[child]
                    result = _result(case, place, status, late, time.monotonic() - began)
                    if not result.failure and not keep:
                        shutil.rmtree(place)
                    yield result
            time.sleep(_LOOK_S)
    finally:
        for child, (_, place, _) in running.items():
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            _clear(place)


def _start(case: Case, reference: Reference, place: Path, seed: int) -> int:
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        try:
            _be_the_case(case, reference, place, seed)
        finally:
            os._exit(99)
    return child


def _be_the_case(case: Case, reference: Reference, place: Path, seed: int) -> None:
    """The whole life of a case's process; it says by a file what came of it."""
    output = os.open(place / "case.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(output, 1)
    os.dup2(output, 2)
    _own_mounts()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # it may have been ignored, as in a background job
    faulthandler.enable()
    faulthandler.dump_traceback_later(CASE_TIMEOUT_S - 5.0)
    numbers = [seed, zlib.crc32(case.kind.name.encode()), case.index]
    rng = np.random.default_rng(np.random.SeedSequence(numbers))
    scene = Scene(place / "scene", reference, rng, case.count, case.warm)
    record: dict[str, object] = {}
    try:
        scene.folder.mkdir()
        case.kind.act(scene)
        left = wait_for_the_end(scene.folder)
        if left:
            raise CampaignFailure(f"processes are left: {left}")
    except Skipped as reason:
        record["skipped"] = str(reason)
    except BaseException as error:  # noqa: BLE001  (whatever it is, it is this case's failure)
        record["failure"] = f"{type(error).__name__}: {error}\n{traceback.format_exc()}"
    record |= {"injected": scene.injected, "survived": scene.survived}
    (place / "result.json").write_text(json.dumps(record), encoding="utf-8")
    sys.stdout.flush()
    os._exit(0)


def _own_mounts() -> None:
    """Give this process mounts of its own, which end with it however it ends; where that cannot be, `_clear` helps."""
    new_namespace = 0x00020000  # CLONE_NEWNS; Python has os.unshare from 3.12 on
    if os.geteuid() == 0 and ctypes.CDLL(None, use_errno=True).unshare(new_namespace) == 0:
        subprocess.run(["mount", "--make-rprivate", "/"], check=True)


def _result(case: Case, place: Path, status: int, late: bool, seconds: float) -> Result:
    result = Result(case, seconds=seconds)
    path = place / "result.json"
    if path.is_file() and not late:
        record = json.loads(path.read_text(encoding="utf-8"))
        result.injected, result.survived = record["injected"], record["survived"]
        result.skipped, result.failure = record.get("skipped", ""), record.get("failure", "")
    else:
        log = (place / "case.log").read_text(encoding="utf-8", errors="replace")
        result.injected = [line.removeprefix("fault: ") for line in log.splitlines() if line.startswith("fault: ")]
        how = f"was not done within {CASE_TIMEOUT_S:g} s" if late else f"ended with {status}"
        result.failure = f"its process {how}:\n{log[-6000:]}"
    if not result.skipped and not result.failure and not result.injected:
        result.failure = "nothing was injected"
    _clear(place)
    return result


def _clear(place: Path) -> None:
    """End every process of a case, and unmount its disks."""
    kill_all(place / "scene")
    mounted = [line.split()[1] for line in Path("/proc/mounts").read_text(encoding="utf-8").splitlines()]
    for point in mounted:
        if point.startswith(f"{place}/"):
            with contextlib.suppress(FileNotFoundError):
                subprocess.run(["umount", "-l", point], check=False, capture_output=True)
