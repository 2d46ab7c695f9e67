"""What launchers announce, when the simulation runs as their ranks, and which of them says who this process is."""

from __future__ import annotations

import re

import pytest

from stemdl.errors import UserError
from stemdl.launch import Rank, Topology, announced_ranks, simulation_ranks, topology

OPEN_MPI = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "4"}
HYDRA = {"PMI_RANK": "0", "PMI_SIZE": "1"}
SRUN = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "8"}
BATCH = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "4294967291", "SLURM_PROCID": "0", "SLURM_NTASKS": "8"}


@pytest.mark.parametrize(
    ("environment", "found"),
    [
        ({}, None),
        (OPEN_MPI, Rank("mpirun (Open MPI)", 1, 4)),
        (HYDRA, Rank("mpiexec (MPICH, Intel, Cray)", 0, 1)),
        (SRUN, Rank("srun (Slurm)", 3, 8)),
        (BATCH, None),
        ({**SRUN, "SLURM_STEP_NUM_TASKS": "1"}, None),
        ({"JSM_NAMESPACE_RANK": "2", "JSM_NAMESPACE_SIZE": "6"}, Rank("jsrun (LSF)", 2, 6)),
        ({"JSM_NAMESPACE_RANK": "0", "JSM_NAMESPACE_SIZE": "1"}, None),
        ({"FLUX_TASK_RANK": "1", "FLUX_JOB_SIZE": "2"}, Rank("flux run", 1, 2)),
        ({"RANK": "0", "WORLD_SIZE": "2"}, Rank("torchrun", 0, 2)),
        ({"RANK": "0"}, None),
        ({"OMPI_COMM_WORLD_RANK": "one", "OMPI_COMM_WORLD_SIZE": "4"}, None),
        ({**BATCH, **OPEN_MPI}, Rank("mpirun (Open MPI)", 1, 4)),
        ({**SRUN, **HYDRA}, Rank("mpiexec (MPICH, Intel, Cray)", 0, 1)),
    ],
)
def test_the_simulation_runs_as_ranks_where_a_launcher_says_so(environment: dict[str, str], found: Rank | None) -> None:
    """A single task of srun, jsrun or flux uses all of its cores by itself; a rank of an mpirun has one."""
    assert simulation_ranks(environment) == found


def test_slurm_comes_last_since_it_leaks_into_the_children_of_an_mpirun() -> None:
    assert [one.launcher for one in announced_ranks({**SRUN, **OPEN_MPI})] == ["mpirun (Open MPI)", "srun (Slurm)"]


HOST = "here.example.org"

# What each launcher sets, of 16 ranks on 2 nodes; this process is rank 9, the second of the second node.
TORCHRUN = {
    "RANK": "9", "WORLD_SIZE": "16", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "8", "GROUP_RANK": "1",
    "MASTER_ADDR": "node1", "MASTER_PORT": "29500", "OMP_NUM_THREADS": "1", "TORCHELASTIC_RUN_ID": "none",
}  # fmt: skip
JSRUN = {"JSM_NAMESPACE_RANK": "9", "JSM_NAMESPACE_SIZE": "16", "JSM_NAMESPACE_LOCAL_RANK": "1", "PMIX_RANK": "9"}
MPIRUN = {
    "OMPI_COMM_WORLD_RANK": "9", "OMPI_COMM_WORLD_SIZE": "16", "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "8", "OMPI_COMM_WORLD_NODE_RANK": "1", "PMIX_RANK": "9",
}  # fmt: skip
MPICH = {"PMI_RANK": "9", "PMI_SIZE": "16", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "8", "PMI_FD": "9"}
CRAY = {"PMI_RANK": "9", "PMI_SIZE": "16", "PMI_LOCAL_RANK": "1", "PMI_LOCAL_SIZE": "8"}
PALS = {"PALS_RANKID": "9", "PALS_LOCAL_RANKID": "1", "PALS_LOCAL_SIZE": "8", "PALS_NODEID": "1"}
MVAPICH = {
    "MV2_COMM_WORLD_RANK": "9", "MV2_COMM_WORLD_SIZE": "16", "MV2_COMM_WORLD_LOCAL_RANK": "1",
    "MV2_COMM_WORLD_LOCAL_SIZE": "8",
}  # fmt: skip
FLUX = {"FLUX_TASK_RANK": "9", "FLUX_JOB_SIZE": "16", "FLUX_TASK_LOCAL_ID": "1"}
PMI = {"PMI_RANK": "9", "PMI_SIZE": "16"}
STEP = {
    "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_PROCID": "9", "SLURM_STEP_NUM_TASKS": "16", "SLURM_NTASKS": "16",
    "SLURM_LOCALID": "1", "SLURM_NODEID": "1", "SLURM_STEP_NUM_NODES": "2", "SLURMD_NODENAME": "node2",
    "SLURM_JOB_NUM_NODES": "2",
}  # fmt: skip
# An srun with one task on each node: where a torchrun runs, or the helpers of an mpirun.
PER_NODE = {**STEP, "SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2", "SLURM_NTASKS": "2", "SLURM_LOCALID": "0"}
SHELL = {
    "SLURM_JOB_ID": "7", "SLURM_NTASKS": "16", "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NODEID": "0",
    "SLURM_JOB_NUM_NODES": "2", "SLURMD_NODENAME": "node1",
}  # fmt: skip


