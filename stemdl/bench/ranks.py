"""How the simulation scales over the ranks of an mpirun: whole runs of the command, one after the other.

Beside them stands what the machine itself can give: as many runs of one rank each at the same time, which share nothing
but the hardware. Where that falls short of the number of ranks (shared caches, memory, clock, other users), no sharing
of work can reach it.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from stemdl.config import Config, save_config
from stemdl.errors import UserError
from stemdl.progress import Progress

RUN_TIMEOUT_S = 1800.0


@dataclass(frozen=True)
class RankFigures:
    """Runs with one number of ranks; medians over the repeats."""

    ranks: int
    samples_per_s: float
    speedup: float
    """Median over the repeats of the ratio to one rank in the same repeat."""
    idle_share: float
    end_idle_share: float
    independent_speedup: float
    """The same for independent runs of one rank each at the same time: what the machine can give."""


@dataclass(frozen=True)
class RankBench:
    """All of them, and the worklist they had."""

    samples: int
    cost_spread: float
    """Largest over smallest time of a sample, in the runs of one rank."""
    repeats: int
    figures: tuple[RankFigures, ...]

    def as_dict(self) -> dict[str, object]:
        """For --json."""
        return {**asdict(self), "figures": [asdict(one) for one in self.figures]}


def bench_ranks(config: Config, *, ranks: Sequence[int], repeats: int, progress: Progress) -> RankBench:
    """Run the simulation of a configuration with each number of ranks, `repeats` times in turn.

    Runs go to a temporary folder inside the run folder, which is removed. Raises UserError where there is no mpirun, or
    a run fails; its last lines are in the message.
    """
    mpirun = shutil.which("mpirun") or shutil.which("mpirun", path=str(Path(sys.executable).parent))
    if mpirun is None:
        raise UserError("bench ranks: no mpirun found on PATH or beside this Python; pip install 'stemdl[mpi]'")
    counts = sorted({1, *ranks})
    config.run.folder.mkdir(parents=True, exist_ok=True)
    together: dict[int, list[Mapping[str, float]]] = {count: [] for count in counts}
    apart: dict[int, list[float]] = {count: [] for count in counts}
    spreads: list[float] = []
    with tempfile.TemporaryDirectory(prefix="bench-ranks-", dir=config.run.folder) as place:
        bench = _Bench(mpirun, config, Path(place))
        progress.start("bench ranks", repeats * (2 * len(counts) - 1), "runs")
        done = 0
        for _ in range(repeats):
            for count in counts:
                folder = bench.start(count)[0]
                together[count].append(bench.end_all()[0])
                if count == 1:
                    spreads.append(_spread(folder))
                done += 1
                progress.advance(done)
            for count in counts[1:]:
                for _ in range(count):
                    bench.start(1)
                apart[count].append(sum(one["samples_per_s"] for one in bench.end_all()))
                done += 1
                progress.advance(done)
        progress.finish()
    alone = [one["samples_per_s"] for one in together[1]]
    return RankBench(
        samples=round(together[1][0]["samples"]),
        cost_spread=median(spreads),
        repeats=repeats,
        figures=tuple(_figures(count, together[count], apart[count], alone) for count in counts),
    )


def _figures(
    count: int, together: Sequence[Mapping[str, float]], apart: Sequence[float], alone: Sequence[float]
) -> RankFigures:
    return RankFigures(
        ranks=count,
        samples_per_s=median(one["samples_per_s"] for one in together),
        speedup=median(one["samples_per_s"] / single for one, single in zip(together, alone, strict=True)),
        idle_share=median(one["idle_share"] for one in together),
        end_idle_share=median(one["end_idle_share"] for one in together),
        independent_speedup=median(rate / single for rate, single in zip(apart, alone, strict=True)) if apart else 1.0,
    )


class _Bench:
    """Runs of the command in folders of their own."""

    def __init__(self, mpirun: str, config: Config, place: Path) -> None:
        self._mpirun = mpirun
        self._config = config
        self._place = place
        self._number = 0
        self._running: list[tuple[subprocess.Popen[str], Path]] = []

    def start(self, ranks: int) -> list[Path]:
        """Start one run; returns its folder."""
        self._number += 1
        folder = self._place / f"run-{self._number}"
        file = self._place / f"run-{self._number}.yaml"
        save_config(
            self._config.model_copy(update={"run": self._config.run.model_copy(update={"folder": folder})}), file
        )
        command = [self._mpirun, "-n", str(ranks), sys.executable, "-m", "stemdl.cli", "simulate", str(file)]
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        self._running.append((process, folder))
        return [folder]

    def end_all(self) -> list[dict[str, float]]:
        """Wait for all that run; returns what each wrote of itself."""
        found = []
        for process, folder in self._running:
            try:
                output, _ = process.communicate(timeout=RUN_TIMEOUT_S)
            except subprocess.TimeoutExpired as error:
                process.kill()
                raise UserError(f"bench ranks: a run took longer than {RUN_TIMEOUT_S:g} s") from error
            if process.returncode != 0:
                last = "\n".join(output.splitlines()[-8:])
                raise UserError(f"bench ranks: a run ended with code {process.returncode}:\n{last}")
            lines = (folder / "log" / "simulate.jsonl").read_text(encoding="utf-8").splitlines()
            found.append(json.loads(lines[-1]))
        self._running.clear()
        return found


def _spread(folder: Path) -> float:
    """Largest over smallest time of a sample of one run, its first two left out: they load and plan."""
    seconds = []
    for path in (folder / "log").glob("simulate-rank-*.jsonl"):
        events = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        seconds += [event["seconds"] for event in events if event["event"] == "made"][2:]
    return float(max(seconds) / min(seconds))


def format_rank_bench(bench: RankBench) -> str:
    """The figures as a table for people."""
    lines = [
        f"{bench.samples} samples, up to {bench.cost_spread:.0f} times as long as others; medians of {bench.repeats}",
        f"{'ranks':>6}{'samples/s':>12}{'speed-up':>10}{'idle':>8}{'at the end':>12}{'independent runs':>18}",
    ]
    for one in bench.figures:
        lines.append(
            f"{one.ranks:>6}{one.samples_per_s:>12.2f}{one.speedup:>9.2f}x{100 * one.idle_share:>6.1f} %"
            f"{100 * one.end_idle_share:>10.1f} %{one.independent_speedup:>17.2f}x"
        )
    return "\n".join(lines)
