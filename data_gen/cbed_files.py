"""Files of the CBED database's layout, filled by our simulation: several processes, each with files of its own.

A file gets its name when it is complete, so a killed run loses the files it was at, and the same call goes on with the
others. Each file's content follows from configuration, options and seed alone, whoever wrote it and with how many.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch

from data_gen.cbed import SPLITS, CbedCrystal, CbedOptions, choose_crystals, make_cbed
from data_gen.engines import engine_by_name
from data_gen.materials import BadCrystal
from stemdl import __version__
from stemdl.atomic_files import TEMPORARY_PREFIX, is_of_dead_process
from stemdl.config import Config
from stemdl.errors import UserError
from stemdl.launch import Rank
from stemdl.progress import Progress
from stemdl.shards.cbed_layout import CbedError, CbedFile
from stemdl.shards.cbed_writer import CbedWriter

_DIGEST = "stemdl_digest"
_END_TIMEOUT_S = 10.0


@dataclass(frozen=True)
class PlannedFile:
    """One file: its name, its crystals by their place in it, and what its content follows from."""

    path: Path
    crystals: tuple[CbedCrystal, ...]
    digest: str


@dataclass
class CbedSummary:
    """What a call did."""

    written: list[Path] = field(default_factory=list)
    present: list[Path] = field(default_factory=list)
    """Files that were complete already."""
    samples: int = 0
    refused: list[tuple[str, str]] = field(default_factory=list)
    """Crystals that cannot be used, with the reason."""
    failed: list[tuple[str, str]] = field(default_factory=list)
    """Crystals that could not be simulated, with the reason; their numbers stay free in their file."""


def plan_files(
    config: Config, folder: Path, options: CbedOptions, *, crystals: int | None, materials_per_file: int
) -> tuple[list[PlannedFile], list[BadCrystal]]:
    """The files `batch_{train,dev,test}_<n>.h5` of all crystals, or of the first so many.

    Raises CrystalSelectionError as `choose_crystals`.
    """
    chosen, refused = choose_crystals(config, crystals)
    planned = []
    for split in SPLITS:
        own = [one for one in chosen if one.split == split]
        for number, start in enumerate(range(0, len(own), materials_per_file)):
            part = tuple(own[start : start + materials_per_file])
            path = folder / f"batch_{split}_{number}.h5"
            planned.append(PlannedFile(path, part, _digest(config, options, part)))
    return planned, refused


def write_files(
    config: Config,
    folder: Path,
    options: CbedOptions,
    *,
    crystals: int | None,
    materials_per_file: int,
    workers: int,
    rank: Rank | None,
    progress: Progress,
) -> CbedSummary:
    """Write all files that are not there yet; of several ranks each every size-th.

    Raises
    ------
    CbedError
        A file is there that another configuration made, or is damaged.
    CrystalSelectionError
        As `choose_crystals`.
    UserError
        A process died; complete files stay.
    """
    planned, refused = plan_files(config, folder, options, crystals=crystals, materials_per_file=materials_per_file)
    summary = CbedSummary(refused=[(bad.name, bad.reason) for bad in refused])
    if not planned:
        raise UserError(f"no crystal is left to simulate: {'; '.join(map(str, refused[:5]))}")
    if config.detector.pixels[0] != config.detector.pixels[1]:
        raise UserError(f"detector.pixels: {list(config.detector.pixels)}; the layout has square patterns")
    folder.mkdir(parents=True, exist_ok=True)
    mine = planned if rank is None else planned[rank.rank :: rank.size]
    left = []
    for file in mine:
        if is_complete(file):
            summary.present.append(file.path)
        else:
            left.append(file)
    total = sum(len(file.crystals) for file in left)
    progress.start("cbed", total, "crystals")
    for done, report in enumerate(_reports(config, options, left, min(workers, len(left))), start=1):
        progress.advance(done)
        summary.samples += report.samples
        if report.failure is not None:
            summary.failed.append(report.failure)
        if report.complete is not None:
            summary.written.append(report.complete)
    progress.finish()
    summary.written.sort()
    summary.failed.sort()
    return summary


def is_complete(file: PlannedFile) -> bool:
    """Whether the file is there. Raises CbedError where it is, and something else made it."""
    if not file.path.exists():
        return False
    with CbedFile(file.path) as found:
        digest = found.attributes.get(_DIGEST, "")
    if digest != file.digest:
        raise CbedError(
            f"{file.path}: is there, but other crystals, energies or another configuration made it; remove it, or give "
            "another folder"
        )
    return True


def write_file(config: Config, options: CbedOptions, file: PlannedFile) -> Iterator[tuple[int, tuple[str, str] | None]]:
    """Simulate and write one file; yields after each crystal the samples made, and its name and reason if it failed.

    A crystal that fails leaves its number unused. A file without any sample is not written. Raises OSError.
    """
    engine = engine_by_name(config.simulation.engine)
    made = 0
    _remove_remnants(file.path)
    attributes = {_DIGEST: file.digest, "stemdl_version": __version__}
    writer = CbedWriter(file.path, pixels=config.detector.pixels[0], attributes=attributes)
    try:
        for place, one in enumerate(file.crystals):
            try:
                samples = list(make_cbed(config, one, options, engine))
            except BadCrystal as error:
                yield 0, (error.name, error.reason)
                continue
            for energy, sample in enumerate(samples):
                writer.add(place, energy, sample)
            made += len(samples)
            yield len(samples), None
        if made:
            writer.close()
    except BaseException:
        writer.abandon()
        raise
    if not made:
        writer.abandon()


def _remove_remnants(path: Path) -> None:
    """Unfinished files of dead processes of this host that were at this very file."""
    for remnant in path.parent.glob(f"{TEMPORARY_PREFIX}{path.stem}-*"):
        if is_of_dead_process(remnant.name):
            remnant.unlink(missing_ok=True)


def _digest(config: Config, options: CbedOptions, crystals: Sequence[CbedCrystal]) -> str:
    record = {
        "seed": config.run.seed,
        "specimen": config.specimen.model_dump(mode="json", exclude={"zone_axes"}),
        "microscope": config.microscope.model_dump(mode="json", exclude={"energy_kev", "semiangle_mrad"}),
        "scan": config.scan.model_dump(mode="json"),
        "detector": config.detector.model_dump(mode="json", include={"pixels", "dk_per_angstrom"}),
        "simulation": config.simulation.model_dump(
            mode="json",
            include={"pixel_angstrom", "slice_angstrom", "frozen_phonons", "engine", "parametrization", "algorithm",
                     "prism_interpolation"},
        ),
        "energies_kev": list(options.energies_kev),
        "overlap": options.overlap,
        "crystals": [[one.number, one.crystal.name, one.crystal.structure_sha256()] for one in crystals],
    }  # fmt: skip
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True)
class _Report:
    """One crystal is done."""

    samples: int
    failure: tuple[str, str] | None
    complete: Path | None = None
    """The file, where this was its last crystal and it has any sample."""


def _write_all(config: Config, options: CbedOptions, files: Sequence[PlannedFile]) -> Iterator[_Report]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # so that results do not depend on the number of cores
    try:
        for file in files:
            last: _Report | None = None  # is told when the file has its name
            for samples, failure in write_file(config, options, file):
                if last is not None:
                    yield last
                last = _Report(samples, failure)
            if last is not None:
                yield _Report(last.samples, last.failure, file.path if file.path.exists() else None)
    finally:
        torch.set_num_threads(before)


def _reports(config: Config, options: CbedOptions, files: Sequence[PlannedFile], workers: int) -> Iterator[_Report]:
    """From this process alone, or from as many of its own, however they end."""
    if workers <= 1:
        yield from _write_all(config, options, files)
        return
    processes: dict[Any, BaseProcess] = {}  # by the connection to each
    try:
        for number in range(workers):
            connection, process = _start(config, options, files[number::workers])
            processes[connection] = process
        while processes:
            for ready in wait(list(processes)):
                message = _receive(ready, processes[ready])
                if message is None:
                    processes.pop(ready).join(_END_TIMEOUT_S)
                else:
                    yield message
    finally:
        for connection, process in processes.items():
            process.terminate()
            connection.close()
            process.join(_END_TIMEOUT_S)
        for file in files if processes else ():
            _remove_remnants(file.path)


def _receive(connection: Any, process: BaseProcess) -> _Report | None:
    """The next report, None where the process is done. Raises what it raised, or UserError where it died."""
    try:
        message = connection.recv()
    except EOFError:
        process.join(_END_TIMEOUT_S)
        raise UserError(
            f"a process that wrote files died (exit code {process.exitcode}; is the memory full? then lower --workers)"
            "; complete files are kept: run the same command again"
        ) from None
    if isinstance(message, BaseException):
        raise message
    assert message is None or isinstance(message, _Report)
    return message


def _start(
    config: Config, options: CbedOptions, files: Sequence[PlannedFile]
) -> tuple[Connection[Any, Any], BaseProcess]:
    context = multiprocessing.get_context("spawn")  # a forked child of a process with threads may deadlock
    ours, theirs = context.Pipe(duplex=False)
    with _keyboard_held_back():
        process = context.Process(target=_work, args=(config, options, files, theirs), daemon=True)
        process.start()
    theirs.close()  # or the pipe would not end with the process
    return ours, process


@contextmanager
def _keyboard_held_back() -> Iterator[None]:
    """Ctrl-C reaches every process of the terminal. Children inherit that it is held back: the parent ends them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _work(config: Config, options: CbedOptions, files: Sequence[PlannedFile], connection: Connection[Any, Any]) -> None:
    """The main function of a process; a parent that is gone ends it at the next report."""
    try:
        for report in _write_all(config, options, files):
            connection.send(report)
        connection.send(None)
    except Exception as error:  # noqa: BLE001  (the parent raises it)
        error.add_note(f"in a process that wrote {', '.join(file.path.name for file in files[:3])}")
        connection.send(error)
