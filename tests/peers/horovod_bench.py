"""This project's exchange of gradients beside Horovod's: whole training steps on the same machine, in turn.

    tests/peers/horovod_env.sh DIR
    DIR/bin/python -m tests.peers.horovod_bench [--ranks 2 4] [--workloads ...] [--steps 20] [--json]

For each workload and number of ranks three jobs live at once and make a step of each of their modes in turn, those
without a turn stopped: ours with PyTorch's DDP, Horovod with the cycle time it comes with, and Horovod with 0.1 ms. The
warm-up tries numbers of groups for Horovod; the fastest is measured. Models, start, batches and SGD are the same; so
must the losses be, or the exit code is 1. A step goes from zero_grad to the optimizer's step and takes as long as on
the slowest rank, one thread each.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import signal
import statistics
import sys
import tempfile
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stemdl.config import load_config, save_config
from stemdl.errors import UserError
from tests.peers.horovod_jobs import GROUPED, Job, Order, Side, free_port, in_turn

Turn = dict[str, dict[str, float]]
"""What a job answers: seconds and loss by mode."""

WARM_UP_STEPS, SETTLED_STEPS = 12, 4
"""Not measured; from the second number on the numbers of groups are compared."""
LOSS_TOLERANCE = 1e-4
"""Relative. Sums over the ranks are made in another order."""
GROUPS = (0, 1, 4, 6, -1)
"""Of Horovod: plain, some numbers of groups, and one for each parameter."""
_ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Workload:
    """What is trained: configs/quickstart.yaml with these settings, fields for each rank, learning rate."""

    settings: tuple[str, ...]
    batch: int
    lr: float


WORKLOADS = {
    "synthetic": Workload((), 1, 5.0),
    "scanfield": Workload((), 8, 1e-3),
    "fc_densenet": Workload(
        ("network={name: fc_densenet, growth: 16}", "target.pixel_angstrom=0.3333333333333333"), 2, 1e-4
    ),
}
"""Rates at which the loss changes visibly within a run, so that equal losses say something."""

JOBS: dict[str, tuple[Side, dict[str, str]]] = {
    "ours": ("stemdl", {}),
    "horovod": ("horovod", {}),
    "horovod, 0.1 ms": ("horovod", {"HOROVOD_CYCLE_TIME": "0.1"}),
}
"""Side and environment of each job."""


@dataclass(frozen=True)
class Row:
    """One mode of a job: ms of each measured step, mean loss over ranks in the first and in the last step."""

    name: str
    steps_ms: list[float]
    first_loss: float
    last_loss: float

    @property
    def median_ms(self) -> float:
        """Of the measured steps."""
        return statistics.median(self.steps_ms)

    def paired_ratio(self, other: Row) -> float:
        """Median of the ratios within a turn: what slows the machine down for a while slows both."""
        return statistics.median(mine / theirs for mine, theirs in zip(self.steps_ms, other.steps_ms, strict=True))


@dataclass(frozen=True)
class Run:
    """One workload on so many ranks. load: the machine's, before and after."""

    workload: str
    ranks: int
    rows: list[Row]
    mpi: str
    load: tuple[float, float]

    def best(self, names: Iterable[str]) -> Row:
        """The fastest of some modes."""
        chosen = set(names)
        return min((row for row in self.rows if row.name in chosen), key=lambda row: row.median_ms)

    @property
    def plain(self) -> Row:
        """Horovod's, with the better cycle time."""
        return self.best(row.name for row in self.rows if row.name.startswith("horovod") and "plain" in row.name)

    @property
    def grouped(self) -> Row:
        """Horovod's, with the best number of groups and cycle time."""
        return self.best(row.name for row in self.rows if row.name.startswith("horovod") and GROUPED in row.name)

    def loss_spread(self) -> float:
        """Largest relative distance of a last loss from plain Horovod's; infinite where one is no number."""
        losses, wanted = [row.last_loss for row in self.rows], self.plain.last_loss
        if not all(math.isfinite(loss) for loss in losses):
            return math.inf
        return max(abs(loss - wanted) for loss in losses) / abs(wanted)

    def as_dict(self) -> dict[str, Any]:
        """For --json."""
        return {
            "workload": self.workload,
            "ranks": self.ranks,
            "mpi": self.mpi,
            "load": self.load,
            "loss_spread": self.loss_spread(),
            "horovod_plain": self.plain.name,
            "horovod_grouped": self.grouped.name,
            "modes": [
                {
                    "mode": row.name,
                    "median_ms": row.median_ms,
                    "to_plain": row.median_ms / self.plain.median_ms,
                    "to_grouped": row.median_ms / self.grouped.median_ms,
                    "paired_to_plain": row.paired_ratio(self.plain),
                    "paired_to_grouped": row.paired_ratio(self.grouped),
                    "first_loss": row.first_loss,
                    "last_loss": row.last_loss,
                    "steps_ms": row.steps_ms,
                }
                for row in self.rows
            ],
        }


