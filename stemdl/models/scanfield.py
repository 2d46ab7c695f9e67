"""`scanfield`: physics places what the patterns say.

Two halves meet on the grid of the potential. (a) Physics channels: pictures of the potential made by a few gradient
steps through the multislice model (`stemdl.physics.iterate`). (b) Scan features: one small encoder shared by all
patterns gives a feature vector at each scan position, upsampled to the grid by convolutions. A convolutional trunk
joins them. Everything is local and shift-equivariant, so it works on scans of any size. Later stages are given
physics channels that start from the answer of the stage before (an unrolled, learned proximal scheme; compare
Adler and Öktem, IEEE Trans. Med. Imaging 37, 1322, 2018).
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from stemdl.config import Config
from stemdl.config.network import ScanField as ScanFieldSection
from stemdl.models.base import FieldInputs, PotentialNetwork
from stemdl.models.scan_physics import field_pixels, kept_steps

AMPLITUDE_GAIN = 31.6
"""Amplitudes of fractions of the beam are small; this brings the bright disc of a binned pattern to order one."""

DARK_QUANTILE = 0.05
"""Share of the pixels of a field taken as free of atoms: their level is the zero of the physics' answer."""

CONTEXT_POSITIONS = 7
"""Side in scan positions of the neighbourhood whose mean features tell the trunk which material it sees: patterns fix
the potential up to a constant, and only the material fixes that."""

SMALLEST_CONTRAST_V_ANGSTROM = 1.0
"""A field with less contrast is taken as empty: its noise is not blown up to order one."""


def _groups(channels: int) -> int:
    """Groups for GroupNorm: eight where they divide the channels, fewer otherwise."""
    return next(groups for groups in (8, 4, 2, 1) if channels % groups == 0)


