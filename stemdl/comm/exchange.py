"""The exchange behind the reducer: hooks that see gradients arrive, groups that start when their last one has."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

import torch
from torch import nn

from stemdl.comm.buffers import FlatBuffers, FlatGroup, Slot
from stemdl.comm.engine import Engine
from stemdl.comm.errors import CommError
from stemdl.comm.groups import Gradient, expected_order, grouped, item_of
from stemdl.comm.items import Item
from stemdl.comm.negotiation import Fixed, negotiator
from stemdl.comm.start_state import broadcast
from stemdl.comm.world import World
from stemdl.config.comm import Comm

_Result = TypeVar("_Result")
_WIRE = {"none": None, "fp16": torch.float16, "bf16": torch.bfloat16}


class Exchange(Protocol):
    """How gradients become those of all ranks: ours, or DistributedDataParallel's."""

    model: nn.Module
    """What to call."""

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """See `GradientReducer`."""
        ...

    def finish(self) -> None:
        """See `GradientReducer`."""
        ...

    def reduce_nothing(self) -> None:
        """See `GradientReducer`."""
        ...

    def run(self, call: Callable[[], _Result], what: str) -> _Result:
        """Make a call of the planes, on all ranks, between steps; `what` it is, for the watch."""
        ...

    def refresh(self) -> None:
        """See `GradientReducer`."""
        ...

    def close(self) -> None:
        """See `GradientReducer`."""
        ...


class GroupedExchange:
    """Groups of gradients in flat buffers, negotiated and reduced in the background."""

    def __init__(self, model: nn.Module, config: Comm, world: World) -> None:
        self.model = model
        self._config, self._world = config, world
        self._is_syncing = True
        self._hooks: list[Any] = []
        self._signature: tuple[object, ...] = ()
        self._group_of: dict[int, tuple[FlatGroup, Slot]] = {}
        self._used: list[bool] | None = None
        self._arrivals: list[str] | None = [] if config.groups == "arrival" else None
        self._order: list[str] | None = None
        self._negotiator = negotiator(config, world.control)
        self._engine = Engine(
            self._negotiator,
            world.counters,
            size=world.size,
            cycle_s=config.cycle_ms / 1e3,
            timeline=world.timeline,
            completed=world.completed,
            on_error=self._failed,
        )
        self._buffers: FlatBuffers | None = None
        self._model_hook = model.register_forward_pre_hook(ForwardHook(self._before_forward))
        self._build()

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """See `GradientReducer`."""
        before, self._is_syncing = self._is_syncing, False
        try:
            yield
        finally:
            self._is_syncing = before

    def finish(self) -> None:
        """See `GradientReducer`."""
        assert self._buffers is not None
        if self._signature_now() != self._signature:
            raise CommError(
                "parameters were frozen, released, replaced or changed, and no forward pass through reducer.model has "
                "seen it: their gradients are this rank's alone; call reducer.refresh() before the backward pass"
            )
        for group in self._buffers.groups:
            if not group.is_submitted:
                self._submit(group)
        started_s = time.perf_counter()
        self._engine.finish_step()
        stopped_s = time.perf_counter()
        counters = self._world.counters
        counters.exposed_wait_s += stopped_s - started_s
        counters.slow_cycles = self._negotiator.slow_cycles
        if self._world.timeline is not None:
            self._world.timeline.add("wait", f"step {counters.steps}", started_s, stopped_s)
        self._take_over(self._buffers.groups)
        self._world.step_done(counters.steps)

    def reduce_nothing(self) -> None:
        """See `GradientReducer`."""
        self.refresh()
        self.finish()

    def run(self, call: Callable[[], _Result], what: str) -> _Result:
        """See `Exchange`."""
        with self._world.meeting(what):
            return self._engine.run(call)

    def refresh(self) -> None:
        """See `GradientReducer`."""
        signature = self._signature_now()
        if signature != self._signature and signature:
            self._build()

    def close(self) -> None:
        """See `GradientReducer`."""
        for hook in (*self._hooks, self._model_hook):
            hook.remove()
        if self._buffers is not None:
            self._buffers.release()
        self._engine.close()

    def _before_forward(self) -> None:
        """A forward pass that trains nothing (one rank's validation) is nobody else's business."""
        if torch.is_grad_enabled():
            self.refresh()

    def _signature_now(self) -> tuple[object, ...]:
        return tuple(
            (name, id(parameter), parameter.dtype, parameter.shape, parameter.device)
            for name, parameter in self.model.named_parameters()
            if parameter.requires_grad
        )

    def _build(self) -> None:
        """Groups, buffers and hooks for the parameters as they are."""
        if any(slot.arrived for _, slot in self._group_of.values()):
            raise CommError(
                "parameters were frozen, released, replaced or changed between a backward pass and finish(); allowed: "
                "after finish()"
            )
        for hook in self._hooks:
            hook.remove()
        if self._buffers is not None:
            self._buffers.release()
        self._negotiator.unsettle()
        self._signature = self._signature_now()
        gradients = [Gradient(name, p) for name, p in self.model.named_parameters() if p.requires_grad]
        _refuse(gradients)
        order = expected_order(gradients)
        if self._order is not None:
            place = {name: number for number, name in enumerate(self._order)}
            order.sort(key=lambda gradient: place.get(gradient.name, len(place)))
        groups = grouped(order, self._config)
        items = [item_of(i, len(groups), group, self._config.compression) for i, group in enumerate(groups)]
        if isinstance(self._negotiator, Fixed):
            self._negotiator.order([item.name for item in items])
        elif self._group_of:
            self.run(lambda: self._agree(items), "new groups")
        if self._group_of:
            new = [one.parameter for one in gradients if id(one.parameter) not in self._group_of]
            self.run(lambda: self._equalise(new), "new parameters")
        self._buffers = self.run(lambda: self._make_buffers(groups, items), "buffers")
        self._used = None
        self._group_of = {id(slot.parameter): (group, slot) for group in self._buffers.groups for slot in group.slots}
        self._hooks = [
            gradient.parameter.register_post_accumulate_grad_hook(self._arrived)  # type: ignore[no-untyped-call]
            for gradient in gradients
        ]

    def _agree(self, items: list[Item]) -> None:
        """Changed groups are compared before there is memory for them: a rank that alone has changed is named."""
        waiting = {item.name: item for item in items}
        while waiting and self._negotiator.planned([]) is None:
            for name in self._negotiator.cycle(list(waiting.values())):
                del waiting[name]
        self._negotiator.unsettle()

    def _equalise(self, parameters: Sequence[nn.Parameter]) -> None:
        for parameter in parameters:
            broadcast(parameter, self._world)

    def _make_buffers(self, groups: list[list[Gradient]], items: list[Item]) -> FlatBuffers:
        return FlatBuffers(groups, items, self._world.arena, self._world.size, _WIRE[self._config.compression])

    def _arrived(self, parameter: torch.Tensor) -> None:
        """Autograd has accumulated a gradient."""
        group, slot = self._group_of[id(parameter)]
        if not self._is_syncing and not slot.arrived:
            return
        if parameter.grad is None:
            raise CommError(
                f"{slot.name}: its gradient is gone when it arrives; another hook has used it up before it was reduced"
            )
        if slot.arrived:
            raise CommError(
                f"{slot.name}: a second gradient in one step; finish() comes after every backward pass, or put all "
                "passes but the last under no_sync()"
            )
        if parameter.grad.is_sparse:
            raise CommError(f"{slot.name}: a sparse gradient; allowed: dense ones (nn.Embedding: sparse=False)")
        slot.arrived = True
        if self._arrivals is not None:
            self._arrivals.append(slot.name)
        if self._world.timeline is None:
            slot.take()
        else:
            with self._world.timeline.during("fuse", slot.name):
                slot.take()
        group.missing -= 1
        if group.missing == 0:
            self._submit(group)

    def _submit(self, group: FlatGroup) -> None:
        group.fill()
        group.is_submitted = True
        if group.slots[0].view.is_cuda:
            group.ready_event = group.ready_event or torch.cuda.Event()  # type: ignore[no-untyped-call]
            group.ready_event.record()
        self._world.submitted(group)
        self._engine.submit(group)

    def _failed(self, error: BaseException) -> None:
        self._world.fail(str(error) if isinstance(error, CommError) else repr(error))

    def _take_over(self, groups: Sequence[FlatGroup]) -> None:
        """The means become the parameters' gradients; what has changed is no longer relied on."""
        used: list[bool] = []
        for group in groups:
            if group.ready_event is not None:
                torch.cuda.current_stream().wait_event(group.ready_event)
            flags = group.used_somewhere()
            for slot, is_used in zip(group.slots, flags, strict=True):
                if is_used and not slot.had_gradient:
                    slot.parameter.grad = slot.view
            used += flags
            group.reset()
        if self._used is not None and used != self._used:
            self._negotiator.unsettle()
        self._used = used
        if self._arrivals is not None:
            self._adopt_arrival()

    def _adopt_arrival(self) -> None:
        """After the first step: groups in the order in which gradients arrived on rank 0."""
        assert self._arrivals is not None
        names, self._arrivals = "\n".join(self._arrivals).encode(), None
        control, rank = self._world.control, self._world.rank
        agreed = self.run(lambda: control.broadcast(names if rank == 0 else None), "order of arrival")
        self._order = agreed.decode().splitlines()
        self._engine.run(self._negotiator.reset)
        self._build()


