"""Sections that describe the networks and the physics they look through."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from stemdl.config.base import Ints, NonNegativeFloat, PositiveFloat, PositiveInt, Section


class BackProjection(Section):
    """Gradient steps on the misfit of the patterns, through a coarse differentiable multislice."""

    pixel_angstrom: PositiveFloat
    """Pixel of the coarse object grid in Å; the box divided by it must be a whole number."""
    slices: PositiveInt = 1
    """Number of slices of the coarse multislice, each in the middle of its slab."""
    start_v_per_angstrom: PositiveFloat = 10.0
    """Level of the flat start in V·Å per Å of thickness; patterns do not depend on it."""
    steps: PositiveInt = 8
    """Conjugate-gradient steps; the potentials after 1, 2, 4, ... and the last are channels."""


class ScanField(Section):
    """Our network: back-projection and scan features joined by a convolutional trunk."""

    name: Literal["scanfield"] = "scanfield"
    """The network's name in the registry."""
    features: PositiveInt = 64
    """Channels of a scan feature."""
    hidden: PositiveInt = 256
    """Hidden width of the encoder shared by all patterns."""
    trunk: PositiveInt = 32
    """Channels of the trunk on the object grid."""
    trunk_blocks: PositiveInt = 3
    """Convolutional blocks of the trunk."""
    pattern_pixels: PositiveInt = 24
    """Patterns are binned to this many pixels a side before the encoder."""
    stages: int = Field(default=2, ge=1, le=4)
    """Unrolled stages: each after the first sees the misfit's gradient at the answer before it."""
    back_projection: BackProjection
    """The physics that places the features."""


class FcDenseNet(Section):
    """The network of 2019: a fully convolutional dense net with scan positions as channels."""

    name: Literal["fc_densenet"] = "fc_densenet"
    """The network's name in the registry."""
    growth: PositiveInt = 128
    """Growth rate: channels that each dense layer adds."""
    kernel: Literal[1, 3, 5, 7] = 3
    """Side of the convolution kernels in pixels."""
    blocks: Ints = (2, 2, 3, 4, 3, 2, 2)
    """Layers of each dense block: encoder, bottleneck, decoder; an odd number of blocks."""
    dropout: float = Field(default=0.2, ge=0, lt=1)
    """Probability of dropping a channel after each dense layer."""

    @model_validator(mode="after")
    def _symmetric(self) -> Self:
        if len(self.blocks) % 2 == 0:
            raise ValueError(f"blocks: {len(self.blocks)} blocks, an even number: one of them is the bottleneck")
        return self


Network = Annotated[ScanField | FcDenseNet, Field(discriminator="name")]


class Train(Section):
    """Optimisation of the network."""

    steps: PositiveInt
    """Optimisation steps of each stage of the network."""
    batch: PositiveInt = 16
    """Fields per step."""
    optimizer: Literal["adamw", "sgd", "larc", "lamb"] = "adamw"
    """adamw; sgd with momentum; for large batches larc (SGD with a rate for each layer, at most lr) and lamb (Adam with
    a step for each layer as long as lr times its weights)."""
    lr: PositiveFloat = 3e-3
    """Highest learning rate, for a batch of lr_batch fields where it is scaled."""
    lr_scaling: Literal["none", "linear", "sqrt"] = "none"
    """How the highest rate grows with the batch over lr_batch."""
    lr_batch: PositiveInt = 16
    """Batch that lr is meant for, with lr_scaling."""
    schedule: Literal["cosine", "staircase", "constant"] = "cosine"
    """Of the rate after the warm-up: cosine to zero at the last step; staircase, times decay_factor after every
    decay_every_steps; constant."""
    decay_every_steps: PositiveInt = 1000
    """Steps of a stair."""
    decay_factor: float = Field(default=0.5, gt=0, le=1)
    """What a stair multiplies the rate by."""
    warmup_steps: int = Field(default=50, ge=0)
    """Steps of linear warm-up."""
    weight_decay: NonNegativeFloat = 0.05
    """Weight decay of the optimizer: decoupled in adamw and lamb, added to the gradient in sgd and larc."""
    momentum: float = Field(default=0.9, ge=0, lt=1)
    """Momentum of sgd and larc."""
    trust: PositiveFloat = 0.002
    """Of larc: a layer's step is at most this times the length of its weights."""
    clip_norm: NonNegativeFloat = 0.0
    """Gradients of the whole batch are shortened to this length; 0 leaves them as they are."""
    huber_beta: PositiveFloat = 0.3
    """Where the smooth L1 loss turns from square to linear, in units of the target."""
    mean_weight: NonNegativeFloat = 0.5
    """Weight of the error of a field's mean potential, beside that of its contrast; both over its own deviation."""
    root_weight: NonNegativeFloat = 0.3
    """Weight of the smooth L1 loss on the root of the potential."""
    hard_share: float = Field(default=0.5, ge=0, lt=1)
    """Share of each batch drawn by the square of the misfit that physics alone leaves; the rest takes all in turn."""
    ema_decay: float = Field(default=0.99, ge=0, lt=1)
    """Decay of the exponential moving average of the weights, which is what is used afterwards."""
    augment: bool = True
    """Transpose and flip scan, detector and potential together, at random."""
    validation_fraction: float = Field(default=0.06, gt=0, lt=0.5)
    """Share of the training materials used for the validation curve alone."""
    validate_every: PositiveInt = 200
    """Steps between two validations."""
    log_every: PositiveInt = 50
    """Steps between two lines of the log."""
    threads: int = Field(default=0, ge=0)
    """Threads of the training process; 0 means one for each usable core."""


class Reconstruct(Section):
    """How the trained network is applied."""

    symmetry_average: bool = True
    """Average over the eight transpositions and flips of scan and detector."""
    batch: PositiveInt = 16
    """Fields reconstructed at once."""


class Report(Section):
    """The page that shows a run."""

    fields_shown: PositiveInt = 6
    """Fields drawn in full: best, worst and quantiles between."""
