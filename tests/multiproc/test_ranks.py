"""The simulation as the ranks of a real mpirun: any number makes the same bits, and whoever is lost is named."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest

from tests.small_ranks import (
    BLOCK_AFTER_SIX,
    Job,
    finish_here,
    log_events,
    made_items,
    mpirun,
    sealed_items,
    simulate_arguments,
    write_driver,
)
from tests.small_run import Arrays, content, make_shards, small_config

pytestmark = pytest.mark.multiproc


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Arrays:
    """The set as one process makes it, item after item."""
    config = small_config(tmp_path_factory.mktemp("reference"))
    make_shards(config)
    return content(config.run.folder)


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_any_number_of_ranks_makes_the_same_bits(tmp_path: Path, reference: Arrays, ranks: int) -> None:
    with Job(mpirun(ranks, simulate_arguments(tmp_path, "simulation.workers=1"))) as job:
        assert job.end() == 0, job.log
        job.nobody_is_left()
    starts = log_events(tmp_path / "run", "start")
    assert [line["rank"] for line in starts] == list(range(ranks))
    assert [line["signal"] for line in log_events(tmp_path / "run", "end")] == [0] * ranks
    assert job.log.count("simulate: 14 fields") == 1, "one line for the whole machine"
    assert content(tmp_path / "run") == reference


LOSE_TWO = """\
rank = int(os.environ["PMI_RANK"])
if rank == 1 and first_time("killed"):
    os.kill(os.getpid(), signal.SIGKILL)
if rank == 2 and first_time("stopped"):
    os.kill(os.getpid(), signal.SIGSTOP)
for _ in range(6000):
    if (FLAGS / "killed").exists() and (FLAGS / "stopped").exists():
        break
    time.sleep(0.01)
"""


# MPICH's mpirun ends all ranks of a node where one has died; on three nodes the two others go on.
THREE_NODES = ("-disable-auto-cleanup", "-launcher", "fork", "-hosts", "node1,node2,node3", "-ppn", "1")


def test_a_rank_that_dies_and_one_that_hangs_are_named_and_their_items_made(tmp_path: Path, reference: Arrays) -> None:
    arguments = simulate_arguments(tmp_path, "simulation.rank_timeout_s=8", script=write_driver(tmp_path, LOSE_TWO))
    with Job(mpirun(3, arguments, *THREE_NODES)) as job:
        assert job.end() == 0, job.log
        job.nobody_is_left()
    for rank in (1, 2):
        lost = rf"rank {rank} gave no sign of life for \d+ s; others do its items"
        assert re.search(lost, job.log), job.log
    assert content(tmp_path / "run") == reference
    again = finish_here(tmp_path, "simulation.rank_timeout_s=8")
    assert again.skipped


# Chooses a file by its rank.
BY_RANK = """\
import os, sys
from stemdl.cli import main
sys.exit(main(["simulate", sys.argv[1 + int(os.environ["PMI_RANK"])]]))
"""


@pytest.mark.parametrize(
    ("file_of_rank_0", "file_of_rank_1", "said"),
    [
        ("config.yaml", "other.yaml", r"rank 1 on \S+ reads another configuration than rank 0: do all nodes have the"),
        ("config.yaml", "none.yaml", r"stemdl: rank 1: \S+none\.yaml: 1 problem"),
        ("none.yaml", "config.yaml", r"stemdl: \S+none\.yaml: 1 problem"),
    ],
)
def test_ranks_that_cannot_agree_all_end_with_one_message(
    tmp_path: Path, file_of_rank_0: str, file_of_rank_1: str, said: str
) -> None:
    config = small_config(tmp_path)
    text = (tmp_path / "config.yaml").read_text()
    (tmp_path / "other.yaml").write_text(text.replace("seed: 7", "seed: 8"))
    script = tmp_path / "by_rank.py"
    script.write_text(BY_RANK)
    with Job(mpirun(2, [script, tmp_path / file_of_rank_0, tmp_path / file_of_rank_1])) as job:
        assert job.end() == 2, job.log
        job.nobody_is_left()
    assert len(re.findall(said, job.log)) == 1, job.log
    assert job.log.count("stemdl: ") == 1, job.log
    assert "Traceback" not in job.log
    assert sealed_items(config.run.folder) == set()


def test_another_mpi_than_the_launchers_is_refused_with_both_counts(tmp_path: Path) -> None:
    """Each process would believe to be alone, and do all of the work."""
    pytest.importorskip("mpi4py", reason="no mpi4py here: pip install 'stemdl[mpi]'", exc_type=ImportError)
    with Job(simulate_arguments(tmp_path), OMPI_COMM_WORLD_RANK="1", OMPI_COMM_WORLD_SIZE="2") as job:
        assert job.end() == 2, job.log
    assert re.search(r"mpirun \(Open MPI\) announces rank 1 of 2, MPI \(.*\) counts 1: .*another MPI", job.log), job.log
    assert "Traceback" not in job.log
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("which", "code"), [(signal.SIGTERM, 85), (signal.SIGINT, 130)])
def test_a_signal_to_mpirun_seals_what_every_rank_has_made(
    tmp_path: Path, reference: Arrays, which: signal.Signals, code: int
) -> None:
    overrides = ("simulation.samples_per_shard=50",)
    arguments = simulate_arguments(tmp_path, *overrides, script=write_driver(tmp_path, BLOCK_AFTER_SIX))
    with Job(mpirun(2, arguments)) as job:
        job.wait_until(lambda: job.lines.count("blocked") == 2)
        assert sealed_items(tmp_path / "run") == set()
        job.popen.send_signal(which)
        assert job.end() == code, job.log
        job.nobody_is_left()
    assert "Traceback" not in job.log
    made = made_items(tmp_path / "run")
    assert len(made) == 6
    assert sealed_items(tmp_path / "run") == made
    finish_here(tmp_path, *overrides)
    assert content(tmp_path / "run") == reference
