"""`stemdl doctor`: what this machine has, and what follows from it.

`examine` runs every check; each gives figures under stable keys (for `--json`) and lines for people: a fact, then
what it means for a run. Nothing is changed on the machine, and every check has a bound on its time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from stemdl.doctor.answer import Answer, Line, as_json
from stemdl.doctor.compute import check_bf16, check_fft, check_gpus, check_threads
from stemdl.doctor.launchers import check_launcher, check_mpi
from stemdl.doctor.machine import check_cpu, check_memory, check_python
from stemdl.doctor.storage import check_locking, check_storage, require_folder

__all__ = ["Answer", "Line", "as_json", "examine"]


def examine(folder: Path) -> list[Answer]:
    """Run every check, the storage ones on the file system of `folder`, where runs are to be kept.

    Raises
    ------
    stemdl.errors.UserError
        The folder is missing or cannot be written.
    """
    require_folder(folder)
    checks: Sequence[Callable[[], Answer]] = (
        check_python,
        check_cpu,
        check_memory,
        check_threads,
        check_gpus,
        check_bf16,
        check_fft,
        check_mpi,
        check_launcher,
        lambda: check_storage(folder),
        lambda: check_locking(folder),
    )
    return [check() for check in checks]
