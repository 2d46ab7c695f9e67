"""What a step of negotiation moves through rank 0, counted by the program on real ranks: the control plane alone.

Run under an mpirun by `count_control`; it imports no torch, so that 64 ranks fit on a laptop.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from stemdl.comm.control import CountedControl
from stemdl.comm.counters import Counters
from stemdl.comm.items import Item, TensorKey
from stemdl.comm.negotiation import Cached, Coordinator, Negotiator, Planned
from stemdl.errors import UserError
from stemdl.launch import ONE_THREAD

RUN_TIMEOUT_S = 300.0
PLAN_AFTER_STEPS, CHECK_EVERY_STEPS = 2, 10_000
WARM_UP_STEPS = 6


@dataclass(frozen=True)
class Counted:
    """Means over the counted steps, at rank 0."""

    mode: str
    ranks: int
    items: int
    tensors: int
    steps: int
    cycles_per_step: float
    messages_per_step: float
    bytes_per_step: float
    microseconds_per_step: float
    """Wall time; with more ranks than cores it says little."""

    def as_dict(self) -> dict[str, object]:
        """JSON-able."""
        return asdict(self)


def format_counts(counted: Sequence[Counted]) -> str:
    """A table for people."""
    lines = [
        "",
        f"control plane alone, at rank 0, per step in the steady state ({counted[0].tensors} gradients)",
        f"{'mode':<14}{'items':>7}{'ranks':>7}{'bytes':>12}{'messages':>10}{'cycles':>8}",
    ]
    for one in sorted(counted, key=lambda one: (one.mode, -one.items, one.ranks)):
        lines.append(
            f"{one.mode:<14}{one.items:>7}{one.ranks:>7}{one.bytes_per_step:>12.0f}{one.messages_per_step:>10.1f}"
            f"{one.cycles_per_step:>8.1f}"
        )
    return "\n".join(lines)


def items_of(tensors: int, groups: int) -> list[Item]:
    """So many gradients with names and shapes like those of a network, in groups of about equal number."""
    keys = [
        TensorKey(
            f"blocks.{i // 3}.layer.{('weight', 'scale', 'bias')[i % 3]}", "float32", (64, 64)[: 1 + (i % 3 == 0)]
        )
        for i in range(tensors)
    ]
    cut = [tensors * i // groups for i in range(groups + 1)]
    return [Item(f"group {i + 1} of {groups}", "none", tuple(keys[cut[i] : cut[i + 1]])) for i in range(groups)]


def count_steps(mode: str, control: CountedControl, counters: Counters, items: Sequence[Item], steps: int) -> Counted:
    """Steps in which groups become ready in an order of each rank's own, a quarter of them before each cycle."""
    import time

    negotiator: Negotiator
    if mode == "planned":
        negotiator = Planned(control, after_steps=PLAN_AFTER_STEPS, check_steps=CHECK_EVERY_STEPS)
    else:
        negotiator = Coordinator(control) if mode == "coordinator" else Cached(control)
    rng = random.Random(control.rank)
    before, started = Counters(), 0.0
    for step in range(WARM_UP_STEPS + steps):
        if step == WARM_UP_STEPS:
            before, started = Counters(**asdict(counters)), time.perf_counter()
        counters.cycles += one_step(negotiator, items, rng)
    seconds = time.perf_counter() - started
    tensors = sum(len(one.tensors) for one in items)
    return Counted(
        mode,
        control.size,
        len(items),
        tensors,
        steps,
        (counters.cycles - before.cycles) / steps,
        (counters.control_messages - before.control_messages) / steps,
        (counters.control_bytes - before.control_bytes) / steps,
        1e6 * seconds / steps,
    )


def one_step(negotiator: Negotiator, items: Sequence[Item], rng: random.Random) -> int:
    """One training step of a rank; the number of its cycles."""
    coming = list(items)
    rng.shuffle(coming)
    batch = -(-len(coming) // 4)
    waiting: dict[str, Item] = {}
    cycles = 0
    while coming or waiting:
        waiting.update({one.name: one for one in coming[:batch]})
        coming = coming[batch:]
        names = negotiator.planned(list(waiting.values()))
        if names is None:
            names = negotiator.cycle(list(waiting.values()))
            cycles += 1
        for name in names:
            del waiting[name]
    negotiator.step_done()
    return cycles


def count_control(ranks: Sequence[int], *, tensors: int = 144, groups: int = 6, steps: int = 10) -> list[Counted]:
    """Count on each number of ranks of this machine, more than it has cores if need be.

    Raises UserError where there is no mpirun, or a run fails.
    """
    mpirun = shutil.which("mpirun", path=str(Path(sys.executable).parent)) or shutil.which("mpirun")
    if mpirun is None:
        raise UserError("bench comm: no mpirun found beside this Python or on PATH; pip install 'stemdl[mpi]'")
    counted: list[Counted] = []
    environment = {**os.environ, **ONE_THREAD}
    for count in ranks:
        order = json.dumps({"tensors": tensors, "groups": groups, "steps": steps})
        command = [mpirun, "-n", str(count), sys.executable, "-m", "stemdl.bench.comm_counts", order]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=RUN_TIMEOUT_S, env=environment, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise UserError(f"bench comm: {count} ranks, not done after {RUN_TIMEOUT_S:g} s") from error
        if done.returncode != 0:
            raise UserError(f"bench comm: {count} ranks ended with {done.returncode}:\n{done.stderr[-1500:]}")
        counted += [Counted(**one) for one in json.loads(done.stdout.splitlines()[-1])]
    return counted


def _main() -> None:
    from stemdl.comm.transport.mpi_control import MpiControl, open_mpi
    from stemdl.launch import topology

    order: dict[str, Any] = json.loads(sys.argv[1])
    here = topology(os.environ)
    mpi = open_mpi(here.rank, here.size)
    results = []
    for mode, groups in (
        ("coordinator", order["tensors"]),
        ("coordinator", order["groups"]),
        ("cached", order["tensors"]),
        ("cached", order["groups"]),
        ("planned", order["groups"]),
    ):
        counters = Counters()
        control = CountedControl(MpiControl(mpi, mpi.COMM_WORLD, RUN_TIMEOUT_S), counters)
        items = items_of(order["tensors"], groups)
        results.append(asdict(count_steps(mode, control, counters, items, order["steps"])))
    if here.rank == 0:
        sys.stdout.write(json.dumps(results) + "\n")


if __name__ == "__main__":
    _main()
