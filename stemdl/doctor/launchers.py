"""Checks of MPI and of the launcher that started this process."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass

from stemdl.doctor.answer import Answer, Line

MPI_TIMEOUT_S = 30.0


@dataclass(frozen=True)
class Launcher:
    """The variables by which a launcher tells a process who it is."""

    name: str
    rank: str
    size: str
    local_rank: str


# Slurm comes last: its variables leak into the children of an mpirun inside a job.
LAUNCHERS = (
    Launcher("torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK"),
    Launcher("jsrun (LSF)", "JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE", "JSM_NAMESPACE_LOCAL_RANK"),
    Launcher("mpirun (Open MPI)", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
    Launcher("mpirun (MPICH, Intel)", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"),
    Launcher("PMI (Cray)", "PMI_RANK", "PMI_SIZE", "PMI_LOCAL_RANK"),
    Launcher("srun (Slurm)", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"),
)

JOB_VARIABLES = {"Slurm": "SLURM_JOB_ID", "LSF": "LSB_JOBID", "PBS": "PBS_JOBID"}


def check_mpi() -> Answer:
    """Which MPI mpi4py finds, asked in a process of its own: importing it here would start MPI for good."""
    mpirun = shutil.which("mpirun") or _beside_python("mpirun") or shutil.which("mpiexec")
    installed = importlib.util.find_spec("mpi4py") is not None
    library, problem = _mpi_library() if installed else ("", "")
    figures = {"mpi4py": installed, "mpirun": mpirun, "library": library or None, "problem": problem or None}
    if not installed:
        line = Line(
            "note", "no mpi4py", "simulation shares work over this machine's cores alone; for more: extra `mpi`"
        )
    elif problem:
        line = Line("warning", f"mpi4py finds no working MPI: {problem}", "load the site's MPI, or pip install mpich")
    elif mpirun is None:
        line = Line("note", f"MPI: {library}, but no mpirun on PATH", "start ranks with the site's launcher")
    else:
        line = Line(
            "ok", f"MPI: {library}; {mpirun}", "`mpirun -n N stemdl simulate FILE` shares the work over N ranks"
        )
    return Answer("mpi", figures, [line])


def check_launcher(environment: Mapping[str, str] | None = None) -> Answer:
    """Who started this process, by the one complete set of variables that is there."""
    env = os.environ if environment is None else environment
    jobs = {name: env[variable] for name, variable in JOB_VARIABLES.items() if variable in env}
    found = [one for one in LAUNCHERS if {one.rank, one.size, one.local_rank} <= env.keys()]
    sizes = {env[one.size] for one in found}
    figures = {
        "job": next((f"{name} {number}" for name, number in jobs.items()), None),
        "launcher": found[0].name if found else None,
        "rank": _number(env[found[0].rank]) if found else None,
        "size": _number(env[found[0].size]) if found else None,
    }
    job = f"in {figures['job']}, " if figures["job"] else ""
    if not found:
        what = f"{job}no launcher"
        follows = (
            "one process; inside a job start ranks with srun, jsrun or mpirun" if job else "one process, no cluster"
        )
        return Answer("launcher", figures, [Line("ok", what, follows)])
    fact = f"{job}{found[0].name}: rank {env[found[0].rank]} of {env[found[0].size]}"
    lines = [Line("ok", fact, "each rank takes its share of the work")]
    if len(sizes) > 1:
        listed = ", ".join(f"{one.name}: {env[one.size]}" for one in found)
        lines.append(Line("warning", f"launchers disagree on the number of ranks ({listed})", "use one of them alone"))
    return Answer("launcher", figures, lines)


def _mpi_library() -> tuple[str, str]:
    """First line of the library's version, or what went wrong."""
    code = "from mpi4py import MPI; print(MPI.Get_library_version())"
    # A launcher's variables would make the child believe that it is a rank of the running job.
    env = {
        name: value for name, value in os.environ.items() if not name.startswith(("PMI", "OMPI_", "SLURM_", "PALS_"))
    }
    try:
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, timeout=MPI_TIMEOUT_S, check=False, env=env
        )
    except subprocess.TimeoutExpired:
        return "", f"no answer within {MPI_TIMEOUT_S:g} s"
    text = (done.stdout if done.returncode == 0 else done.stderr).replace("\0", "").strip().splitlines()
    if done.returncode == 0 and text:
        return " ".join(text[0].split()), ""
    return "", text[-1] if text else f"exit code {done.returncode}"


def _beside_python(name: str) -> str | None:
    """A program of this environment, which need not be on PATH."""
    return shutil.which(name, path=os.path.dirname(sys.executable))


def _number(text: str) -> int | str:
    return int(text) if text.isdigit() else text
