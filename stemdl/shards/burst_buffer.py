"""Storage local to a node: where it is, whether it is fit, and the place of one run in it."""

from __future__ import annotations

import hashlib
import os
import re
import socket
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from stemdl.config.storage import BurstBuffer
from stemdl.disks import (
    MEMORY_FILE_SYSTEMS,
    PROBE_BYTES,
    FreeSpace,
    file_system_of,
    free_space,
    is_network,
    write_speed_mb_per_s,
)
from stemdl.errors import UserError

CANDIDATES = ("/mnt/bb/$USER", "$SLURM_TMPDIR", "$LOCAL_SCRATCH", "$TMPDIR")
"""Where sites put it, in the order in which it is looked for."""

LEAST_FREE_FILES = 64
"""Shards, manifest, locks and temporary files of a few ranks."""

_NAME = re.compile(r"\$(?:\{([A-Za-z_][A-Za-z0-9_]*)\}|([A-Za-z_][A-Za-z0-9_]*))")
_REMEDY = (
    "ask the scheduler for node-local storage (Slurm: often -C nvme or --tmp; LSF: -alloc_flags nvme), name its "
    "folder in burst_buffer.folder, or set burst_buffer.use: false"
)


class BurstBufferError(UserError):
    """The storage of this node is missing or not fit; names the key, what was found and what is allowed."""


@dataclass(frozen=True)
class BurstBufferReport:
    """What the checks found.

    Attributes
    ----------
    folder
        Where it is.
    file_system
        Its type, "unknown" where the system does not say.
    free_bytes, free_files
        Of this user; files None where they are not counted.
    write_mb_per_s
        Measured with a synced file, 1 MB = 10⁶ bytes.
    warnings
        What is allowed but should be known.
    """

    folder: Path
    file_system: str
    free_bytes: int
    free_files: int | None
    write_mb_per_s: float
    warnings: tuple[str, ...] = ()

    def line(self) -> str:
        """One line for people."""
        said = f"; {'; '.join(self.warnings)}" if self.warnings else ""
        return (
            f"burst buffer: {self.folder} ({self.file_system}), {self.free_bytes / 1e9:.1f} GB free, "
            f"writes {self.write_mb_per_s:.0f} MB/s{said}"
        )


def node_name(environment: Mapping[str, str]) -> str:
    """Name of this node: Slurm's where there is one (several may share a machine), else the host's without domain."""
    return environment.get("SLURMD_NODENAME") or socket.gethostname().partition(".")[0]


def find_burst_buffer(section: BurstBuffer, environment: Mapping[str, str]) -> Path:
    """Folder of this node's storage: the configured one, else the first of `CANDIDATES` that exists and is writable.

    Raises
    ------
    BurstBufferError
        There is none: everything that was looked for is listed with what was found; or the configured folder has an
        unknown $NAME, is no absolute path, is missing or cannot be written.
    """
    if section.folder is not None:
        return _configured(section.folder, environment)
    looked_at = []
    for candidate in CANDIDATES:
        missing = [name for name in _names(candidate) if not environment.get(name)]
        if missing:
            looked_at.append(f"{candidate}: {', '.join(f'${name}' for name in missing)} is not set")
            continue
        path = Path(_expand(candidate, environment))
        problem = _problem_of(path)
        if not problem:
            return path.resolve()
        looked_at.append(f"{candidate} = {path}: {problem}" if str(path) != candidate else f"{path}: {problem}")
    raise BurstBufferError(
        f"burst_buffer.use is true, and node {node_name(environment)} has no storage of its own; looked for "
        f"{'; '.join(looked_at)}; {_REMEDY}"
    )


