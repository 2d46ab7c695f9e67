"""Several processes on one folder: writers side by side, and readers forked from one another."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from stemdl.shards import ShardSet, read_manifest

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_S = 60

SAMPLES = """
import hashlib, os, signal, sys, threading
from pathlib import Path
import numpy as np
from stemdl.shards import ManifestEntry, Sample, ShardAxes, ShardError, ShardSet, ShardWriter
from stemdl.shards.manifest import append_entry
from stemdl.shards.schema import shard_name

FOLDER = Path(sys.argv[1])

def sample(item):
    rng = np.random.default_rng([9, item])
    return Sample(item, rng.random((2, 2, 8, 8)) / 8, rng.random((9, 9)),
                  {"energy_kev": 100.0}, {"crystal": "Si", "formula": "Si"})

def writer(rank, samples_per_shard):
    return ShardWriter(FOLDER, rank=rank, axes=ShardAxes(2.0, 0.05, 0.5), config_hash="c1",
                       samples_per_shard=samples_per_shard)
"""

# Each waits for a line, so that none has ended before the others begin.
WRITE = """
rank = int(sys.argv[2])
print("ready", flush=True)
sys.stdin.readline()
with writer(rank, 2) as w:
    for item in range(rank, 36, 3):
        w.add(sample(item))
"""

APPEND = """
rank = int(sys.argv[2])
print("ready", flush=True)
sys.stdin.readline()
for number in range(40):
    items = list(range(number * 900, number * 900 + 900))  # a line of some 6 kB
    append_entry(FOLDER, ManifestEntry(shard_name(rank, number), "0" * 64, 1, 900, items, "c1", 1))
"""

# The parent has every shard open when it forks, and a thread of it reads on all the while, as in a data loader.
FORK = """
with writer(0, 2) as w:
    for item in range(12):
        w.add(sample(item))

def digest(shards):
    hash = hashlib.sha256()
    for index in range(len(shards)):
        hash.update(shards.amplitude(index).tobytes() + shards.potential(index).tobytes())
    return hash.digest()

shards = ShardSet(FOLDER)
wanted = digest(shards)
parents = shards._open_files
done = threading.Event()

def read_on():
    while not done.is_set():
        if digest(shards) != wanted:
            os._exit(3)

reader = threading.Thread(target=read_on)
reader.start()
codes = []
for _ in range(15):
    child = os.fork()
    if child == 0:
        signal.alarm(20)  # a child that waits for a lock of its parent's would do so for ever
        good = digest(shards) == wanted and shards._open_files is not parents
        shards.close()
        os._exit(0 if good else 1)
    codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
done.set()
reader.join()
assert shards._open_files is parents
assert codes == [0] * 15, codes
"""

# A child that leaves the block of its parent's writer must leave the parent's file alone.
FORK_WRITER = """
with writer(0, 10) as w:
    w.add(sample(0))
    child = os.fork()
    if child == 0:
        try:
            with w:
                w.add(sample(1))
        except ShardError as error:
            os._exit(0 if "belongs to the parent" in str(error) else 1)
        os._exit(2)
    assert os.waitpid(child, 0)[1] == 0
    w.add(sample(2))
assert ShardSet(FOLDER, verify="hash").items == [0, 2]
"""

# A disk that is really full for HDF5: no file may grow beyond 20 kB, which one shard of 2 samples just does not need.
NO_ROOM = """
import resource
with writer(0, 2) as w:
    w.add(sample(0))
    w.add(sample(1))
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
try:
    with writer(0, 100) as w:
        for item in range(2, 100):
            w.add(sample(item))
except ShardError as error:
    assert "shard-00000-00001.h5: a sample could not be written: File too large" in str(error), error
else:
    sys.exit("all was written")
assert sorted(os.listdir(FOLDER)) == ["manifest.jsonl", "shard-00000-00000.h5"]
assert ShardSet(FOLDER, verify="hash").items == [0, 1]
"""


def _start(script: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", SAMPLES + script, *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _finish(process: subprocess.Popen[str]) -> None:
    try:
        _, log = process.communicate(timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        _, log = process.communicate()
        pytest.fail(f"not done after {TIMEOUT_S} s:\n{log}")
    assert process.returncode == 0, log


def _run_together(script: str, folder: Path, num_ranks: int) -> None:
    processes = [_start(script, str(folder), str(rank)) for rank in range(num_ranks)]
    for process in processes:
        assert process.stdout is not None
        process.stdout.readline()
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    for process in processes:
        _finish(process)


def test_ranks_write_into_one_folder_at_the_same_time(tmp_path: Path) -> None:
    _run_together(WRITE, tmp_path, 3)
    shards = ShardSet(tmp_path, verify="hash")
    assert shards.items == list(range(36))
    assert len(read_manifest(tmp_path)) == 18
    assert not shards.duplicates
    for index in range(36):
        rng = np.random.default_rng([9, index])
        np.testing.assert_array_equal(shards.amplitude(index), (rng.random((2, 2, 8, 8)) / 8).astype(np.float16))
    assert not [name for name in os.listdir(tmp_path) if name.startswith(".")]


def test_lines_of_many_appenders_do_not_mix(tmp_path: Path) -> None:
    _run_together(APPEND, tmp_path, 3)
    entries = read_manifest(tmp_path)
    assert len(entries) == 120
    for rank in range(3):  # each rank's lines in its own order
        assert [e.file for e in entries if e.file.startswith(f"shard-{rank:05d}")] == [
            f"shard-{rank:05d}-{number:05d}.h5" for number in range(40)
        ]


def test_a_forked_reader_opens_its_own_files(tmp_path: Path) -> None:
    _finish(_start(FORK, str(tmp_path)))


def test_a_forked_writer_leaves_its_parents_file_alone(tmp_path: Path) -> None:
    _finish(_start(FORK_WRITER, str(tmp_path)))


def test_a_write_that_fails_inside_hdf5_leaves_what_is_sealed(tmp_path: Path) -> None:
    _finish(_start(NO_ROOM, str(tmp_path)))