@pytest.fixture(autouse=True)
def _host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: HOST)


@pytest.mark.parametrize(
    ("environment", "launcher", "local_size", "node"),
    [
        pytest.param(TORCHRUN, "torchrun", 8, HOST, id="torchrun"),
        pytest.param(JSRUN, "jsrun (LSF)", None, HOST, id="jsrun"),
        pytest.param(
            {**JSRUN, **MPIRUN, "LSB_DJOB_NUMPROC": "85"}, "jsrun (LSF)", None, HOST, id="jsrun, Spectrum MPI"
        ),
        pytest.param(MPIRUN, "mpirun (Open MPI)", 8, HOST, id="Open MPI"),
        pytest.param(MPICH, "mpiexec (MPICH, Intel, Cray)", 8, HOST, id="MPICH"),
        pytest.param(CRAY, "mpiexec (MPICH, Intel, Cray)", 8, HOST, id="Cray"),
        pytest.param({**PALS, "PMI_SIZE": "16"}, "mpiexec (PALS)", 8, HOST, id="PALS"),
        pytest.param({**PALS, **CRAY}, "mpiexec (PALS)", 8, HOST, id="PALS, its PMI"),
        pytest.param(MVAPICH, "mpirun_rsh (MVAPICH)", 8, HOST, id="MVAPICH"),
        pytest.param({**FLUX, **PMI}, "flux run", None, HOST, id="Flux, its PMI"),
        pytest.param(STEP, "srun (Slurm)", None, "node2", id="srun"),
        pytest.param({**STEP, **PMI}, "srun (Slurm)", None, "node2", id="srun, pmi2"),
        pytest.param({**STEP, "PMIX_RANK": "9", "PMIX_NAMESPACE": "x"}, "srun (Slurm)", None, "node2", id="srun, pmix"),
        pytest.param({**STEP, "RANK": "0"}, "srun (Slurm)", None, "node2", id="srun, half of a torchrun"),
        pytest.param({**SHELL, **MPIRUN}, "mpirun (Open MPI)", 8, HOST, id="mpirun in salloc, first node"),
        pytest.param({**PER_NODE, **MPIRUN}, "mpirun (Open MPI)", 8, HOST, id="mpirun in salloc, other nodes"),
        pytest.param({**PER_NODE, **MPICH}, "mpiexec (MPICH, Intel, Cray)", 8, HOST, id="hydra by srun"),
        pytest.param({**PER_NODE, **TORCHRUN}, "torchrun", 8, "node2", id="torchrun in srun"),
        pytest.param(
            {**PER_NODE, "PMI_RANK": "1", "PMI_SIZE": "2", **TORCHRUN}, "torchrun", 8, "node2", id="torchrun in pmi2"
        ),
        pytest.param({**SHELL, **TORCHRUN}, "torchrun", 8, HOST, id="torchrun in sbatch"),
    ],
)
def test_rank_and_size_come_from_one_launcher(
    environment: dict[str, str], launcher: str, local_size: int | None, node: str
) -> None:
    assert topology(environment) == Topology(launcher, 9, 16, 1, local_size, node)


def test_a_launcher_may_leave_out_the_local_rank() -> None:
    assert topology(PMI) == Topology("mpiexec (MPICH, Intel, Cray)", 9, 16, None, None, HOST)


