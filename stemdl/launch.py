"""What this process was given: cores, and the ranks a launcher (srun, mpirun, jsrun, torchrun, flux) announces."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from stemdl.errors import UserError

# (launcher, variable of the rank, variable of the number of ranks); both must be there, since scripts export one alone.
_LAUNCHERS = (
    ("torchrun", "RANK", "WORLD_SIZE"),
    ("jsrun (LSF)", "JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE"),
    ("mpirun (Open MPI)", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("mpiexec (MPICH, Intel, Cray)", "PMI_RANK", "PMI_SIZE"),
    ("mpiexec (PALS)", "PALS_RANKID", "PMI_SIZE"),
    ("flux run", "FLUX_TASK_RANK", "FLUX_JOB_SIZE"),
)
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
"""For processes that compute on one thread: numpy's BLAS opens a thread per core when it is imported."""

# Slurm's numbers of the steps that are no srun: interactive, batch, extern, pending (slurm.h).
_SLURM_FIRST_SPECIAL_STEP = 0xFFFFFFFA


@dataclass(frozen=True)
class Rank:
    """What one launcher says: its name, this process's rank, the number of ranks."""

    launcher: str
    rank: int
    size: int


def allowed_cores() -> int:
    """Cores that this process may run on; all of the machine's where the system keeps no such mask (macOS)."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def announced_ranks(environment: Mapping[str, str]) -> list[Rank]:
    """What each launcher found in `environment` says; Slurm last: its variables leak into the children of an mpirun."""
    found = [
        Rank(name, int(environment[rank]), int(environment[size]))
        for name, rank, size in _LAUNCHERS
        if _counts(environment, rank, size)
    ]
    return found + _slurm_step(environment)


def simulation_ranks(environment: Mapping[str, str]) -> Rank | None:
    """What the launcher says where the simulation is to run as its ranks; None where this process is alone.

    A single rank of an mpirun makes samples by itself, as each of several does. The other launchers give a task its own
    cores: a single task of theirs uses all of those.
    """
    found = announced_ranks(environment)
    return next((one for one in found if one.size > 1 or one.launcher.startswith(("mpirun", "mpiexec"))), None)


def refuse_several_ranks(environment: Mapping[str, str]) -> None:
    """Raise UserError where a launcher started this command more than once: each copy would do all of the work."""
    for one in announced_ranks(environment):
        if one.size > 1:
            raise UserError(
                f"{one.launcher}: found {one.size} ranks, allowed 1 for this command, which uses the cores of one "
                "machine (in Slurm: srun -n 1 -c CORES); several ranks are for: stemdl simulate, stemdl stage"
            )


def _slurm_step(environment: Mapping[str, str]) -> list[Rank]:
    """The tasks of an srun. The shells of sbatch and salloc have SLURM_NTASKS too, but run once."""
    step = environment.get("SLURM_STEP_ID", environment.get("SLURM_STEPID", ""))
    if not step.isdecimal() or int(step) >= _SLURM_FIRST_SPECIAL_STEP:
        return []
    size = "SLURM_STEP_NUM_TASKS" if "SLURM_STEP_NUM_TASKS" in environment else "SLURM_NTASKS"
    if not _counts(environment, "SLURM_PROCID", size):
        return []
    return [Rank("srun (Slurm)", int(environment["SLURM_PROCID"]), int(environment[size]))]


def _counts(environment: Mapping[str, str], *names: str) -> bool:
    return all(environment.get(name, "").isdecimal() for name in names)