def check_burst_buffer(
    folder: Path, *, needed_bytes: int, section: BurstBuffer, needed_files: int = LEAST_FREE_FILES
) -> BurstBufferReport:
    """Check type, space and speed before the first sample; one rank of each node should (they share the disk).

    Writes up to 64 MiB to a nameless file, for up to some 3 s.

    Raises
    ------
    BurstBufferError
        It is a network file system that the user did not name; or less than `needed_bytes` and the reserve, or than
        `needed_files` files, are free; or it cannot be written, or more slowly than burst_buffer.least_write_mb_per_s.
    """
    kind = file_system_of(folder)
    warnings = _judge_type(folder, kind, named=section.folder is not None)
    try:
        free = free_space(folder)
    except OSError as error:
        raise BurstBufferError(f"burst_buffer.folder: {folder}: {os.strerror(error.errno or 0)}; {_REMEDY}") from error
    require_space(folder, free, needed_bytes, section, needed_files=needed_files)
    spare = int(free.bytes - section.reserve_gb * 1e9)
    try:
        speed = write_speed_mb_per_s(folder, size=max(4096, min(PROBE_BYTES, spare // 2)))
    except OSError as error:
        raise BurstBufferError(
            f"burst_buffer.folder: found that {folder} ({kind}) cannot be written: {os.strerror(error.errno or 0)} "
            f"({free.bytes / 1e6:.0f} MB are free; is a quota used up?); {_REMEDY}"
        ) from error
    if speed < section.least_write_mb_per_s:
        raise BurstBufferError(
            f"burst_buffer.least_write_mb_per_s: found {speed:.0f} MB/s at {folder} ({kind}), allowed "
            f"≥ {section.least_write_mb_per_s:g} MB/s; {_REMEDY}, or lower that key"
        )
    return BurstBufferReport(folder, kind, free.bytes, free.files, speed, tuple(warnings))


def require_space(folder: Path, free: FreeSpace, needed_bytes: int, section: BurstBuffer, *, needed_files: int) -> None:
    """Raise BurstBufferError where less is free than `needed_bytes` beside the reserve, and `needed_files` files."""
    reserve = section.reserve_gb * 1e9
    found = f"burst_buffer.folder: found at {folder}"
    if free.bytes < needed_bytes + reserve:
        raise BurstBufferError(
            f"{found} {_size(free.bytes)} free, allowed ≥ {_size(needed_bytes + reserve)}: {_size(needed_bytes)} are "
            f"needed, and {_size(reserve)} stay free (burst_buffer.reserve_gb); remove what is not needed there, use "
            "more nodes, or make the set smaller"
        )
    if free.files is not None and free.files < needed_files:
        raise BurstBufferError(
            f"{found} room for {free.files} more files, allowed ≥ {needed_files}; remove what is not needed there"
        )


def run_id(run_folder: Path, config_hash: str) -> str:
    """Short name of a run, from the place of its folder and its configuration's hash: 12 hexadecimal digits."""
    return hashlib.sha256(f"{run_folder.resolve()}\0{config_hash}".encode()).hexdigest()[:12]


def node_folder(buffer: Path, run_id: str, environment: Mapping[str, str]) -> Path:
    """Make the place of one run on one node, `stemdl-<run>-<node>`, readable for this user alone, and return it.

    The node's name is part of it since several virtual nodes may share one disk. What is there already stays.

    Raises
    ------
    BurstBufferError
        It cannot be made, or somebody else's file or folder has its name.
    """
    node = re.sub(r"[^A-Za-z0-9_-]", "_", node_name(environment))
    folder = buffer / f"stemdl-{run_id}-{node}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
    except OSError as error:  # also where the name is a file or a dangling link
        raise BurstBufferError(
            f"burst_buffer.folder: {folder} cannot be made: {os.strerror(error.errno or 0)}; {_REMEDY}"
        ) from error
    # In a folder like /tmp anybody could have made it, and a link would lead elsewhere.
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        raise BurstBufferError(
            f"burst_buffer.folder: {folder} is not a folder of this user (user {found.st_uid} made it); remove it, or "
            "name another in burst_buffer.folder"
        )
    return folder


def _configured(text: str, environment: Mapping[str, str]) -> Path:
    unknown = [name for name in _names(text) if not environment.get(name)]
    if unknown:
        raise BurstBufferError(
            f"burst_buffer.folder: found {text!r}, but {', '.join(f'${name}' for name in unknown)} is not set on node "
            f"{node_name(environment)}; allowed are names of this node's environment"
        )
    path = Path(_expand(text, environment))
    where = f"burst_buffer.folder: found {text!r}" + (f", which is {path}" if str(path) != text else "")
    if not path.is_absolute():
        raise BurstBufferError(f"{where}; allowed is an absolute path, such as /mnt/bb/$USER")
    problem = _problem_of(path)
    if problem:
        # Not made here: where the disk is not mounted, that would be a folder on the system's own.
        raise BurstBufferError(f"{where}: {problem} on node {node_name(environment)}; {_REMEDY}")
    return path.resolve()


def _names(text: str) -> list[str]:
    return [match[1] or match[2] for match in _NAME.finditer(text)]


def _expand(text: str, environment: Mapping[str, str]) -> str:
    return _NAME.sub(lambda match: environment[match[1] or match[2]], text)


def _problem_of(path: Path) -> str:
    """Why a folder is of no use; empty if it is."""
    try:
        if not path.is_dir():
            return "a file, no folder" if path.exists() else "no such folder"
    except OSError as error:
        return os.strerror(error.errno or 0)
    return "" if os.access(path, os.W_OK | os.X_OK) else "not writable for this user"


def _judge_type(folder: Path, kind: str, *, named: bool) -> list[str]:
    if is_network(kind):
        if not named:
            raise BurstBufferError(
                f"burst_buffer.folder: found {folder} on a network file system ({kind}), allowed is storage of the "
                f"node itself; {_REMEDY} (a folder named in burst_buffer.folder is used with a warning)"
            )
        return [f"{kind} is a network file system, shared by nodes: no faster than the run folder may be"]
    if kind in MEMORY_FILE_SYSTEMS:
        return ["it lies in memory: what is put there counts against the memory limit of the job"]
    if kind == "unknown":
        return ["the type of its file system is unknown: make sure that it is local to the node"]
    return []


def _size(num_bytes: float) -> str:
    return f"{num_bytes / 1e9:.1f} GB" if num_bytes >= 1e9 else f"{num_bytes / 1e6:.1f} MB"
