"""The gradient reducer: one call wraps a model, and its gradients are those of all ranks' batches together.

reducer = GradientReducer(model, comm_config)        # meets the other ranks, equalises the start state
for batch, truth in my_batches:
    loss = my_loss(reducer.model(batch), truth)      # the mean over this rank's samples
    loss.backward()                                  # gradients are reduced while it goes on
    reducer.finish()                                 # now p.grad is the mean over ranks
    optimizer.step()
    optimizer.zero_grad()
reducer.close()
"""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Self

from torch import nn

from stemdl.comm.batches import EpochPlan, plan_of
from stemdl.comm.counters import Counters
from stemdl.comm.errors import CommError
from stemdl.comm.exchange import Exchange, GroupedExchange, NoExchange
from stemdl.comm.start_state import average_buffers, equalise
from stemdl.comm.world import World, open_world
from stemdl.config.comm import Comm


class GradientReducer:
    """Sums a model's gradients over the ranks of a job; see the module for its use.

    After `finish` each parameter's gradient is the mean over ranks of theirs, where a rank without one counts as zero;
    a parameter that no rank has used keeps what it had (None, after zero_grad). All ranks then hold the same bits.
    Gradients are views of flat buffers: clip, scale or read them in place, but do not keep them over a step.

    model: parameters may be frozen, unused in a step, changed in dtype or shape, frozen or released between steps, if
    all ranks do the same in the same step. The module to call is `reducer.model` (for `ddp` it is the wrapped one).
    world: the ranks; by default opened from the launcher's environment, and closed by `close`.
    unused_parameters: some parameters get no gradient in some steps; `ddp` alone has to be told.

    Raises CommError where ranks do not meet, or hold different models.
    """

    def __init__(
        self, model: nn.Module, config: Comm, *, world: World | None = None, unused_parameters: bool = False
    ) -> None:
        self._owns_world = world is None
        self.world = world or open_world(config)
        self.config = config
        equalise(model, self.world)
        self._exchange: Exchange
        if self.world.size == 1:
            self._exchange = NoExchange(model)
        elif config.negotiation == "ddp":
            from stemdl.comm.ddp import DdpExchange

            self._exchange = DdpExchange(model, config, self.world, unused_parameters=unused_parameters)
        else:
            self._exchange = GroupedExchange(model, config, self.world)
        self.model = self._exchange.model
        self._bare_model = model

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        elif isinstance(error, CommError):
            self.world.fail(str(error))
        elif isinstance(error, Exception):
            if self.world.size > 1:
                traceback.print_exception(error)  # `fail` does not return
            self.world.fail(f"{type(error).__name__}: {error}")
        else:  # sys.exit, Ctrl-C: this rank ends as it likes; others that wait for it are told
            self.world.leave()

    @property
    def counters(self) -> Counters:
        """What the exchange has cost so far."""
        return self.world.counters

    def no_sync(self) -> AbstractContextManager[None]:
        """Backward passes inside add to the gradients of this rank alone: accumulation over micro-batches. The one
        after the block sends the sum."""
        return self._exchange.no_sync()

    def finish(self) -> None:
        """Wait for the gradients of all ranks; call it once in every step, before they are clipped or used.

        Raises CommError where a rank is lost, late, or disagrees.
        """
        self.world.counters.steps += 1
        self._exchange.finish()

    def reduce_nothing(self) -> None:
        """A step without a batch on this rank, while others have one: contributes nothing, receives the gradients."""
        self.world.counters.steps += 1
        self._exchange.reduce_nothing()

    def refresh(self) -> None:
        """See parameters that were frozen, released, replaced or changed since the last step, before a backward pass. A
        forward pass through `reducer.model` does it by itself."""
        self._exchange.refresh()

    def agree_batches(self, samples: Sequence[int]) -> EpochPlan:
        """Before an epoch: with the numbers of samples in each of this rank's batches, how many steps all ranks make
        and by which factor a rank multiplies its mean loss in each, so that the sum is the mean over all samples.

        Raises CommError for a number of samples that is not positive.
        """
        return plan_of(samples, self._exchange.run, self.world)

    def sync_buffers(self) -> None:
        """Make running statistics (BatchNorm) equal on all ranks, as `comm.buffers` says: before they are used to
        evaluate, or saved. In training each rank keeps its own (with `ddp`, rank 0's)."""
        self._exchange.run(
            lambda: average_buffers(self._bare_model, self.world, self.config.buffers), "running statistics"
        )

    def busy(self, what: str, allowed_s: float) -> AbstractContextManager[None]:
        """In the block this rank alone does something long (validation, a checkpoint) while others may already wait for
        its gradients: for up to `allowed_s` that is no stall."""
        return self.world.busy(what, allowed_s)

    def close(self) -> None:
        """The orderly end, on all ranks; waits for the others."""
        self._exchange.close()
        if self._owns_world:
            self.world.close()
