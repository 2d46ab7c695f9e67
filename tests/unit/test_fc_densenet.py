"""The network of 2019: its published size, its geometry, what it can and cannot be given."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from stemdl.config import Config, load_config
from stemdl.models import FieldInputs, NetworkConfigError, build_network
from stemdl.models.describe import short
from stemdl.models.fc_densenet import FcDenseNet

BLOCKS_2019 = (2, 2, 3, 4, 3, 2, 2)
PAPER = Path(__file__).parents[2] / "configs" / "paper-2019.yaml"


def small(blocks: tuple[int, ...] = (1, 1, 1), dropout: float = 0.0, seed: int = 0) -> FcDenseNet:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return FcDenseNet(positions=(2, 2), growth=6, kernel=3, blocks=blocks, dropout=dropout)


def patterns(batch: int = 2, pixels: int = 16, seed: int = 1) -> torch.Tensor:
    """Amplitudes (b, 2, 2, q, q) whose squares sum to one in each pattern."""
    generator = torch.Generator().manual_seed(seed)
    intensity = torch.rand(batch, 2, 2, pixels, pixels, generator=generator)
    return (intensity / intensity.sum(dim=(-2, -1), keepdim=True)).sqrt()


def config(*overrides: str) -> Config:
    """A small problem for this network: 2 x 2 positions 4 Å apart, 16 x 16 pixels of detector and of potential."""
    small_problem = [
        "network={name: fc_densenet, growth: 4, kernel: 3, blocks: [1, 1, 1]}",
        "scan={positions: [2, 2], step_angstrom: 4.0}",
        "detector.pixels=[16, 16]",
        "target.pixel_angstrom=0.5",
    ]
    return load_config(PAPER, [*small_problem, *overrides])


# Weights and training FLOP as published or as counted with the public code, to the digits given there.
PUBLISHED = [
    (1024, 512, 64, 3, "6.0e6", "2.5e12"),
    (1024, 512, 128, 3, "2.29e7", "8.00e12"),
    (1024, 512, 128, 5, "6.0e7", "2.13e13"),
    (1024, 512, 256, 5, "2.33e8", "7.5e13"),
    (64, 256, 64, 3, "5.5e6", "4.0e11"),
    (64, 256, 32, 3, "1.4e6", "1.0e11"),
    (16, 128, 32, 3, "1.36e6", "2.5e10"),
]


@pytest.mark.parametrize(("channels", "pixels", "growth", "kernel", "weights", "train_flop"), PUBLISHED)
def test_published_weights_and_flop(
    channels: int, pixels: int, growth: int, kernel: int, weights: str, train_flop: str
) -> None:
    with torch.device("meta"):
        network = FcDenseNet(positions=(1, channels), growth=growth, kernel=kernel, blocks=BLOCKS_2019, dropout=0.2)
        additions = count_bias_additions(network)
        with FlopCounterMode(display=False) as counter:
            output = network(FieldInputs(torch.empty(1, 1, channels, pixels, pixels)))
    tensors = list(network.parameters())
    assert output.shape == (1, pixels, pixels)
    assert (len(additions), len(tensors)) == (26, 52), "26 convolutions, each with weights and biases"
    assert rounded(sum(tensor.numel() for tensor in tensors), weights) == weights
    # The published count takes a bias for one more multiply-add, which decides the last digit of the smallest network.
    flop = 3 * (counter.get_total_flops() + 2 * sum(additions))
    assert rounded(flop, train_flop) == train_flop


def rounded(value: float, like: str) -> str:
    digits = len(like.split("e")[0].split(".")[1])
    mantissa, exponent = f"{value:.{digits}e}".split("e")
    return f"{mantissa}e{int(exponent)}"


def count_bias_additions(network: nn.Module) -> list[int]:
    """Filled during a forward pass: values that each convolution adds its bias to, transposed ones on their input."""
    additions: list[int] = []

    def note(module: Any, args: tuple[torch.Tensor], output: torch.Tensor) -> None:
        grid = args[0] if isinstance(module, nn.ConvTranspose2d) else output
        additions.append(module.out_channels * grid[0, 0].numel())

    for module in network.modules():
        if isinstance(module, nn.Conv2d | nn.ConvTranspose2d):
            module.register_forward_hook(note)
    return additions


def test_the_configuration_of_2019_builds_the_published_network() -> None:
    with torch.device("meta"):
        network = build_network(load_config(PAPER))
    assert short(sum(p.numel() for p in network.parameters())) == "2.29e7"


@pytest.mark.parametrize("blocks", [(2,), (1, 2, 1), (1, 2, 1, 3, 1)])
def test_the_answer_is_on_the_pixels_of_the_detector_however_many_pools(blocks: tuple[int, ...]) -> None:
    network = small(blocks)
    amplitude = torch.rand(3, 2, 2, 8, 16)
    root = network(FieldInputs(amplitude))
    assert root.shape == (3, 8, 16)
    assert network.pools == len(blocks) // 2


def test_the_root_is_positive_and_the_potential_its_square_times_the_scale() -> None:
    network = small().eval()
    network.scale_v_angstrom.fill_(50.0)
    inputs = FieldInputs(patterns())
    root = network(inputs)
    assert (root > 0).all()
    torch.testing.assert_close(network.potential(inputs), 50.0 * root**2)


def test_patterns_shifted_by_the_pooling_shift_the_answer() -> None:
    """Fully convolutional: away from the edges nothing depends on where on the detector a feature lies."""
    network = small().eval()
    amplitude = torch.zeros(1, 2, 2, 64, 64)
    amplitude[..., 28:36, 26:34] = torch.rand(2, 2, 8, 8, generator=torch.Generator().manual_seed(3))
    shifted = torch.roll(amplitude, (2, -4), dims=(-2, -1))
    with torch.no_grad():
        here, there = network(FieldInputs(amplitude)), network(FieldInputs(shifted))
    moved = torch.roll(here, (2, -4), dims=(-2, -1))
    inside = (..., slice(12, 52), slice(12, 52))
    assert (here[inside].amax() - here[inside].amin()) > 0.01
    torch.testing.assert_close(there[inside], moved[inside])


def test_no_answer_depends_on_the_other_fields_of_the_batch() -> None:
    network = small().eval()
    amplitude = patterns(batch=3)
    with torch.no_grad():
        together = network(FieldInputs(amplitude))
        alone = torch.cat([network(FieldInputs(field[None])) for field in amplitude])
    torch.testing.assert_close(together, alone)


def test_the_input_is_of_order_one_whatever_the_pixels() -> None:
    """The same beam spread over more pixels has smaller amplitudes, and must not make a fainter input."""
    seen: list[torch.Tensor] = []
    network = small()
    network.first.register_forward_pre_hook(lambda module, args: seen.append(args[0]))
    for pixels in (8, 64):
        network(FieldInputs(patterns(batch=1, pixels=pixels)))
    for first_input in seen:
        assert first_input.square().mean().item() == pytest.approx(1.0, rel=1e-5)


def test_dropout_in_training_drops_whole_channels_and_none_afterwards() -> None:
    network = small(dropout=0.5)
    seen: list[torch.Tensor] = []
    layer = cast(Any, network.bottleneck.layers[0])
    layer.dropout.register_forward_hook(lambda module, args, output: seen.append(output.detach()))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network.train()(FieldInputs(patterns(batch=8)))
    empty = (seen[0] == 0).flatten(2)
    assert (empty.all(dim=2) == empty.any(dim=2)).all()
    assert 0.2 < empty.all(dim=2).float().mean() < 0.8
    network.eval()
    inputs = FieldInputs(patterns())
    assert torch.equal(network(inputs), network(inputs))


def test_every_weight_learns_and_two_fields_can_be_learnt_by_heart() -> None:
    network = small((1, 2, 1))
    inputs = FieldInputs(patterns())
    truth = torch.rand(2, 16, 16, generator=torch.Generator().manual_seed(5)) + 0.5
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-2)
    losses = []
    for step in range(150):
        loss = nn.functional.mse_loss(network(inputs), truth)
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        if step == 0:
            for name, parameter in network.named_parameters():
                assert parameter.grad is not None, name
                assert parameter.grad.abs().max() > 0, name
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.25 * truth.var().item()


def test_initial_weights_are_those_of_he() -> None:
    """Variance 2 / fan-in, biases zero."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = FcDenseNet(positions=(4, 4), growth=32, kernel=3, blocks=(1, 1, 1), dropout=0.0)
    assert network.first.weight.var().item() == pytest.approx(2 / (16 * 9), rel=0.1)
    assert network.first.bias is not None
    assert network.first.bias.abs().max() == 0


