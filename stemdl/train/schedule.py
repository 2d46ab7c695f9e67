"""The learning rate as a pure function of the step, so that nothing of it needs to be saved."""

from __future__ import annotations

import math

from stemdl.config.network import Train


def learning_rate(step: int, section: Train) -> float:
    """The rate of a step, counted from 0: linear warm-up over `warmup_steps` to the highest rate, times the schedule.

    cosine: to zero at `steps` (Loshchilov and Hutter, arXiv 1608.03983, without restarts); staircase: times
    `decay_factor` after every `decay_every_steps`; constant.
    """
    warmup = min(1.0, (step + 1) / section.warmup_steps) if section.warmup_steps else 1.0
    return highest_rate(section) * warmup * _shape(step, section)


def highest_rate(section: Train) -> float:
    """`lr`, for a batch of `lr_batch` fields; for others scaled with the batch (Goyal et al., arXiv 1706.02677) or with
    its root (Krizhevsky, arXiv 1404.5997), as `lr_scaling` says."""
    if section.lr_scaling == "none":
        return section.lr
    ratio = section.batch / section.lr_batch
    return section.lr * (ratio if section.lr_scaling == "linear" else math.sqrt(ratio))


def _shape(step: int, section: Train) -> float:
    if section.schedule == "cosine":
        return 0.5 * (1 + math.cos(math.pi * step / section.steps))
    if section.schedule == "staircase":
        return section.decay_factor ** (step // section.decay_every_steps)
    return 1.0
