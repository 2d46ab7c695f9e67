"""What a folder's file system is: its type, its free space, its speed. Standard library alone."""

from __future__ import annotations

import os
import re
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

NETWORK_FILE_SYSTEMS = (
    "nfs", "lustre", "gpfs", "beegfs", "cifs", "smb", "ceph", "glusterfs", "afs", "sshfs", "dvs", "panfs", "pvfs2",
    "orangefs", "wekafs", "dfuse", "gfs2", "ocfs2", "juicefs", "s3fs", "gcsfuse", "rclone",
)  # fmt: skip
"""How the types of file systems begin that several nodes see; those in user space have "fuse." before it."""

MEMORY_FILE_SYSTEMS = ("tmpfs", "ramfs")

PROBE_BYTES = 64 * 1024**2
PROBE_SECONDS = 3.0
_BLOCK_BYTES = 1024**2
_BLOCKS_PER_SYNC = 16

_ESCAPED = re.compile(r"\\([0-7]{3})")  # blanks and backslashes of a mount point, as the kernel writes them


@dataclass(frozen=True)
class FreeSpace:
    """What this user may still take: bytes, and files (None where the file system does not count them)."""

    bytes: int
    files: int | None


def free_space(folder: Path) -> FreeSpace:
    """Ask the file system of a folder; a quota shows only where the file system counts it in. Raises OSError."""
    found = os.statvfs(folder)
    return FreeSpace(found.f_bavail * found.f_frsize, found.f_favail if found.f_files else None)


def file_system_of(path: Path, mountinfo: str | None = None) -> str:
    """Type of the file system that holds a path, from the longest mount point above it; "unknown" without /proc."""
    if mountinfo is None:
        table = Path("/proc/self/mountinfo")
        mountinfo = table.read_text(encoding="utf-8", errors="replace") if table.is_file() else ""
    where = path.resolve()
    longest, kind = -1, "unknown"
    for line in mountinfo.splitlines():
        before, dash, after = line.partition(" - ")
        if not dash:
            continue
        point = Path(_ESCAPED.sub(lambda digits: chr(int(digits[1], 8)), before.split(" ")[4]))
        # The later of two mounts on one point hides the earlier.
        if where.is_relative_to(point) and len(point.parts) >= longest:
            longest, kind = len(point.parts), after.split()[0]
    return kind


def is_network(kind: str) -> bool:
    """Say whether a type of file system is one that several nodes share."""
    return kind.removeprefix("fuse.").startswith(NETWORK_FILE_SYSTEMS)


def write_speed_mb_per_s(folder: Path, size: int = PROBE_BYTES, seconds: float = PROBE_SECONDS) -> float:
    """Write up to `size` bytes and sync them, for about `seconds`; the file has no name, so even kill -9 leaves none.

    Raises OSError: the disk is full, a quota is used up, or the folder is read-only.
    """
    block = os.urandom(min(size, _BLOCK_BYTES))  # not zeros: some file systems store none of those
    written = number = 0
    with tempfile.TemporaryFile(dir=folder, buffering=0) as stream:
        began = time.perf_counter()
        while written < size and time.perf_counter() - began < seconds:
            written += stream.write(block[: size - written]) or 0
            number += 1
            if number % _BLOCKS_PER_SYNC == 0:  # or a slow disk would let all in and take a minute at the end
                os.fsync(stream.fileno())
        os.fsync(stream.fileno())
        return written / 1e6 / (time.perf_counter() - began)