class ForwardHook:
    """A hook of the user's model that stays here: copies and pickles of the model have one that does nothing."""

    def __init__(self, call: Callable[[], None]) -> None:
        self._call = call

    def __call__(self, *_: object) -> None:
        """Before each forward pass."""
        self._call()

    def __deepcopy__(self, memo: object) -> ForwardHook:
        return ForwardHook(nothing)

    def __reduce__(self) -> tuple[type[ForwardHook], tuple[Callable[[], None]]]:
        return ForwardHook, (nothing,)


def nothing() -> None:
    """What the hook of a copy does."""


class NoExchange:
    """One rank: its gradients are those of all."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """See `GradientReducer`."""
        yield

    def finish(self) -> None:
        """See `GradientReducer`."""

    def reduce_nothing(self) -> None:
        """See `GradientReducer`."""

    def run(self, call: Callable[[], _Result], what: str) -> _Result:
        """See `Exchange`."""
        return call()

    def refresh(self) -> None:
        """See `GradientReducer`."""

    def close(self) -> None:
        """See `GradientReducer`."""


def _refuse(gradients: Sequence[Gradient]) -> None:
    """Raise CommError for what cannot be added up."""
    if not gradients:
        raise CommError("the model has no parameter that is trained")
    for gradient in gradients:
        if not gradient.parameter.is_floating_point():
            raise CommError(
                f"{gradient.name}: a parameter of dtype {gradient.key.dtype}; allowed: floating point (for a "
                "complex one torch.view_as_real)"
            )
