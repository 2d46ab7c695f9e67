"""kill -9 of makers and of the parent at random moments: the next call ends with the same set, bit for bit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from stemdl.shards import ShardSet
from tests.small_ranks import Job, finish_here
from tests.small_run import Arrays, content, make_shards, small_config

pytestmark = [pytest.mark.resume, pytest.mark.multiproc]

SIZE = ("simulation.samples=40", "held_out.samples=9", "simulation.samples_per_shard=3")

# Simulates; says how far it is; kills a maker a moment after each of the counts in the arguments.
DRIVER = """
import multiprocessing, pathlib, random, sys, threading
from data_gen.generate import simulate
from tests.small_run import Recorder, small_config

class Killing(Recorder):
    def __init__(self, kill_at):
        super().__init__()
        self.kill_at = kill_at

    def advance(self, done, **figures):
        if self.done[-1:] != [done]:
            print("done", done, flush=True)
        self.done.append(done)
        if self.kill_at and done >= self.kill_at[0]:  # one at a time: progress may jump over several counts
            self.kill_at.pop(0)
            victim = chance.choice(sorted(multiprocessing.active_children(), key=lambda child: child.pid))
            threading.Timer(chance.uniform(0.0, 0.04), victim.kill).start()

    def note(self, text):
        print(text, flush=True)

if __name__ == "__main__":
    chance = random.Random(5)
    config = small_config(pathlib.Path(sys.argv[1]), *sys.argv[2].split())
    simulate(config, progress=Killing([int(count) for count in sys.argv[3:]]))
"""


def done(line: str) -> int:
    """The count in a line of the driver, -1 for another line."""
    return int(line.removeprefix("done ")) if line.startswith("done ") else -1


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


def test_killed_makers_and_parents_leave_a_set_that_ends_in_the_same_bits(tmp_path: Path, reference: Arrays) -> None:
    script = tmp_path / "driver.py"
    script.write_text(DRIVER)
    shards = tmp_path / "run" / "shards"
    rng = np.random.default_rng(3)

    with Job([script, tmp_path, " ".join(SIZE), "4", "13", "20"]) as makers_killed:
        killed = "was killed by signal 9 (SIGKILL)"
        makers_killed.wait_for(lambda _: sum(killed in line for line in makers_killed.lines) >= 2)
        makers_killed.kill_alone()
        makers_killed.nobody_is_left()
    before = sealed(shards)
    assert before

    with Job([script, tmp_path, " ".join(SIZE)]) as parent_killed:
        parent_killed.wait_for(lambda line: done(line) >= 0)
        until = max(map(done, parent_killed.lines)) + int(rng.integers(3, 9))
        parent_killed.wait_for(lambda line: done(line) >= until)
        parent_killed.kill_alone()
        parent_killed.nobody_is_left()
    after = sealed(shards)
    assert before.items() <= after.items(), "what is sealed stays"
    assert len(after) < 14 + 3, "it was killed in the middle"

    summary = finish_here(tmp_path, *SIZE)
    assert not summary.skipped
    assert (summary.train_samples, summary.held_out_samples) == (40, 9)
    assert after.items() <= sealed(shards).items()
    assert content(tmp_path / "run") == reference
    hidden = [path.name for path in shards.rglob(".*") if path.is_file() and path.stat().st_size > 0]
    assert not hidden, "nothing of the dead is left but for locks of ranks that the last call did not have"
