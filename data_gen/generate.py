"""The simulation stage: every item that no sealed shard holds yet, by the processes of this machine or by MPI ranks.

Beside the shards of the two parts, `shards/refused.json` lists the crystals that were not used, and
`shards/failed.json` the items that could not be made, each with the reason.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from data_gen.engines.cost_model import estimated_seconds
from data_gen.imaging import setup_for
from data_gen.materials.cif_folder import files_below
from data_gen.sample import axes_of
from data_gen.sharing.coordinator import Coordinator
from data_gen.sharing.crew import Crew, LocalCrew, StopAsked
from data_gen.sharing.drive import Drive, Hub, Outcome
from data_gen.sharing.item_log import cut_off_ranks
from data_gen.sharing.maker import log_folder
from data_gen.sharing.messages import ENDURING, Failure, Task
from data_gen.worklist import Part, PartName, draw_thickness, items_left, parts
from stemdl.atomic_files import replace_atomically
from stemdl.config import Config, fingerprint, stage_hash
from stemdl.errors import UserError
from stemdl.launch import allowed_cores
from stemdl.progress import Progress
from stemdl.shards import ShardWriter, drop_lost, ranks_left_behind
from stemdl.shards.burst_buffer import find_burst_buffer
from stemdl.shards.part import require_part
from stemdl.time_limit import TimeLimit

__all__ = ["SimulationError", "SimulationFault", "SimulationSummary", "shard_folder", "simulate", "worker_count"]


class SimulationError(UserError):
    """The simulation cannot go on, for a reason that lies outside of this program."""


class SimulationFault(RuntimeError):
    """A fault of this program ended the simulation; names the rank or the item."""


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
    requeue: bool = False
    """Ended by a limit of time, or by the scheduler's signal: the same command goes on where it stopped."""
    outcome: Outcome = field(default_factory=Outcome)
    """What became of the makers."""


def shard_folder(config: Config, part: str) -> Path:
    """Where the shards of a part ("train" or "held_out") are."""
    return config.run.folder / "shards" / part


def simulate(
    config: Config, *, progress: Progress, crew: Crew | None = None, limit: TimeLimit | None = None
) -> SimulationSummary:
    """Make the training and the held-out samples that are still missing.

    crew: who makes them; the cores of this machine if left out. limit: when to seal what is made and stop.
    An item that cannot be made is counted, named and put on record; where that follows from configuration and number
    alone, it is not tried again.

    Raises BurstBufferError where this node has none, CrystalSelectionError where the crystals cannot make two sets,
    SimulationError where makers cannot write, all of them died, or all items of a part failed, ShardError where a
    manifest is damaged; what is sealed stays, and the next call goes on.
    """
    started = time.monotonic()
    if config.burst_buffer.use:
        find_burst_buffer(config.burst_buffer, os.environ)  # here at least; every other node looks for its own
    both, refused = parts(config)
    digest = stage_hash(config, "simulate")
    folder = config.run.folder / "shards"
    folder.mkdir(parents=True, exist_ok=True)
    _write_json(folder / "refused.json", [{"name": bad.name, "reason": bad.reason} for bad in refused])
    _tell_unread(config, progress)
    for rank, at in cut_off_ranks(log_folder(config)).items():
        progress.note(f"rank {rank} of an earlier run ended without a word, {at}; what it had not sealed is made again")
    failures = _read_failures(folder / "failed.json", digest)
    for part in both:
        _settle(config, part, digest, progress)
    left = _tasks_left(config, both, digest, [one.key for one in failures if one.kind in ENDURING])
    outcome = Outcome()
    if left:
        failures = [one for one in failures if one.kind in ENDURING]  # the others are tried again
        outcome = _make(config, both, left, digest, failures, progress, crew or LocalCrew(worker_count(config)), limit)
    _tell(failures, folder / "failed.json", progress)
    sealed = [_sealed_count(config, part, digest, outcome) for part in both]
    requeue = bool(outcome.out_of_time or outcome.signal)
    if not requeue:
        _check_some_made(both, sealed, failures, outcome)
    return SimulationSummary(
        train_samples=sealed[0],
        held_out_samples=sealed[1],
        refused=[(bad.name, bad.reason) for bad in refused],
        failed=failures,
        train_crystals=len(both[0].crystals),
        held_out_crystals=len(both[1].crystals),
        seconds=time.monotonic() - started,
        skipped=not left,
        requeue=requeue,
        outcome=outcome,
    )


def _tell_unread(config: Config, progress: Progress) -> None:
    for folder in config.crystals.cif_folders:
        if below := files_below(folder):
            progress.note(f"{folder}: CIF files in folders inside it are not searched for and not used: {below}")


def worker_count(config: Config) -> int:
    """Processes to use on this machine."""
    return config.simulation.workers or allowed_cores()


def _sealed_count(config: Config, part: Part, digest: str, outcome: Outcome) -> int:
    """Samples of a part in the run folder, or on the nodes' own storage where they stay there."""
    missing = items_left(part, shard_folder(config, part.name), digest)
    return part.samples - sum((part.name, item) not in outcome.sealed for item in missing)


