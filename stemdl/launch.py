"""What this process was given: cores, and the ranks a launcher (srun, mpirun, jsrun, torchrun, flux) announces."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from stemdl.errors import UserError
from stemdl.topology import (
    FLUX,
    SINGLE_PROCESS,
    SRUN,
    Topology,
    check_devices,
    rendezvous,
    slurm_hosts,
    visible_device,
    whole_number,
    with_hosts,
)

__all__ = [
    "ONE_THREAD",
    "Rank",
    "Topology",
    "allowed_cores",
    "announced_ranks",
    "check_devices",
    "refuse_several_ranks",
    "rendezvous",
    "simulation_ranks",
    "slurm_hosts",
    "topology",
    "visible_device",
    "with_hosts",
]

ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
"""For processes that compute on one thread: numpy's BLAS opens a thread per core when it is imported."""


@dataclass(frozen=True)
class _Launcher:
    """The variables of one launcher; of several names for one thing the first that is set counts.

    Rank and size must both be there, since scripts export one alone. So must torchrun's local rank: containers of
    Kubernetes have RANK and WORLD_SIZE, which count nodes there.
    """

    name: str
    rank: str
    size: tuple[str, ...]
    local_rank: tuple[str, ...]
    local_size: tuple[str, ...] = ()
    needs_local_rank: bool = False


_TORCHRUN = _Launcher(
    "torchrun", "RANK", ("WORLD_SIZE",), ("LOCAL_RANK",), ("LOCAL_WORLD_SIZE",), needs_local_rank=True
)
_PMI = _Launcher(
    "mpiexec (MPICH, Intel, Cray)",
    "PMI_RANK",
    ("PMI_SIZE",),
    ("PMI_LOCAL_RANK", "MPI_LOCALRANKID"),
    ("PMI_LOCAL_SIZE", "MPI_LOCALNRANKS"),
)
_SRUN = _Launcher(SRUN, "SLURM_PROCID", ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"), ("SLURM_LOCALID",))
# In the order in which they count. Slurm comes last: its variables leak into the children of an mpirun or a torchrun.
_LAUNCHERS = (
    _TORCHRUN,
    _Launcher("jsrun (LSF)", "JSM_NAMESPACE_RANK", ("JSM_NAMESPACE_SIZE",), ("JSM_NAMESPACE_LOCAL_RANK",)),
    _Launcher(
        "mpirun (Open MPI)",
        "OMPI_COMM_WORLD_RANK",
        ("OMPI_COMM_WORLD_SIZE",),
        ("OMPI_COMM_WORLD_LOCAL_RANK",),
        ("OMPI_COMM_WORLD_LOCAL_SIZE",),
    ),
    _PMI,
    _Launcher("mpiexec (PALS)", "PALS_RANKID", ("PMI_SIZE",), ("PALS_LOCAL_RANKID",), ("PALS_LOCAL_SIZE",)),
    _Launcher(
        "mpirun_rsh (MVAPICH)",
        "MV2_COMM_WORLD_RANK",
        ("MV2_COMM_WORLD_SIZE",),
        ("MV2_COMM_WORLD_LOCAL_RANK",),
        ("MV2_COMM_WORLD_LOCAL_SIZE",),
    ),
    _Launcher(FLUX, "FLUX_TASK_RANK", ("FLUX_JOB_SIZE",), ("FLUX_TASK_LOCAL_ID",)),
    _SRUN,
)

# Any PMIx launcher sets it, without a size: Open MPI's mpirun and srun have their own complete sets beside it.
_RANK_WITHOUT_SIZE = "PMIX_RANK"

# Slurm's numbers of the steps that are no srun: interactive, batch, extern, pending (slurm.h).
_SLURM_FIRST_SPECIAL_STEP = 0xFFFFFFFA

# What says, without a launcher, that the scheduler gave room for several tasks; and how to start them.
_ALLOCATIONS = (
    ("SLURM_NTASKS", "tasks", "srun stemdl ..."),
    ("SLURM_NPROCS", "tasks", "srun stemdl ..."),
    ("SLURM_JOB_NUM_NODES", "nodes", "srun --ntasks-per-node=TASKS stemdl ..."),
    ("SLURM_NNODES", "nodes", "srun --ntasks-per-node=TASKS stemdl ..."),
    ("LSB_DJOB_NUMPROC", "slots", "jsrun -n TASKS -a1 -g1 stemdl ..., or mpirun -n TASKS stemdl ..."),
)


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
    found = []
    for launcher in _LAUNCHERS:
        # Slurm's first name counts even where its value is none.
        size = next((name for name in launcher.size if name in environment), launcher.size[-1])
        if _started(environment, launcher) and _counts(environment, launcher.rank, size):
            found.append(Rank(launcher.name, int(environment[launcher.rank]), int(environment[size])))
    return found


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
                "machine (in Slurm: srun -n 1 -c CORES); several ranks are for: stemdl simulate, stage, train"
            )


