"""`stemdl run`: the stages in order, each skipped when its output is already complete.

What is complete is for the stage itself to say: it compares the hash of its part of the configuration with the one
in its manifest, goes on where it was interrupted, and answers `skipped`. This module holds the run folder, times the
stages, and keeps the records that are read afterwards: `config.yaml`, `versions.json`, `stages.json`, `metrics.json`.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stemdl.config import Config, fingerprint, stage_hash
from stemdl.errors import UserError
from stemdl.launch import refuse_several_ranks
from stemdl.progress import Progress, SilentProgress, choose_progress, format_seconds
from stemdl.run_folder import (
    STAGES,
    RunFolderError,
    is_complete,
    locked,
    prepare,
    record_stage,
    set_damaged_records_aside,
    write_json,
)
from stemdl.versions import installed_versions

if TYPE_CHECKING:
    from rich.console import Console

    from data_gen.sharing.crew import Crew
    from stemdl.time_limit import TimeLimit
    from stemdl.train.ranks import TrainingRanks


class PreflightError(UserError):
    """The configuration is well formed, but what it describes cannot work."""


@dataclass
class RunOutcome:
    """What a run left: the folder, the metrics of unseen materials, what is missing although every stage ended.

    `changed` is False if every stage so far was complete before; `requeue` is True if time ran out: the same command
    goes on where it stopped.
    """

    folder: Path
    metrics: dict[str, Any] = field(default_factory=dict)
    report: Path | None = None
    incomplete: list[str] = field(default_factory=list)
    changed: bool = False
    requeue: bool = False
    said: str = ""
    """What the pre-flight said, so that nothing is told twice."""


@dataclass(frozen=True)
class _Means:
    """Who simulates, and until when."""

    crew: Crew | None = None
    limit: TimeLimit | None = None
    ranks: TrainingRanks | None = None


@dataclass(frozen=True)
class _StageEnd:
    """How a stage ended: was there nothing to do, what is there to say, what is missing."""

    skipped: bool
    text: str
    missing: tuple[str, ...] = ()
    requeue: bool = False


def run(
    config: Config,
    console: Console,
    *,
    stages: Sequence[str] = STAGES,
    fresh: bool = False,
    crew: Crew | None = None,
    limit: TimeLimit | None = None,
    ranks: TrainingRanks | None = None,
) -> RunOutcome:
    """Do the stages in order, into the run folder; skip what is complete, go on with what is not.

    Parameters
    ----------
    stages
        Those to do, in the order of `run_folder.STAGES`.
    fresh
        Move results of another configuration aside, inside the run folder, in place of refusing.
    crew, limit, ranks
        Who simulates (the cores of this machine if left out), when the time given is over, who trains (this process
        alone if left out). With MPI ranks of either kind this is rank 0.

    Raises
    ------
    UserError
        The pre-flight found errors, the folder is in use or holds results of another configuration, or a stage found
        something that is the user's to mend.
    """
    if crew is None and ranks is None:
        refuse_several_ranks(os.environ)
    said = check(config, console)
    folder = config.run.folder
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunFolderError(f"{folder}: cannot be made ({error.strerror}); choose another: run.folder") from error
    with locked(folder) as protected:
        if not protected:
            _say(console, f"{folder}: this file system has no locks; start one run in this folder at a time")
        if fresh and "train" in stages and "simulate" not in stages:
            _check_training_set(config)  # before anything is moved
        _make_ready(config, console, fresh=fresh)
        outcome = RunOutcome(folder, said=said)
        for stage in (stage for stage in STAGES if stage in stages):
            _do(stage, config, console, outcome, _Means(crew, limit, ranks))
            if outcome.requeue:
                break
            if stage == "simulate" and len(stages) > 1 and config.burst_buffer.use and config.burst_buffer.drain:
                _stage_here(config, console)
    return outcome


def _make_ready(config: Config, console: Console, *, fresh: bool) -> None:
    """The records of the folder, and nothing in it of another configuration."""
    folder = config.run.folder
    damaged = set_damaged_records_aside(folder)
    if damaged is not None:
        _say(console, f"{folder / 'stages.json'}: damaged, now {damaged.name}; a new record of times begins")
    moved = prepare(config, fresh=fresh)
    if moved is not None:
        _say(console, f"results of another configuration were moved to {moved}")
    write_json(folder / "versions.json", installed_versions())


def _stage_here(config: Config, console: Console) -> None:
    """Bring to this machine's burst buffer what the next stages read: made elsewhere, or gone from there."""
    from stemdl.shards.source import stage_alone

    for summary in stage_alone(config, SilentProgress()):
        if summary.copied or not summary.complete:
            _say(console, summary.line())


def check(config: Config, console: Console) -> str:
    """Run the physics pre-flight: print what is not well, and return it. Raises PreflightError if it is an error."""
    from stemdl.preflight import format_findings, preflight

    findings = [finding for finding in preflight(config, 1) if finding.severity != "ok"]
    if any(finding.severity == "error" for finding in findings):
        raise PreflightError(format_findings(findings))
    text = format_findings(findings) if findings else ""
    if text:
        _say(console, text)
    return text


def _check_training_set(config: Config) -> None:
    """Raises ShardError where the training cannot read its shards."""
    from stemdl.shards import ShardSet
    from stemdl.shards.source import reading_folder

    with ShardSet(reading_folder(config, "train"), config_hash=stage_hash(config, "simulate")):
        pass


