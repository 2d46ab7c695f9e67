"""The simulation stage: every item that no sealed shard holds yet, by as many processes as there are cores.

Beside the shards of the two parts, `shards/refused.json` lists the crystals that were not used, and
`shards/failed.json` the items that could not be made, each with the reason.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from pathlib import Path

from data_gen.sample import axes_of
from data_gen.workers import Failure, Share, SimulationError, SimulationFault, run_workers
from data_gen.worklist import Part, PartName, items_left, parts
from stemdl.atomic_files import replace_atomically
from stemdl.config import Config, stage_hash
from stemdl.launch import allowed_cores
from stemdl.progress import Progress
from stemdl.shards import ShardWriter, drop_lost, ranks_left_behind

__all__ = ["SimulationError", "SimulationFault", "SimulationSummary", "shard_folder", "simulate", "worker_count"]

_SHOWN = 10  # of a long list of items


@dataclass
class SimulationSummary:
    """What the stage did."""

    train_samples: int
    """Sealed fields to train on; fewer than configured where items failed."""
    held_out_samples: int
    """Sealed held-out fields."""
    refused: list[tuple[str, str]] = field(default_factory=list)
    """Crystals that could not be used, with the reason."""
    failed: list[Failure] = field(default_factory=list)
    """Items that could not be made, with the reason."""
    train_crystals: int = 0
    held_out_crystals: int = 0
    seconds: float = 0.0
    skipped: bool = False


def shard_folder(config: Config, part: str) -> Path:
    """Where the shards of a part ("train" or "held_out") are."""
    return config.run.folder / "shards" / part


def simulate(config: Config, *, progress: Progress) -> SimulationSummary:
    """Make the training and the held-out samples that are still missing.

    An item that cannot be made is counted, named and put on record; since it follows from configuration and number
    alone, it is not tried again.

    Raises CrystalSelectionError where the crystals cannot make two sets, SimulationError where a worker dies or all
    items of a part failed, ShardError where a manifest is damaged; what is sealed stays, and the next call goes on.
    """
    started = time.monotonic()
    both, refused = parts(config)
    digest = stage_hash(config, "simulate")
    folder = config.run.folder / "shards"
    folder.mkdir(parents=True, exist_ok=True)
    _write_json(folder / "refused.json", [{"name": bad.name, "reason": bad.reason} for bad in refused])
    failures = _read_failures(folder / "failed.json", digest)
    known = {(failure.part, failure.item) for failure in failures}
    left = {}
    for part in both:
        _settle(config, part, digest, progress)
        items = items_left(part, shard_folder(config, part.name), digest)
        left[part.name] = [item for item in items if (part.name, item) not in known]
    skipped = not any(left.values())
    if not skipped:
        _make(config, both, left, digest, failures, progress)
    _tell(failures, folder / "failed.json", progress)
    sealed = [part.samples - len(items_left(part, shard_folder(config, part.name), digest)) for part in both]
    for part, count in zip(both, sealed, strict=True):
        if count == 0:
            reasons = "; ".join(sorted({f"{one.crystal}: {one.reason}" for one in failures if one.part == part.name}))
            raise SimulationError(f"none of the {part.samples} {part.name} fields could be made: {reasons}")
    return SimulationSummary(
        train_samples=sealed[0],
        held_out_samples=sealed[1],
        refused=[(bad.name, bad.reason) for bad in refused],
        failed=failures,
        train_crystals=len(both[0].crystals),
        held_out_crystals=len(both[1].crystals),
        seconds=time.monotonic() - started,
        skipped=skipped,
    )


def worker_count(config: Config) -> int:
    """Processes to use on this machine."""
    return config.simulation.workers or allowed_cores()


def _settle(config: Config, part: Part, digest: str, progress: Progress) -> None:
    """Clear up after dead writers of every rank, and forget lost shards, before items are dealt out.

    A shard that its writer could not enter into the manifest any more is entered now; found later, by the new writer of
    that rank, its items would already have been given to somebody.
    """
    folder = shard_folder(config, part.name)
    lost, copy = drop_lost(folder, digest) if folder.is_dir() else ([], None)
    if lost:
        names = ", ".join(entry.file for entry in lost[:_SHOWN])
        more = f" and {len(lost) - _SHOWN} more" if len(lost) > _SHOWN else ""
        count = sum(entry.count for entry in lost)
        progress.note(
            f"{folder}: missing or of another length: {names}{more}; the {part.name} fields in them ({count}) are made "
            f"again (the manifest as it was: {copy})"
        )
    for rank in ranks_left_behind(folder):
        with ShardWriter(folder, rank=rank, axes=axes_of(config), config_hash=digest, samples_per_shard=1):
            pass


def _make(
    config: Config,
    both: tuple[Part, Part],
    left: Mapping[PartName, Sequence[int]],
    digest: str,
    failures: list[Failure],
    progress: Progress,
) -> None:
    """Deal the items out and wait for all of them; failures are put on record as they come."""
    total = sum(part.samples for part in both)
    done = total - sum(len(items) for items in left.values())
    progress.start("simulate", total, "fields")
    progress.advance(done)
    count = min(worker_count(config), total - done)
    # Crystals take turns in a shuffled order, so a stride gives every worker the same mixture of costs.
    shares = [[Share(part, tuple(left[part.name][rank::count])) for part in both] for rank in range(count)]
    with closing(run_workers(config, shares, digest)) as messages:  # the workers end with this block, however it ends
        for message in messages:
            if isinstance(message, Failure):
                failures.append(message)
                failures.sort(key=lambda failure: (failure.part, failure.item))
                record = {"config_hash": digest, "failed": [asdict(failure) for failure in failures]}
                _write_json(config.run.folder / "shards" / "failed.json", record)
            done += 1
            progress.advance(done)
    progress.finish()


def _tell(failures: Sequence[Failure], path: Path, progress: Progress) -> None:
    """One line for each crystal and reason, with the items."""
    items: dict[tuple[str, str, str], list[int]] = {}
    for failure in failures:
        items.setdefault((failure.part, failure.crystal, failure.reason), []).append(failure.item)
    for (part, crystal, reason), numbers in items.items():
        some = ", ".join(str(number) for number in numbers[:_SHOWN])
        more = f" and {len(numbers) - _SHOWN} more" if len(numbers) > _SHOWN else ""
        progress.note(f"failed: {part} items {some}{more}: {crystal}: {reason}")
    if failures:
        progress.note(f"failed: {len(failures)} items in all, listed in {path}; they are not tried again")


def _read_failures(path: Path, digest: str) -> list[Failure]:
    """What failed in an earlier call for the same configuration."""
    if not path.is_file():
        return []
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        return [Failure(**entry) for entry in record["failed"]] if record["config_hash"] == digest else []
    except (ValueError, KeyError, TypeError) as error:
        raise SimulationError(f"{path}: damaged ({error}); remove it, and what failed is tried again") from error


def _write_json(path: Path, content: object) -> None:
    replace_atomically(path, (json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode())