def measure(name: str, ranks: int, steps: int, groups: Sequence[int]) -> Run:
    """All jobs of a workload, turn by turn. Raises UserError where a job fails."""
    what = WORKLOADS[name]
    before = os.getloadavg()[0]
    answers: dict[str, list[Turn]] = {job: [] for job in JOBS}
    with tempfile.TemporaryDirectory(prefix="stemdl-horovod-") as place, ExitStack() as stack:
        file = Path(place) / "config.yaml"
        save_config(load_config(_ROOT / "configs" / "quickstart.yaml", list(what.settings)), file)
        jobs: dict[str, Job] = {}
        for job, (side, extra) in JOBS.items():
            order = Order(side, str(file), name, what.batch, what.lr, tuple(groups))
            meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
            jobs[job] = stack.enter_context(Job(f"{name} on {ranks} ranks, {job}", order, ranks, {**meeting, **extra}))
        for turn in range(WARM_UP_STEPS + steps):
            for job in in_turn(list(jobs), turn):
                modes = jobs[job].modes if turn < WARM_UP_STEPS else chosen(answers[job][:WARM_UP_STEPS])
                answers[job].append(jobs[job].turn(turn, modes))
        mpi = str(jobs["ours"].about["mpi"])
    rows = [_row(job, mode, turns) for job, turns in answers.items() for mode in chosen(turns[:WARM_UP_STEPS])]
    return Run(name, ranks, rows, mpi, (before, os.getloadavg()[0]))


def chosen(trial: list[Turn]) -> list[str]:
    """After the warm-up: of Horovod's numbers of groups the one that was fastest in it, and all that is no number of
    groups. What was chosen is measured anew, so that nothing gains by being the luckiest of many."""
    modes = list(trial[0])
    grouped = [mode for mode in modes if mode.startswith(GROUPED)]
    if not grouped:
        return modes
    late = trial[SETTLED_STEPS:]
    best = min(grouped, key=lambda mode: statistics.median(turn[mode]["seconds"] for turn in late))
    return [mode for mode in modes if mode not in grouped or mode == best]


def _row(job: str, mode: str, turns: list[Turn]) -> Row:
    return Row(
        mode if job == "ours" else f"{job}: {mode}",
        [1e3 * turn[mode]["seconds"] for turn in turns[WARM_UP_STEPS:]],
        turns[0][mode]["loss"],
        turns[-1][mode]["loss"],
    )


def table(run: Run) -> str:
    """For people."""
    lines = [
        f"\n{run.workload}, {run.ranks} ranks ({run.mpi}; load {run.load[0]:.1f} to {run.load[1]:.1f})",
        f"{'mode':<32}{'step ms':>9}{'min':>8}{'max':>9}{'to plain':>10}{'to grouped':>12}"
        f"{'first loss':>13}{'last loss':>13}",
    ]
    for row in run.rows:
        mark = "*" if row in (run.plain, run.grouped) else " "
        lines.append(
            f"{row.name + mark:<32}{row.median_ms:>9.1f}{min(row.steps_ms):>8.1f}{max(row.steps_ms):>9.1f}"
            f"{row.median_ms / run.plain.median_ms:>9.2f}x{row.median_ms / run.grouped.median_ms:>11.2f}x"
            f"{row.first_loss:>13.7g}{row.last_loss:>13.7g}"
        )
    verdict = "the same" if run.loss_spread() <= LOSS_TOLERANCE else "NOT THE SAME"
    lines.append(f"last losses are {verdict}: at most {run.loss_spread():.1e} apart, allowed {LOSS_TOLERANCE:g}")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; see the module."""
    parser = argparse.ArgumentParser(prog="python -m tests.peers.horovod_bench", description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--workloads", nargs="+", default=list(WORKLOADS), choices=list(WORKLOADS))
    parser.add_argument("--steps", type=int, default=20, help="measured steps of each mode")
    parser.add_argument("--groups", type=int, nargs="+", default=list(GROUPS), help="0: plain, -1: one each")
    parser.add_argument("--json", action="store_true", help="figures to stdout, tables to stderr")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(2))  # jobs that are stopped must not be left behind
    if 0 not in options.groups or len(options.groups) < 2:
        parser.error("--groups: 0 (plain) and at least one other")
    runs: list[Run] = []
    try:
        for name in options.workloads:
            for ranks in options.ranks:
                runs.append(measure(name, ranks, options.steps, options.groups))
                print(table(runs[-1]), file=sys.stderr if options.json else sys.stdout, flush=True)
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    if options.json:
        print(json.dumps({"steps": options.steps, "runs": [run.as_dict() for run in runs]}))
    else:
        print(f"\nmedians of {options.steps} steps; *: counts for Horovod, plain and grouped")
    apart = [f"{run.workload} on {run.ranks} ranks" for run in runs if run.loss_spread() > LOSS_TOLERANCE]
    if apart:
        print(f"different losses: {', '.join(apart)}", file=sys.stderr)
    return 1 if apart else 0


if __name__ == "__main__":
    sys.exit(main())
