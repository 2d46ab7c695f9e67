"""Different numbers of batches on different ranks: agreed on before an epoch, not discovered by a hang in it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from stemdl.comm.errors import CommError

if TYPE_CHECKING:
    from stemdl.comm.world import World


@dataclass(frozen=True)
class EpochPlan:
    """One epoch of a rank.

    steps: of all ranks; a rank whose own batches have ended calls `reduce_nothing` in the rest.
    loss_factors: by which to multiply the mean loss of each of the rank's own batches; their reduced gradients are then
    those of the mean over all samples of the step, whichever ranks they were on.
    """

    steps: int
    loss_factors: tuple[float, ...]


Run = Callable[[Callable[[], list[bytes]], str], list[bytes]]


def plan_of(samples: Sequence[int], run: Run, world: World) -> EpochPlan:
    """See `GradientReducer.agree_batches`. Raises CommError for what is no whole number of 1 or more."""
    for count in samples:
        if not isinstance(count, int | np.integer) or count < 1:
            raise CommError(f"samples per batch: found {count!r}, allowed whole numbers of 1 or more")
    mine = np.array(samples, dtype="<i8").tobytes()
    parts = run(lambda: world.control.allgather(mine), "numbers of batches")
    return epoch_plan([np.frombuffer(part, dtype="<i8").tolist() for part in parts], world.rank)


def epoch_plan(samples_by_rank: Sequence[Sequence[int]], rank: int) -> EpochPlan:
    """The plan of one rank, from the numbers of samples in the batches of all of them."""
    steps = max(map(len, samples_by_rank))
    totals = [sum(samples[step] for samples in samples_by_rank if step < len(samples)) for step in range(steps)]
    size = len(samples_by_rank)
    return EpochPlan(steps, tuple(size * count / totals[step] for step, count in enumerate(samples_by_rank[rank])))
