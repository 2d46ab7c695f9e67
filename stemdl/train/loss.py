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
    mean_weight: float,
    root_weight: float,
    huber_beta: float,
) -> torch.Tensor:
    """Mean over fields of the contrast's error, plus weighted the mean's error and a smooth L1 on the root.

    root: (b, y, x) square root of the predicted potential over the scale; truth in V·Å. Errors of contrast (about the
    mean) and of the mean are over the field's own standard deviation, so that light and heavy materials, thirtyfold
    apart, count the same. They are separate terms: patterns say little about the mean, and its larger error would
    drown the gradient of the contrast in one common NRMSE. The last term keeps absolute potentials in sight.
    """
    predicted = root.square() * scale_v_angstrom
    deviation = (predicted - truth_v_angstrom).flatten(1)
    variance = truth_v_angstrom.flatten(1).var(dim=1, correction=0).clamp_min(1e-6)
    contrast = (deviation.var(dim=1, correction=0) / variance + RELATIVE_FLOOR).sqrt().mean()
    mean = (deviation.mean(dim=1).square() / variance + RELATIVE_FLOOR).sqrt().mean()
    target = (truth_v_angstrom / scale_v_angstrom).clamp_min(0).sqrt()
    absolute = functional.smooth_l1_loss(root, target, beta=huber_beta)
    return contrast + mean_weight * mean + root_weight * absolute
