"""The exponential moving average of the weights."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn


class WeightAverage:
    """Averaged weights of a module (Polyak and Juditsky, 1992): what is validated, saved and used."""

    def __init__(self, module: nn.Module, decay: float) -> None:
        self._parameters = list(module.parameters())
        self._decay = decay
        self._updates = 0
        self._average = [parameter.detach().clone() for parameter in self._parameters]

    @torch.no_grad()
    def update(self) -> None:
        """Take the current weights in. The first updates weigh more, so that the start is soon forgotten."""
        decay = min(self._decay, (1 + self._updates) / (10 + self._updates))
        for average, parameter in zip(self._average, self._parameters, strict=True):
            average.lerp_(parameter, 1 - decay)
        self._updates += 1

    @contextmanager
    def applied(self) -> Iterator[None]:
        """The module with averaged weights inside the block, with its own again behind it."""
        own = [parameter.detach().clone() for parameter in self._parameters]
        self.copy_to_module()
        try:
            yield
        finally:
            with torch.no_grad():
                for parameter, value in zip(self._parameters, own, strict=True):
                    parameter.copy_(value)

    @torch.no_grad()
    def copy_to_module(self) -> None:
        """Give the module the averaged weights for good."""
        for parameter, average in zip(self._parameters, self._average, strict=True):
            parameter.copy_(average)
