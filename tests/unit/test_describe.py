"""Counting weights, FLOP and memory: against sums by hand, and against real tensors."""

from __future__ import annotations

import json
import resource
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional

from stemdl.config import load_config
from stemdl.models import FieldInputs, PotentialNetwork
from stemdl.models.describe import ModelDescription, describe, describe_network, format_description, short

CONFIGS = Path(__file__).parents[2] / "configs"
MEBIBYTE = 2**20


class TwoStages(PotentialNetwork):
    """A network small enough to count by hand: a shared convolution, one of its own per stage, a bare product."""

    stages = 2

    def __init__(self) -> None:
        super().__init__()
        self.shared = nn.Conv2d(4, 3, 3, padding=1)
        self.up = nn.ConvTranspose2d(3, 5, 2, stride=2, bias=False)
        self.own = nn.ModuleList([nn.Conv2d(5, 1, 1), nn.Conv2d(7, 1, 1)])
        self.mix = nn.Parameter(torch.ones(8, 8))
        self.forgotten = nn.Linear(10, 10)

    def channel_count(self, stage: int = 0) -> int:
        return 2 * stage

    def forward(self, inputs: FieldInputs, stage: int = 0) -> torch.Tensor:
        x = functional.relu(self.up(self.shared(inputs.amplitude.flatten(1, 2))))
        if inputs.channels is not None:
            x = torch.cat([x, inputs.channels], dim=1)
        result: torch.Tensor = self.own[stage](x).squeeze(1) @ self.mix
        return result


def two_stages() -> ModelDescription:
    with torch.device("meta"):
        network = TwoStages()
        amplitude = torch.empty(1, 2, 2, 4, 4)
        inputs = [FieldInputs(amplitude), FieldInputs(amplitude, torch.empty(1, 2, 8, 8))]
    return describe_network(network, inputs, "two")


def test_weights_of_shared_layers_count_once_and_flop_each_time() -> None:
    described = two_stages()
    shared, up, own = 4 * 3 * 9 + 3, 3 * 5 * 4, (6, 8)
    assert described.weights == shared + up + sum(own) + 64 + 110
    rows = {(layer.name, layer.stage): layer for layer in described.layers}
    assert [rows["shared", stage].weights for stage in (0, 1)] == [shared, 0]
    assert [rows["shared", stage].forward_flop for stage in (0, 1)] == [2 * 108 * 16] * 2
    assert rows["up", 0].forward_flop == 2 * 60 * 16, "a transposed convolution multiplies each input pixel"
    assert rows["up", 0].output_shape == (1, 5, 8, 8)
    assert [rows["own.0", 0].forward_flop, rows["own.1", 1].forward_flop] == [2 * 5 * 64, 2 * 7 * 64]
    assert rows["TwoStages", 0].forward_flop == 2 * 8**3, "the product in forward itself, without its children's"
    assert rows["TwoStages", 0].weights == 64
    assert rows["forgotten", -1].weights == 110
    assert "unused" in rows["forgotten", -1].type


def test_the_table_adds_up_to_the_totals() -> None:
    for described in (two_stages(), describe(load_config(CONFIGS / "paper-2019.yaml"))):
        assert sum(layer.weights for layer in described.layers) == described.weights
        assert sum(layer.forward_flop for layer in described.layers) == described.forward_flop_per_sample
        assert described.train_flop_per_sample == 3 * described.forward_flop_per_sample


def test_activations_are_what_autograd_keeps_each_piece_once() -> None:
    """By hand, in numbers of 4 bytes: input, its features, the rectified picture (kept by two, once), the root."""
    described = two_stages()
    stage_0 = 4 * 16 + 3 * 16 + 5 * 64 + 64
    stage_1 = 4 * 16 + 3 * 16 + 5 * 64 + 7 * 64 + 64
    assert described.activation_bytes_per_sample == 4 * (stage_0 + stage_1)


