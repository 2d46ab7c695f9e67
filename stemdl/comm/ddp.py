"""PyTorch's DistributedDataParallel behind the reducer's interface: today's alternative, for comparison."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

from stemdl.comm.errors import CommError
from stemdl.comm.transport.torch_transport import first_line
from stemdl.comm.world import World
from stemdl.config.comm import Comm

_Result = TypeVar("_Result")


class DdpExchange:
    """DDP as it comes: buckets of 25 MiB, each forward pass broadcasts rank 0's running statistics.

    unused_parameters: as DDP's `find_unused_parameters`, which costs a walk over the graph in every step.
    """

    def __init__(self, model: nn.Module, config: Comm, world: World, *, unused_parameters: bool) -> None:
        if world.transport.name not in ("gloo", "nccl"):
            raise CommError(f"comm.negotiation: ddp needs transport gloo or nccl, found {world.transport.name}")
        self._world = world
        devices = [world.device.index] if world.device.type == "cuda" else None
        self._ddp = DistributedDataParallel(model, device_ids=devices, find_unused_parameters=unused_parameters)
        if config.compression == "fp16":
            self._ddp.register_comm_hook(None, default_hooks.fp16_compress_hook)
        elif config.compression == "bf16":
            # DDP refuses its own hook of this kind on gloo.
            self._ddp.register_comm_hook(None, _bf16_hook)
        self.model: nn.Module = self._ddp

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """See `GradientReducer`."""
        with self._ddp.no_sync():
            yield

    def finish(self) -> None:
        """DDP's gradients are reduced when the backward pass returns."""

    def reduce_nothing(self) -> None:
        """DDP takes part in a step by a backward pass alone."""
        raise CommError(
            "comm.negotiation: ddp, and a rank without a batch: give it any batch with its loss multiplied by 0"
        )

    def run(self, call: Callable[[], _Result], what: str) -> _Result:
        """See `Exchange`."""
        with self._world.meeting(what):
            return call()

    def refresh(self) -> None:
        """DDP is made for the parameters that it has found."""

    def close(self) -> None:
        """Nothing of ours is open."""


def _bf16_hook(_: object, bucket: Any) -> torch.futures.Future[torch.Tensor]:
    buffer: torch.Tensor = bucket.buffer()
    wire = buffer.to(torch.bfloat16).div_(dist.get_world_size())
    try:
        work = dist.all_reduce(wire, async_op=True)
    except RuntimeError as error:
        raise CommError(f"ddp: {first_line(error)}") from error

    def back(_: torch.futures.Future[list[torch.Tensor]]) -> torch.Tensor:
        buffer.copy_(wire)
        return buffer

    future: torch.futures.Future[torch.Tensor] = work.get_future().then(back)
    return future


_bf16_hook.__annotations__.clear()  # DDP compares them with its own, and these are texts
