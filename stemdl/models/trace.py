"""One forward pass of a network watched: weights and FLOP of each module, and what autograd keeps."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from stemdl.models.base import FieldInputs, PotentialNetwork


@dataclass(frozen=True)
class Layer:
    """A module with weights or FLOP of its own; what its children have is theirs."""

    name: str
    type: str
    stage: int
    """The stage that runs it; -1 for one that no stage does."""
    output_shape: tuple[int, ...]
    """For a batch of one field."""
    weights: int
    """Weights that no layer before it has."""
    forward_flop: int


@dataclass(frozen=True)
class Trace:
    """One forward pass of one stage."""

    layers: tuple[Layer, ...]
    flop: int
    saved_bytes: int
    output_shape: tuple[int, ...]


class _LayerHooks:
    """Forward hooks that note each module's own FLOP: those between its start and its end, less its children's."""

    def __init__(self, counter: FlopCounterMode, stage: int, counted: set[nn.Parameter]) -> None:
        self._counter = counter
        self._stage = stage
        self._counted = counted
        self._starts: list[int] = []
        self._in_children: list[int] = [0]
        self.layers: dict[str, Layer] = {}

    def enter(self, module: nn.Module, args: Any) -> None:
        self._starts.append(self._counter.get_total_flops())
        self._in_children.append(0)

    def leave(self, name: str, module: nn.Module, args: Any, output: Any) -> None:
        flop = self._counter.get_total_flops() - self._starts.pop()
        own_flop = flop - self._in_children.pop()
        self._in_children[-1] += flop
        parameters = set(module.parameters(recurse=False))
        if not parameters and not own_flop:
            return
        weights = sum(parameter.numel() for parameter in parameters - self._counted)
        self._counted |= parameters
        shape = tuple(output.shape) if isinstance(output, torch.Tensor) else ()
        if name in self.layers:  # it runs more than once in a pass
            weights, own_flop = weights + self.layers[name].weights, own_flop + self.layers[name].forward_flop
        self.layers[name] = Layer(name, type(module).__name__, self._stage, shape, weights, own_flop)


class _SavedStorages:
    """What autograd keeps for the backward pass, each piece of memory once."""

    def __init__(self, network: nn.Module) -> None:
        self._weights = {parameter.untyped_storage()._cdata for parameter in network.parameters()}
        self._kept: dict[int, torch.UntypedStorage] = {}

    def pack(self, tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in self._weights:
            self._kept[storage._cdata] = storage  # held, so that its address is given to no other
        return tensor

    @property
    def size_bytes(self) -> int:
        return sum(storage.nbytes() for storage in self._kept.values())


def trace_forward(network: PotentialNetwork, inputs: FieldInputs, stage: int, counted: set[nn.Parameter]) -> Trace:
    """Run one stage in training mode, on the device of the inputs (meant for the meta device), and watch it.

    `counted` are the weights of layers traced before; those traced now are added to it. The network is left as it
    was, apart from what its modules note in training mode (running averages of a norm, say).
    """
    was_training = network.training
    counter = FlopCounterMode(display=False)
    layer_hooks = _LayerHooks(counter, stage, counted)
    saved = _SavedStorages(network)
    handles = []
    for name, module in network.named_modules():
        handles.append(module.register_forward_pre_hook(layer_hooks.enter))
        handles.append(module.register_forward_hook(partial(layer_hooks.leave, name or type(network).__name__)))
    try:
        network.train()
        with (
            inputs.amplitude.device,
            torch.enable_grad(),
            counter,
            torch.autograd.graph.saved_tensors_hooks(saved.pack, lambda tensor: tensor),
        ):
            output = network(inputs, stage)
    finally:
        network.train(was_training)
        for handle in handles:
            handle.remove()
    return Trace(tuple(layer_hooks.layers.values()), counter.get_total_flops(), saved.size_bytes, tuple(output.shape))
