"""Verbs that do the stages of a run: run, simulate, train, report, validate."""

from __future__ import annotations

import argparse
import errno
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from stemdl.errors import UserError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from data_gen.sharing.crew import Crew
    from stemdl.config import Config
    from stemdl.pipeline import RunOutcome
    from stemdl.train.ranks import TrainingRanks

_STARTED = time.monotonic()  # of this process, or nearly so: limits of time count from here


def run_stages(
    arguments: argparse.Namespace,
    config: Config | None = None,
    crew: Crew | None = None,
    ranks: TrainingRanks | None = None,
) -> int:
    """`stemdl run | simulate | train FILE`; with a crew of MPI ranks, or with ranks that train, on rank 0 alone."""
    from stemdl.pipeline import run
    from stemdl.run_folder import STAGES
    from stemdl.time_limit import find_time_limit

    config = config or load(arguments)
    _protect_file(arguments, config)
    console = make_console()
    given = getattr(arguments, "time_limit", None)
    limit = find_time_limit(given, os.environ, started=_STARTED)
    stages = arguments.stages or STAGES
    with reading_shown(console):
        outcome = run(config, console, stages=stages, fresh=arguments.fresh, crew=crew, limit=limit, ranks=ranks)
    return _tell(outcome, console)


def simulate(arguments: argparse.Namespace) -> int:
    """`stemdl simulate FILE`, alone or as the ranks of an mpirun, srun, jsrun."""
    from stemdl.launch import ONE_THREAD, simulation_ranks

    announced = simulation_ranks(os.environ)
    if announced is None:
        return run_stages(arguments)
    os.environ.update(ONE_THREAD)  # before numpy and torch open a thread for each core: every core has a rank
    from data_gen.sharing.crew import RankCrew, refuse, serve
    from data_gen.sharing.ranks import Team

    team = Team(announced)
    if team.rank > 0:
        try:
            config = load(arguments)
        except UserError as error:
            return refuse(team, str(error))
        return serve(config, team)
    arguments.team = team
    config = load(arguments)
    alone_with_workers = team.size == 1 and config.simulation.workers > 1
    return run_stages(arguments, config, None if alone_with_workers else RankCrew(team))


def train(arguments: argparse.Namespace) -> int:
    """`stemdl train FILE`, alone or as the ranks of a torchrun, srun, jsrun, mpirun."""
    from stemdl.launch import topology

    if topology(os.environ).size == 1:
        return run_stages(arguments)
    from stemdl.comm.world import open_world
    from stemdl.config import fingerprint
    from stemdl.progress import SilentProgress
    from stemdl.train.loop import train as train_here
    from stemdl.train.ranks import TrainingRanks
    from stemdl.train.stage import TrainingDiverged

    config = load(arguments)
    ranks = TrainingRanks(open_world(config.comm, log_folder=config.run.folder / "log"), config.comm)
    if ranks.rank > 0:
        try:
            if ranks.wait():
                ranks.begin(fingerprint(config))
                train_here(config, progress=SilentProgress(), ranks=ranks)
        except TrainingDiverged as error:  # on all ranks, and rank 0 says so
            return error.exit_code
        except UserError as error:
            ranks.fail(str(error))
            raise
        ranks.close()
        return 0
    try:
        code = run_stages(arguments, config, ranks=ranks)
    finally:
        ranks.dismiss()
    ranks.close()
    return code


def report(arguments: argparse.Namespace) -> int:
    """`stemdl report RUN_FOLDER`."""
    from stemdl.config.loader import load_config
    from stemdl.pipeline import draw_report

    saved = arguments.folder / "config.yaml"
    if not saved.is_file():
        raise UserError(f"{arguments.folder}: no config.yaml in it; a run folder is needed, such as runs/quickstart")
    # The folder may have been moved since: it is where it is found, not where it was.
    config = load_config(saved, [f"run.folder={_quoted(str(arguments.folder))}"])
    arguments.run_folder = config.run.folder
    print(draw_report(config))
    return 0


def validate(arguments: argparse.Namespace) -> int:
    """`stemdl validate FILE`."""
    from stemdl.preflight import format_findings, preflight

    config = load(arguments)
    with reading_shown(make_console()):
        findings = preflight(config, arguments.ranks)
    print(format_findings(findings))
    errors = sum(finding.severity == "error" for finding in findings)
    if errors:
        raise UserError(f"{arguments.file}: {errors} of {len(findings)} checks failed; see the keys named above")
    return 0


@contextmanager
def reading_shown(console: Console) -> Iterator[None]:
    """Inside, a line now and then says how far the reading of CIF files is, where that takes a while."""
    from data_gen.materials.cif_folder import reading_told

    def show(done: int, total: int) -> None:
        console.print(f"reading crystals: {done} of {total}", markup=False, highlight=False)

    with reading_told(show):
        yield


def load(arguments: argparse.Namespace) -> Config:
    """The configuration that FILE and every --set give; remembers its run folder for the case of a fault."""
    from stemdl.config.loader import load_config

    config = load_config(arguments.file, arguments.overrides)
    arguments.run_folder = config.run.folder
    arguments.cif_folders = config.crystals.cif_folders  # for a message about one that cannot be
    return config


def _protect_file(arguments: argparse.Namespace, config: Config) -> None:
    """A run saves its configuration in its folder: that must not overwrite FILE with something else."""
    from stemdl.config.loader import load_config

    saved = config.run.folder / "config.yaml"
    if arguments.file.resolve() == saved.resolve() and load_config(arguments.file) != config:
        raise UserError(
            f"{arguments.file}: this is the config.yaml of the run folder {config.run.folder} itself, and --set "
            f"({', '.join(arguments.overrides)}) would overwrite it; change the key in the file, or give this run a "
            "folder of its own: --set run.folder=PATH"
        )


def make_console() -> Console:
    """Where a stage prints. Unlike rich's own, it leaves it to the command what a closed pipe means."""
    from rich.console import Console

    class PipeConsole(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))

    return PipeConsole()


def metrics_table(metrics: dict[str, Any]) -> Table:
    """Medians over the fields of unseen materials, the network above the baselines."""
    from rich.table import Table

    unseen = metrics.get("unseen", {})
    table = Table(
        title=f"{unseen.get('fields', '?')} fields of materials not trained on (medians)", title_justify="left"
    )
    for heading in ("", "Pearson r", "NRMSE"):
        table.add_column(heading, justify="left" if not heading else "right")
    rows = {"network": unseen, **metrics.get("baselines", {}), **metrics.get("physics_alone", {})}
    for name, values in rows.items():
        table.add_row(name, _median(values, "pearson_r"), _median(values, "nrmse"))
    return table


def _tell(outcome: RunOutcome, console: Console) -> int:
    if outcome.metrics:
        console.print(metrics_table(outcome.metrics))
    if outcome.report is not None:
        console.print(f"report: {outcome.report}", markup=False, highlight=False, soft_wrap=True)
    for missing in outcome.incomplete:
        console.print(f"incomplete: {missing}", markup=False, highlight=False, soft_wrap=True)
    if outcome.requeue:
        console.print("out of time: run the same command again to go on", markup=False, highlight=False)
        return 85
    return 3 if outcome.incomplete else 0


def _median(values: dict[str, Any], key: str) -> str:
    value = values.get(key)
    if isinstance(value, dict):
        value = value.get("median")
    return "" if value is None else f"{value:.3f}"


def _quoted(text: str) -> str:
    """A YAML string that holds the text, whatever is in it."""
    import json

    return json.dumps(text, ensure_ascii=False)
