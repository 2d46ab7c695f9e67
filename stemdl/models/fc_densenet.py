"""`fc_densenet`: the network of 2019, a fully convolutional dense net with scan positions as channels.

After Laanait et al., arXiv:1909.11150 (2019), on the plan of Jégou et al., "The One Hundred Layers Tiramisu",
arXiv:1611.09326 (2017): a first convolution, dense blocks with poolings between them down to a bottleneck, and the
same way back up with the stacks of the way down joined in.

The published weights and FLOP (2.29e7 and 8.0e12 for growth 128 and kernel 3 at 1024 x 512 x 512, and six more
combinations) fix: the first convolution has `growth` channels and the kernel of the dense layers; a transition down
keeps its channels; a transition up is given the new features of the block before it, without that block's input, and
keeps their number, with a 1x1 kernel at stride 2; 26 convolutions with biases, 52 tensors of weights. Other widths,
kernels and joins differ in the published digits. A multiply-add is two FLOP, a transposed convolution is counted on
its input, training is three forward passes. What the counts leave open is the last convolution: it is 1x1, as the
public code says, and sees the whole last stack, as in Jégou et al.

It is given patterns and nothing else: optics, scan step and thickness that differ between samples it must tell from
them.

Ours, and without weights: the patterns are scaled to order one, and a softplus makes the answer positive, since it is
the root of a potential.
"""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional

from stemdl.config import Config
from stemdl.config.network import FcDenseNet as FcDenseNetSection
from stemdl.models.base import FieldInputs, PotentialNetwork
from stemdl.models.errors import NetworkConfigError


class DenseLayer(nn.Module):
    """ReLU, convolution to `growth` channels, dropout of whole channels."""

    def __init__(self, channels: int, growth: int, kernel: int, dropout: float) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, growth, kernel, padding=kernel // 2)
        self.dropout = nn.Dropout2d(dropout)

    def forward(self, features: list[torch.Tensor]) -> torch.Tensor:
        """Features (b, c_i, y, x), all joined, to (b, growth, y, x)."""
        # In place: the joined copy is this layer's own, and at full size every copy is hundreds of megabytes.
        stack = torch.cat(features, dim=1).relu_()
        new: torch.Tensor = self.dropout(self.conv(stack))
        return new


class DenseBlock(nn.Module):
    """Dense layers, each of which sees the block's input and all that the layers before it made."""

    def __init__(self, channels: int, layers: int, growth: int, kernel: int, dropout: float) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            DenseLayer(channels + layer * growth, growth, kernel, dropout) for layer in range(layers)
        )

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        """(b, c, y, x) to the list of x and what each layer made, (b, growth, y, x) each."""
        features = [x]
        for layer in self.layers:
            features.append(layer(features))
        return features


class TransitionDown(nn.Module):
    """ReLU, 1x1 convolution that keeps the channels, dropout, pooling by two."""

    def __init__(self, channels: int, dropout: float) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 1)
        self.dropout = nn.Dropout2d(dropout)

    def forward(self, stack: torch.Tensor) -> torch.Tensor:
        """(b, c, y, x) to (b, c, y/2, x/2)."""
        return functional.max_pool2d(self.dropout(self.conv(functional.relu(stack))), 2)


