"""Checks of MPI and of the launcher that started this process."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping

from stemdl.doctor.answer import Answer, Line
from stemdl.launch import announced_ranks

MPI_TIMEOUT_S = 30.0

JOB_VARIABLES = {"Slurm": "SLURM_JOB_ID", "LSF": "LSB_JOBID", "PBS": "PBS_JOBID"}


def check_mpi() -> Answer:
    """Which MPI mpi4py finds, asked in a process of its own: importing it here would start MPI for good."""
    mpirun = shutil.which("mpirun") or _beside_python("mpirun") or shutil.which("mpiexec")
    installed = importlib.util.find_spec("mpi4py") is not None
    library, problem = _mpi_library() if installed else ("", "")
    figures = {"mpi4py": installed, "mpirun": mpirun, "library": library or None, "problem": problem or None}
    if not installed:
        follows = "simulate runs on the cores of this machine alone; over several: pip install 'stemdl[mpi]'"
        line = Line("ok", "no mpi4py", follows)
    elif problem:
        follows = "simulate runs on this machine alone: build mpi4py with the MPI of this site"
        line = Line("warning", f"mpi4py finds no working MPI: {problem}", follows)
    else:
        follows = "mpirun -n RANKS stemdl simulate FILE: a rank for each core"
        if mpirun is None:
            follows = "start simulate and stage with the launcher of the scheduler (srun, jsrun): a rank for each core"
        line = Line("ok", f"MPI: {library}; {mpirun or 'no mpirun on PATH'}", follows)
    return Answer("mpi", figures, [line])


def check_launcher(environment: Mapping[str, str] | None = None) -> Answer:
    """Who started this process, by the one complete set of variables that is there."""
    env = os.environ if environment is None else environment
    jobs = {name: env[variable] for name, variable in JOB_VARIABLES.items() if variable in env}
    found = announced_ranks(env)
    sizes = {one.size for one in found}
    figures = {
        "job": next((f"{name} {number}" for name, number in jobs.items()), None),
        "launcher": found[0].launcher if found else None,
        "rank": found[0].rank if found else None,
        "size": found[0].size if found else None,
    }
    job = f"in {figures['job']}, " if figures["job"] else ""
    if not found:
        what = f"{job}no launcher"
        follows = "one process, which uses the cores of this machine"
        return Answer("launcher", figures, [Line("ok", what, follows)])
    fact = f"{job}{found[0].launcher}: rank {found[0].rank} of {found[0].size}"
    if max(sizes) > 1:
        follows = "several ranks are for simulate and stage; other verbs use one process (in Slurm: srun -n 1 -c CORES)"
        lines = [Line("note", fact, follows)]
    else:
        lines = [Line("ok", fact, "one process, which uses the cores of this machine")]
    if len(sizes) > 1:
        listed = ", ".join(f"{one.launcher}: {one.size}" for one in found)
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
