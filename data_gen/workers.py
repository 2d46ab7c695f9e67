"""The processes of the simulation: each makes its share of the items and tells the parent of every one.

A worker that dies, however, closes its pipe: the parent hears of it at once. A parent that dies takes its workers
along, so that the next run finds no writer of the same rank alive.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import traceback
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

import torch

from data_gen.engines import engine_by_name
from data_gen.materials import BadCrystal
from data_gen.sample import axes_of, make_sample
from data_gen.worklist import Part, PartName
from stemdl.config import Config
from stemdl.errors import UserError
from stemdl.shards import ShardWriter

END_TIMEOUT_S = 10.0
"""How long a worker that was told to end may take before it is killed: it may be waiting for a disk."""

ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


class SimulationError(UserError):
    """A worker ended before its items were done, for a reason that lies outside of this program."""


class SimulationFault(RuntimeError):
    """A worker failed by a fault of this program; names the worker and the item, and holds its traceback."""


@dataclass(frozen=True)
class Share:
    """What one worker does of one part."""

    part: Part
    items: tuple[int, ...]


@dataclass(frozen=True)
class Finished:
    """An item that was simulated."""

    part: PartName
    item: int


@dataclass(frozen=True)
class Failure:
    """An item that cannot be made, and why."""

    part: PartName
    item: int
    crystal: str
    reason: str


@dataclass(frozen=True)
class Broken:
    """A worker that cannot go on; `is_ours` where that is a fault of this program."""

    text: str
    is_ours: bool


@dataclass(frozen=True)
class _Worker:
    process: BaseProcess
    connection: Connection[Any, Any]


def run_workers(
    config: Config, shares: Sequence[Sequence[Share]], config_hash: str
) -> Generator[Finished | Failure, None, None]:
    """Start a process for each entry of `shares`, as writer of that rank; yields what happens until all have ended.

    Closed before that (use `contextlib.closing`), or left by an exception such as Ctrl-C, it ends the workers; each
    loses the shard that it has not sealed yet.

    Raises SimulationError where a worker died, ran out of memory or found an error of the user's, SimulationFault where
    it failed by one of ours.
    """
    workers: list[_Worker] = []
    complete = False
    try:
        _start(workers, config, shares, config_hash)
        yield from _messages(workers)
        complete = True
    finally:
        for worker in workers:
            if not complete:
                worker.process.terminate()
            worker.connection.close()
        for worker in workers:
            worker.process.join(END_TIMEOUT_S)
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()


def _start(workers: list[_Worker], config: Config, shares: Sequence[Sequence[Share]], config_hash: str) -> None:
    context = multiprocessing.get_context("spawn")  # a forked child of a process with threads may deadlock
    resource_tracker.ensure_running()  # its own start lets Ctrl-C through again: before ours is held back
    with _keyboard_held_back(), _environment(ONE_THREAD):
        for rank, share in enumerate(shares):
            ours, theirs = context.Pipe(duplex=False)
            process = context.Process(target=_work, args=(config, share, config_hash, rank, theirs), daemon=True)
            process.start()
            theirs.close()  # or the pipe would not end with the worker
            workers.append(_Worker(process, ours))


@contextmanager
def _keyboard_held_back() -> Iterator[None]:
    """Ctrl-C reaches every process of the terminal. Workers inherit that it is held back: the parent ends them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    """Set variables for the processes started inside: numpy's BLAS opens a thread per core when it is imported."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _messages(workers: Sequence[_Worker]) -> Iterator[Finished | Failure]:
    """What the workers say; ends when each has said that it is done, raises when one cannot any more."""
    rank_of = {worker.connection: rank for rank, worker in enumerate(workers)}
    while rank_of:
        for connection in wait(list(rank_of)):
            assert isinstance(connection, Connection)
            rank = rank_of[connection]
            try:
                message = connection.recv()
            except (EOFError, OSError) as error:
                raise SimulationError(_how_it_ended(rank, workers[rank].process)) from error
            if message is None:
                del rank_of[connection]
            elif isinstance(message, Broken):
                text = f"simulation worker {rank}: {message.text}"
                raise SimulationFault(text) if message.is_ours else SimulationError(text)
            else:
                yield message


def _how_it_ended(rank: int, process: BaseProcess) -> str:
    process.join(END_TIMEOUT_S)
    code = process.exitcode
    how = "ended" if code is None else f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
    return (
        f"simulation worker {rank} {how} before its items were done (is the memory full? then lower simulation.workers "
        "or simulation.probe_chunk); sealed shards are kept, run the same command again"
    )


def _work(
    config: Config, shares: Sequence[Share], config_hash: str, rank: int, connection: Connection[Any, Any]
) -> None:
    """The main function of a worker process."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(1)  # fields are independent: processes scale, threads inside a small FFT do not
    do_shares(config, shares, config_hash, rank, connection.send)


def do_shares(
    config: Config, shares: Sequence[Share], config_hash: str, rank: int, tell: Callable[[object], None]
) -> None:
    """Make the items of both parts with a shard writer for each, and tell of every one; at the end tell None.

    An item that cannot be made is a Failure, and the next one is tried; any other error is the last thing told.
    """
    where = ""
    try:
        engine = engine_by_name(config.simulation.engine)
        for share in shares:
            part = share.part
            with ShardWriter(
                config.run.folder / "shards" / part.name,
                rank=rank,
                axes=axes_of(config),
                config_hash=config_hash,
                samples_per_shard=config.simulation.samples_per_shard,
            ) as writer:
                for item in share.items:
                    where = f"{part.name} item {item} ({part.crystal_of(item).name}): "
                    try:
                        sample = make_sample(config, part, item, engine)
                    except BadCrystal as error:
                        tell(Failure(part.name, item, error.name, error.reason))
                        continue
                    writer.add(sample)
                    tell(Finished(part.name, item))
                where = f"{part.name}, last shard: "
            where = ""
        tell(None)
    except UserError as error:
        tell(Broken(f"{where}{error}", is_ours=False))
    except MemoryError as error:
        advice = "lower simulation.workers or simulation.probe_chunk"
        tell(Broken(f"{where}out of memory ({error}); {advice}", is_ours=False))
    except Exception as error:  # noqa: BLE001  (whatever it is, the parent must hear of it, with the item)
        tell(Broken(f"{where}{type(error).__name__}: {error}\n{traceback.format_exc()}", is_ours=True))


def _end_with_parent() -> None:
    """Wait for the parent's death, then die as by kill -9, from which shards are safe."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)