class ConvBlock(nn.Module):
    """3x3 convolution, GroupNorm, ReLU, with a residual connection where the widths agree.

    GroupNorm, not BatchNorm: fields of light and heavy elements differ so much that batch statistics mislead.
    """

    def __init__(self, channels_in: int, channels_out: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels_in, channels_out, 3, padding=1, bias=False)
        self.norm = nn.GroupNorm(_groups(channels_out), channels_out)
        self.residual = channels_in == channels_out

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(b, c, y, x) to (b, c', y, x)."""
        y = functional.relu(self.norm(self.conv(x)))
        return x + y if self.residual else y


class PatternEncoder(nn.Module):
    """One pattern to one feature vector: binned, flattened, two linear layers; the same for every position."""

    def __init__(self, detector_pixels: tuple[int, int], pattern_pixels: int, hidden: int, features: int) -> None:
        super().__init__()
        self.binned = (min(pattern_pixels, detector_pixels[0]), min(pattern_pixels, detector_pixels[1]))
        self.layers = nn.Sequential(
            nn.Linear(self.binned[0] * self.binned[1], hidden), nn.ReLU(), nn.Linear(hidden, features)
        )

    def forward(self, amplitude: torch.Tensor) -> torch.Tensor:
        """(b, sy, sx, qy, qx) amplitudes to (b, f, sy, sx) features."""
        batch, sy, sx = amplitude.shape[:3]
        flat = amplitude.reshape(batch * sy * sx, 1, *amplitude.shape[3:])
        binned = functional.adaptive_avg_pool2d(flat, self.binned).flatten(1)
        features: torch.Tensor = self.layers(binned * AMPLITUDE_GAIN)
        return features.reshape(batch, sy, sx, -1).permute(0, 3, 1, 2)


class Upsampler(nn.Module):
    """Scan grid to the potential's grid: pixel shuffles by prime factors, convolutions on each grid between.

    The encoder's features are unfolded by the first shuffle at once: a vector of a position describes the square around
    it, so it is wide, and convolutions on the coarse grid would cost most and see least.
    """

    def __init__(self, features: int, trunk: int, factor: int, blocks: int) -> None:
        super().__init__()
        primes = _prime_factors(factor)
        self.width_in = features * (primes[0] ** 2 if primes else 1)
        layers: list[nn.Module] = []
        for index, prime in enumerate(primes):
            if index > 0:
                layers.append(nn.Conv2d(features, trunk * prime**2, 1))
            layers.append(nn.PixelShuffle(prime))
            features = features if index == 0 else trunk
            if index == 0 or index + 1 < len(primes):
                layers += [ConvBlock(features, features) for _ in range(blocks)]
        self.layers = nn.Sequential(*layers)
        self.width = features

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """(b, width_in, sy, sx) to (b, width, y, x)."""
        result: torch.Tensor = self.layers(features)
        return result


def _prime_factors(number: int) -> list[int]:
    factors = []
    for prime in range(2, number + 1):
        while number % prime == 0:
            factors.append(prime)
            number //= prime
    return factors


class Stage(nn.Module):
    """One stage: encoder and upsampler for the patterns, a trunk over them and the physics channels."""

    def __init__(
        self,
        *,
        detector_pixels: tuple[int, int],
        pattern_pixels: int,
        hidden: int,
        features: int,
        trunk: int,
        trunk_blocks: int,
        factor: int,
        channels: int,
    ) -> None:
        super().__init__()
        self.upsampler = Upsampler(features, trunk, factor, trunk_blocks)
        self.encoder = PatternEncoder(detector_pixels, pattern_pixels, hidden, self.upsampler.width_in)
        self.context = nn.Conv2d(self.upsampler.width_in, trunk, 1)
        self.join = ConvBlock(self.upsampler.width + trunk + channels, trunk)
        self.trunk = nn.Sequential(*(ConvBlock(trunk, trunk) for _ in range(trunk_blocks)))
        self.head = nn.Conv2d(trunk + channels, 2, 3, padding=1)
        # The stage starts as the identity: its first answer is the physics channel 0, and learning departs from there.
        nn.init.zeros_(self.head.weight)
        if self.head.bias is not None:
            nn.init.zeros_(self.head.bias)

    def forward(
        self, amplitude: torch.Tensor, channels: torch.Tensor, relative_step: torch.Tensor | None = None
    ) -> torch.Tensor:
        """(b, y, x) square root of the potential over the scale.

        channels[:, 0] is the same quantity as physics alone has it; the stage multiplies and corrects it.
        relative_step: (b,) scan steps over the one that the field is divided by, None where they are the same.
        """
        features = self.encoder(amplitude)
        if relative_step is not None:
            features = on_nominal_raster(features, relative_step)
        around = functional.avg_pool2d(
            features, CONTEXT_POSITIONS, stride=1, padding=CONTEXT_POSITIONS // 2, count_include_pad=False
        )
        context = functional.interpolate(self.context(around), size=channels.shape[-2:], mode="nearest")
        joined = self.trunk(self.join(torch.cat([self.upsampler(features), context, channels], dim=1)))
        gain, correction = self.head(torch.cat([joined, channels], dim=1)).unbind(dim=1)
        return functional.relu(channels[:, 0] * (1 + gain) + correction)


def on_nominal_raster(features: torch.Tensor, relative_step: torch.Tensor) -> torch.Tensor:
    """(b, f, sy, sx) features of scans whose steps are `relative_step` (b,) times the nominal one, where a scan of the
    nominal step about the same middle has its positions: linear between positions, beyond the border its value."""
    weights = []
    for count in features.shape[2:]:
        index = torch.arange(count, dtype=features.dtype, device=features.device)
        middle = (count - 1) / 2
        place = ((index - middle) / relative_step.to(features)[:, None] + middle).clamp(0, count - 1)  # (b, count)
        weights.append((1 - (place[:, None, :, None] - index).abs()).clamp_min(0))  # (b, 1, nominal, own)
    rows, columns = weights
    return rows @ features @ columns.mT


class ScanField(PotentialNetwork):
    """The whole network: independent stages, each with its own weights.

    `FieldInputs.channels` holds the raw pictures of `stemdl.models.scan_physics.ScanPhysics`, in V·Å; the network
    brings them to order one with its own scale. They are made with each field's own optics, which is how the network
    knows them; of a drawn scan step it is told, and puts its features where they were recorded.
    """

    def __init__(self, config: Config) -> None:
        super().__init__()
        section = config.network
        assert isinstance(section, ScanFieldSection)
        self.stages = section.stages
        self.field_pixels = field_pixels(config)
        self._drawn_about = None if config.vary.step_angstrom is None else config.scan.step_angstrom
        self._steps_kept = len(kept_steps(section.back_projection.steps))
        self.parts = nn.ModuleList(
            Stage(
                detector_pixels=config.detector.pixels,
                pattern_pixels=section.pattern_pixels,
                hidden=section.hidden,
                features=section.features,
                trunk=section.trunk,
                trunk_blocks=section.trunk_blocks,
                factor=self.field_pixels[0] // config.scan.positions[0],
                channels=self._potentials(stage) + 5,
            )
            for stage in range(section.stages)
        )

    def _potentials(self, stage: int) -> int:
        """Potentials among the pictures: those of the physics' steps, after the first stage the answer before them."""
        return self._steps_kept + (1 if stage > 0 else 0)

    def channel_count(self, stage: int = 0) -> int:
        """Pictures that the stage is given: potentials, gradient, residual."""
        return self._potentials(stage) + 2

    def stage_module(self, stage: int) -> nn.Module:
        """The stage itself: each has its own weights."""
        return self.parts[stage]

    def forward(self, inputs: FieldInputs, stage: int = 0) -> torch.Tensor:
        """(b, y, x) square root of the potential over the scale, as `stage` has it."""
        assert inputs.channels is not None
        contrast = self._contrast(inputs.channels, stage)
        channels = self._relative(inputs.channels, contrast, stage)
        answer: torch.Tensor = self.parts[stage](inputs.amplitude, channels, self._relative_step(inputs))
        return answer * (contrast / self.scale_v_angstrom).sqrt().reshape(-1, 1, 1)

    def _relative_step(self, inputs: FieldInputs) -> torch.Tensor | None:
        """(b,) scan steps over that of the configuration; None where it draws none, and no look at the numbers."""
        if self._drawn_about is None or inputs.scan_step_angstrom is None:
            return None
        return inputs.scan_step_angstrom / self._drawn_about

    def _reference(self, stage: int) -> int:
        """Index of the potential that the stage corrects: the physics' last one, later the answer before it."""
        return self._steps_kept - 1 if stage == 0 else 0

    def _contrast(self, pictures: torch.Tensor, stage: int) -> torch.Tensor:
        """(b, 1, 1, 1) standard deviation in V·Å of the reference: the unit in which a field is seen.

        Normalised features know no magnitude, but the constant that patterns do not fix goes with the contrast of
        the material. In this unit it is a property of the structure, which a network can learn.
        """
        reference = pictures[:, self._reference(stage)].unsqueeze(1)
        return reference.std(dim=(2, 3), keepdim=True).clamp_min(SMALLEST_CONTRAST_V_ANGSTROM)

    def _relative(self, pictures: torch.Tensor, contrast: torch.Tensor, stage: int) -> torch.Tensor:
        """(b, c, y, x) raw pictures to (b, c + 3, y, x) channels of order one, in units of the contrast.

        First the root of the reference: above its dark level for the first stage, whose constant means nothing, as it
        is for later ones. Then signed roots of all potentials about their mean, the reference about its mean, the
        gradient over its own deviation, and logarithms of the residual and of the contrast.
        """
        count = self._potentials(stage)
        potentials = pictures[:, :count] / contrast
        reference = potentials[:, self._reference(stage)].unsqueeze(1)
        dark: torch.Tensor | float = 0.0
        if stage == 0:
            flat = reference.flatten(1)
            dark = flat.kthvalue(max(1, round(DARK_QUANTILE * flat.shape[1])), dim=1).values.reshape(-1, 1, 1, 1)
        centred = potentials - potentials.mean(dim=(2, 3), keepdim=True)
        signed = centred.sign() * (centred.abs() + 1e-6).sqrt()
        residual = 0.2 * (pictures[:, count + 1 :] + 1e-6).log() + 1.0
        return torch.cat(
            [
                functional.relu(reference - dark).sqrt(),
                signed,
                reference - reference.mean(dim=(2, 3), keepdim=True),
                0.3 * _per_deviation(pictures[:, count : count + 1]),
                residual,
                (contrast / self.scale_v_angstrom).log().expand_as(reference),
            ],
            dim=1,
        )


def _per_deviation(picture: torch.Tensor) -> torch.Tensor:
    """(b, 1, y, x) divided by its own standard deviation, an empty picture left empty."""
    return picture / picture.std(dim=(2, 3), keepdim=True).clamp_min(1e-12)


def scanfield(config: Config) -> ScanField:
    """The `scanfield` network of a configuration; raises NetworkConfigError where scan and target do not fit it."""
    return ScanField(config)
