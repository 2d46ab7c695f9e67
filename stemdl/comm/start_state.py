"""All ranks start from the same bits, and end with the same running statistics."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Literal

import torch
from torch import nn

from stemdl.comm.errors import CommError
from stemdl.comm.groups import kind_of

if TYPE_CHECKING:
    from stemdl.comm.world import World


def equalise(model: nn.Module, world: World) -> None:
    """Give every rank rank 0's parameters and buffers, and verify that it has them.

    Raises CommError where a rank's model has other names, dtypes or shapes (naming the first difference), or another
    state afterwards.
    """
    if world.size == 1:
        return
    with world.meeting("start state"):
        _equalise(model, world)


def _equalise(model: nn.Module, world: World) -> None:
    _same_form(model, world)
    for tensor in _state(model).values():
        broadcast(tensor, world)
    digests = world.control.allgather(state_digest(model).encode())
    others = [rank for rank, digest in enumerate(digests) if digest != digests[0]]
    if others:
        raise CommError(f"after the broadcast of the start state, ranks {others[:8]} hold other bits than rank 0")


def state_digest(model: nn.Module) -> str:
    """sha256 (hex) over the bits of all parameters and buffers, with their names."""
    digest = hashlib.sha256()
    for name, tensor in _state(model).items():
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def average_buffers(model: nn.Module, world: World, policy: Literal["mean", "rank0"]) -> None:
    """Floating-point buffers: the mean over ranks, or rank 0's. Others (counters, tables): rank 0's."""
    if world.size == 1:
        return
    for buffer in model.buffers():
        if policy == "mean" and buffer.is_floating_point():
            wide = torch.promote_types(buffer.dtype, torch.float32)
            flat = buffer.detach().to(wide, copy=True, memory_format=torch.contiguous_format)
            world.transport.everybody.all_reduce(flat)()
            buffer.detach().copy_(flat / world.size)
        else:
            broadcast(buffer.detach(), world)


def _state(model: nn.Module) -> dict[str, torch.Tensor]:
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def broadcast(tensor: torch.Tensor, world: World) -> None:
    """Give every rank rank 0's, as bytes: every dtype and layout alike."""
    flat = tensor.detach().contiguous()
    octets = flat.view(-1).view(torch.uint8)
    world.transport.everybody.broadcast(octets)
    if flat.data_ptr() != tensor.data_ptr():
        with torch.no_grad():
            tensor.copy_(flat)


def _same_form(model: nn.Module, world: World) -> None:
    """Names, dtypes, shapes and what is trained, compared by rank 0 before anything is moved."""
    form = [[name, kind_of(tensor), list(tensor.shape), tensor.requires_grad] for name, tensor in _state(model).items()]
    gathered = world.control.gather(json.dumps(form).encode())
    verdict = b""
    if gathered is not None:
        forms = [json.loads(part) for part in gathered]
        verdict = next((_difference(rank, forms) for rank in range(1, len(forms)) if forms[rank] != forms[0]), b"")
    answer = world.control.broadcast(verdict if world.rank == 0 else None).decode()
    if answer:
        raise CommError(answer)


def _difference(rank: int, forms: list[list[list[object]]]) -> bytes:
    mine, theirs = forms[0], forms[rank]
    for one, other in zip(mine, theirs, strict=False):
        if one != other:
            return f"rank {rank} has another model than rank 0: {_said(other)}, on rank 0 {_said(one)}".encode()
    return f"rank {rank} has another model than rank 0: {len(theirs)} tensors, on rank 0 {len(mine)}".encode()


def _said(entry: list[object]) -> str:
    name, dtype, shape, is_trained = entry
    return f"{name} {dtype} {shape}{'' if is_trained else ', not trained'}"
