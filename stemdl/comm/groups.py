"""Which gradients are reduced together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from stemdl.comm.items import Item, TensorKey
from stemdl.config.comm import Comm

_MIB = 2**20


class Gradient(NamedTuple):
    """One parameter's gradient."""

    name: str
    parameter: torch.nn.Parameter

    @property
    def size_bytes(self) -> int:
        """Its size in bytes."""
        return self.parameter.numel() * self.parameter.element_size()

    @property
    def key(self) -> TensorKey:
        """What must be equal on all ranks."""
        return TensorKey(self.name, kind_of(self.parameter), tuple(self.parameter.shape))

    @property
    def kind(self) -> tuple[torch.dtype, torch.device]:
        """Gradients of one kind may share a buffer."""
        return self.parameter.dtype, self.parameter.device


def grouped(gradients: Sequence[Gradient], config: Comm) -> list[list[Gradient]]:
    """Groups of gradients of one kind, in the order in which they are expected to be ready.

    gradients: in the order of their arrival, measured or expected; with `per_tensor` each is a group. No gradient is
    split, so one larger than a group is a group by itself.
    """
    groups: list[list[Gradient]] = []
    by_kind: dict[tuple[torch.dtype, torch.device], list[Gradient]] = {}
    for gradient in gradients:
        by_kind.setdefault(gradient.kind, []).append(gradient)
    for alike in by_kind.values():
        if config.negotiation == "per_tensor":
            groups += [[gradient] for gradient in alike]
        elif config.groups == "layer":
            groups += _by_layer(alike)
        elif config.groups == "count":
            groups += _of_equal_size(alike, config.group_count)
        else:
            groups += _up_to(alike, config.first_group_mib * _MIB, config.group_mib * _MIB)
    return groups


def expected_order(gradients: Sequence[Gradient]) -> list[Gradient]:
    """Before anything is measured: the reverse of the order in which a module registers its parameters."""
    return list(reversed(gradients))


def item_of(number: int, count: int, group: Sequence[Gradient], wire: str) -> Item:
    """How the negotiation sees a group; numbers from 1 for people."""
    return Item(f"group {number + 1} of {count}", wire, tuple(gradient.key for gradient in group))


def _by_layer(gradients: Sequence[Gradient]) -> list[list[Gradient]]:
    """The graph's own units: weight and bias of a module are ready together."""
    layers: dict[str, list[Gradient]] = {}
    for gradient in gradients:
        layers.setdefault(gradient.name.rpartition(".")[0], []).append(gradient)
    return list(layers.values())


def _of_equal_size(gradients: Sequence[Gradient], count: int) -> list[list[Gradient]]:
    """Cut where the sum passes k / count of all bytes; a group that would be empty is none."""
    total = sum(gradient.size_bytes for gradient in gradients)
    groups: list[list[Gradient]] = [[] for _ in range(count)]
    before = 0
    for gradient in gradients:
        middle = before + gradient.size_bytes / 2
        groups[min(count - 1, int(middle * count / max(1, total)))].append(gradient)
        before += gradient.size_bytes
    return [group for group in groups if group]


def _up_to(gradients: Sequence[Gradient], first_bytes: float, target_bytes: float) -> list[list[Gradient]]:
    """Filled in order up to the target; the first has a target of its own."""
    groups: list[list[Gradient]] = [[]]
    filled, target = 0, first_bytes
    for gradient in gradients:
        if groups[-1] and filled + gradient.size_bytes > target:
            groups.append([])
            filled, target = 0, target_bytes
        groups[-1].append(gradient)
        filled += gradient.size_bytes
    return groups


def kind_of(tensor: torch.Tensor) -> str:
    """The dtype, and the order of the elements in memory where it is not the usual one: "float32 strided 9x1x3"."""
    dtype = str(tensor.dtype).removeprefix("torch.")
    return dtype if tensor.is_contiguous() else f"{dtype} strided {'x'.join(map(str, tensor.stride()))}"