class FcDenseNet(PotentialNetwork):
    """The fully convolutional dense net: patterns as channels in, a potential on the pixels of the detector out.

    `blocks` are the layers of each dense block, bottleneck in the middle: (n - 1) / 2 poolings by two.
    """

    def __init__(
        self, *, positions: tuple[int, int], growth: int, kernel: int, blocks: tuple[int, ...], dropout: float
    ) -> None:
        super().__init__()
        self.positions = positions
        self.pools = len(blocks) // 2
        self.first = nn.Conv2d(math.prod(positions), growth, kernel, padding=kernel // 2)
        self.down_blocks, self.downs = nn.ModuleList(), nn.ModuleList()
        self.ups, self.up_blocks = nn.ModuleList(), nn.ModuleList()
        channels = growth
        stacks: list[int] = []
        for layers in blocks[: self.pools]:
            self.down_blocks.append(DenseBlock(channels, layers, growth, kernel, dropout))
            channels += layers * growth
            stacks.append(channels)
            self.downs.append(TransitionDown(channels, dropout))
        self.bottleneck = DenseBlock(channels, blocks[self.pools], growth, kernel, dropout)
        new, channels = blocks[self.pools] * growth, channels + blocks[self.pools] * growth
        for layers in blocks[self.pools + 1 :]:
            # A 1x1 kernel at stride 2 fills one output pixel of four; the skipped stack is what fills the others.
            self.ups.append(nn.ConvTranspose2d(new, new, 1, stride=2, output_padding=1))
            channels = new + stacks.pop()
            self.up_blocks.append(DenseBlock(channels, layers, growth, kernel, dropout))
            new, channels = layers * growth, channels + layers * growth
        self.last = nn.Conv2d(channels, 1, 1)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw all weights anew: He et al., arXiv:1502.01852 (2015), eq. 10; biases zero."""
        for module in self.modules():
            if isinstance(module, nn.Conv2d | nn.ConvTranspose2d):
                fan_in = module.in_channels * math.prod(module.kernel_size)
                nn.init.normal_(module.weight, std=math.sqrt(2 / fan_in))
                assert module.bias is not None
                nn.init.zeros_(module.bias)

    def forward(self, inputs: FieldInputs, stage: int = 0) -> torch.Tensor:
        """(b, qy, qx) square root of the potential over the scale; the only stage is 0.

        Raises NetworkConfigError for another number of positions, or pixels that cannot be halved `pools` times.
        """
        assert stage == 0
        batch, sy, sx, qy, qx = inputs.amplitude.shape
        if (sy, sx) != self.positions:
            found, allowed = f"{sy} x {sx} positions", f"{self.positions[0]} x {self.positions[1]}, its input channels"
            raise NetworkConfigError("scan.positions", found, f"{allowed}: fc_densenet is bound to one scan")
        check_halving((qy, qx), self.pools)
        # A pattern sums to about 1 (noise and hot pixels aside, to less), so its root mean square amplitude over n
        # pixels is about 1/√n.
        x = self.first(inputs.amplitude.reshape(batch, sy * sx, qy, qx) * math.sqrt(qy * qx))
        stacks: list[torch.Tensor] = []
        for block, down in zip(self.down_blocks, self.downs, strict=True):
            stacks.append(torch.cat(block(x), dim=1))
            x = down(stacks[-1])
        features = self.bottleneck(x)
        for up, block in zip(self.ups, self.up_blocks, strict=True):
            features = block(torch.cat([up(torch.cat(features[1:], dim=1)), stacks.pop()], dim=1))
        return functional.softplus(self.last(torch.cat(features, dim=1))).squeeze(1)


def check_halving(pixels: tuple[int, int], pools: int) -> None:
    """Raise NetworkConfigError unless patterns of (qy, qx) pixels can be halved `pools` times."""
    fold = 2**pools
    if any(count % fold for count in pixels):
        nearest = " x ".join(str(max(1, round(count / fold)) * fold) for count in pixels)
        found = f"{pixels[0]} x {pixels[1]}, halved {pools} times by fc_densenet"
        raise NetworkConfigError("detector.pixels", found, f"multiples of {fold}, such as {nearest}")


def fc_densenet(config: Config) -> FcDenseNet:
    """The network that the configuration describes.

    Raises NetworkConfigError where the detector's pixels cannot be halved as often as it pools, or where the target
    has another number of pixels than the detector: this network answers on the pixels it is given.
    """
    section = config.network
    assert isinstance(section, FcDenseNetSection)
    pixels = config.detector.pixels
    check_halving(pixels, len(section.blocks) // 2)
    field = config.scan.field_angstrom
    target = tuple(round(extent / config.target.pixel_angstrom) for extent in field)
    if target != pixels:
        found = f"{config.target.pixel_angstrom:g} Å, which makes {target[0]} x {target[1]} pixels of potential"
        wanted = dict.fromkeys(f"{extent / count:.10g}" for extent, count in zip(field, pixels, strict=True))
        allowed = f"{' and '.join(wanted)} Å: fc_densenet answers on the {pixels[0]} x {pixels[1]} detector pixels"
        raise NetworkConfigError("target.pixel_angstrom", found, allowed)
    return FcDenseNet(
        positions=config.scan.positions,
        growth=section.growth,
        kernel=section.kernel,
        blocks=section.blocks,
        dropout=section.dropout,
    )