def test_memory_of_training_is_five_numbers_a_weight() -> None:
    """Weight, gradient, two moments of AdamW, moving average: as a real step of training leaves them."""
    described = two_stages()
    network = TwoStages()
    optimizer = torch.optim.AdamW(network.parameters())
    for parameter in network.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    moments = sum(
        value.nbytes for state in optimizer.state.values() for key, value in state.items() if key.startswith("exp")
    )
    assert described.optimizer_bytes == moments
    assert described.weight_bytes == sum(parameter.nbytes for parameter in network.parameters())
    assert described.training_state_bytes == moments + 3 * described.weight_bytes


def test_the_network_of_2019_is_described_as_published() -> None:
    described = describe(load_config(CONFIGS / "paper-2019.yaml"))
    assert short(described.weights) == "2.29e7"
    assert short(described.train_flop_per_sample) == "8.00e12"
    assert described.weight_tensors == len(described.layers) * 2 == 52
    assert described.input_shape == (32, 32, 512, 512)
    assert described.output_shape == (512, 512)
    assert described.channel_shapes == ()
    # The patterns alone, which the first convolution keeps, are a GiB.
    assert described.activation_bytes_per_sample > 2**30


def test_the_largest_network_of_2019_takes_no_memory_to_describe() -> None:
    small = ["scan={positions: [2, 2], step_angstrom: 4.0}", "detector.pixels=[16, 16]", "target.pixel_angstrom=0.5"]
    describe(load_config(CONFIGS / "paper-2019.yaml", [*small, "network.growth=4"]))  # torch loads code on first use
    overrides = ["network={name: fc_densenet, growth: 256, kernel: 5}"]
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    described = describe(load_config(CONFIGS / "paper-2019.yaml", overrides))
    taken_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib
    assert short(described.weights) == "2.33e8"
    assert described.weight_bytes > 800 * MEBIBYTE
    assert taken_kib < 100 * 1024


@pytest.mark.parametrize("file", sorted(CONFIGS.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_configuration_of_the_project_is_described(file: Path) -> None:
    config = load_config(file)
    described = describe(config)
    assert described.name == config.network.name
    assert described.weights == sum(layer.weights for layer in described.layers)
    assert all(layer.stage >= 0 for layer in described.layers), "every layer is used"
    assert described.output_shape == tuple(
        round(extent / config.target.pixel_angstrom) for extent in config.scan.field_angstrom
    )
    assert len(described.channel_shapes) in (0, described.stages)


def test_json_has_the_stable_keys() -> None:
    data = json.loads(json.dumps(two_stages().as_dict()))
    assert {"weights", "train_flop_per_sample", "forward_flop_per_sample", "activation_bytes_per_sample"} <= set(data)
    assert {"weight_bytes", "gradient_bytes", "optimizer_bytes", "average_bytes", "training_state_bytes"} <= set(data)
    assert data["channel_shapes"] == [[2, 8, 8]]
    assert set(data["layers"][0]) == {"name", "type", "stage", "output_shape", "weights", "forward_flop"}
    assert data["layers"][0]["output_shape"] == [1, 3, 4, 4]


def test_the_text_shows_the_figures_in_aligned_columns() -> None:
    text = format_description(describe(load_config(CONFIGS / "paper-2019.yaml")))
    assert "2.29e7 (22,878,593 in 52 tensors)" in text
    assert "8.00e12" in text
    table = text.split("\n\n")[1].splitlines()
    assert len(table) == 1 + 26
    assert len({len(line) for line in table}) == 1, "the last column ends in one place"
    assert max(map(len, table)) <= 120
    stages = format_description(two_stages()).split("\n\n")[1].splitlines()
    assert [line.split()[0] for line in stages] == ["stage", *"11112222-"]


def test_a_description_leaves_the_network_as_it_was() -> None:
    with torch.device("meta"):
        network = TwoStages().eval()
        amplitude = torch.empty(1, 2, 2, 4, 4)
        inputs = [FieldInputs(amplitude), FieldInputs(amplitude, torch.empty(1, 2, 8, 8))]
    first = describe_network(network, inputs, "two")
    assert not network.training
    assert describe_network(network, inputs, "two") == first


@pytest.mark.parametrize(("value", "text"), [(22878593, "2.29e7"), (1.0, "1.00e0"), (9.999e5, "1.00e6"), (0, "0")])
def test_figures_are_short(value: float, text: str) -> None:
    assert short(value) == text
