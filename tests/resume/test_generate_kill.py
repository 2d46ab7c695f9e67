"""kill -9 of workers and of the parent at random moments: the next call ends with the same set, bit for bit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from data_gen.generate import simulate
from stemdl.shards import ShardSet
from tests.small_run import Arrays, Process, Recorder, content, make_shards, small_config

pytestmark = [pytest.mark.resume, pytest.mark.multiproc]

SIZE = ("simulation.samples=40", "held_out.samples=9", "simulation.samples_per_shard=3")

# Simulates; says how far it is; kills a worker some time after each number of items in the arguments, and starts again.
DRIVER = """
import multiprocessing, pathlib, random, sys, threading
from data_gen.generate import SimulationError, simulate
from tests.small_run import Recorder, small_config

class Killing(Recorder):
    def __init__(self, kill_after):
        super().__init__()
        self.kill_after = kill_after

    def advance(self, done, **figures):
        if not self.done:
            self.first = done
        self.done.append(done)
        print("done", done, flush=True)
        if done - self.first == self.kill_after:
            workers = multiprocessing.active_children()
            victim = chance.choice(sorted(workers, key=lambda worker: worker.pid))
            threading.Timer(chance.uniform(0.0, 0.04), victim.kill).start()

if __name__ == "__main__":
    chance = random.Random(5)
    config = small_config(pathlib.Path(sys.argv[1]), *sys.argv[2].split())
    for kill_after in map(int, sys.argv[3:]):
        try:
            simulate(config, progress=Killing(kill_after))
        except SimulationError as error:
            print("error:", error, flush=True)
"""


def sealed(folder: Path) -> dict[Path, bytes]:
    """Every file of the manifests, whole."""
    files: dict[Path, bytes] = {}
    for part in ("train", "held_out"):
        if (folder / part / "manifest.jsonl").exists():
            with ShardSet(folder / part, verify="hash") as shards:
                assert not shards.duplicates
                files |= {
                    folder / part / entry.file: (folder / part / entry.file).read_bytes() for entry in shards.entries
                }
    return files


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Arrays:
    """The set that nobody disturbed."""
    config = small_config(tmp_path_factory.mktemp("reference"), *SIZE)
    make_shards(config)
    return content(config.run.folder)


def test_killed_workers_and_parents_leave_a_set_that_ends_in_the_same_bits(tmp_path: Path, reference: Arrays) -> None:
    script = tmp_path / "driver.py"
    script.write_text(DRIVER)
    shards = tmp_path / "run" / "shards"
    rng = np.random.default_rng(3)

    workers_killed = Process([script, tmp_path, " ".join(SIZE), "7", "9"])
    assert workers_killed.end() == 0, workers_killed.log
    assert workers_killed.log.count("was killed by signal 9 before its items were done") == 2, workers_killed.log
    before = sealed(shards)
    assert before

    parent_killed = Process([script, tmp_path, " ".join(SIZE), "1000"])
    parent_killed.wait_for(lambda line: line.startswith("done"))
    first = next(line for line in parent_killed.lines if line.startswith("done"))
    until = int(first.split()[1]) + int(rng.integers(3, 12))
    parent_killed.wait_for(lambda line: line == f"done {until}")
    parent_killed.kill_alone()
    assert parent_killed.end() == -9, parent_killed.log  # and its workers ended with it: none holds the output
    after = sealed(shards)
    assert before.items() <= after.items(), "what is sealed stays"
    assert len(after) < 14 + 3, "it was killed in the middle"

    config = small_config(tmp_path, *SIZE)
    summary = simulate(config, progress=Recorder())
    assert not summary.skipped
    assert (summary.train_samples, summary.held_out_samples) == (40, 9)
    assert after.items() <= sealed(shards).items()
    assert content(config.run.folder) == reference
    hidden = [path for path in shards.rglob(".*") if path.is_file()]
    assert not hidden, "nothing of the dead is left"
