"""What is trained in `stemdl bench comm`: gradients without a network, and the configured network on random fields."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from stemdl.config import Config
from stemdl.models.base import FieldInputs, PotentialNetwork
from stemdl.models.registry import build_network

SYNTHETIC_GRADIENTS = 144
SYNTHETIC_BYTES = 67 * 2**20
"""As many and as large as those of a ResNet-50 without its classifier's, three for each layer: weight, scale, bias."""


class Gradients(nn.Module):
    """No network: a backward pass that gives each parameter a gradient, one after the other, and does nothing else."""

    def __init__(self, shapes: list[int]) -> None:
        super().__init__()
        self.parts = nn.ParameterList([nn.Parameter(torch.full((count,), 1e-3)) for count in shapes])

    def forward(self, scale: torch.Tensor) -> torch.Tensor:
        """A number that depends on all parameters; its gradients are about `scale`."""
        total = scale
        for part in self.parts:
            total = total + torch.dot(part, part) * scale
        return total


def synthetic_shapes(gradients: int = SYNTHETIC_GRADIENTS, total_bytes: int = SYNTHETIC_BYTES) -> list[int]:
    """Elements of each gradient: layers of growing width with a weight, a scale and a bias, exactly so many bytes."""
    layers = gradients // 3
    widths = [64 * 2 ** (4 * layer // layers) for layer in range(layers)]
    small = 2 * sum(widths)
    left = total_bytes // 4 - small
    squares = [width * width for width in widths]
    weights = [left * square // sum(squares) for square in squares]
    weights[-1] += left - sum(weights)
    return [count for weight, width in zip(weights, widths, strict=True) for count in (weight, width, width)]


class Step:
    """One training step: a forward and a backward pass, and the optimizer."""

    def __init__(self, model: nn.Module, loss: Callable[[nn.Module], torch.Tensor], *, optimize: bool) -> None:
        self.model, self._loss = model, loss
        self._optimizer = torch.optim.SGD(model.parameters(), lr=1e-4) if optimize else None

    def backward(self, called: nn.Module) -> float:
        """Forward and backward through `called` (the model, or a wrapper of it); the loss."""
        loss = self._loss(called)
        torch.autograd.backward(loss)
        return float(loss.detach())

    def update(self) -> None:
        """The rest of the step, with reduced gradients."""
        if self._optimizer is not None:
            self._optimizer.step()
        self.model.zero_grad()


def workload(name: str, config: Config, batch: int, rank: int) -> Step:
    """ "synthetic", or "network": the configured one, on `batch` random fields of this rank.

    Raises NetworkConfigError where scan, detector or target do not suit the network.
    """
    if name == "synthetic":
        scale = torch.tensor(1e-3)
        return Step(Gradients(synthetic_shapes()), lambda called: called(scale), optimize=False)
    torch.manual_seed(config.run.seed)
    network = build_network(config)
    network.train()
    inputs, truth = _random_fields(config, network, batch, rank)

    def loss(called: nn.Module) -> torch.Tensor:
        root: Any = called(inputs, 0)
        return torch.nn.functional.smooth_l1_loss(root, truth)

    return Step(_FirstStage(network), loss, optimize=True)


class _FirstStage(nn.Module):
    """The network's first stage alone: the parameters of others get no gradient in its training."""

    def __init__(self, network: PotentialNetwork) -> None:
        super().__init__()
        self._network = (network,)  # in a tuple: its other stages are no part of this module
        self.stage = network.stage_module(0)

    def forward(self, inputs: FieldInputs, stage: int) -> torch.Tensor:
        """See `PotentialNetwork`."""
        root: torch.Tensor = self._network[0](inputs, stage)
        return root


def _random_fields(
    config: Config, network: PotentialNetwork, batch: int, rank: int
) -> tuple[FieldInputs, torch.Tensor]:
    """Inputs of the network's shapes; what is in them does not change how long a step takes."""
    rng = torch.Generator().manual_seed(1000 + rank)
    grid = tuple(round(extent / config.target.pixel_angstrom) for extent in config.scan.field_angstrom)
    amplitude = torch.rand(batch, *config.scan.positions, *config.detector.pixels, generator=rng)
    channels = network.channel_count(0)
    pictures = torch.rand(batch, channels, *grid, generator=rng) if channels else None
    return FieldInputs(amplitude, pictures), torch.rand(batch, *grid, generator=rng)
