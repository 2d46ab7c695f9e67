"""The simulation stage with real worker processes: the same bits whoever makes them, and no end without its reason."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest

from data_gen.generate import simulate
from stemdl.shards import ShardSet, read_manifest
from tests.small_run import Arrays, Process, Recorder, content, make_shards, small_config

pytestmark = pytest.mark.multiproc


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Arrays:
    """The set as this process makes it, item after item."""
    config = small_config(tmp_path_factory.mktemp("reference"))
    make_shards(config)
    return content(config.run.folder)


def test_samples_do_not_depend_on_the_number_of_workers(tmp_path: Path, reference: Arrays) -> None:
    """Three processes, and this one alone (more numbers of workers, without processes: test_simulate_stage)."""
    config = small_config(tmp_path, "simulation.workers=3")
    progress = Recorder()
    summary = simulate(config, progress=progress)
    assert (summary.train_samples, summary.held_out_samples, summary.skipped) == (9, 5, False)
    assert progress.done == list(range(15))
    ranks = {entry.file.split("-")[1] for entry in read_manifest(config.run.folder / "shards" / "train")}
    assert len(ranks) == 3
    assert content(config.run.folder) == reference
    assert simulate(config, progress=Recorder()).skipped


# What a worker does is changed in its own process, which starts by importing this very file.
DRIVER = """
import os, pathlib, signal, sys, time
import data_gen.workers

real = data_gen.workers.make_sample

def changed(config, part, item, engine):
    if part.name == "train" and item == 5:
        {act}
    return real(config, part, item, engine)

data_gen.workers.make_sample = changed

if __name__ == "__main__":
    from data_gen.generate import simulate
    from stemdl.errors import UserError
    from tests.small_run import Recorder, small_config
    try:
        simulate(small_config(pathlib.Path(sys.argv[1])), progress=Recorder())
    except UserError as error:
        print("UserError:", error)
        sys.exit(2)
    except RuntimeError as error:
        print(type(error).__name__ + ":", error)
        sys.exit(1)
    except KeyboardInterrupt:
        print("interrupted")
        sys.exit(130)
"""


def start(folder: Path, act: str) -> Process:
    script = folder / "driver.py"
    script.write_text(DRIVER.format(act=act))
    return Process([script, folder])


@pytest.mark.parametrize(
    ("act", "code", "said"),
    [
        (
            "raise ZeroDivisionError('no way')",
            1,
            r"SimulationFault: simulation worker 1: train item 5 \(cif:.*\): ZeroDivisionError: no way\nTraceback",
        ),
        (
            "os.kill(os.getpid(), signal.SIGKILL)",
            2,
            r"UserError: simulation worker 1 was killed by signal 9 before its items were done .*run the same command",
        ),
    ],
)
def test_a_worker_that_fails_ends_the_stage_with_its_reason_and_what_is_sealed_stays(
    tmp_path: Path, reference: Arrays, act: str, code: int, said: str
) -> None:
    process = start(tmp_path, act)
    assert process.end() == code, process.log
    assert re.search(said, process.log), process.log
    with ShardSet(tmp_path / "run" / "shards" / "train", verify="hash") as shards:
        assert {1, 3} <= set(shards.items), "sealed before worker 1 came to its third item"
        assert 5 not in shards.items
        for index, item in enumerate(shards.items):
            assert shards.amplitude(index).tobytes() == reference["train", item][0]


def test_ctrl_c_ends_all_processes_and_is_said_once(tmp_path: Path) -> None:
    """SIGINT goes to every process of a terminal: only the parent speaks of it."""
    process = start(tmp_path, "print('item 5', flush=True); time.sleep(1000)")
    process.wait_for(lambda line: line == "item 5")
    process.signal_group(signal.SIGINT)
    assert process.end() == 130, process.log
    assert "Traceback" not in process.log
    assert process.log.count("interrupted") == 1


def test_workers_end_with_their_parent_in_the_middle_of_an_item(tmp_path: Path) -> None:
    """Else they would be writers of the ranks that the next call wants to have."""
    process = start(tmp_path, "print('item 5', flush=True); time.sleep(1000)")
    process.wait_for(lambda line: line == "item 5")
    process.kill_alone()
    assert process.end() == -signal.SIGKILL, process.log  # which waits for all who hold its output
