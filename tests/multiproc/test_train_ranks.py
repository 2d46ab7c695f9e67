"""`stemdl train` on several ranks: the loss curve of one process, the same bits in every run, one end for all."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from stemdl.atomic_files import sha256_file
from stemdl.checkpoints import load_checkpoint
from stemdl.comm.errors import EXIT_COMM
from tests.comm_jobs import Ranks
from tests.small_ranks import Job, mpirun
from tests.small_run import ROOT, Process

pytestmark = pytest.mark.multiproc
SETTINGS = (
    "simulation.samples=14",
    "simulation.samples_per_shard=7",
    "held_out.samples=1",
    "train.threads=1",
    "train.batch=5",  # which two ranks cannot share evenly
    "train.steps=6",
    "train.log_every=2",
    "train.validate_every=3",
)


def arguments(verb: str, folder: Path, *overrides: str) -> list[str | Path]:
    sets = [part for key in (f"run.folder={folder}", *SETTINGS, *overrides) for part in ("--set", key)]
    return ["-m", "stemdl.cli", verb, ROOT / "configs" / "smoke.yaml", *sets]


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder with its training set."""
    folder = tmp_path_factory.mktemp("simulated") / "run"
    process = Process(arguments("simulate", folder))
    assert process.end() == 0, process.log
    return folder


@pytest.fixture(scope="module")
def alone(simulated: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Trained by one process."""
    folder = copy(simulated, tmp_path_factory.mktemp("alone"))
    process = Process(arguments("train", folder))
    assert process.end() == 0, process.log
    return folder


def copy(simulated: Path, place: Path) -> Path:
    return Path(shutil.copytree(simulated, place / "run"))


def history(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "log" / "rank-0.jsonl").read_text().splitlines()]


def weights(folder: Path) -> str:
    return sha256_file(load_checkpoint(folder / "checkpoints").folder / "weights.pt")


@pytest.fixture(scope="module")
def together(simulated: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Trained by two ranks over gloo."""
    folder = copy(simulated, tmp_path_factory.mktemp("together"))
    with Ranks(2, arguments("train", folder)) as job:
        assert job.end() == [0, 0], job.log
        assert job.log.count("train stage 2: 6 steps") == 1, "rank 0 alone tells"
    return folder


def test_two_ranks_have_the_loss_curve_of_one(simulated: Path, alone: Path, together: Path, tmp_path: Path) -> None:
    mpi = copy(simulated, tmp_path)
    with Job(mpirun(2, arguments("train", mpi))) as mpi_job:
        assert mpi_job.end() == 0, mpi_job.log
    counted = json.loads((together / "log" / "comm.json").read_text())
    assert counted["negotiation"] == "cached"
    assert [one["steps"] for one in counted["ranks"]] == [12, 12]
    assert all(one["control_bytes"] > 0 for one in counted["ranks"])
    for one, other in zip(history(alone), history(together), strict=True):
        assert one.keys() == other.keys()
        assert one["step"] == other["step"]
        assert other["loss"] == pytest.approx(one["loss"], rel=2e-4)
    assert history(together) == history(mpi)
    assert weights(together) == weights(mpi)


def test_more_ranks_than_fields_in_a_batch(simulated: Path, tmp_path: Path) -> None:
    folder, reference = copy(simulated, tmp_path / "three"), copy(simulated, tmp_path / "one")
    process = Process(arguments("train", reference, "train.batch=2"))
    with Ranks(3, arguments("train", folder, "train.batch=2", "comm.negotiation=planned")) as job:
        assert job.end() == [0, 0, 0], job.log
    assert process.end() == 0, process.log
    for one, other in zip(history(reference), history(folder), strict=True):
        assert other["loss"] == pytest.approx(one["loss"], rel=2e-4)


def test_killed_between_stages_and_started_again_it_ends_in_the_same_bits(
    simulated: Path, together: Path, tmp_path: Path
) -> None:
    killed = copy(simulated, tmp_path)
    with Ranks(2, arguments("train", killed)) as job:
        job.processes[0].wait_for(lambda line: line.startswith("train stage 2"))
        job.processes[1].kill_alone()
        assert job.end_of_all_but(1, 30.0) == [EXIT_COMM], job.log
        assert "rank 1 (" in job.log, job.log
        assert "its process ended" in job.log, job.log
    with Ranks(2, arguments("train", killed)) as job:
        assert job.end() == [0, 0], job.log
        assert "training goes on after stage 1" in job.log, job.log
    assert weights(killed) == weights(together)
    assert history(killed) == history(together)


def test_another_configuration_on_a_rank_and_a_missing_training_set_end_all(simulated: Path, tmp_path: Path) -> None:
    folder = copy(simulated, tmp_path)
    with Ranks(2, arguments("train", folder), extra={1: arguments("train", folder, "train.lr=1e-4")}) as job:
        codes = job.end()
        assert 0 not in codes, job.log
        assert "ranks [1] have read another configuration than rank 0" in job.log, job.log
    shutil.rmtree(folder / "shards" / "train")
    with Ranks(2, arguments("train", folder)) as job:
        assert set(job.end()) <= {2, EXIT_COMM}, job.log  # whoever sees it first
        assert "manifest.jsonl: missing or empty" in job.log, job.log


def test_a_loss_that_is_no_number_ends_all_ranks_with_the_fields_named(simulated: Path, tmp_path: Path) -> None:
    folder = copy(simulated, tmp_path)
    with Ranks(2, arguments("train", folder, "train.lr=1e30", "train.warmup_steps=0")) as job:
        assert job.end() == [2, 2], job.log
        assert job.log.count("training stage 1: the loss is nan") == 1 or "loss is inf" in job.log, job.log
        assert "items of the batch" in job.log, job.log