def _check_some_made(
    both: Sequence[Part], sealed: Sequence[int], failures: Sequence[Failure], outcome: Outcome
) -> None:
    """Raises where a part has not one sample: there would be nothing to go on with."""
    for part, count in zip(both, sealed, strict=True):
        if count == 0:
            mine = [one for one in failures if one.part == part.name]
            reasons = {f"{one.crystal}: {one.reason}" for one in mine} | {f"rank {n} {why}" for n, why in outcome.lost}
            text = f"none of the {part.samples} {part.name} fields could be made: {'; '.join(sorted(reasons)[:_SHOWN])}"
            raise SimulationFault(text) if any(one.kind == "fault" for one in mine) else SimulationError(text)


def _tasks_left(
    config: Config, both: Sequence[Part], digest: str, settled: Sequence[tuple[PartName, int]]
) -> list[Task]:
    """Every item that is not sealed and has not failed for good, with the time that it will take."""
    known = set(settled)
    tasks = []
    for part in both:
        setup = setup_for(config, part.sampling)
        area = setup.grid.box_angstrom**2
        for item in items_left(part, shard_folder(config, part.name), digest):
            if (part.name, item) in known:
                continue
            crystal, thickness = part.crystal_of(item), draw_thickness(config, part, item)
            atoms = crystal.density_atoms_per_a3() * area * thickness
            seconds = estimated_seconds(setup, atoms, thickness, part.sampling.frozen_phonons)
            tasks.append(Task(part, item, seconds))
    return tasks


def _make(
    config: Config,
    both: Sequence[Part],
    tasks: Sequence[Task],
    digest: str,
    failures: list[Failure],
    progress: Progress,
    crew: Crew,
    limit: TimeLimit | None,
) -> Outcome:
    """Have the crew make all tasks; failures are put on record as they come."""
    total = sum(part.samples for part in both)
    progress.start("simulate", total, "fields")
    earlier = list(failures)

    def put_on_record(new: Sequence[Failure]) -> None:
        failures[:] = sorted([*earlier, *new], key=lambda failure: failure.key)
        record = {"config_hash": digest, "failed": [asdict(failure) for failure in failures]}
        _write_json(config.run.folder / "shards" / "failed.json", record)

    coordinator = Coordinator(
        tasks,
        (),
        item_timeout_s=config.simulation.item_timeout_s,
        maker_timeout_s=config.simulation.rank_timeout_s,
        now=time.monotonic(),
        fingerprint=fingerprint(config),
        all_first=config.burst_buffer.use,
    )

    def drive(hub: Hub, stop_asked: StopAsked) -> Outcome:
        for number in hub.numbers:
            coordinator.join(number, time.monotonic())
        done = total - len(tasks)
        return Drive(
            coordinator, hub, progress, done=done, limit=limit, stop_asked=stop_asked, put_on_record=put_on_record
        ).run()

    put_on_record([])
    outcome = crew.work(config, digest, len(tasks), drive)
    progress.finish()
    _sum_up(config, crew.size, coordinator, outcome, progress)
    if coordinator.broken:
        first = coordinator.broken[0]
        if first.is_ours:
            raise SimulationFault(first.text)
        raise SimulationError(f"{first.text}; when that is mended, run the same command again")
    return outcome


def _settle(config: Config, part: Part, digest: str, progress: Progress) -> None:
    """Clear up after dead writers of every rank, and forget lost shards, before items are dealt out.

    A shard that its writer could not enter into the manifest any more is entered now; found later, by the new writer of
    that rank, its items would already have been given to somebody.
    """
    folder = shard_folder(config, part.name)
    if folder.is_dir():
        require_part(folder, part.name)
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
        with ShardWriter(
            folder, rank=rank, axes=axes_of(config), config_hash=digest, samples_per_shard=1, part=part.name
        ):
            pass


def _sum_up(config: Config, makers: int, coordinator: Coordinator, outcome: Outcome, progress: Progress) -> None:
    """One line of JSON for this call in `log/simulate.jsonl`, and one for people where several made the samples."""
    made, rate = coordinator.made, coordinator.made / outcome.work_s if outcome.work_s > 0 else 0.0
    line = {
        "time": round(time.time(), 3),
        "makers": makers,
        "samples": made,
        "failed": len(coordinator.failures),
        "work_s": round(outcome.work_s, 3),
        "samples_per_s": round(rate, 4),
        "idle_share": round(outcome.idle_share, 4),
        "end_idle_share": round(outcome.end_idle_share, 4),
        "lost": [[number, reason] for number, reason in outcome.lost],
        "out_of_time": outcome.out_of_time,
        "signal": outcome.signal,
    }
    folder = log_folder(config)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "simulate.jsonl").open("a", encoding="utf-8") as stream:
        stream.write(json.dumps(line) + "\n")
    if makers > 1 and made:
        progress.note(
            f"{makers} ranks: {rate:.2f} samples/s, idle {100 * outcome.idle_share:.1f} % of the time, "
            f"{100 * outcome.end_idle_share:.1f} % at the end"
        )


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
        again = sum(failure.kind not in ENDURING for failure in failures)
        more = f"; the next call tries {again} of them again" if again else "; they are not tried again"
        progress.note(f"failed: {len(failures)} items in all, listed in {path}{more}")


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
