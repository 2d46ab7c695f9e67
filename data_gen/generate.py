"""The simulation stage: every item that no sealed shard holds yet, by as many processes as there are cores."""

from __future__ import annotations

import json
import multiprocessing
import os
import queue
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch

from data_gen.engines import engine_by_name
from data_gen.sample import axes_of, make_sample
from data_gen.worklist import Part, items_left, parts
from stemdl.atomic_files import replace_atomically
from stemdl.config import Config, stage_hash
from stemdl.progress import Progress
from stemdl.shards import ShardWriter

POLL_S = 0.5
"""How often the parent looks whether a silent worker is still alive."""


class SimulationError(RuntimeError):
    """A worker ended before its items were done; names the worker, the item and the reason."""


@dataclass
class SimulationSummary:
    """What the stage did."""

    train_samples: int
    held_out_samples: int
    refused: list[tuple[str, str]] = field(default_factory=list)
    """Crystals that could not be used, with the reason."""
    train_crystals: int = 0
    held_out_crystals: int = 0
    seconds: float = 0.0
    skipped: bool = False


def shard_folder(config: Config, part: str) -> Path:
    """Where the shards of a part ("train" or "held_out") are."""
    return config.run.folder / "shards" / part


def simulate(config: Config, *, progress: Progress) -> SimulationSummary:
    """Make the training and the held-out samples that are still missing.

    Raises SimulationError where a worker fails; what is sealed stays, and the next call goes on from there.
    """
    started = time.monotonic()
    both, refused = parts(config)
    digest = stage_hash(config, "simulate")
    left = {part.name: items_left(part, shard_folder(config, part.name), digest) for part in both}
    summary = SimulationSummary(
        train_samples=both[0].samples,
        held_out_samples=both[1].samples,
        refused=[(bad.name, bad.reason) for bad in refused],
        train_crystals=len(both[0].crystals),
        held_out_crystals=len(both[1].crystals),
        skipped=not any(left.values()),
    )
    refused_path = config.run.folder / "shards" / "refused.json"
    refused_path.parent.mkdir(parents=True, exist_ok=True)
    replace_atomically(refused_path, json.dumps(dict(summary.refused), indent=1).encode())
    if not summary.skipped:
        _run_workers(config, both, left, digest, progress)
    summary.seconds = time.monotonic() - started
    return summary


def worker_count(config: Config) -> int:
    """Processes to use on this machine."""
    return config.simulation.workers or len(os.sched_getaffinity(0))


def _run_workers(
    config: Config, both: tuple[Part, Part], left: dict[str, list[int]], digest: str, progress: Progress
) -> None:
    """Deal the items out and watch the processes until all are done."""
    total = sum(part.samples for part in both)
    done = total - sum(len(items) for items in left.values())
    progress.start("simulate", total, "fields")
    progress.advance(done)
    count = min(worker_count(config), total - done)
    context = multiprocessing.get_context("spawn")  # a forked child of a process with threads may deadlock
    messages: Any = context.Queue()
    # Neighbouring items show different crystals, so a stride gives every worker the same mixture of costs.
    shares = [{name: items[rank::count] for name, items in left.items()} for rank in range(count)]
    workers = [
        context.Process(target=_work, args=(config, share, digest, rank, messages), daemon=True)
        for rank, share in enumerate(shares)
    ]
    for worker in workers:
        worker.start()
    try:
        for _ in _finished_items(workers, messages):
            done += 1
            progress.advance(done)
    finally:
        for worker in workers:
            worker.terminate()
            worker.join()
    progress.finish()


def _finished_items(workers: list[BaseProcess], messages: Any) -> Iterator[tuple[str, int]]:
    """Items as they are finished; ends when every worker said so, and raises when one cannot any more."""
    running = set(range(len(workers)))
    while running:
        try:
            kind, rank, content = messages.get(timeout=POLL_S)
        except queue.Empty:
            for rank in sorted(running):
                if workers[rank].exitcode is not None:
                    raise SimulationError(
                        f"simulation worker {rank} ended with exit code {workers[rank].exitcode} before its items were "
                        "done (out of memory, or killed); sealed shards are kept, run the same command again"
                    ) from None
            continue
        if kind == "item":
            yield content
        elif kind == "end":
            running.discard(rank)
        else:
            raise SimulationError(f"simulation worker {rank} failed: {content}")


def _work(config: Config, share: dict[str, list[int]], digest: str, rank: int, messages: Any) -> None:
    """One process: its items of both parts, one shard writer for each part."""
    torch.set_num_threads(1)  # fields are independent: processes scale, threads inside a small FFT do not
    item = None
    try:
        engine = engine_by_name(config.simulation.engine)
        for part in parts(config)[0]:
            with ShardWriter(
                shard_folder(config, part.name),
                rank=rank,
                axes=axes_of(config),
                config_hash=digest,
                samples_per_shard=config.simulation.samples_per_shard,
            ) as writer:
                for item in share[part.name]:
                    writer.add(make_sample(config, part, item, engine))
                    messages.put(("item", rank, (part.name, item)))
        messages.put(("end", rank, None))
    except Exception as error:  # whatever it is, the parent must hear of it, with the item's number
        where = f"item {item}: " if item is not None else ""
        messages.put(("error", rank, f"{where}{type(error).__name__}: {error}\n{traceback.format_exc()}"))
