"""Work in a forked child that kills itself just before, or in the middle of, the n-th call that safety hangs on."""

from __future__ import annotations

import fcntl
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py

from tests.torture.scene import CampaignFailure, Said, Scene

_TIMEOUT_S = 90.0

Work = Callable[[], Said]


def count_steps(scene: Scene, work: Work) -> int:
    """How many such calls the work makes when nothing kills it; the scene is then as the work leaves it."""
    result = scene.folder / "steps.txt"
    code = _fork(work, 0, 0.0, result, scene.folder / "count.log")
    if code != 0 or not result.is_file():
        raise CampaignFailure(f"the work failed by itself: {_log(scene.folder / 'count.log')}")
    return int(result.read_text(encoding="ascii"))


def kill_at_step(scene: Scene, work: Work, step: int, torn: float) -> bool:
    """Do the work, and kill -9 it at a step; False where it was done before.

    torn: the share of a file's line that is written before a kill in that very write.
    """
    log = scene.folder / "killed.log"
    code = _fork(work, step, torn, scene.folder / "steps.txt", log)
    if code not in (0, -signal.SIGKILL):
        raise CampaignFailure(f"killed at step {step}, the work ended with {code}: {_log(log)}")
    return code != 0


def _fork(work: Work, step: int, torn: float, result: Path, log: Path) -> int:
    child = os.fork()
    if child == 0:
        try:
            output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
            os.dup2(output, 1)
            os.dup2(output, 2)
            count = _install(step, torn)
            said = work()
            sys.stdout.flush()
            result.write_text(str(count()), encoding="ascii")
            os._exit(said.code)
        except BaseException:  # noqa: BLE001  (a child must not go on as a second campaign)
            traceback.print_exc()
            os._exit(99)
    deadline = time.monotonic() + _TIMEOUT_S
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            raise CampaignFailure(f"killed at step {step}, the work hangs: {_log(log)}")
        time.sleep(0.002)


def _install(step: int, torn: float) -> Callable[[], int]:
    """Hook the calls; returns what counts them. Step 0 kills nobody."""
    count = 0

    def hook(owner: Any, name: str, dying: Callable[..., object] | None = None) -> None:
        real = getattr(owner, name)

        def call(*arguments: Any, **options: Any) -> Any:
            nonlocal count
            count += 1
            if count == step:
                if dying is not None:
                    dying(real, *arguments)
                os.kill(os.getpid(), signal.SIGKILL)
                time.sleep(60.0)  # in a thread that is not the first to be killed
            return real(*arguments, **options)

        setattr(owner, name, call)

    def write_part(write: Callable[[int, Any], int], descriptor: int, content: Any) -> None:
        write(descriptor, bytes(content)[: int(torn * len(content))])

    for name in ("fsync", "rename", "replace", "link", "ftruncate", "pread"):
        hook(os, name)
    hook(os, "write", write_part)
    hook(fcntl, "flock")
    hook(Path, "unlink")
    for owner, name in (
        (h5py.File, "flush"), (h5py.File, "close"), (h5py.Dataset, "__setitem__"), (h5py.Dataset, "resize"),
        (h5py.Group, "create_dataset"),
    ):  # fmt: skip
        hook(owner, name)
    return lambda: count


def _log(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else "nothing was said"
