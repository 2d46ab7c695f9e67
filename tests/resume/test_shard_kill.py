"""Writers killed with kill -9: nothing whole is lost, nothing half has a final name, a rerun ends with the same set."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from stemdl.atomic_files import sha256_file
from stemdl.shards import Sample, ShardAxes, ShardSet, ShardWriter, read_manifest, sealed_items
from stemdl.shards.h5_read import verify_whole
from stemdl.shards.schema import parse_shard_name

pytestmark = pytest.mark.resume

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_S = 60
SAMPLES_PER_SHARD = 3


def make_sample(item: int) -> Sample:
    """A small sample that depends on its number alone."""
    rng = np.random.default_rng([9, item])
    amplitude = rng.random((2, 2, 8, 8)) / 8
    return Sample(item, amplitude, rng.random((9, 9)), {"energy_kev": 100.0}, {"crystal": "Si", "formula": "Si"})


def make_set(folder: Path, num_items: int) -> None:
    """What a rank does: all items that are not sealed yet. Prints each one that is safe from now on."""
    axes = ShardAxes(2.0, 0.05, 0.5)
    with ShardWriter(folder, rank=0, axes=axes, config_hash="c1", samples_per_shard=SAMPLES_PER_SHARD) as writer:
        waiting: list[int] = []
        for item in sorted(set(range(num_items)) - sealed_items(folder, "c1")):
            writer.add(make_sample(item))
            waiting.append(item)
            if len(waiting) == SAMPLES_PER_SHARD:
                print(*waiting, flush=True)
                waiting.clear()


# Kills itself just before the n-th of the calls that a shard's safety hangs on, for n = 1, 2, ... to the end.
# A kill in a write leaves half of the line, and in a second run all of it.
EVERY_STEP = """
import fcntl, os, pathlib, signal, sys
import h5py
from test_shard_kill import make_set

def die():
    os.kill(os.getpid(), signal.SIGKILL)

def run(folder, steps):
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
    hook(os, "fsync")
    hook(os, "rename")
    hook(os, "write", lambda write, fd, content: write(fd, content))  # whole, but not synced
    hook(os, "write", lambda write, fd, content: write(fd, content[: len(content) // 2]))
    hook(os, "ftruncate")
    hook(os, "pread")
    hook(fcntl, "flock")
    hook(pathlib.Path, "unlink")
    hook(h5py.File, "flush")
    hook(h5py.File, "close")
    hook(h5py.Dataset, "__setitem__")
    hook(h5py.Dataset, "resize")
    hook(h5py.Group, "create_dataset")
    make_set(folder, 4)

sys.stdout.flush()
for steps in range(1, 1000):
    folder = pathlib.Path(sys.argv[1]) / str(steps)
    child = os.fork()
    if child == 0:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        run(folder, steps)
        os._exit(0)
    if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != -signal.SIGKILL:
        break
print(steps)
"""

RANDOM = """
import pathlib, sys
from test_shard_kill import make_set
print("go", flush=True)
make_set(pathlib.Path(sys.argv[1]), int(sys.argv[2]))
"""


def _start(script: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", script, *arguments],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(ROOT), str(Path(__file__).parent)]),
            "OMP_NUM_THREADS": "1",
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _assert_sound(folder: Path) -> None:
    """Every final name is a whole file, and every line of the manifest has its file."""
    if not folder.exists():
        return
    for path in folder.iterdir():
        if parse_shard_name(path.name) is not None:
            verify_whole(path)
    for entry in read_manifest(folder):
        assert sha256_file(folder / entry.file) == entry.sha256


def _assert_complete(folder: Path, num_items: int) -> None:
    shards = ShardSet(folder, verify="hash", config_hash="c1")
    assert shards.items == list(range(num_items))
    assert not shards.duplicates
    for index in range(num_items):
        wanted = make_sample(index)
        np.testing.assert_array_equal(shards.amplitude(index), wanted.amplitude.astype(np.float16))
        np.testing.assert_array_equal(shards.potential(index), wanted.potential.astype(np.float32))
        assert shards.parameters(index) == wanted.parameters
    shards.close()
    assert not [name for name in os.listdir(folder) if name.startswith(".")]


def test_a_kill_before_each_single_step(tmp_path: Path) -> None:
    process = _start(EVERY_STEP, str(tmp_path))
    try:
        output, log = process.communicate(timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        pytest.fail(f"not done after {TIMEOUT_S} s:\n{process.communicate()[1]}")
    assert process.returncode == 0, log
    num_kills = int(output) - 1
    assert num_kills > 30, "the hooks no longer reach the calls that the writer makes"
    sealed_at_kill = []
    for steps in range(1, num_kills + 1):
        folder = tmp_path / str(steps)
        _assert_sound(folder)
        sealed_at_kill.append(len(sealed_items(folder, "c1")))
        make_set(folder, 4)
        _assert_complete(folder, 4)
    assert sealed_at_kill == sorted(sealed_at_kill)  # what is sealed stays sealed, however late the kill
    assert set(sealed_at_kill) == {0, 3, 4}
    _assert_complete(tmp_path / str(num_kills + 1), 4)


def test_kills_at_random_moments(tmp_path: Path) -> None:
    """One folder is killed again and again until it is complete, then the next, 15 kills in all."""
    rng = np.random.default_rng(11)
    num_items, kills, sets = 60, 0, 0
    lost: list[int] = []
    while kills < 15 and sets < 15:
        folder = tmp_path / str(sets)
        before = sealed_items(folder, "c1")
        process = _start(RANDOM, str(folder), str(num_items))
        assert process.stdout is not None
        watchdog = threading.Timer(TIMEOUT_S, process.kill)
        watchdog.start()
        process.stdout.readline()  # from here on it writes
        time.sleep(float(rng.uniform(0.0, 0.15)))
        process.kill()
        output, log = process.communicate()
        watchdog.cancel()
        assert process.returncode in (0, -9), log
        said = {int(item) for item in output.split()}
        sealed = sealed_items(folder, "c1")
        _assert_sound(folder)
        assert before | said <= sealed, log  # at most the shard that was not sealed is lost
        lost.append(len(sealed) - len(before))
        kills += process.returncode == -9
        if process.returncode == 0 or len(sealed) == num_items:
            make_set(folder, num_items)
            _assert_complete(folder, num_items)
            sets += 1
    assert kills >= 5, f"the process was always done before the kill: {lost}"
    make_set(tmp_path / str(sets), num_items)
    _assert_complete(tmp_path / str(sets), num_items)