def topology(environment: Mapping[str, str], *, single_process: bool = False) -> Topology:
    """This process among the ranks, from exactly one launcher; alone only where nothing says otherwise.

    torchrun counts before jsrun, then come Open MPI, MPICH, PALS, MVAPICH and Flux, and srun at last. Sets of variables
    that are not complete do not count beside a complete one. `single_process` is the user's word that this process
    works alone, inside an allocation too.

    Raises
    ------
    UserError
        Two complete sets disagree, other than Slurm's around an mpirun or a torchrun; a set is not complete and no
        other is; a value is no number or out of its bounds; an allocation of several tasks without a launcher; several
        ranks with `single_process`.
    """
    found = [(launcher, read) for launcher in _LAUNCHERS if (read := _read(environment, launcher)) is not None]
    if single_process:
        for launcher, read in found:
            if read.size > 1:
                raise UserError(f"--single-process: found {_says(environment, launcher, read)}, allowed one process")
    elif found:
        return _one_of(environment, found)
    else:
        _refuse_incomplete(environment)
        _refuse_unused_allocation(environment)
    return Topology(SINGLE_PROCESS, 0, 1, 0, 1, socket.gethostname())


def _read(environment: Mapping[str, str], launcher: _Launcher) -> Topology | None:
    """What one launcher says, None where its set is not complete. Raises UserError for values that cannot be."""
    if not _started(environment, launcher) or _missing(environment, launcher):
        return None
    size_name = _set(environment, launcher.size)
    assert size_name is not None
    size = whole_number(size_name, environment[size_name], lowest=1)
    rank = whole_number(launcher.rank, environment[launcher.rank])
    local_rank_name, local_size_name = _set(environment, launcher.local_rank), _set(environment, launcher.local_size)
    local_rank = whole_number(local_rank_name, environment[local_rank_name]) if local_rank_name else None
    local_size = whole_number(local_size_name, environment[local_size_name], lowest=1) if local_size_name else None
    for name, number, limit_name, limit in (
        (launcher.rank, rank, size_name, size),
        (local_rank_name, local_rank, size_name, size),
        (local_rank_name, local_rank, local_size_name, local_size),
    ):
        if number is not None and limit is not None and number >= limit:
            raise UserError(f"{name}: found {number}, allowed less than {limit_name}={limit}")
    if local_size is not None and local_size > size:
        raise UserError(f"{local_size_name}: found {local_size}, allowed {size_name}={size} or less")
    return Topology(launcher.name, rank, size, local_rank, local_size, _node(environment, launcher))


def _node(environment: Mapping[str, str], launcher: _Launcher) -> str:
    """Slurm's name of this node in an srun, where several nodes may be one machine (an mpirun copies its own name)."""
    by_srun = launcher in (_SRUN, _TORCHRUN) and _started(environment, _SRUN)
    return (environment.get("SLURMD_NODENAME") if by_srun else None) or socket.gethostname()


