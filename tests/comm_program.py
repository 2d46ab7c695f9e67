"""What each rank of the reducer's tests runs: a small training whose result must not depend on the number of ranks.

    python -m tests.comm_program FOLDER MODE[,MODE...] [NEGOTIATION-OPTIONS as JSON]

Ranks come from the launcher's environment; each writes FOLDER/MODE-RANK.json and FOLDER/MODE-RANK.pt.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from stemdl.comm.reducer import GradientReducer
from stemdl.comm.start_state import state_digest
from stemdl.comm.world import open_world
from stemdl.config.comm import Comm

STEPS, SAMPLES = 20, 12
LAST_FULL_STEP = 17
"""From here on rank 0 alone has batches."""
STOPS_AT, SHORT_AT = 7, 5


class Net(nn.Module):
    """Layers that are used always, till a step, for some samples, frozen, and never."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 24)
        self.frozen = nn.Linear(24, 24).requires_grad_(False)
        self.early = nn.Linear(24, 24)
        self.odd = nn.Linear(24, 24)
        self.never = nn.Linear(24, 24)
        self.last = nn.Linear(24, 3)
        self.uses_early = True

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(n, 8) -> (n, 3)."""
        h = torch.tanh(self.frozen(self.first(x)))
        if self.uses_early:
            h = h + torch.tanh(self.early(h))
        some = x[:, 0] > 0.8
        if some.any():
            h = h + torch.where(some[:, None], torch.tanh(self.odd(h)), torch.zeros_like(h))
        result: torch.Tensor = self.last(h)
        return result


def samples_of(step: int, rank: int, size: int) -> list[int]:
    """Which of a step's samples a rank has."""
    if step >= LAST_FULL_STEP:
        return list(range(SAMPLES)) if rank == 0 else []
    mine = list(range(rank, SAMPLES, size))
    if step == SHORT_AT and size > 1:  # one sample moves from the last rank to the first
        moved = size - 1
        return [*mine, moved] if rank == 0 else [one for one in mine if one != moved]
    return mine


def micro_batches(samples: list[int], step: int) -> Iterator[list[int]]:
    """Every third step is accumulated over two."""
    if step % 3 == 2 and len(samples) > 1:
        yield samples[: len(samples) // 2]
        yield samples[len(samples) // 2 :]
    else:
        yield samples


def train(reducer: GradientReducer, net: Net) -> None:
    """STEPS steps of AdamW; weight decay and momentum tell a gradient of zeros from none."""
    rank, size = reducer.world.rank, reducer.world.size
    rng = torch.Generator().manual_seed(5)
    x = torch.randn(STEPS, SAMPLES, 8, generator=rng)
    y = torch.randn(STEPS, SAMPLES, 3, generator=rng)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2, weight_decay=0.1)
    mine = [samples_of(step, rank, size) for step in range(STEPS)]
    plan = reducer.agree_batches([len(samples) for samples in mine if samples])
    for step in range(plan.steps):
        net.uses_early = step < STOPS_AT
        if mine[step]:
            parts = list(micro_batches(mine[step], step))
            for number, part in enumerate(parts):
                share = plan.loss_factors[step] * len(part) / len(mine[step])
                if number < len(parts) - 1:
                    with reducer.no_sync():
                        step_loss(reducer, x[step, part], y[step, part], share)
                else:
                    step_loss(reducer, x[step, part], y[step, part], share)
            reducer.finish()
        elif reducer.config.negotiation == "ddp":
            step_loss(reducer, x[step, :1], y[step, :1], 0.0)
            reducer.finish()
        else:
            reducer.reduce_nothing()
        optimizer.step()
        optimizer.zero_grad()


def step_loss(reducer: GradientReducer, x: torch.Tensor, y: torch.Tensor, share: float) -> None:
    """Forward and backward."""
    torch.autograd.backward(functional.mse_loss(reducer.model(x), y) * share)


def run(mode: str, options: dict[str, Any], folder: Path) -> None:
    """One training, written down."""
    config = Comm(negotiation=mode.partition("+")[0], **options)  # type: ignore[arg-type]
    torch.manual_seed(100 + int(os.environ.get("RANK", os.environ.get("PMI_RANK", "0"))))  # the start state is rank 0's
    net = Net()
    if "WORLD_SIZE" not in os.environ and "PMI_SIZE" not in os.environ:
        torch.manual_seed(100)
        net = Net()
    world = open_world(config, node=virtual_node(mode))
    with GradientReducer(net, config, world=world, unused_parameters=True) as reducer:
        train(reducer, net)
        counters = asdict(reducer.counters)
    record = {
        "digest": state_digest(net),
        "counters": counters,
        "inside": world.inside,
        "transport": world.transport.name,
    }
    stem = f"{mode}-{world.rank}"
    (folder / f"{stem}.json").write_text(json.dumps(record))
    torch.save(net.state_dict(), folder / f"{stem}.pt")
    world.close()


def virtual_node(mode: str) -> str | None:
    """MODE+2nodes: even and odd ranks are on nodes of their own."""
    if not mode.endswith("+2nodes"):
        return None
    rank = int(os.environ.get("RANK", os.environ.get("PMI_RANK", "0")))
    return f"node{rank % 2}"


def main() -> None:
    """See the module."""
    folder, modes = Path(sys.argv[1]), sys.argv[2].split(",")
    options = json.loads(sys.argv[3]) if len(sys.argv) > 3 else {}
    torch.set_num_threads(1)
    for mode in modes:
        run(mode, options, folder)


if __name__ == "__main__":
    main()
