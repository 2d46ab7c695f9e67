"""Every mode, on any number of ranks over any transport, trains what one process trains on the union of the batches."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.comm_jobs import Ranks
from tests.comm_program import STEPS
from tests.small_ranks import Job, mpirun
from tests.small_run import Process

pytestmark = pytest.mark.multiproc
PROGRAM = ["-m", "tests.comm_program"]
OURS = ("per_tensor", "coordinator", "cached", "planned")
SMALL_GROUPS = {"first_group_mib": 0.001, "group_mib": 0.003}
FP32_TOLERANCE = 2e-6
"""Largest difference of a weight (of about 0.3) after 20 steps: sums of 12 samples are made in other orders."""

State = dict[str, torch.Tensor]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> State:
    """One process with all samples."""
    folder = tmp_path_factory.mktemp("alone")
    process = Process([*PROGRAM, folder, "cached"])
    assert process.end() == 0, process.log
    return load(folder, "cached", 0)


def load(folder: Path, mode: str, rank: int) -> State:
    state: State = torch.load(folder / f"{mode}-{rank}.pt", weights_only=True)
    return state


def record(folder: Path, mode: str, rank: int) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / f"{mode}-{rank}.json").read_text())
    return found


def check(folder: Path, modes: tuple[str, ...], ranks: int, alone: State) -> None:
    """Equal to one process within fp32's rounding; the same bits on all ranks."""
    for mode in modes:
        digests = {record(folder, mode, rank)["digest"] for rank in range(ranks)}
        assert len(digests) == 1, f"{mode}: ranks ended with different bits"
        for name, value in load(folder, mode, 0).items():
            assert float((value - alone[name]).abs().max()) <= FP32_TOLERANCE, f"{mode}: {name}"


def gloo(folder: Path, ranks: int, modes: tuple[str, ...], options: dict[str, Any]) -> None:
    folder.mkdir()
    with Ranks(ranks, [*PROGRAM, folder, ",".join(modes), json.dumps({"transport": "gloo", **options})]) as job:
        assert job.end() == [0] * ranks, job.log


@pytest.mark.parametrize("ranks", [2, 4])
def test_over_gloo(tmp_path: Path, alone: State, ranks: int) -> None:
    modes = (*OURS, "ddp") if ranks == 2 else (*OURS, "ddp", "cached+2nodes")
    again = {f"{mode}+again": mode for mode in (modes if ranks == 2 else ("cached", "planned"))}
    gloo(tmp_path / "run", ranks, (*modes, *again), SMALL_GROUPS)
    check(tmp_path / "run", modes, ranks, alone)
    for repeated, mode in again.items():
        assert record(tmp_path / "run", mode, 0)["digest"] == record(tmp_path / "run", repeated, 0)["digest"], mode
    assert record(tmp_path / "run", "cached", 0)["inside"] == "shared_memory"


def mpi(folder: Path, ranks: int, modes: tuple[str, ...]) -> None:
    folder.mkdir()
    options = json.dumps({"transport": "mpi", **SMALL_GROUPS})
    with Job(mpirun(ranks, [*PROGRAM, folder, ",".join(modes), options])) as job:
        assert job.end() == 0, job.log


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_over_mpi(tmp_path: Path, alone: State, ranks: int) -> None:
    modes = (*OURS, "planned+2nodes") if ranks == 4 else OURS
    again = ("cached", "planned")
    mpi(tmp_path / "one", ranks, modes)
    check(tmp_path / "one", modes, ranks, alone)
    if ranks == 2:
        mpi(tmp_path / "two", ranks, again)  # another start of all processes
    for mode in again if ranks == 2 else ():
        assert record(tmp_path / "one", mode, 0)["digest"] == record(tmp_path / "two", mode, 0)["digest"], mode


@pytest.mark.parametrize(("inside", "ranks"), [("off", 2), ("transport", 4)])
def test_without_shared_memory(tmp_path: Path, alone: State, inside: str, ranks: int) -> None:
    modes = ("cached", "planned+2nodes")
    gloo(tmp_path / "run", ranks, modes, {**SMALL_GROUPS, "intra_node": inside, "groups": "layer"})
    check(tmp_path / "run", modes, ranks, alone)
    assert record(tmp_path / "run", "cached", 0)["inside"] == inside


def test_counts_of_each_mode(tmp_path: Path) -> None:
    """Two ranks, one group for each layer; the used set changes at step 7, and when ranks run out of batches."""
    gloo(tmp_path / "run", 2, OURS, {**SMALL_GROUPS, "groups": "layer"})
    counters = {mode: record(tmp_path / "run", mode, 0)["counters"] for mode in OURS}
    assert all(one["steps"] == STEPS for one in counters.values())
    assert counters["per_tensor"]["cycles"] == 0
    assert counters["coordinator"]["slow_cycles"] == counters["coordinator"]["cycles"] > 0
    assert counters["cached"]["slow_cycles"] <= 5
    assert counters["planned"]["cycles"] < counters["cached"]["cycles"]
    assert counters["cached"]["control_bytes"] < counters["coordinator"]["control_bytes"]
    assert counters["per_tensor"]["data_messages"] == 2 * counters["cached"]["data_messages"]
