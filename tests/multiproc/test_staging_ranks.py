"""Real processes that drain and stage, killed with kill -9: nothing is torn, and all is there when run again."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from stemdl.atomic_files import sha256_file
from stemdl.config.storage import BurstBuffer
from stemdl.progress import SilentProgress
from stemdl.shards import ranks_left_behind, read_manifest, sealed_items
from stemdl.shards.drain import Drain, drain_left
from stemdl.shards.h5_read import verify_whole
from stemdl.shards.manifest import take_out
from stemdl.shards.schema import parse_shard_name, shard_name
from stemdl.shards.staging import stage, staged_folder
from tests.small_shards import CONFIG_HASH, assert_set, fill, make_sample, open_writer

pytestmark = pytest.mark.multiproc

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_S = 90
ITEMS = {"stage": 6, "drain_left": 6, "simulate": 4, "no_room": 4}  # of the scenarios killed at each step
BIG = 192  # pixels: half a MB per shard, so that kills hit the middle of a copy


def _run(base: Path) -> Path:
    return base / "run" / "shards" / "train"


def _node(base: Path) -> Path:
    return base / "node" / "shards" / "train"


# What a killed process was doing, and what the next one does; each is called by processes of its own, too.


def do_stage(base: Path, local_rank: int = 0, local_size: int = 1) -> None:
    """One rank of a node that gets the whole set."""
    stage(
        _run(base),
        base / "node",
        rank=local_rank,
        size=local_size,
        local_rank=local_rank,
        local_size=local_size,
        mode="whole",
        config_hash=CONFIG_HASH,
        section=BurstBuffer(reserve_gb=0.0),
        progress=SilentProgress(),
    )


def do_drain_left(base: Path, local_rank: int = 0, local_size: int = 1) -> None:
    """One rank of a node that starts again."""
    drain_left(
        _node(base),
        _run(base),
        CONFIG_HASH,
        rank=local_rank,
        local_rank=local_rank,
        local_size=local_size,
        progress=SilentProgress(),
    )


def do_simulate(base: Path, items: int = ITEMS["simulate"], pixels: int = 8, reserve_bytes: float = 0.0) -> None:
    """A rank that drains what was left, then makes what is missing and drains it in the background."""
    do_drain_left(base)
    missing = sorted(set(range(items)) - sealed_items(_run(base), CONFIG_HASH))
    with (
        Drain(
            _node(base),
            _run(base),
            rank=0,
            config_hash=CONFIG_HASH,
            reserve_bytes=reserve_bytes,
            make_room=reserve_bytes > 0,
        ) as background,
        open_writer(_node(base), on_seal=background.submit) as writer,
    ):
        for item in missing:
            writer.add(make_sample(item, pixels))


def do_simulate_in_no_room(base: Path) -> None:
    """The same on a disk that is always short of space: what is drained is removed from the node at once."""
    do_simulate(base, reserve_bytes=1e18)


SCENARIOS: dict[str, Callable[[Path], None]] = {
    "stage": do_stage,
    "drain_left": do_drain_left,
    "simulate": do_simulate,
    "no_room": do_simulate_in_no_room,
}


def _prepare(base: Path, scenario: str) -> None:
    """What there is before the first kill."""
    if scenario == "stage":
        for rank in range(3):
            fill(_run(base), [2 * rank, 2 * rank + 1], rank)
        fill(_node(base), [2, 3], rank=7)  # made on this node: taken from there
        folder = base / "node" / "staged" / "train" / "whole"
        fill(folder, [20, 21], rank=8)  # of an earlier state of the run: removed
    elif scenario == "drain_left":
        fill(_run(base), [0, 1], rank=0)
        fill(_node(base), [2, 3], rank=0)
        fill(_node(base), [4, 5], rank=1)
        take_out(_node(base), lambda entry: entry.file == shard_name(1, 0))  # as killed before the line


def _result(base: Path, scenario: str) -> Path:
    return base / "node" / "staged" / "train" / "whole" if scenario == "stage" else _run(base)


# Kills itself just before the n-th of the calls that safety hangs on, for n = 1, 2, ... to the end.
# A kill in a write leaves half of it, and in a second run all of it.
EVERY_STEP = """
import fcntl, os, pathlib, shutil, signal, sys
from tests.multiproc.test_staging_ranks import SCENARIOS

def die():
    os.kill(os.getpid(), signal.SIGKILL)
    signal.pause()  # in a thread that is not the first to be killed

