"""One rank of `horovod_bench`: this project's ways to exchange gradients, or Horovod's, a step of each when told to.

    mpirun -n N python -m tests.peers.horovod_child ORDER-as-JSON

The two sides are jobs of their own: an idle Horovod still meets its ranks once in every cycle, which would be measured
in the steps of the other.
"""

from __future__ import annotations

import importlib
import json
import os
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import torch
from mpi4py import MPI

from stemdl.bench.comm_workloads import Gradients, Step, synthetic_shapes, workload
from stemdl.comm.reducer import GradientReducer
from stemdl.comm.world import open_world
from stemdl.config import load_config
from stemdl.config.comm import Comm
from tests.peers.horovod_jobs import GROUPED, Order, in_turn

OURS: dict[str, dict[str, Any]] = {
    "ddp": {"negotiation": "ddp", "transport": "gloo"},
    "cached": {"negotiation": "cached", "transport": "mpi"},
    "planned": {"negotiation": "planned", "transport": "mpi"},
    "cached, flat": {"negotiation": "cached", "transport": "mpi", "intra_node": "off"},
    "planned, flat": {"negotiation": "planned", "transport": "mpi", "intra_node": "off"},
}
"""Settings of the section `comm`; "flat" is MPI's allreduce over all ranks, as Horovod calls it too."""

_WATCH_S = {"stall_end_s": 300.0, "silence_s": 300.0}
"""A job is stopped while another has its turn: that is no stall."""


class Mode(Protocol):
    """One way to train."""

    def step(self) -> float:
        """From zero_grad to the optimizer's step; the loss."""
        ...

    def close(self) -> None:
        """On all ranks."""
        ...


class OurMode:
    """The project's reducer."""

    def __init__(self, order: Order, name: str, rank: int) -> None:
        self._step = _training(order, rank)
        comm = Comm(**{**_WATCH_S, **OURS[name]})
        self._world = open_world(comm)
        self._reducer = GradientReducer(self._step.model, comm, world=self._world)
        self._optimizer = torch.optim.SGD(self._step.model.parameters(), lr=order.lr)

    def step(self) -> float:
        """See `Mode`."""
        self._step.model.zero_grad()
        loss = self._step.backward(self._reducer.model)
        self._reducer.finish()
        self._optimizer.step()
        return loss

    def close(self) -> None:
        """See `Mode`."""
        self._reducer.close()
        self._world.close()


class HorovodMode:
    """Horovod's optimizer around SGD; it waits for the sums in its step."""

    def __init__(self, order: Order, name: str, rank: int, groups: int) -> None:
        hvd = importlib.import_module("horovod.torch")
        self._step = _training(order, rank)
        model = self._step.model
        self._optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=order.lr),
            # One list of names for all optimizers of a process.
            named_parameters=[(f"{name}.{key}", parameter) for key, parameter in model.named_parameters()],
            groups=_number_of_groups(model, groups),
        )
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)

    def step(self) -> float:
        """See `Mode`."""
        self._step.model.zero_grad()
        loss = self._step.backward(self._step.model)
        self._optimizer.step()
        return loss

    def close(self) -> None:
        """Horovod ends with the process."""


def _number_of_groups(model: torch.nn.Module, groups: int) -> int | None:
    if groups == 0:
        return None
    return len(list(model.parameters())) if groups < 0 else groups


def _training(order: Order, rank: int) -> Step:
    """The same start and the same batches whatever exchanges the gradients; other batches on other ranks."""
    if order.workload == "synthetic":
        scale = torch.tensor(1e-3 * (1 + rank))
        return Step(Gradients(synthetic_shapes()), lambda called: called(scale), optimize=False)
    return workload("network", load_config(Path(order.config), []), order.batch, rank)


def horovod_name(groups: int) -> str:
    """Of a mode in the answer."""
    return {0: "plain", -1: f"{GROUPED} each"}.get(groups, f"{GROUPED} {groups}")


def build(order: Order, rank: int) -> dict[str, Mode]:
    """All modes of this side."""
    if order.side == "stemdl":
        return {name: OurMode(order, name, rank) for name in OURS}
    hvd = importlib.import_module("horovod.torch")
    hvd.init()
    assert (hvd.rank(), hvd.size()) == (rank, MPI.COMM_WORLD.Get_size()), "Horovod is not on this MPI"
    return {horovod_name(groups): HorovodMode(order, horovod_name(groups), rank, groups) for groups in order.groups}


def turn_of(modes: dict[str, Mode], turn: int, names: list[str], ranks: Any) -> dict[str, dict[str, float]]:
    """A step of each mode named: the seconds of the slowest rank, the ranks' mean loss. Each mode is the first in its
    turn, with cold caches, about equally often."""
    answer: dict[str, dict[str, float]] = {}
    for name in in_turn(names, turn):
        torch.manual_seed(1000 * turn + ranks.Get_rank())  # dropout
        ranks.Barrier()
        started_s = time.perf_counter()
        loss = modes[name].step()
        seconds = time.perf_counter() - started_s
        answer[name] = {
            "seconds": ranks.allreduce(seconds, op=MPI.MAX),
            "loss": ranks.allreduce(loss, op=MPI.SUM) / ranks.Get_size(),
        }
    return answer


def serve(order: Order) -> None:
    """Turns as the parent calls them: rank 0 listens, and tells the others."""
    ranks = MPI.COMM_WORLD.Dup()
    rank = ranks.Get_rank()
    modes = build(order, rank)
    pids = ranks.gather(os.getpid(), root=0)
    about = {
        "modes": list(modes),
        "pids": pids,
        "threads": MPI.Query_thread(),
        "mpi": MPI.Get_library_version().splitlines()[0],
    }
    if rank == 0:
        with socket.create_connection(("127.0.0.1", order.port)) as line, line.makefile("rw") as parent:
            _answer(parent, about)
            _turns(modes, ranks, lambda: parent.readline().strip(), lambda answer: _answer(parent, answer))
    else:
        _turns(modes, ranks, lambda: "", lambda answer: None)
    for mode in modes.values():
        mode.close()
    if order.side == "horovod":
        importlib.import_module("horovod.torch").shutdown()


def _turns(modes: dict[str, Mode], ranks: Any, listen: Callable[[], str], say: Callable[[object], None]) -> None:
    while (told := ranks.bcast(listen(), root=0)) not in ("", "end"):
        turn, names = json.loads(told)
        say(turn_of(modes, turn, names, ranks))


def _answer(parent: Any, answer: object) -> None:
    parent.write(json.dumps(answer) + "\n")
    parent.flush()


def main() -> None:
    """See the module."""
    torch.set_num_threads(1)
    order = json.loads(sys.argv[1])
    serve(Order(**{**order, "groups": tuple(order["groups"])}))


if __name__ == "__main__":
    main()
