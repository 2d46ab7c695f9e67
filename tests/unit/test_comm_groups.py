"""Which gradients are reduced together, and the buffers they are views of."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn

from stemdl.comm.alone import AloneMembers
from stemdl.comm.buffers import FlatBuffers
from stemdl.comm.data import Arena, FlatArena, stripe
from stemdl.comm.groups import Gradient, expected_order, grouped, item_of
from stemdl.config.comm import Comm


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(16, 64), nn.Linear(64, 64), nn.Linear(64, 2))


def gradients(model: nn.Module) -> list[Gradient]:
    return expected_order([Gradient(name, p) for name, p in model.named_parameters()])


def names(groups: list[list[Gradient]]) -> list[list[str]]:
    return [[gradient.name for gradient in group] for group in groups]


def test_layers_keep_weight_and_bias_together_last_layer_first() -> None:
    groups = grouped(gradients(net()), Comm(groups="layer"))
    assert names(groups) == [["2.bias", "2.weight"], ["1.bias", "1.weight"], ["0.bias", "0.weight"]]


def test_sizes_are_bounded_and_the_first_group_is_small() -> None:
    model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(20)))
    size = 64 * 64 * 4
    config = Comm(first_group_mib=1.5 * size / 2**20, group_mib=4.5 * size / 2**20)
    groups = grouped(gradients(model), config)
    sizes = [sum(gradient.size_bytes for gradient in group) for group in groups]
    assert sizes[0] <= 1.5 * size
    assert all(3 * size < one <= 4.5 * size for one in sizes[1:-1])
    assert sum(len(group) for group in groups) == 40


def test_a_gradient_larger_than_a_group_is_a_group_and_none_is_empty() -> None:
    groups = grouped(gradients(net()), Comm(first_group_mib=1e-6, group_mib=1e-6))
    assert names(groups) == [[name] for name in ("2.bias", "2.weight", "1.bias", "1.weight", "0.bias", "0.weight")]


@pytest.mark.parametrize("count", [1, 2, 3, 5, 50])
def test_a_number_of_groups_of_about_equal_size(count: int) -> None:
    model = nn.Sequential(*(nn.Linear(32, 32) for _ in range(10)))
    groups = grouped(gradients(model), Comm(groups="count", group_count=count))
    assert len(groups) == min(count, 20)
    assert [name for group in names(groups) for name in group] == [one.name for one in gradients(model)]
    if count <= 5:
        sizes = [sum(gradient.size_bytes for gradient in group) for group in groups]
        assert max(sizes) - min(sizes) <= 2 * 32 * 33 * 4


def test_per_tensor_is_a_group_for_each() -> None:
    assert all(len(group) == 1 for group in grouped(gradients(net()), Comm(negotiation="per_tensor")))


def test_dtypes_do_not_mix() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4).double(), nn.Linear(4, 4))
    groups = grouped(gradients(model), Comm())
    assert sorted(sorted(group) for group in names(groups)) == [
        ["0.bias", "0.weight", "2.bias", "2.weight"],
        ["1.bias", "1.weight"],
    ]


def flat_arena(elements: int, dtype: torch.dtype, device: torch.device) -> Arena:
    return FlatArena(AloneMembers(), elements, dtype, device)


def buffers_of(model: nn.Module, config: Comm, wire: torch.dtype | None = None) -> FlatBuffers:
    groups = grouped(gradients(model), config)
    items = [item_of(i, len(groups), group, config.compression) for i, group in enumerate(groups)]
    return FlatBuffers(groups, items, flat_arena, 1, wire)


def test_gradients_become_views_of_the_buffer_and_are_added_to_in_place() -> None:
    model = net()
    buffers = buffers_of(model, Comm(groups="layer"))
    x = torch.randn(5, 16)
    model(x).sum().backward()
    expected = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    slots = {slot.parameter: slot for group in buffers.groups for slot in group.slots}
    for p in model.parameters():
        slots[p].take()
        assert p.grad is not None
        assert p.grad.data_ptr() == slots[p].view.data_ptr()
    model(x).sum().backward()
    for p, first in zip(model.parameters(), expected, strict=True):
        torch.testing.assert_close(slots[p].view, 2 * first)


def test_the_layout_of_a_dense_weight_is_kept() -> None:
    model = nn.Conv2d(8, 16, 3)
    model.weight.data = model.weight.data.contiguous(memory_format=torch.channels_last)
    slots = buffers_of(model, Comm()).groups[0].slots
    view = next(slot.view for slot in slots if slot.name == "weight")
    assert view.stride() == model.weight.stride()


def test_a_parameter_without_a_gradient_counts_as_unused_and_as_zeros() -> None:
    model = net()
    buffers = buffers_of(model, Comm(groups="count", group_count=1))
    (group,) = buffers.groups
    model[2](torch.randn(3, 64)).sum().backward()
    group.fill()
    group.begin()()
    used = dict(zip([slot.name for slot in group.slots], group.used_somewhere(), strict=True))
    assert used == {"2.bias": True, "2.weight": True} | dict.fromkeys(
        ["0.bias", "0.weight", "1.bias", "1.weight"], False
    )
    assert all(bool((slot.view == 0).all()) for slot in group.slots if not slot.had_gradient)
    assert model[0].weight.grad is None


@pytest.mark.parametrize("wire", [torch.float16, torch.bfloat16])
def test_compressed_gradients_come_back_with_the_format_s_rounding(wire: torch.dtype) -> None:
    model = net()
    (group,) = buffers_of(model, Comm(groups="count", group_count=1), wire).groups
    model(torch.randn(5, 16)).sum().backward()
    expected = {slot.name: slot.parameter.grad.clone() for slot in group.slots if slot.parameter.grad is not None}
    group.fill()
    group.begin()()
    for slot in group.slots:
        torch.testing.assert_close(slot.view, expected[slot.name], rtol=torch.finfo(wire).eps, atol=1e-6)


def test_released_gradients_survive_their_buffer() -> None:
    model = net()
    buffers = buffers_of(model, Comm())
    model(torch.randn(5, 16)).sum().backward()
    for group in buffers.groups:
        group.fill()
    before = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    arena = buffers.groups[0].slots[0].view
    buffers.release()
    arena.fill_(7.0)
    for p, value in zip(model.parameters(), before, strict=True):
        assert p.grad is not None
        assert torch.equal(p.grad, value)


@pytest.mark.parametrize("count", [1, 2, 3, 7])
@pytest.mark.parametrize(("start", "stop"), [(0, 1), (0, 16), (32, 1000), (16, 16 + 7 * 16)])
def test_stripes_cover_everything_once(count: int, start: int, stop: int) -> None:
    stripes = [stripe(start, stop, number, count, 4) for number in range(count)]
    assert stripes[0][0] == start
    assert stripes[-1][1] == stop
    assert all(one[1] == other[0] for one, other in itertools.pairwise(stripes))