def _do(stage: str, config: Config, console: Console, outcome: RunOutcome, means: _Means) -> None:
    """One stage: its progress, its time on record however it ends, its line."""
    progress = choose_progress(console)
    began = time.perf_counter()
    try:
        end = _RUNNERS[stage](config, progress, outcome, means)
    except BaseException:
        record_stage(config, stage, seconds=time.perf_counter() - began, complete=False)
        progress.finish()  # may fail itself, where nobody reads the output any more
        raise
    progress.finish()
    seconds = 0.0 if end.skipped else time.perf_counter() - began
    records = record_stage(config, stage, seconds=seconds, complete=not end.missing and not end.requeue)
    outcome.changed |= not end.skipped
    if stage in ("reconstruct", "report"):
        _write_metrics(outcome, records)
    outcome.incomplete += end.missing
    outcome.requeue = end.requeue
    how_long = "complete, skipped" if end.skipped else format_seconds(seconds)
    _say(console, f"{stage:<12} {end.text:<44} {how_long}")


def _in_one_line(text: str) -> str:
    return " ".join(text.split())


def _simulate(config: Config, progress: Progress, outcome: RunOutcome, means: _Means) -> _StageEnd:
    from data_gen.generate import simulate

    summary = simulate(config, progress=progress, crew=means.crew, limit=means.limit)
    for name, reason in summary.refused:
        if _in_one_line(f"{name} ({reason})") not in _in_one_line(outcome.said):
            progress.note(f"refused: {name}: {reason}")
    text = f"{summary.train_samples} + {summary.held_out_samples} fields"
    if summary.refused:
        count = len(summary.refused)
        text += f", {count} structure{'s' if count != 1 else ''} refused"
    missing = _shortfall("simulate", "fields to train on", summary.train_samples, config.simulation.samples)
    missing += _shortfall("simulate", "held-out fields", summary.held_out_samples, config.held_out.samples)
    return _StageEnd(summary.skipped, text, missing, summary.requeue)


def _train(config: Config, progress: Progress, outcome: RunOutcome, means: _Means) -> _StageEnd:
    from stemdl.train.loop import train
    from stemdl.train.ranks import ALONE

    if means.ranks is not None:
        means.ranks.begin(fingerprint(config))
    summary = train(config, progress=progress, ranks=means.ranks or ALONE)
    return _StageEnd(summary.skipped, _inside(summary.checkpoint, outcome.folder))


def _reconstruct(config: Config, progress: Progress, outcome: RunOutcome, means: _Means) -> _StageEnd:
    from stemdl.reconstruct.held_out import reconstruct_held_out

    summary = reconstruct_held_out(config, progress=progress)
    outcome.metrics = dict(summary.metrics)
    missing = _shortfall("reconstruct", "held-out fields", summary.fields, config.held_out.samples)
    return _StageEnd(summary.skipped, f"{summary.fields} fields of unseen materials", missing)


def _report(config: Config, progress: Progress, outcome: RunOutcome, means: _Means) -> _StageEnd:
    path = report_path(outcome.folder)
    # It shows what the other stages did: it is up to date if they did nothing since it was drawn.
    skipped = not outcome.changed and _is_whole_page(path) and is_complete(config, "report")
    if not skipped:
        draw_report(config)
    outcome.report = path
    if not outcome.metrics:
        outcome.metrics = _read_metrics(outcome.folder)
    return _StageEnd(skipped, _inside(path, outcome.folder))


_RUNNERS: Mapping[str, Callable[[Config, Progress, RunOutcome, _Means], _StageEnd]] = {
    "simulate": _simulate,
    "train": _train,
    "reconstruct": _reconstruct,
    "report": _report,
}


def report_path(folder: Path) -> Path:
    """Where the report of a run folder is."""
    return folder / "report" / "index.html"


def _is_whole_page(path: Path) -> bool:
    return path.is_file() and path.read_bytes().rstrip().endswith(b"</html>")


def draw_report(config: Config) -> Path:
    """Collect what the run folder holds and write its report; return the page's path."""
    from stemdl.report import write_report
    from stemdl.report_data import collect

    return write_report(config.run.folder, collect(config))


def _write_metrics(outcome: RunOutcome, records: Mapping[str, Mapping[str, Any]]) -> None:
    outcome.metrics["seconds"] = {stage: records[stage]["seconds"] for stage in STAGES if stage in records}
    write_json(outcome.folder / "metrics.json", outcome.metrics)


def _read_metrics(folder: Path) -> dict[str, Any]:
    path = folder / "metrics.json"
    if not path.is_file():
        raise RunFolderError(f"{folder}: no metrics.json: nothing is reconstructed here yet; do `stemdl run` first")
    try:
        metrics = json.loads(path.read_bytes())
    except ValueError as error:
        raise RunFolderError(f"{path}: damaged ({error}); remove it and do `stemdl run` again") from error
    if not isinstance(metrics, dict):
        raise RunFolderError(f"{path}: damaged, no object; remove it and do `stemdl run` again")
    return metrics


def _shortfall(stage: str, what: str, found: int, wanted: int) -> tuple[str, ...]:
    return (f"{stage}: {found} of {wanted} {what}",) if found < wanted else ()


def _inside(path: Path, folder: Path) -> str:
    return str(path.relative_to(folder)) if path.is_relative_to(folder) else str(path)


def _say(console: Console, text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)
