"""The verb `stage`: shards from the run folder to the storage of every node, alone or as the ranks of a job."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING

from stemdl.cli_run import load, make_console
from stemdl.errors import UserError

if TYPE_CHECKING:
    from data_gen.sharing.ranks import Team
    from stemdl.config import Config
    from stemdl.shards.staging import StageSummary

_MEETING_S = 4 * 3600.0  # the slowest node may have terabytes to copy


def stage(arguments: argparse.Namespace) -> int:
    """`stemdl stage FILE`."""
    from stemdl.launch import simulation_ranks

    announced = simulation_ranks(os.environ)
    if announced is None:
        return _stage_alone(arguments)
    from data_gen.sharing.ranks import Team

    team = Team(announced)
    try:
        config = load(arguments)
        _check_used(config)
        problem = ""
    except UserError as error:
        problem = str(error)
    problems = team.allgather(problem, timeout_s=_MEETING_S, what="reading the configuration")
    _raise_first(problems, team)
    return _stage_together(config, team)


def _stage_alone(arguments: argparse.Namespace) -> int:
    from stemdl.progress import choose_progress
    from stemdl.shards.source import stage_alone

    config = load(arguments)
    _check_used(config)
    console = make_console()
    summaries = stage_alone(config, choose_progress(console))
    for summary in summaries:
        console.print(summary.line(), markup=False, highlight=False, soft_wrap=True)
    return 0 if all(summary.complete for summary in summaries) else 3


def _stage_together(config: Config, team: Team) -> int:
    """Every rank copies its share; rank 0 says what all did. All of them end with the same code."""
    from stemdl.config import stage_hash
    from stemdl.progress import SilentProgress
    from stemdl.shards.source import PARTS, reading_folder, stage_part

    digests = team.allgather(
        stage_hash(config, "simulate") if team.rank == 0 else "", timeout_s=_MEETING_S, what="hashing the configuration"
    )
    done: list[StageSummary] = []
    problem = ""
    try:
        for part in PARTS:
            done.append(stage_part(config, part, digests[0], team, SilentProgress()))
    except UserError as error:
        problem = str(error)
    reports = team.allgather((problem, done), timeout_s=_MEETING_S, what="staging")
    _raise_first([text for text, _ in reports], team)
    summaries = [summary for _, theirs in reports for summary in theirs]
    complete = all(summary.complete for summary in summaries)
    if complete:
        try:
            for part in PARTS:
                reading_folder(config, part, rank=team.rank, size=team.size)
        except UserError as error:
            problem = str(error)
        _raise_first(team.allgather(problem, timeout_s=_MEETING_S, what="looking at what is staged"), team)
    if team.rank == 0:
        _say(summaries, team)
    return 0 if complete else 3


def _say(summaries: list[StageSummary], team: Team) -> None:
    console = make_console()
    copied, linked, kept = (sum(len(getattr(s, name)) for s in summaries) for name in ("copied", "linked", "kept"))
    gigabytes = sum(summary.bytes for summary in summaries) / 1e9
    seconds = max(summary.seconds for summary in summaries)
    console.print(
        f"staged by {team.size} ranks: {copied} shards copied ({gigabytes:.2f} GB in {seconds:.1f} s), {linked} taken "
        f"from the node itself, {kept} there before",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )
    for text in sorted({text for summary in summaries for text in summary.damaged.values()}):
        console.print(f"incomplete: {text}", markup=False, highlight=False, soft_wrap=True)


def _check_used(config: Config) -> None:
    if not config.burst_buffer.use:
        raise UserError("burst_buffer.use: found false; allowed true: stage copies shards to the storage of the nodes")
    if not config.burst_buffer.drain:
        raise UserError("burst_buffer.drain: found false; shards that stay on their nodes cannot be staged to others")


def _raise_first(problems: list[str], team: Team) -> None:
    """Where any rank has a problem, rank 0 names them all, and every rank ends with code 2."""
    found = {f"rank {rank}: {text}" for rank, text in enumerate(problems) if text}
    if not found:
        return
    if team.rank > 0:
        raise SystemExit(2)
    raise UserError("; ".join(sorted(found)[:5]) + (f"; and {len(found) - 5} more ranks" if len(found) > 5 else ""))
