"""Optimizers for large batches: what a step is, layer by layer."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from stemdl.config.network import Train
from stemdl.train.optimizers import Lamb, Larc, build_optimizer, layers_of


def net() -> nn.Sequential:
    torch.manual_seed(2)
    return nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 4))


def gradients(module: nn.Module, scale: float = 1.0) -> None:
    module.zero_grad()
    x = torch.randn(9, 6, generator=torch.Generator().manual_seed(5))
    (functional.mse_loss(module(x), torch.ones(9, 4)) * scale).backward()  # type: ignore[no-untyped-call]


def length(tensors: list[torch.Tensor]) -> float:
    return float(torch.cat([tensor.flatten() for tensor in tensors]).norm())


def step_lengths(module: nn.Sequential, optimizer: torch.optim.Optimizer) -> list[tuple[float, float, float]]:
    """Of each layer: weights before, gradients, and the step."""
    layers = [list(layer.parameters()) for layer in module if list(layer.parameters())]
    before = [[p.detach().clone() for p in layer] for layer in layers]
    optimizer.step()
    return [
        (
            length(old),
            length([p.grad for p in layer if p.grad is not None]),
            length([p.detach() - o for p, o in zip(layer, old, strict=True)]),
        )
        for layer, old in zip(layers, before, strict=True)
    ]


def test_layers_are_modules_with_their_weight_and_bias() -> None:
    assert [[p.shape for p in layer["params"]] for layer in layers_of(net())] == [[(12, 6), (12,)], [(4, 12), (4,)]]


def test_larc_moves_each_layer_by_the_trusted_share_of_its_weights() -> None:
    module = net()
    gradients(module)
    for weights, _, step in step_lengths(module, Larc(layers_of(module), lr=1e3, trust=0.002)):
        assert step == pytest.approx(0.002 * weights, rel=1e-4)


def test_larc_is_sgd_where_the_schedule_s_rate_is_lower() -> None:
    one, other = net(), net()
    larc = Larc(layers_of(one), lr=1e-4, momentum=0.9, weight_decay=0.1, trust=1.0)
    sgd = torch.optim.SGD(other.parameters(), lr=1e-4, momentum=0.9, weight_decay=0.1)
    for _ in range(5):
        gradients(one)
        gradients(other)
        larc.step()
        sgd.step()
    for mine, theirs in zip(one.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("scale", [1e-3, 1e3])
def test_the_length_of_the_gradient_does_not_count(scale: float) -> None:
    for make in (lambda m: Larc(layers_of(m), lr=1e6), lambda m: Lamb(layers_of(m), lr=0.01, eps=0.0)):
        one, other = net(), net()
        for module, factor in ((one, 1.0), (other, scale)):
            optimizer = make(module)
            for _ in range(3):
                gradients(module, factor)
                optimizer.step()
        for mine, theirs in zip(one.parameters(), other.parameters(), strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-5)


def test_lamb_moves_each_layer_by_the_rate_times_its_weights() -> None:
    module = net()
    gradients(module)
    for weights, _, step in step_lengths(module, Lamb(layers_of(module), lr=0.01, weight_decay=0.3)):
        assert step == pytest.approx(0.01 * weights, rel=1e-4)


def test_lamb_without_its_ratio_is_adam() -> None:
    """A layer of zeros has no length: it takes the plain step."""
    one, other = nn.Linear(3, 2), nn.Linear(3, 2)
    for module in (one, other):
        nn.init.zeros_(module.weight)
        nn.init.zeros_(module.bias)
        functional.mse_loss(module(torch.ones(4, 3)), torch.full((4, 2), 2.0)).backward()  # type: ignore[no-untyped-call]
    Lamb(layers_of(one), lr=0.1, eps=1e-8).step()
    torch.optim.Adam(other.parameters(), lr=0.1, eps=1e-8).step()
    torch.testing.assert_close(one.weight, other.weight)


def test_parameters_without_a_gradient_stay() -> None:
    for make in (lambda m: Larc(layers_of(m), lr=0.1), lambda m: Lamb(layers_of(m), lr=0.1)):
        module = net()
        gradients(module)
        module[0].weight.grad = None
        before = module[0].weight.detach().clone()  # type: ignore[operator]
        make(module).step()
        assert torch.equal(module[0].weight, before)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["adamw", "sgd", "larc", "lamb"])
def test_each_of_them_learns(name: str) -> None:
    module = net()
    rates = {"adamw": 1e-2, "sgd": 5e-2, "larc": 1.0, "lamb": 3e-2}
    section = Train(steps=1, optimizer=name, lr=rates[name], weight_decay=0.0, trust=0.02)  # type: ignore[arg-type]
    optimizer = build_optimizer(section, module)
    x = torch.randn(64, 6, generator=torch.Generator().manual_seed(1))
    truth = torch.tanh(x[:, :4] + x[:, 2:])
    losses = []
    for _ in range(200):
        optimizer.zero_grad()
        loss = functional.mse_loss(module(x), truth)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.2 * losses[0]
