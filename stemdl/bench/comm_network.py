"""The communication model's work: a network's gradients, when each is there in the backward pass, and a step's time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from types import MappingProxyType

from stemdl.bench.comm_machines import Source

BLOCKS = (2, 2, 3, 4, 3, 2, 2)
POSITIONS, PIXELS = 1024, 512
TRAINING_PASSES = 3
"""Forward passes that a training step is counted as."""


@dataclass(frozen=True)
class Layer:
    """One convolution: a weight and a bias."""

    name: str
    weights: int
    biases: int
    flop: float
    """Of a training step on one sample."""


def fc_densenet_layers(
    growth: int, kernel: int, *, positions: int = POSITIONS, pixels: int = PIXELS, blocks: tuple[int, ...] = BLOCKS
) -> list[Layer]:
    """The convolutions of `stemdl.models.fc_densenet`, in order of the forward pass, without building it."""
    layers: list[Layer] = []

    def add(name: str, channels_in: int, channels_out: int, size: int, side: int) -> None:
        weights = channels_in * channels_out * size**2
        layers.append(Layer(name, weights, channels_out, TRAINING_PASSES * 2.0 * weights * side**2))

    def block(name: str, channels: int, count: int, side: int) -> None:
        for layer in range(count):
            add(f"{name}.{layer}", channels + layer * growth, growth, kernel, side)

    pools, channels, side = len(blocks) // 2, growth, pixels
    add("first", positions, growth, kernel, side)
    stacks: list[int] = []
    for level, count in enumerate(blocks[:pools]):
        block(f"down.{level}", channels, count, side)
        channels += count * growth
        stacks.append(channels)
        add(f"pool.{level}", channels, channels, 1, side)
        side //= 2
    block("bottleneck", channels, blocks[pools], side)
    new, channels = blocks[pools] * growth, channels + blocks[pools] * growth
    for level, count in enumerate(blocks[pools + 1 :]):
        add(f"up.{level}", new, new, 1, side)
        side *= 2
        channels = new + stacks.pop()
        block(f"back.{level}", channels, count, side)
        new, channels = count * growth, channels + count * growth
    add("last", channels, 1, 1, side)
    return layers


@dataclass(frozen=True)
class Gradients:
    """What becomes ready together: the gradients of one layer."""

    name: str
    elements: tuple[int, ...]
    """Of each tensor."""
    ready: float
    """Part of the backward pass after which they are there."""


@dataclass(frozen=True)
class Workload:
    """A training step on one rank."""

    name: str
    gradients: tuple[Gradients, ...]
    """In the order in which they become ready."""
    compute_s: float
    """Of a step without any exchange."""
    backward_share: float = 2 / 3
    """Of the computation; the forward pass comes before it."""
    wire_bytes: float = 2.0
    """An element's on the wire."""
    requests_per_gradient: float = 1.0
    """1 but in the sensitivity table."""
    sources: Mapping[str, Source] = field(default_factory=dict)
    """By field."""

    @property
    def tensors(self) -> int:
        """Gradients of a step."""
        return sum(len(one.elements) for one in self.gradients)

    @property
    def elements(self) -> int:
        """Weights in all."""
        return sum(sum(one.elements) for one in self.gradients)


def workload_of(
    name: str, layers: list[Layer], flop_per_s: float, *, sources: Mapping[str, Source] | None = None
) -> Workload:
    """A step of one sample at a rate of computing; in the backward pass each layer takes its share of the FLOP."""
    backwards = layers[::-1]
    total = sum(layer.flop for layer in layers)
    ends = accumulate(layer.flop / total for layer in backwards)
    gradients = tuple(
        Gradients(layer.name, (layer.weights, layer.biases), min(1.0, end))
        for layer, end in zip(backwards, ends, strict=True)
    )
    return Workload(name, gradients, total / flop_per_s, sources=MappingProxyType(dict(sources or {})))


# 2.33e8 weights and 7.5e13 FLOP: the preset that the published "about 220 million weights" point to.
_LAYERS_2019 = fc_densenet_layers(growth=256, kernel=5)
V100_FLOP_PER_S = 1.54e18 / 27_600
GCD_FLOP_PER_S = V100_FLOP_PER_S / 125e12 * 191.5e12

_SOURCES = {
    "backward_share": Source("assumed", "a backward pass is two forward passes, as the original counts its FLOP"),
    "wire_bytes": Source("public", "the original's job scripts: gradients are sent as fp16"),
    "requests_per_gradient": Source(
        "public", "the original's network generator: 26 convolutions, each with a weight and a bias: 52 gradients"
    ),
}
STEP_ON_V100 = workload_of(
    "fc_densenet, growth 256, kernel 5, 1024x512x512, batch 1, V100",
    _LAYERS_2019,
    V100_FLOP_PER_S,
    sources={
        **_SOURCES,
        "compute_s": Source(
            "public",
            "7.5e13 FLOP of a sample (the original's way to count) at 1.54 EFLOP/s / 27,600, the published sustained"
            " rate. That rate has the exchange in it, so the time is at most as much too long as that cost",
        ),
    },
)
STEP_ON_GCD = workload_of(
    "fc_densenet, growth 256, kernel 5, 1024x512x512, batch 1, MI250X GCD",
    _LAYERS_2019,
    GCD_FLOP_PER_S,
    sources={
        **_SOURCES,
        "compute_s": Source("assumed", "the same part of the peak as on the V100: 45 % of 191.5 TFLOP/s (fp16)"),
    },
)

# The network of the public logs (2019-03): 12 GPUs trained 36.8 samples/s.
LOGGED_STEP_ON_V100 = workload_of(
    "fc_densenet, growth 128, kernel 3, 1024x512x512, batch 1, V100",
    fc_densenet_layers(growth=128, kernel=3),
    8.0e12 * 36.8 / 12,
    sources={
        **_SOURCES,
        "compute_s": Source(
            "public", "the original's logs: 36.8 samples/s on 12 GPUs, 0.33 s for a step, the exchange in it"
        ),
    },
)