def run(base, scenario, steps):
    count = 0
    def hook(owner, name, dying=None):
        real = getattr(owner, name)
        def call(*arguments, **options):
            nonlocal count
            count += 1
            if count == steps:
                if dying is not None:
                    dying(real, *arguments)
                die()
            return real(*arguments, **options)
        setattr(owner, name, call)
    for name in ("fsync", "rename", "replace", "link", "ftruncate"):
        hook(os, name)
    hook(os, "write", lambda write, fd, content: write(fd, content))  # whole, but not synced
    hook(os, "write", lambda write, fd, content: write(fd, content[: len(content) // 2]))
    hook(fcntl, "flock")
    hook(pathlib.Path, "unlink")
    SCENARIOS[scenario](base)

template, scenario = pathlib.Path(sys.argv[1]), sys.argv[2]
sys.stdout.flush()
for steps in range(1, 1000):
    base = template.parent / str(steps)
    shutil.copytree(template, base)
    child = os.fork()
    if child == 0:
        run(base, scenario, steps)
        os._exit(0)
    if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != -signal.SIGKILL:
        break
print(steps)
"""

GO = """
import pathlib, sys
from tests.multiproc.test_staging_ranks import {work}
print("go", flush=True)
{work}(pathlib.Path(sys.argv[1]), *(int(text) for text in sys.argv[2:]))
"""


def _start(script: str, *arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", script, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _finish(process: subprocess.Popen[str]) -> tuple[str, str]:
    try:
        return process.communicate(timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        pytest.fail(f"not done after {TIMEOUT_S} s:\n{process.communicate()[1]}")


def _assert_sound(folder: Path) -> None:
    """Every final name is a whole file, and every line of the manifest has its file."""
    for path in folder.glob("*.h5"):
        if parse_shard_name(path.name) is not None:
            verify_whole(path)
    for entry in read_manifest(folder):
        assert sha256_file(folder / entry.file) == entry.sha256


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_kill_before_each_single_step(tmp_path: Path, scenario: str) -> None:
    template = tmp_path / "template"
    template.mkdir()
    _prepare(template, scenario)
    process = _start(EVERY_STEP, template, scenario)
    output, log = _finish(process)
    assert process.returncode == 0, log
    num_kills = int(output.split()[-1]) - 1
    assert num_kills > 20, "the hooks no longer reach the calls"
    items = set(range(ITEMS[scenario]))
    done_at_kill = []
    for steps in range(1, num_kills + 1):
        base = tmp_path / str(steps)
        result = _result(base, scenario)
        for folder in (_node(base), _run(base), result):
            _assert_sound(folder)
        done = {entry.file: entry for entry in read_manifest(result) if items.issuperset(entry.items)}
        done_at_kill.append(len(done))
        SCENARIOS[scenario](base)
        for path in result.glob(".tmp-manifest*"):
            path.unlink()  # of a manifest that was being replaced: a few bytes, nobody's shard
        assert_set(result, items)
        assert done.items() <= {entry.file: entry for entry in read_manifest(result)}.items()  # done stays done
        assert ranks_left_behind(_node(base)) == []
        _assert_sound(_node(base))
        shutil.rmtree(base)
    assert len(set(done_at_kill)) > 1
    if scenario in ("stage", "drain_left"):  # with a thread, the n-th call is not always the same one
        assert done_at_kill == sorted(done_at_kill)
    assert_set(_result(tmp_path / str(num_kills + 1), scenario), items)


def _kill_at_random(starts: Sequence[Callable[[], subprocess.Popen[str]]], rng: np.random.Generator) -> int:
    """Start processes, kill them all at some moment of their work; returns how many were killed in it."""
    processes = [start() for start in starts]

    def kill_all() -> None:
        for process in processes:
            process.kill()

    watchdog = threading.Timer(TIMEOUT_S, kill_all)
    watchdog.start()
    for process in processes:
        assert process.stdout is not None
        process.stdout.readline()  # from here on they work
    time.sleep(float(rng.uniform(0.0, 0.1)))
    kill_all()
    logs = [process.communicate()[1] for process in processes]
    watchdog.cancel()
    for process, log in zip(processes, logs, strict=True):
        assert process.returncode in (0, -9), log
    return sum(process.returncode == -9 for process in processes)


def test_ranks_of_a_node_stage_at_once_and_are_killed_at_random(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    for rank in range(3):
        fill(_run(tmp_path), range(8 * rank, 8 * rank + 8), rank, pixels=BIG)
    folder = tmp_path / "node" / "staged" / "train" / "whole"
    ranks = [partial(_start, GO.format(work="do_stage"), tmp_path, rank, 3) for rank in range(3)]
    kills = 0
    for _ in range(3):
        before = {entry.file for entry in read_manifest(folder)}
        kills += _kill_at_random(ranks, rng)
        _assert_sound(folder)
        assert before <= {entry.file for entry in read_manifest(folder)}
    assert kills > 0, "the processes were always done before the kill"
    for process in [start() for start in ranks]:
        _, log = _finish(process)
        assert process.returncode == 0, log
    read = staged_folder(_run(tmp_path), tmp_path / "node", rank=0, size=3, mode="whole", config_hash=CONFIG_HASH)
    assert read == folder
    assert_set(folder, range(24), pixels=BIG)


def test_a_rank_that_drains_is_killed_at_random(tmp_path: Path) -> None:
    rng = np.random.default_rng(6)
    items, kills = 60, 0
    for _ in range(4):
        before = sealed_items(_run(tmp_path), CONFIG_HASH) | sealed_items(_node(tmp_path), CONFIG_HASH)
        kills += _kill_at_random([partial(_start, GO.format(work="do_simulate"), tmp_path, items, BIG)], rng)
        for folder in (_run(tmp_path), _node(tmp_path)):
            if folder.exists():
                _assert_sound(folder)
        assert before <= sealed_items(_run(tmp_path), CONFIG_HASH) | sealed_items(_node(tmp_path), CONFIG_HASH)
    assert kills > 0, "the process was always done before the kill"
    do_simulate(tmp_path, items, BIG)
    assert_set(_run(tmp_path), range(items), pixels=BIG)
