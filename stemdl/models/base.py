"""What every network is given and what it gives back."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn


@dataclass(frozen=True)
class FieldInputs:
    """A batch of fields.

    amplitude: (b, sy, sx, qy, qx) float32, square root of the intensity as a fraction of the incident beam; what a
    detector reads may exceed 1 (shot noise, hot pixels).
    channels: (b, c, y, x) float32 physics channels on the grid of the potential, or None for a network without any.
    scan_step_angstrom: (b,) float32 steps of the scans in Å, or None where all are that of the configuration.
    """

    amplitude: torch.Tensor
    channels: torch.Tensor | None = None
    scan_step_angstrom: torch.Tensor | None = None


class PotentialNetwork(nn.Module):
    """A network that turns the patterns of a field into its projected potential, in one or more stages.

    `forward(inputs, stage)` returns (b, y, x): the square root of the projected potential in units of
    `scale_v_angstrom`. The root evens out light and heavy elements, whose potentials differ thirtyfold. The scale is
    one number for a whole training set; it is part of the network (a buffer) and travels in its checkpoint.
    """

    scale_v_angstrom: torch.Tensor
    stages: int = 1

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale_v_angstrom", torch.ones(()))

    def forward(self, inputs: FieldInputs, stage: int = 0) -> torch.Tensor:
        """(b, y, x) square root of the potential over the scale, for one stage."""
        raise NotImplementedError

    def channel_count(self, stage: int = 0) -> int:
        """Number of physics channels that the stage is given; 0 for a network without any."""
        return 0

    def stage_module(self, stage: int) -> nn.Module:
        """The part whose weights belong to one stage; the whole network where there is one stage alone."""
        return self

    def potential(self, inputs: FieldInputs, stage: int = 0) -> torch.Tensor:
        """(b, y, x) projected potential in V·Å."""
        root: torch.Tensor = self(inputs, stage)
        return root.square() * self.scale_v_angstrom