def test_seeds_give_weights() -> None:
    same, other = small(seed=1), small(seed=2)
    assert torch.equal(small(seed=1).first.weight, same.first.weight)
    assert not torch.equal(same.first.weight, other.first.weight)


def test_detector_pixels_that_cannot_be_halved_are_refused() -> None:
    with pytest.raises(NetworkConfigError, match=r"15 x 16.*multiples of 2, such as 16 x 16") as raised:
        build_network(config("detector.pixels=[15, 16]"))
    assert raised.value.key == "detector.pixels"
    assert isinstance(raised.value, ValueError)


def test_a_target_on_other_pixels_than_the_detector_is_refused_with_the_right_pixel() -> None:
    with pytest.raises(NetworkConfigError, match=r"8 x 8 pixels of potential; allowed: 0\.5 Å") as raised:
        build_network(config("target.pixel_angstrom=1.0"))
    assert raised.value.key == "target.pixel_angstrom"


def test_patterns_of_another_scan_or_size_are_refused() -> None:
    network = small()
    with pytest.raises(NetworkConfigError, match=r"scan\.positions: found 4 x 1 positions; allowed: 2 x 2"):
        network(FieldInputs(torch.rand(1, 4, 1, 16, 16)))
    with pytest.raises(NetworkConfigError, match=r"detector\.pixels: found 16 x 17"):
        network(FieldInputs(torch.rand(1, 2, 2, 16, 17)))


def test_the_registry_builds_by_name_and_names_what_it_knows() -> None:
    network = build_network(config())
    assert isinstance(network, FcDenseNet)
    assert network.positions == (2, 2)
    assert network.channel_count(0) == 0
    unknown = cast(Config, SimpleNamespace(network=SimpleNamespace(name="alexnet")))
    with pytest.raises(ValueError, match=r"'alexnet'; allowed: fc_densenet, scanfield"):
        build_network(unknown)
