"""One rank of `stemdl bench comm`: all modes in one process, their steps in turn, on the same machine."""

from __future__ import annotations

import contextlib
import io
import json
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from stemdl.bench.comm_workloads import Step, workload
from stemdl.comm.counters import Counters
from stemdl.comm.reducer import GradientReducer
from stemdl.comm.world import open_world
from stemdl.config import load_config
from stemdl.config.comm import Comm

WARM_UP_STEPS = 10
"""Buckets and groups are rebuilt, caches filled and plans made in the first of them."""


@dataclass(frozen=True)
class Order:
    """What a rank does. modes: names to settings of the section `comm`."""

    config: str
    workload: str
    modes: dict[str, dict[str, Any]]
    steps: int
    batch: int


class Measured:
    """One mode on this rank."""

    def __init__(self, order: Order, name: str, rank: int) -> None:
        config = load_config(Path(order.config), [])
        self.step: Step = workload(order.workload, config, order.batch, rank)
        comm = Comm(**{"stall_end_s": 300.0, "silence_s": 300.0, **order.modes[name]})
        self.world = open_world(comm)
        self.reducer = GradientReducer(self.step.model, comm, world=self.world)
        self.seconds: list[float] = []
        self.loss = 0.0
        self._before = Counters()

    def run(self) -> float:
        """One step; its seconds on this rank."""
        started_s = time.perf_counter()
        self.loss = self.step.backward(self.reducer.model)
        self.reducer.finish()
        self.step.update()
        return time.perf_counter() - started_s

    def begin(self) -> None:
        """What was counted so far belongs to the warm-up."""
        self._before = Counters(**asdict(self.reducer.counters))

    def per_step(self, steps: int) -> dict[str, float]:
        """Counted on this rank, per measured step."""
        now, before = asdict(self.reducer.counters), asdict(self._before)
        return {name: (now[name] - before[name]) / steps for name in now if name != "steps"}


def measure(order: Order) -> dict[str, Any] | None:
    """All modes, step by step in turn; a step takes as long as on its slowest rank. None on ranks but the first."""
    rank, size = dist.get_rank(), dist.get_world_size()
    with contextlib.redirect_stderr(io.StringIO()):  # each mode's line about the ranks
        modes = {name: Measured(order, name, rank) for name in order.modes}
    for turn in range(WARM_UP_STEPS + order.steps):
        if turn == WARM_UP_STEPS:
            for mode in modes.values():
                mode.begin()
        for mode in list(modes.values()) if turn % 2 == 0 else list(reversed(modes.values())):
            dist.barrier()
            slowest = torch.tensor([mode.run()], dtype=torch.float64)
            dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
            if turn >= WARM_UP_STEPS:
                mode.seconds.append(float(slowest))
    figures = {name: _figures(mode, order.steps) for name, mode in modes.items()}
    for mode in modes.values():
        mode.reducer.close()
        mode.world.close()
    return {"ranks": size, "modes": figures} if rank == 0 else None


def _figures(mode: Measured, steps: int) -> dict[str, Any]:
    loss = torch.tensor([mode.loss], dtype=torch.float64)
    dist.all_reduce(loss)
    counted = mode.per_step(steps)
    milliseconds = 1e3 * np.array(mode.seconds)
    return {
        "step_ms": {"median": float(np.median(milliseconds)), "min": milliseconds.min(), "max": milliseconds.max()},
        "steps_ms": milliseconds.tolist(),
        "control_bytes_per_step": counted["control_bytes"],
        "control_messages_per_step": counted["control_messages"],
        "cycles_per_step": counted["cycles"],
        "data_messages_per_step": counted["data_messages"],
        "data_bytes_per_step": counted["data_bytes"],
        "exposed_wait_ms_per_step": 1e3 * counted["exposed_wait_s"],
        "inside_node": mode.world.inside,
        "loss": float(loss) / dist.get_world_size(),
    }


def main() -> None:
    """An order as JSON in, figures as JSON out."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    figures = measure(Order(**json.loads(sys.argv[1])))
    if figures is not None:
        sys.stdout.write(json.dumps(figures) + "\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
