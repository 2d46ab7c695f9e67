"""Merges killed with kill -9: the destination is valid at any moment, and the same call goes on to the same set."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from stemdl.atomic_files import sha256_file
from stemdl.shards import Sample, ShardAxes, ShardSet, ShardWriter, read_manifest
from stemdl.shards.h5_read import verify_whole
from stemdl.shards.merge import merge_folders
from stemdl.shards.repair import repair_folder
from stemdl.shards.schema import parse_shard_name

pytestmark = pytest.mark.resume

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_S = 120

# Kills itself just before the n-th of the calls that a merge's safety hangs on, for n = 1, 2, ... to the end. A kill in
# a write leaves half of it.
EVERY_STEP = """
import fcntl, os, pathlib, signal, sys
import h5py
from stemdl.shards.merge import merge_folders

def die():
    os.kill(os.getpid(), signal.SIGKILL)

def run(destination, sources, links, steps):
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
    hook(os, "link")
    hook(os, "fsync")
    hook(os, "rename")
    hook(os, "replace")
    hook(os, "write", lambda write, fd, content: write(fd, content[: len(content) // 2]))
    hook(fcntl, "flock")
    hook(pathlib.Path, "unlink")
    hook(h5py.File, "close")
    hook(h5py.Dataset, "__setitem__")
    merge_folders(destination, sources, hard_links=links)

top = pathlib.Path(sys.argv[1])
sources = [top / name for name in ("a", "b", "c")]
for links in (True, False):
    for steps in range(1, 1000):
        child = os.fork()
        if child == 0:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            run(top / f"to-{links}-{steps}", sources, links, steps)
            os._exit(0)
        if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != -signal.SIGKILL:
            break
    print(steps)
"""


def make_sample(item: int) -> Sample:
    """A small sample that depends on its number alone."""
    rng = np.random.default_rng([9, item])
    amplitude = (rng.random((2, 2, 8, 8)) / 8).astype(np.float16)
    potential = rng.random((9, 9)).astype(np.float32)
    return Sample(item, amplitude, potential, {"energy_kev": 100.0}, {"crystal": "Si", "formula": "Si"})


def make_source(folder: Path, rank: int, items: list[int]) -> None:
    axes = ShardAxes(2.0, 0.05, 0.5)
    with ShardWriter(folder, rank=rank, axes=axes, config_hash="c1", samples_per_shard=2) as writer:
        for item in items:
            writer.add(make_sample(item))


def assert_valid(folder: Path) -> None:
    """Every line has its whole file, and every final name is a whole file."""
    for entry in read_manifest(folder):
        assert sha256_file(folder / entry.file) == entry.sha256
    for path in folder.iterdir() if folder.exists() else ():
        if parse_shard_name(path.name) is not None:
            verify_whole(path)


def assert_complete(folder: Path, items: list[int]) -> None:
    with ShardSet(folder, verify="hash", config_hash="c1") as shards:
        assert shards.items == items
        assert not shards.duplicates
        for index, item in enumerate(items):
            found, wanted = shards.item(index), make_sample(item)
            np.testing.assert_array_equal(found.amplitude, wanted.amplitude)
            np.testing.assert_array_equal(found.potential, wanted.potential)
    assert not [name for name in os.listdir(folder) if name.startswith(".")]


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


def test_a_kill_before_each_single_step(tmp_path: Path) -> None:
    make_source(tmp_path / "a", 0, [0, 1, 2])
    make_source(tmp_path / "b", 0, [3])  # the same name as one of a's
    make_source(tmp_path / "c", 1, [1, 4])  # of which one is there
    sources = [tmp_path / name for name in ("a", "b", "c")]
    done = subprocess.run(
        [sys.executable, "-c", EVERY_STEP, str(tmp_path)],
        env=environment(), capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    steps = [int(number) for number in done.stdout.split()]
    assert min(steps) > 25, "the hooks no longer reach the calls that a merge makes"
    for links, count in zip((True, False), steps, strict=True):
        for step in range(1, count + 1):
            folder = tmp_path / f"to-{links}-{step}"
            assert_valid(folder)
            if folder.exists() and step % 2:
                repair_folder(folder)  # clears up as well, and is no condition for going on
                assert_valid(folder)
            merge_folders(folder, sources, hard_links=links)
            assert_complete(folder, [0, 1, 2, 3, 4])


def test_kills_at_random_moments_of_the_command(tmp_path: Path) -> None:
    sources = [tmp_path / f"node-{number}" for number in range(4)]
    for number, source in enumerate(sources):
        make_source(source, number % 2, list(range(number, 80, 4)))
    destination = tmp_path / "all"
    command = [sys.executable, "-m", "stemdl.cli", "shards", "merge", str(destination), *map(str, sources)]
    rng = np.random.default_rng(5)
    kills = 0
    for _ in range(40):
        process = subprocess.Popen(
            command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        end = time.monotonic() + TIMEOUT_S
        before = len(read_manifest(destination))
        while process.poll() is None and len(read_manifest(destination)) == before and time.monotonic() < end:
            time.sleep(0.002)  # until it is at work
        time.sleep(float(rng.uniform(0.0, 0.03)))
        process.kill()
        output, _ = process.communicate(timeout=TIMEOUT_S)
        assert process.returncode in (0, -9), output
        assert_valid(destination)
        assert len(read_manifest(destination)) >= before, "what is merged stays merged"
        kills += process.returncode == -9
        if process.returncode == 0 or kills == 6:
            break
    assert kills >= 3, "the command was always done before the kill"
    merge_folders(destination, sources)
    assert_complete(destination, list(range(80)))