@pytest.mark.parametrize(
    ("environment", "single_process"),
    [
        ({}, False),
        ({"SLURM_JOB_ID": "7", "SLURM_NTASKS": "1", "SLURM_JOB_NUM_NODES": "1"}, False),
        ({"LSB_JOBID": "7", "LSB_DJOB_NUMPROC": "1"}, False),
        ({"RANK": "", "WORLD_SIZE": ""}, False),
        (SHELL, True),
        ({"WORLD_SIZE": "4"}, True),
        ({"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}, True),
    ],
)
def test_a_process_is_alone_where_nothing_says_otherwise(environment: dict[str, str], single_process: bool) -> None:
    found = topology(environment, single_process=single_process)
    assert found == Topology("single process", 0, 1, 0, 1, HOST)


@pytest.mark.parametrize(
    ("environment", "says"),
    [
        ({"RANK": "0"}, "torchrun: found RANK=0 without WORLD_SIZE, LOCAL_RANK: "),
        ({"RANK": "0", "WORLD_SIZE": "4"}, "torchrun: found RANK=0, WORLD_SIZE=4 without LOCAL_RANK: "),
        ({"WORLD_SIZE": "4"}, "torchrun: found WORLD_SIZE=4 without RANK, LOCAL_RANK: "),
        ({"OMPI_COMM_WORLD_SIZE": "4"}, "Open MPI): found OMPI_COMM_WORLD_SIZE=4 without OMPI_COMM_WORLD_RANK: "),
        (PALS, "PALS): found PALS_RANKID=9, PALS_LOCAL_RANKID=1 without PMI_SIZE: "),
        ({"SLURM_STEP_ID": "0", "SLURM_PROCID": "1"}, "without SLURM_STEP_NUM_TASKS or SLURM_NTASKS: "),
        ({"PMIX_RANK": "0"}, "found PMIX_RANK=0, but no launcher that gives a size: "),
    ],
)
def test_a_set_that_is_not_complete_names_what_is_missing(environment: dict[str, str], says: str) -> None:
    with pytest.raises(UserError, match=f"{re.escape(says)}.*--single-process"):
        topology(environment)


@pytest.mark.parametrize(
    ("environment", "says"),
    [
        (SHELL, r"16 tasks \(SLURM_NTASKS\).* start with srun "),
        ({**SHELL, "SLURM_STEP_ID": str(0xFFFFFFFA)}, "16 tasks .* start with srun "),
        ({"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "2"}, r"2 nodes \(SLURM_JOB_NUM_NODES\).* start with srun "),
        ({"LSB_JOBID": "7", "LSB_DJOB_NUMPROC": "85"}, r"85 slots \(LSB_DJOB_NUMPROC\).* start with jsrun "),
    ],
)
def test_an_allocation_of_several_tasks_is_no_single_process(environment: dict[str, str], says: str) -> None:
    with pytest.raises(UserError, match=f"{says}.*--single-process"):
        topology(environment)


@pytest.mark.parametrize(
    ("environment", "first", "second"),
    [
        pytest.param(
            {**MPIRUN, "PMI_RANK": "0", "PMI_SIZE": "1"},
            "Open MPI): rank 9 of 16 (OMPI_COMM_WORLD_RANK=9, OMPI_COMM_WORLD_SIZE=16)",
            "Cray): rank 0 of 1 (PMI_RANK=0, PMI_SIZE=1)",
            id="two MPIs",
        ),
        pytest.param(
            {**STEP, "PMI_RANK": "0", "PMI_SIZE": "1"},
            "Cray): rank 0 of 1 ",
            "srun (Slurm): rank 9 of 16 (SLURM_PROCID=9, SLURM_STEP_NUM_TASKS=16)",
            id="a world of 1 in each task",
        ),
        pytest.param(
            {**PER_NODE, "RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"},
            "torchrun: rank 0 of 1 ",
            "srun (Slurm): rank 1 of 2 ",
            id="a world of 1 on each node",
        ),
        pytest.param(
            {**STEP, "RANK": "3", "WORLD_SIZE": "32", "LOCAL_RANK": "3"},
            "torchrun: rank 3 of 32 ",
            "srun (Slurm): rank 9 of 16 ",
            id="several tasks on a node, each with the ranks of another job",
        ),
        pytest.param({**TORCHRUN, **MPICH, "PMI_RANK": "8"}, "rank 9 of 16 ", "rank 8 of 16 ", id="two ranks"),
    ],
)
def test_launchers_that_disagree_are_both_printed(environment: dict[str, str], first: str, second: str) -> None:
    with pytest.raises(UserError, match=f"{re.escape(first)}.*{re.escape(second)}.*one of them alone"):
        topology(environment)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"RANK": "one"}, "RANK: found 'one', allowed a whole number, 0 or more"),
        ({"RANK": "-1"}, "RANK: found '-1', allowed"),
        ({"WORLD_SIZE": "0"}, "WORLD_SIZE: found '0', allowed a whole number, 1 or more"),
        ({"WORLD_SIZE": "1.5"}, "WORLD_SIZE: found '1.5', allowed"),
        ({"RANK": "16"}, "RANK: found 16, allowed less than WORLD_SIZE=16"),
        ({"LOCAL_RANK": "8"}, "LOCAL_RANK: found 8, allowed less than LOCAL_WORLD_SIZE=8"),
        ({"LOCAL_RANK": "16", "LOCAL_WORLD_SIZE": ""}, "LOCAL_RANK: found 16, allowed less than WORLD_SIZE=16"),
        ({"LOCAL_WORLD_SIZE": "32"}, "LOCAL_WORLD_SIZE: found 32, allowed WORLD_SIZE=16 or less"),
    ],
)
def test_values_that_cannot_be_name_their_variable(change: dict[str, str], says: str) -> None:
    with pytest.raises(UserError, match=f"^{re.escape(says)}"):
        topology({**TORCHRUN, **change})


def test_several_ranks_are_no_single_process() -> None:
    with pytest.raises(UserError, match=r"--single-process: found srun \(Slurm\): rank 9 of 16 .*allowed one process"):
        topology(STEP, single_process=True)
