"""What each rank of the misuse tests runs: things that trainers do to a model between and inside steps.

    python -m tests.comm_misuse_program NEGOTIATION INTRA_NODE

Prints "CASE: equal" where all ranks end with the same bits of parameters and gradients, "CASE: refused: ..." where the
reducer refuses on this rank, and "CASE: DIFFERENT" where ranks have drifted apart without a word.
"""

from __future__ import annotations

import copy
import os
import sys
from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional

from stemdl.comm.errors import CommError
from stemdl.comm.reducer import GradientReducer
from stemdl.comm.start_state import state_digest
from stemdl.comm.world import World, open_world
from stemdl.config.comm import Comm

Act = Callable[["Trainer", int], None]


class Trainer:
    """A small training whose data differ from rank to rank."""

    def __init__(self, world: World, config: Comm) -> None:
        torch.manual_seed(3)
        self.world = world
        self.net = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))
        self.reducer = GradientReducer(self.net, config, world=world)
        self.rng = torch.Generator().manual_seed(10 + world.rank)

    def loss(self, net: Callable[[torch.Tensor], torch.Tensor] | None = None) -> torch.Tensor:
        x = torch.randn(6, 8, generator=self.rng)
        return functional.mse_loss((net or self.net)(x), torch.ones(6, 3))

    def step(self, net: Callable[[torch.Tensor], torch.Tensor] | None = None) -> None:
        self.loss(net).backward()  # type: ignore[no-untyped-call]
        self.end()

    def end(self) -> None:
        self.reducer.finish()
        torch.optim.SGD(self.net.parameters(), lr=0.1).step()
        self.net.zero_grad()

    def digest(self) -> str:
        return state_digest(self.net)


def bypass(trainer: Trainer) -> Callable[[torch.Tensor], torch.Tensor]:
    """The model's computation without a call of the model."""
    return lambda x: trainer.net[2](trainer.net[1](trainer.net[0](x)))


def replace(trainer: Trainer, step: int) -> None:
    if step == 3:
        torch.manual_seed(50 + trainer.world.rank)  # each rank has another new layer: rank 0's counts
        trainer.net[2] = nn.Linear(16, 3)
    trainer.step()


def assign(trainer: Trainer, step: int) -> None:
    if step == 3:
        trainer.net.load_state_dict(copy.deepcopy(trainer.net.state_dict()), assign=True)
        for parameter in trainer.net.parameters():
            parameter.requires_grad_(True)
    trainer.step()


def append(trainer: Trainer, step: int) -> None:
    if step == 3:
        torch.manual_seed(50 + trainer.world.rank)
        trainer.net.append(nn.Linear(3, 3))
    trainer.step()


def release_unseen(trainer: Trainer, step: int) -> None:
    trainer.net[0].weight.requires_grad_(step >= 3)
    trainer.step(bypass(trainer) if step else None)


def release_told(trainer: Trainer, step: int) -> None:
    trainer.net[0].weight.requires_grad_(step >= 3)
    trainer.reducer.refresh()
    trainer.step(bypass(trainer))


def freeze_within(trainer: Trainer, step: int) -> None:
    trainer.loss().backward()  # type: ignore[no-untyped-call]
    if step == 3:
        trainer.net[0].weight.requires_grad_(False)
        trainer.loss()
    trainer.end()


def late_accumulation(trainer: Trainer, step: int) -> None:
    trainer.loss().backward()  # type: ignore[no-untyped-call]
    if step == 3:
        with trainer.reducer.no_sync():
            trainer.loss().backward()  # type: ignore[no-untyped-call]
    trainer.end()


def used_up(trainer: Trainer, step: int) -> None:
    if step == 3:  # the user's hook comes before the reducer's on a new parameter
        layer = trainer.net[2]
        assert isinstance(layer, nn.Linear)
        layer.weight = nn.Parameter(layer.weight.detach().clone())
        layer.weight.register_post_accumulate_grad_hook(forget)  # type: ignore[no-untyped-call]
    trainer.step()


def forget(parameter: torch.Tensor) -> None:
    """An optimizer in the backward pass, without the optimizer."""
    parameter.grad = None


def validate_alone(trainer: Trainer, step: int) -> None:
    if trainer.world.rank == 0 and step in (1, 3):
        with trainer.reducer.busy("validation", 60.0), torch.no_grad():
            trainer.loss()
    trainer.reducer.agree_batches([6])
    if step == 2:
        trainer.net[0].weight.requires_grad_(False)
    trainer.step()


def copies(trainer: Trainer, step: int) -> None:
    twin = copy.deepcopy(trainer.net)
    twin(torch.zeros(1, 8)).sum().backward()
    trainer.step()


def keep_graph(trainer: Trainer, step: int) -> None:
    trainer.loss().backward(create_graph=step == 3)  # type: ignore[no-untyped-call]
    trainer.end()


CASES: dict[str, Act] = {
    act.__name__: act
    for act in (
        replace, assign, append, release_told, validate_alone, copies, keep_graph,
        release_unseen, freeze_within, late_accumulation, used_up,
    )
}  # fmt: skip


def main() -> None:
    """See the module. Each case has a world of its own: what a refused one leaves behind is nobody's."""
    torch.set_num_threads(1)
    limits = {"stall_warn_s": 250.0, "stall_end_s": 300.0, "silence_s": 300.0}
    config = Comm(negotiation=sys.argv[1], intra_node=sys.argv[2], transport="gloo", **limits)  # type: ignore[arg-type]
    for name, act in CASES.items():
        world = open_world(config)
        trainer = Trainer(world, config)
        try:
            for step in range(6):
                act(trainer, step)
        except CommError as error:
            print(f"{name}: refused: {error}", flush=True)
            continue
        digests = set(world.control.allgather(trainer.digest().encode()))
        trainer.reducer.close()
        print(f"{name}: {'equal' if len(digests) == 1 else 'DIFFERENT'}", flush=True)
        if name == "copies":
            closed(trainer)
        world.close()
    sys.stdout.flush()
    os._exit(0)  # threads of refused cases still wait for one another


def closed(trainer: Trainer) -> None:
    """After its end a reducer refuses."""
    try:
        trainer.step()
    except CommError as error:
        print(f"closed: refused: {error}", flush=True)


if __name__ == "__main__":
    main()
