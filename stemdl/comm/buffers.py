"""Flat buffers of which the gradients are views, so that a group is reduced without copies."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from stemdl.comm.data import Arena
from stemdl.comm.groups import Gradient
from stemdl.comm.items import Item

_ALIGNED_BYTES = 64

MakeArena = Callable[[int, torch.dtype, torch.device], Arena]
"""Memory for so many elements, on all ranks at once."""


class Slot:
    """One gradient's place in its group."""

    def __init__(self, gradient: Gradient, view: torch.Tensor) -> None:
        self.name, self.parameter, self.view = gradient.name, gradient.parameter, view
        self.arrived = False
        self.had_gradient = False
        """This rank contributes to the sum."""

    def take(self) -> None:
        """Bring the parameter's gradient into the buffer, and make the view its gradient.

        Autograd hands over a new tensor where there was no gradient before; where the view already was the gradient,
        it has added to it in place, and there is nothing to do.
        """
        gradient = self.parameter.grad
        self.had_gradient = gradient is not None
        if gradient is None:
            self.view.zero_()
        elif gradient.data_ptr() != self.view.data_ptr() or gradient.shape != self.view.shape:
            self.view.copy_(gradient.detach())
            self.parameter.grad = self.view


class FlatGroup:
    """A group of gradients in one buffer, and behind them one number for each: on how many ranks there is a gradient.

    The numbers travel with the sums: no message of their own says which parameters were used somewhere.
    """

    def __init__(
        self, item: Item, gradients: Sequence[Gradient], arena: Arena, start: int, wire: Arena | None, size: int
    ) -> None:
        self.item = item
        self._arena, self._wire = arena, wire
        self._start, self._size = start, size
        self.slots: list[Slot] = []
        offset = start
        for gradient in gradients:
            count = gradient.parameter.numel()
            self.slots.append(Slot(gradient, _like(arena.tensor, gradient.parameter, offset)))
            offset += _aligned(count, arena.tensor.dtype)
        self._stop = offset + len(self.slots)
        self._used = arena.tensor[offset : self._stop]
        self.size_bytes = (self._stop - start) * (wire or arena).tensor.element_size()
        self.missing = len(self.slots)
        """Gradients of this step that have not arrived."""
        self.is_submitted = False
        self.ready_event: torch.cuda.Event | None = None

    def fill(self) -> None:
        """Take what has not arrived (gradients of earlier micro-batches, or none), and set the numbers behind."""
        for slot in self.slots:
            if not slot.arrived:
                slot.take()
        self._used.copy_(torch.tensor([float(slot.had_gradient) for slot in self.slots], dtype=self._used.dtype))

    def begin(self) -> Callable[[], None]:
        """Begin to replace the gradients by their mean over ranks; the call returned waits for it."""
        if self._wire is None:
            return self._arena.all_reduce(self._start, self._stop, 1 / self._size, self.item.name)
        # Half of the division (as a power) before the sum, half after it: neither overflow nor underflow.
        before = self._size**-0.5
        mine, theirs = self._arena.tensor[self._start : self._stop], self._wire.tensor[self._start : self._stop]
        theirs.copy_(mine * before)
        wait = self._wire.all_reduce(self._start, self._stop, 1.0, self.item.name)

        def finish() -> None:
            wait()
            mine.copy_(theirs)
            mine.mul_(before)

        return finish

    def used_somewhere(self) -> list[bool]:
        """After the reduction: which gradients any rank has contributed to. The same on all ranks."""
        if self._used.device.type != "cpu" and all(slot.had_gradient for slot in self.slots):
            return [True] * len(self.slots)  # an accelerator need not be waited for
        return [used > 0 for used in self._used.tolist()]

    def reset(self) -> None:
        """Before the next step."""
        self.missing = len(self.slots)
        self.is_submitted = False
        for slot in self.slots:
            slot.arrived = slot.had_gradient = False


class FlatBuffers:
    """All groups of a model, one arena for each dtype and device.

    Raises CommError where there is no memory for them.
    """

    def __init__(
        self,
        groups: Sequence[Sequence[Gradient]],
        items: Sequence[Item],
        make_arena: MakeArena,
        size: int,
        wire_dtype: torch.dtype | None,
    ) -> None:
        self._arenas: list[Arena] = []
        self.groups: list[FlatGroup] = []
        by_kind: dict[tuple[torch.dtype, torch.device], list[int]] = {}
        for number, group in enumerate(groups):
            by_kind.setdefault(group[0].kind, []).append(number)
        found: dict[int, FlatGroup] = {}
        for (dtype, device), numbers in by_kind.items():
            starts, elements = _layout([groups[number] for number in numbers], dtype)
            arena = make_arena(elements, dtype, device)
            self._arenas.append(arena)
            wire = None
            if wire_dtype is not None and dtype != wire_dtype:
                wire = make_arena(elements, wire_dtype, device)
                self._arenas.append(wire)
            for number, start in zip(numbers, starts, strict=True):
                found[number] = FlatGroup(items[number], groups[number], arena, start, wire, size)
        self.groups = [found[number] for number in range(len(groups))]

    def release(self) -> None:
        """Let go of the memory; gradients that are views get memory of their own."""
        for group in self.groups:
            for slot in group.slots:
                gradient = slot.parameter.grad
                if gradient is not None and gradient.data_ptr() == slot.view.data_ptr():
                    slot.parameter.grad = gradient.clone()
        for arena in self._arenas:
            arena.close()
        self.groups.clear()


def _layout(groups: Sequence[Sequence[Gradient]], dtype: torch.dtype) -> tuple[list[int], int]:
    """Where each group starts, and the elements of all."""
    starts, offset = [], 0
    for group in groups:
        starts.append(offset)
        offset += sum(_aligned(gradient.parameter.numel(), dtype) for gradient in group)
        offset += _aligned(len(group), dtype)
    return starts, offset


def _aligned(count: int, dtype: torch.dtype) -> int:
    line = _ALIGNED_BYTES // dtype.itemsize
    return -(-count // line) * line


def _like(flat: torch.Tensor, parameter: torch.Tensor, offset: int) -> torch.Tensor:
    """A view with the parameter's shape and, where it is dense, its strides (channels_last stays what it is)."""
    if parameter.is_contiguous() or not _is_dense(parameter):
        return flat[offset : offset + parameter.numel()].view(parameter.shape)
    return flat.as_strided(parameter.shape, parameter.stride(), flat.storage_offset() + offset)


def _is_dense(tensor: torch.Tensor) -> bool:
    """Its elements fill their memory without gaps or overlaps."""
    expected = 1
    for stride, length in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if length == 1:
            continue
        if stride != expected:
            return False
        expected *= length
    return True
