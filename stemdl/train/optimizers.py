"""Optimizers: AdamW and SGD as PyTorch has them, and LARC and LAMB for large batches, layer by layer.

In a large batch the noise of a gradient is small and its length says little; what counts is how far a layer's weights
move compared with their own length. LARC and LAMB give every layer a rate of its own for that. A layer's tensors
(weight and bias) are taken together: a bias that starts at zero has no length to compare with.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from stemdl.config.network import Train


def build_optimizer(section: Train, module: nn.Module) -> torch.optim.Optimizer:
    """What `train.optimizer` asks for, over all parameters of the module; the rate is set in every step."""
    if section.optimizer == "adamw":
        return torch.optim.AdamW(module.parameters(), lr=section.lr, weight_decay=section.weight_decay)
    if section.optimizer == "sgd":
        return torch.optim.SGD(
            module.parameters(), lr=section.lr, momentum=section.momentum, weight_decay=section.weight_decay
        )
    layers = layers_of(module)
    if section.optimizer == "larc":
        return Larc(
            layers,
            lr=section.lr,
            momentum=section.momentum,
            weight_decay=section.weight_decay,
            trust=section.trust,
        )
    return Lamb(layers, lr=section.lr, weight_decay=section.weight_decay)


def layers_of(module: nn.Module) -> list[dict[str, Any]]:
    """A parameter group for each module that has parameters of its own."""
    layers: dict[str, list[nn.Parameter]] = {}
    for name, parameter in module.named_parameters():
        layers.setdefault(name.rpartition(".")[0], []).append(parameter)
    return [{"params": parameters} for parameters in layers.values()]


class _ByLayer(torch.optim.Optimizer):
    """An optimizer that moves one layer (a parameter group) at a time."""

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """One step with the gradients that parameters have; those without one stay."""
        loss = None if closure is None else closure()
        for layer in self.param_groups:
            parameters = [one for one in layer["params"] if one.grad is not None]
            if parameters:
                self._move(parameters, layer)
        return loss

    def _move(self, parameters: list[torch.Tensor], layer: dict[str, Any]) -> None:
        """The step of a layer, whose parameters all have a gradient. Called without autograd."""
        raise NotImplementedError


class Larc(_ByLayer):
    """SGD with momentum whose rate is, for each layer, at most trust * |w| / (|g| + weight_decay * |w|).

    You, Gitman and Ginsburg, arXiv:1708.03888 (LARS); the rate of the schedule as upper bound is NVIDIA's LARC, with
    which no warm-up is needed for stability. A layer whose weights or gradients are all zero has the schedule's rate.
    """

    def __init__(
        self,
        params: Iterable[Any],
        *,
        lr: float,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        trust: float = 0.002,
    ) -> None:
        defaults = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "trust": trust}
        super().__init__(params, defaults)

    def _move(self, parameters: list[torch.Tensor], layer: dict[str, Any]) -> None:
        """See `_ByLayer`."""
        found = [one.grad for one in parameters if one.grad is not None]
        weights, gradients = _length(parameters), _length(found)
        length = gradients + layer["weight_decay"] * weights
        local = torch.where(
            (weights > 0) & (gradients > 0), layer["trust"] * weights / length.clamp_min(1e-30), torch.inf
        )
        rate = local.clamp_max(layer["lr"])
        for parameter, gradient in zip(parameters, found, strict=True):
            change = (gradient + layer["weight_decay"] * parameter) * rate
            momentum = self.state[parameter].setdefault("momentum", torch.zeros_like(parameter))
            momentum.mul_(layer["momentum"]).add_(change)
            parameter.sub_(momentum)


class Lamb(_ByLayer):
    """Adam whose step has, for each layer, the length lr * |w|.

    You et al., arXiv:1904.00962, with bias correction; the trust ratio is not bounded. A layer whose weights or whose
    step are all zero has the plain Adam step.
    """

    def __init__(
        self,
        params: Iterable[Any],
        *,
        lr: float,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    def _move(self, parameters: list[torch.Tensor], layer: dict[str, Any]) -> None:
        """See `_ByLayer`."""
        steps = [self._direction(one, layer) for one in parameters]
        weights, length = _length(parameters), _length(steps)
        ratio = torch.where((weights > 0) & (length > 0), weights / length.clamp_min(1e-30), 1.0)
        for parameter, direction in zip(parameters, steps, strict=True):
            parameter.sub_(direction * (layer["lr"] * ratio))

    def _direction(self, parameter: torch.Tensor, layer: dict[str, Any]) -> torch.Tensor:
        """Adam's step of rate 1, with the decay of the weights."""
        state, gradient = self.state[parameter], parameter.grad
        assert gradient is not None
        if not state:
            state |= {"step": 0, "mean": torch.zeros_like(parameter), "square": torch.zeros_like(parameter)}
        first, second = layer["betas"]
        state["step"] += 1
        state["mean"].lerp_(gradient, 1 - first)
        state["square"].lerp_(gradient.square(), 1 - second)
        mean = state["mean"] / (1 - first ** state["step"])
        square = state["square"] / (1 - second ** state["step"])
        direction: torch.Tensor = mean / (square.sqrt() + layer["eps"]) + layer["weight_decay"] * parameter
        return direction


def _length(tensors: Iterable[torch.Tensor]) -> torch.Tensor:
    """Of all of them as one vector."""
    return torch.stack([tensor.detach().square().sum() for tensor in tensors]).sum().sqrt()
