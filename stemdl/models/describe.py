"""What a network costs, before it is built: weights, FLOP, memory, layer by layer.

Everything is counted on torch's meta device, where tensors have shapes and no memory, so the largest network is
described in seconds on a laptop.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import nn

from stemdl.config import Config
from stemdl.models.base import FieldInputs, PotentialNetwork
from stemdl.models.registry import build_network
from stemdl.models.trace import Layer, trace_forward

FLOAT32_BYTES = 4


@dataclass(frozen=True)
class ModelDescription:
    """What a network costs. "Per sample" is one field; stages are added up; memory is that of single precision.

    A multiply-add of a convolution, linear layer or matrix product is two FLOP, all else (biases, norms, activations)
    none. Training is three forward passes, as is customary: the backward pass makes two such products of each forward
    one. The physics channels that a network is given are not counted: they are no part of it.

    activation_bytes_per_sample is what autograd keeps of one field between the forward and the backward pass, each
    piece once, weights left out. It is an estimate from below: temporary results, the gradients that flow back and
    the libraries' work space come on top, and reduced precision or checkpointing take off.
    """

    name: str
    weights: int
    weight_tensors: int
    stages: int
    input_shape: tuple[int, ...]
    """(scan_y, scan_x, det_y, det_x)."""
    channel_shapes: tuple[tuple[int, ...], ...]
    """(channels, y, x) of the physics channels of each stage; without an entry for a network that has none."""
    output_shape: tuple[int, ...]
    """(y, x)."""
    forward_flop_per_sample: float
    train_flop_per_sample: float
    activation_bytes_per_sample: int
    weight_bytes: int
    gradient_bytes: int
    optimizer_bytes: int
    """AdamW's two moments."""
    average_bytes: int
    """The exponential moving average of the weights."""
    training_state_bytes: int
    """Weights, gradients, optimizer and average together."""
    layers: tuple[Layer, ...]
    """Every module with weights or FLOP of its own, in the order of execution; both columns add up to the totals."""

    def as_dict(self) -> dict[str, Any]:
        """The same as plain numbers, lists and dicts, ready for JSON; the keys are the names above."""
        described = asdict(self)
        described["layers"] = [asdict(layer) for layer in self.layers]
        return described


def describe(config: Config) -> ModelDescription:
    """Describe the network of a configuration, for its scan, detector and target, without taking memory for it.

    Raises NetworkConfigError where scan, detector or target do not suit the network.
    """
    meta = torch.device("meta")
    with meta:
        network = build_network(config).to(meta)
    grid = tuple(round(extent / config.target.pixel_angstrom) for extent in config.scan.field_angstrom)
    inputs = []
    for stage in range(network.stages):
        amplitude = torch.empty(1, *config.scan.positions, *config.detector.pixels, device=meta)
        count = network.channel_count(stage)
        channels = torch.empty(1, count, *grid, device=meta) if count else None
        inputs.append(FieldInputs(amplitude, channels))
    return describe_network(network, inputs, config.network.name)


def describe_network(network: PotentialNetwork, inputs: Sequence[FieldInputs], name: str) -> ModelDescription:
    """Describe a network on the meta device, given one field on the meta device for each of its stages."""
    assert len(inputs) == network.stages
    counted: set[nn.Parameter] = set()
    traces = [trace_forward(network, field, stage, counted) for stage, field in enumerate(inputs)]
    layers = tuple(layer for trace in traces for layer in trace.layers)
    parameters = list(network.parameters())
    weights = sum(parameter.numel() for parameter in parameters)
    forward_flop = float(sum(trace.flop for trace in traces))
    stored = weights * FLOAT32_BYTES
    return ModelDescription(
        name=name,
        weights=weights,
        weight_tensors=len(parameters),
        stages=network.stages,
        input_shape=tuple(inputs[0].amplitude.shape[1:]),
        channel_shapes=tuple(tuple(field.channels.shape[1:]) for field in inputs if field.channels is not None),
        output_shape=traces[-1].output_shape[1:],
        forward_flop_per_sample=forward_flop,
        train_flop_per_sample=3 * forward_flop,
        activation_bytes_per_sample=sum(trace.saved_bytes for trace in traces),
        weight_bytes=stored,
        gradient_bytes=stored,
        optimizer_bytes=2 * stored,
        average_bytes=stored,
        training_state_bytes=5 * stored,
        layers=layers + _unused_layers(network, counted),
    )


def _unused_layers(network: PotentialNetwork, counted: set[nn.Parameter]) -> tuple[Layer, ...]:
    """Layers whose weights no stage has used: named, so that the table adds up and the mistake is seen."""
    rows = []
    for name, module in network.named_modules():
        weights = sum(parameter.numel() for parameter in set(module.parameters(recurse=False)) - counted)
        if weights:
            rows.append(Layer(name or type(module).__name__, f"{type(module).__name__} (unused)", -1, (), weights, 0))
    return tuple(rows)


def format_description(description: ModelDescription) -> str:
    """The description as text for a terminal: a summary and a table of layers, in aligned columns."""
    several = description.stages > 1
    head = (["stage"] if several else []) + ["layer", "type", "output", "weights", "forward FLOP"]
    rows = [head]
    for layer in description.layers:
        stage = [str(layer.stage + 1) if layer.stage >= 0 else "-"] if several else []
        shape = _shape(layer.output_shape) if layer.output_shape else "-"
        rows.append([*stage, layer.name, layer.type, shape, f"{layer.weights:,}", short(layer.forward_flop)])
    return "\n".join([*_summary(description), "", *_aligned(rows, right=len(head) - 2)])


def _summary(d: ModelDescription) -> list[str]:
    channels = ", ".join(_shape(shape) for shape in dict.fromkeys(d.channel_shapes))
    rows = [
        ["network", d.name + (f", {d.stages} stages" if d.stages > 1 else "")],
        ["input", _shape(d.input_shape) + (f" and physics channels {channels}" if channels else "")],
        ["output", _shape(d.output_shape)],
        ["weights", f"{short(d.weights)} ({d.weights:,} in {d.weight_tensors} tensors)"],
        ["forward FLOP per sample", short(d.forward_flop_per_sample)],
        ["training FLOP per sample", f"{short(d.train_flop_per_sample)} (3 x forward)"],
        ["activations per sample", f"{_bytes(d.activation_bytes_per_sample)} kept for the backward pass, fp32"],
        ["training state", f"{_bytes(d.training_state_bytes)}: weights, gradients, two moments, average, fp32"],
    ]
    return _aligned(rows, right=len(rows[0]))


def _aligned(rows: Sequence[Sequence[str]], right: int) -> list[str]:
    """Rows as lines of equal columns, those from number `right` on to the right."""
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [c.ljust(w) if i < right else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True))]
        lines.append("  ".join(cells).rstrip())
    return lines


def short(value: float) -> str:
    """Three significant digits, as weights and FLOP are quoted: 2.29e7; nothing is 0."""
    if value == 0:
        return "0"
    mantissa, exponent = f"{value:.2e}".split("e")
    return f"{mantissa}e{int(exponent)}"


def _shape(shape: Sequence[int]) -> str:
    return " x ".join(str(size) for size in shape)


def _bytes(count: int) -> str:
    value, unit = float(count), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if value < 1024 or unit == "TiB":
            break
        value /= 1024
    return f"{value:.3g} {unit}"