def _one_of(environment: Mapping[str, str], found: Sequence[tuple[_Launcher, Topology]]) -> Topology:
    """The first of the complete sets. Raises UserError where another one contradicts it."""
    # srun (pmi2), Flux, PALS and MVAPICH set PMI_RANK and PMI_SIZE for the MPI library too; their own say more.
    others = {(read.rank, read.size) for launcher, read in found if launcher is not _PMI}
    own = [one for one in found if one[0] is not _PMI or (one[1].rank, one[1].size) not in others]
    (first, chosen), *rest = own
    for launcher, read in rest:
        same = (read.rank, read.size) == (chosen.rank, chosen.size)
        if not same and not (launcher is _SRUN and _surrounds(environment, read, chosen)):
            raise UserError(
                f"two launchers disagree: {_says(environment, first, chosen)}; {_says(environment, launcher, read)}: "
                "start with one of them alone, and unset the variables of the other"
            )
    return chosen


def _surrounds(environment: Mapping[str, str], step: Topology, inner: Topology) -> bool:
    """Is this the srun in which an mpirun or a torchrun runs, or with which mpirun started its helpers on the nodes?

    Such a step has one task on each node, and no more tasks than there are ranks. Any other one is a set of worlds: an
    srun of n tasks, each of which believes that it is rank 0 of 1.
    """
    nodes = environment.get("SLURM_STEP_NUM_NODES", "")
    return step.size <= inner.size and nodes in ("", str(step.size))


def _refuse_incomplete(environment: Mapping[str, str]) -> None:
    found = []
    for launcher in _LAUNCHERS:
        names = (launcher.rank, *launcher.size, *launcher.local_rank)
        there = [f"{name}={environment[name]}" for name in names if environment.get(name)]
        if there and _started(environment, launcher):
            missing = ", ".join(_missing(environment, launcher))
            found.append(f"{launcher.name}: found {', '.join(there)} without {missing}")
    if not found and environment.get(_RANK_WITHOUT_SIZE):
        found = [f"found {_RANK_WITHOUT_SIZE}={environment[_RANK_WITHOUT_SIZE]}, but no launcher that gives a size"]
    if found:
        raise UserError(f"{'; '.join(found)}: set all of them, or none, or give --single-process")


def _refuse_unused_allocation(environment: Mapping[str, str]) -> None:
    for name, what, start in _ALLOCATIONS:
        if environment.get(name) and whole_number(name, environment[name]) > 1:
            raise UserError(
                f"found an allocation of {environment[name]} {what} ({name}), but no launcher that started this process"
                f": start with {start} (one task for each device), or give --single-process"
            )


def _says(environment: Mapping[str, str], launcher: _Launcher, read: Topology) -> str:
    variables = ", ".join(
        f"{name}={environment[name]}" for name in (launcher.rank, _set(environment, launcher.size)) if name
    )
    return f"{launcher.name}: rank {read.rank} of {read.size} ({variables})"


def _set(environment: Mapping[str, str], names: Sequence[str]) -> str | None:
    return next((name for name in names if environment.get(name)), None)


def _missing(environment: Mapping[str, str], launcher: _Launcher) -> list[str]:
    """What a complete set lacks: for each thing its names."""
    needed = [(launcher.rank,), launcher.size, *([launcher.local_rank] if launcher.needs_local_rank else [])]
    return [" or ".join(names) for names in needed if _set(environment, names) is None]


def _started(environment: Mapping[str, str], launcher: _Launcher) -> bool:
    """False for Slurm outside of an srun: the shells of sbatch and salloc have SLURM_NTASKS too, but run once."""
    if launcher is not _SRUN:
        return True
    step = environment.get("SLURM_STEP_ID", environment.get("SLURM_STEPID", ""))
    return step.isdecimal() and int(step) < _SLURM_FIRST_SPECIAL_STEP


def _counts(environment: Mapping[str, str], *names: str) -> bool:
    return all(environment.get(name, "").isdecimal() for name in names)
