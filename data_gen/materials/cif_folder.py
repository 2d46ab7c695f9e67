"""Folders of CIF files: tens of thousands of them, read once by all cores."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from pathlib import Path

from data_gen.materials.cif import read_cif
from data_gen.materials.crystal import BadCrystal, Crystal
from stemdl.launch import ONE_THREAD, allowed_cores

_ALONE = 400  # files that one process has read before others have started
_AT_ONCE = 50
_TOLD_EVERY_S = 3.0


Told = Callable[[int, int], None]
_told: ContextVar[Told | None] = ContextVar("told", default=None)


@contextmanager
def reading_told(told: Told) -> Iterator[None]:
    """Inside, `told` hears now and then how many of how many files are read, where that takes a while."""
    before = _told.set(told)
    try:
        yield
    finally:
        _told.reset(before)


def files_below(folder: Path) -> int:
    """How many CIF files lie in the folders directly inside a folder, as far as those may be looked into."""
    inside = [one for one in folder.iterdir() if one.is_dir() and os.access(one, os.R_OK | os.X_OK)]
    return sum(path.suffix.lower() == ".cif" for one in inside for path in one.iterdir())


def read_cif_folder(folder: Path | str) -> tuple[list[Crystal], list[BadCrystal]]:
    """Read every ``*.cif`` of a folder, in the order of the file names; unchanged files are read once in a process.

    Folders inside are not searched.

    Returns:
        The crystals, and one BadCrystal for each file that was refused: together as many as there are files.

    Raises:
        NotADirectoryError: there is no such folder.
        FileNotFoundError: the folder holds no CIF file.
    """
    folder = Path(folder)
    if not _is_folder(folder):
        raise NotADirectoryError(f"the CIF folder {folder} does not exist or is no folder")
    files = sorted((path for path in folder.iterdir() if path.suffix.lower() == ".cif"), key=lambda path: path.name)
    if not files:
        below = files_below(folder)
        hint = f"; {below} lie in folders inside it, which are not searched: name those folders" if below else ""
        raise FileNotFoundError(f"the CIF folder {folder} holds no file that ends in .cif{hint}")
    found = _read_all(tuple((path, _state_of(path)) for path in files))
    return (
        [one for one in found if isinstance(one, Crystal)],
        [one for one in found if isinstance(one, BadCrystal)],
    )


def _state_of(path: Path) -> tuple[int, int] | None:
    """What changes with the content of a file; None for one that cannot be looked at, which reading then says."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size


@lru_cache(maxsize=16)
def _read_all(files: tuple[tuple[Path, tuple[int, int] | None], ...]) -> tuple[Crystal | BadCrystal, ...]:
    paths = [path for path, _ in files]
    cores = allowed_cores()
    if len(paths) <= _ALONE or cores == 1:
        return _gathered((_read_one(path) for path in paths), len(paths))
    context = multiprocessing.get_context("spawn")  # this process may have threads
    with _environment(ONE_THREAD), ProcessPoolExecutor(min(cores, len(paths) // _AT_ONCE), context) as pool:
        return _gathered(pool.map(_read_one, paths, chunksize=_AT_ONCE), len(paths))


def _gathered(found: Iterator[Crystal | BadCrystal], total: int) -> tuple[Crystal | BadCrystal, ...]:
    told, gathered, last = _told.get(), [], time.monotonic()
    for one in found:
        gathered.append(one)
        if told is not None and time.monotonic() - last >= _TOLD_EVERY_S:
            told(len(gathered), total)
            last = time.monotonic()
    return tuple(gathered)


def _is_folder(path: Path) -> bool:
    """False also for a path that cannot be, such as a name that is too long."""
    try:
        return path.is_dir()
    except OSError:
        return False


def _read_one(path: Path) -> Crystal | BadCrystal:
    try:
        return read_cif(path)
    except BadCrystal as error:
        return BadCrystal(error.name, error.reason)  # without the traceback, which would keep the whole file


@contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    before: Sequence[tuple[str, str | None]] = [(name, os.environ.get(name)) for name in values]
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before:
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
