"""What launchers announce, and when the simulation runs as their ranks."""

from __future__ import annotations

import pytest

from stemdl.launch import Rank, announced_ranks, simulation_ranks

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
