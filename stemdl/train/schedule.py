"""The learning rate as a pure function of the step, so that nothing of it needs to be saved."""

from __future__ import annotations

import math


def learning_rate(step: int, steps: int, highest: float, warmup_steps: int) -> float:
    """Linear warm-up to `highest` over `warmup_steps`, then a cosine to zero at `steps` (Loshchilov and Hutter,
    arXiv 1608.03983, without restarts). `step` counts from 0."""
    warmup = min(1.0, (step + 1) / warmup_steps) if warmup_steps else 1.0
    return highest * warmup * 0.5 * (1 + math.cos(math.pi * step / steps))
