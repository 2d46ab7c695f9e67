"""`stemdl bench comm`: how long a training step takes with each way to exchange gradients, on ranks of this machine."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from stemdl.bench.comm_child import Order
from stemdl.config import Config, save_config
from stemdl.errors import UserError
from stemdl.launch import ONE_THREAD
from stemdl.progress import Progress

RUN_TIMEOUT_S = 1800.0
MODES: dict[str, dict[str, Any]] = {
    "ddp": {"negotiation": "ddp", "transport": "gloo"},
    "per_tensor": {"negotiation": "per_tensor", "transport": "gloo"},
    "coordinator": {"negotiation": "coordinator", "transport": "gloo"},
    "cached": {"negotiation": "cached", "transport": "gloo"},
    "planned": {"negotiation": "planned", "transport": "gloo"},
    "cached, flat": {"negotiation": "cached", "transport": "gloo", "intra_node": "off"},
    "planned, flat": {"negotiation": "planned", "transport": "gloo", "intra_node": "off"},
}
"""Of the section `comm`; "flat" goes over the sockets of gloo alone, as ddp and per_tensor do."""


@dataclass(frozen=True)
class CommBench:
    """Figures by workload and number of ranks, as the ranks gave them."""

    steps: int
    runs: tuple[dict[str, Any], ...]

    def as_dict(self) -> dict[str, Any]:
        """For --json: one entry for each mode, number of ranks and workload."""
        modes = [
            {"mode": mode, "workload": run["workload"], "ranks": run["ranks"], **figures}
            for run in self.runs
            for mode, figures in run["modes"].items()
        ]
        return {"steps": self.steps, "modes": modes}


def bench_comm(
    config: Config, *, ranks: Sequence[int], workloads: Sequence[str], steps: int, batch: int, progress: Progress
) -> CommBench:
    """Start so many ranks on this machine, one thread each, and have them train with each of `MODES`, steps in turn.

    workloads: "synthetic" (144 gradients of 67 MiB, no network) or "network" (the configured one, `batch` random fields
    for each rank). The settings of `comm` about groups are those of the configuration. Raises UserError where a rank
    fails; its last lines are in the message.
    """
    shared = config.comm.model_dump(
        include={"groups", "group_mib", "first_group_mib", "group_count", "compression", "cycle_ms"}, mode="json"
    )
    modes = {name: {**shared, **settings} for name, settings in MODES.items()}
    runs: list[dict[str, Any]] = []
    progress.start("bench comm", len(ranks) * len(workloads), "runs")
    try:
        with tempfile.TemporaryDirectory(prefix="stemdl-bench-comm-") as place:
            file = Path(place) / "config.yaml"
            save_config(config, file)
            for workload in workloads:
                for count in ranks:
                    order = Order(str(file), workload, modes, steps, batch)
                    runs.append({"workload": workload, **run_ranks("stemdl.bench.comm_child", order, count)})
                    progress.advance(len(runs))
    finally:
        progress.finish()
    return CommBench(steps, tuple(runs))


def run_ranks(module: str, order: Any, count: int) -> dict[str, Any]:
    """Start `count` ranks of a module as torchrun would, each with the order; what rank 0 answers.

    Raises UserError where a rank fails or time is up.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    processes = []
    for rank in range(count):
        environment = {
            **os.environ,
            **ONE_THREAD,
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(count),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
        }
        errors = tempfile.TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115  (closed below)
        process = subprocess.Popen(
            [sys.executable, "-m", module, json.dumps(asdict(order))],
            stdout=subprocess.PIPE if rank == 0 else subprocess.DEVNULL,
            stderr=errors,
            text=True,
            env=environment,
        )
        processes.append((process, errors))
    try:
        output = processes[0][0].communicate(timeout=RUN_TIMEOUT_S)[0]
        codes = [process.wait(60.0) for process, _ in processes]
    except subprocess.TimeoutExpired as error:
        raise UserError(f"bench: {count} ranks, not done after {RUN_TIMEOUT_S:g} s") from error
    finally:
        for process, _ in processes:
            process.kill()
    failed = [rank for rank, code in enumerate(codes) if code != 0]
    if failed:
        errors = processes[failed[0]][1]
        errors.seek(0)
        last = "\n".join(errors.read().splitlines()[-12:])
        raise UserError(f"bench: rank {failed[0]} of {count} ended with {codes[failed[0]]}:\n{last}")
    for _, errors in processes:
        errors.close()
    answer: dict[str, Any] = json.loads(output.splitlines()[-1])
    return answer


def format_comm_bench(bench: CommBench) -> str:
    """A table for people."""
    lines = [f"medians of {bench.steps} steps, all modes in turn; a step is that of the slowest rank, one thread each"]
    for run in bench.runs:
        modes = run["modes"]
        lines.append(f"\n{run['workload']}, {run['ranks']} ranks")
        lines.append(
            f"{'mode':<16}{'step ms':>9}{'min':>8}{'max':>9}{'to ddp':>9}{'per tensor':>12}{'control bytes':>15}"
            f"{'cycles':>8}{'sums':>6}{'wait ms':>9}"
        )
        ddp, single = (modes[name]["step_ms"]["median"] for name in ("ddp", "per_tensor"))
        for name, figures in modes.items():
            step = figures["step_ms"]
            lines.append(
                f"{name:<16}{step['median']:>9.1f}{step['min']:>8.1f}{step['max']:>9.1f}{step['median'] / ddp:>8.2f}x"
                f"{step['median'] / single:>11.2f}x{figures['control_bytes_per_step']:>15.0f}"
                f"{figures['cycles_per_step']:>8.1f}{figures['data_messages_per_step']:>6.0f}"
                f"{figures['exposed_wait_ms_per_step']:>9.1f}"
            )
    return "\n".join(lines)
