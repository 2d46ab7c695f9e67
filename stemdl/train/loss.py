"""What training minimises."""

from __future__ import annotations

import torch
from torch.nn import functional

RELATIVE_FLOOR = 1e-4
"""Added to the squared relative error before the root, whose slope has no bound at zero."""


def potential_loss(
    root: torch.Tensor,
    truth_v_angstrom: torch.Tensor,
    scale_v_angstrom: torch.Tensor,
    *,
    huber_beta: float,
    relative_weight: float,
) -> torch.Tensor:
    """Smooth L1 on the root of the potential plus `relative_weight` times the mean NRMSE of the fields.

    root: (b, y, x) square root of the predicted potential over the scale; truth in V·Å. The first term weighs light and
    heavy elements nearly alike but still follows absolute potentials; the second, each field's error over its own
    standard deviation, is the figure a user reads and makes every material count the same.
    """
    target = (truth_v_angstrom / scale_v_angstrom).clamp_min(0).sqrt()
    absolute = functional.smooth_l1_loss(root, target, beta=huber_beta)
    error = root.square() * scale_v_angstrom - truth_v_angstrom
    variance = truth_v_angstrom.var(dim=(1, 2), correction=0).clamp_min(1e-6)
    relative = (error.square().mean(dim=(1, 2)) / variance + RELATIVE_FLOOR).sqrt().mean()
    return absolute + relative_weight * relative
