"""Checks of disks: where runs are kept, and fast storage local to a node (burst buffer)."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stemdl.disks import PROBE_BYTES, file_system_of, is_network, write_speed_mb_per_s
from stemdl.doctor.answer import Answer, Line
from stemdl.doctor.machine import GIB
from stemdl.errors import UserError

LOW_SPACE_GIB = 2.0


def require_folder(folder: Path) -> None:
    """Raise UserError unless the folder is there and can be written."""
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder; name one where runs are to be kept: --folder PATH")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UserError(f"{folder}: not writable for this user; name another: --folder PATH")


def check_storage(folder: Path, environment: Mapping[str, str] | None = None) -> Answer:
    """Free space, file system and write speed of the run's folder and of every place fit for a burst buffer."""
    places = [_look_at("runs", folder)]
    env = os.environ if environment is None else environment
    for name, path in burst_buffer_candidates(env):
        if all(Path(place["path"]) != path for place in places):
            places.append(_look_at(name, path))
    lines = [_line_of(place) for place in places]
    if len(places) == 1:
        lines.append(Line("ok", "no burst buffer", "shards are read where they are written"))
    return Answer("storage", {"places": places}, lines)


def check_locking(folder: Path, environment: Mapping[str, str] | None = None) -> Answer:
    """Try the call that HDF5 locks its files with (flock) on the run's file system."""
    setting = (os.environ if environment is None else environment).get("HDF5_USE_FILE_LOCKING")
    problem = _lock_problem(folder)
    figures = {"works": not problem, "problem": problem or None, "hdf5_use_file_locking": setting}
    if problem:
        follows = "shards are sealed and read without locks, so reading works; start one run per folder at a time"
        lines = [Line("warning", f"file locks on {folder}: {problem}", follows)]
    else:
        lines = [Line("ok", f"file locks work on {folder}", "a second run in the same folder is refused")]
    if setting is not None:
        lines.append(Line("note", f"HDF5_USE_FILE_LOCKING={setting}", "overrides what stemdl asks of HDF5"))
    return Answer("locking", figures, lines)


def burst_buffer_candidates(env: Mapping[str, str]) -> list[tuple[str, Path]]:
    """Where sites put storage local to a node, as far as it exists here: (name, folder)."""
    user = env.get("USER", "")
    named = [("/mnt/bb/$USER", f"/mnt/bb/{user}" if user else "")]
    named += [(f"${name}", env.get(name, "")) for name in ("SLURM_TMPDIR", "LOCAL_SCRATCH", "TMPDIR")]
    found: list[tuple[str, Path]] = []
    for name, text in named:
        path = Path(text).resolve() if text else None
        if path is not None and path.is_dir() and all(path != other for _, other in found):
            found.append((name, path))
    return found


def _look_at(name: str, path: Path) -> dict[str, Any]:
    free = shutil.disk_usage(path).free
    writable = os.access(path, os.W_OK | os.X_OK)
    kind = file_system_of(path)
    speed = None
    if writable and free > 4 * PROBE_BYTES:
        speed = round(write_speed_mb_per_s(path), 1)
    return {
        "name": name,
        "path": str(path.resolve()),
        "file_system": kind,
        "shared": is_network(kind),
        "free_gib": round(free / GIB, 2),
        "write_mb_per_s": speed,
        "writable": writable,
    }


def _line_of(place: Mapping[str, Any]) -> Line:
    speed = "not writable" if not place["writable"] else "too full to measure"
    if place["write_mb_per_s"] is not None:
        speed = f"writes {place['write_mb_per_s']:.0f} MB/s"
    fact = f"{place['name']}: {place['path']} ({place['file_system']}), {place['free_gib']:.1f} GiB free, {speed}"
    if place["free_gib"] < LOW_SPACE_GIB and place["name"] == "runs":
        return Line("warning", fact, "too little for a training set: `stemdl validate` estimates what a file needs")
    if place["name"] != "runs":
        if place["file_system"] == "tmpfs":
            return Line("note", fact, "fast, but in memory: what is put there counts against the memory limit")
        return Line(
            "ok",
            fact,
            "fast local disk, used where run.folder lies there" if not place["shared"] else "shared by nodes",
        )
    if place["shared"]:
        return Line("note", fact, "shared by nodes: good to keep runs; a run.folder on a local disk is read faster")
    return Line("ok", fact, "local to this machine: other nodes do not see runs kept here")


def _lock_problem(folder: Path) -> str:
    """Empty if an exclusive lock is granted once and refused the second time."""
    with tempfile.NamedTemporaryFile(dir=folder, prefix=".doctor-") as first, open(first.name, "rb") as second:
        try:
            fcntl.flock(first.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            return f"refused ({errno.errorcode.get(error.errno or 0, '?')}: {error.strerror})"
        try:
            fcntl.flock(second.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return ""
        return "granted twice: they protect nothing here"
