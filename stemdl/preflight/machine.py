"""What this machine has: memory and cores that processes here may use, disk where a run is kept."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from stemdl.doctor.machine import cpu_quota, memory_limit, usable_cores
from stemdl.launch import allowed_cores


def memory_bytes(root: Path = Path("/")) -> int:
    """Memory that processes here may use: the machine's, or less where a container or a job limits it."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limit, _ = memory_limit(root)
    return total if limit is None else min(total, limit)


def cores() -> int:
    """Cores that this process may use."""
    return usable_cores(allowed_cores(), cpu_quota())


def free_disk_bytes(folder: Path) -> tuple[Path, int]:
    """The nearest folder that exists already where `folder` is or will be, and the free bytes there."""
    existing = next(parent for parent in (folder, *folder.parents) if parent.is_dir())
    return existing, shutil.disk_usage(existing).free


def bytes_in_words(count: float) -> str:
    """1536 -> "1.5 KiB"."""
    units = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
    index = 0
    while count >= 1024 and index < len(units) - 1:
        count, index = count / 1024, index + 1
    return f"{count:.3g} {units[index]}" if count < 999.5 else f"{count:.0f} {units[index]}"
