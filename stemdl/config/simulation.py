"""Sections that say what is simulated: crystals, specimens, grids, the target, held-out fields."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from stemdl.config.base import (
    FloatRange,
    Names,
    NonNegativeFloat,
    Paths,
    PositiveFloat,
    PositiveInt,
    Section,
    ZoneAxes,
)

COMMON_ZONE_AXES = ((0, 0, 1), (1, 0, 0), (1, 1, 0), (0, 1, 1), (1, 1, 1))


class Crystals(Section):
    """Where crystals come from and which of them the network never sees in training."""

    library: bool = True
    """Use the built-in library of crystals."""
    cif_folders: Paths = ()
    """Folders of CIF files to use as well; relative paths start at this YAML file."""
    include: Names = ()
    """Only these crystals, by name; empty means all."""
    exclude: Names = ()
    """Crystals to leave out, by name."""
    balance: Literal["crystals", "materials"] = "crystals"
    """What has equally many fields: every crystal, or every material (formula), however many crystals it has."""
    held_out_fraction: float = Field(default=0.2, gt=0, lt=1)
    """Share of the materials (by formula) kept for the test alone."""

    @model_validator(mode="after")
    def _from_somewhere(self) -> Self:
        if not self.library and not self.cif_folders:
            raise ValueError("cif_folders: none, and the library is switched off: there are no crystals")
        return self


class SpecimenSection(Section):
    """How a specimen is cut out of an infinite crystal."""

    box_angstrom: PositiveFloat
    """Side of the square box in Å; the probe with its tails must fit in it around every position."""
    thickness_angstrom: FloatRange
    """Smallest and largest thickness in Å; drawn uniformly for each specimen, whole slices."""
    zone_axes: ZoneAxes = COMMON_ZONE_AXES
    """Lattice directions [uvw] along the beam to choose from."""
    tilt_mrad: NonNegativeFloat = 10.0
    """Standard deviation of the random tilt away from the zone axis, each of two components, in mrad."""
    displacement_sigma_angstrom: NonNegativeFloat = 0.07
    """Thermal displacement of the atoms: standard deviation per axis in Å."""

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        low, high = self.thickness_angstrom
        if low > high:
            raise ValueError(f"thickness_angstrom: the smallest ({low}) is above the largest ({high})")
        if (0, 0, 0) in self.zone_axes:
            raise ValueError("zone_axes: [0, 0, 0] is no direction")
        return self


class Sampling(Section):
    """The grid and the slices of a multislice calculation."""

    pixel_angstrom: PositiveFloat
    """Pixel of the simulation grid in Å; the box divided by it must be a whole number."""
    slice_angstrom: PositiveFloat
    """Thickness of a slice in Å."""
    frozen_phonons: PositiveInt = 1
    """Number of displaced configurations whose patterns are averaged."""


class Simulation(Sampling):
    """The training set: engine, sampling and amount."""

    engine: Literal["torch", "abtem"] = "torch"
    """Program that makes the patterns: "torch" (ours, batched) or "abtem" (the reference)."""
    parametrization: Literal["kirkland", "lobato"] = "kirkland"
    """Table of electron scattering factors."""
    samples: PositiveInt
    """Number of fields in the training set (validation included)."""
    samples_per_shard: PositiveInt = 64
    """Fields per shard file; an interrupted run loses at most one unsealed shard per process."""
    workers: int = Field(default=0, ge=0)
    """Processes that simulate on this machine; 0 means one for each usable core."""
    probe_chunk: PositiveInt = 16
    """Probe positions propagated at once: bounds the memory."""
    algorithm: Literal["auto", "multislice", "prism"] = "auto"
    """How the torch engine makes patterns: "auto" takes of multislice and exact PRISM what its cost model says is
    quicker for the sample."""
    prism_interpolation: PositiveInt = 1
    """PRISM's interpolation factor: 1 is exact, above it the probe sees a part of the box alone (an approximation)."""
    item_timeout_s: PositiveFloat = 3600.0
    """Longest time in s that one sample may take; beyond it, it is given up and named."""
    rank_timeout_s: PositiveFloat = 120.0
    """A rank that gives no sign of life for so long, in s, counts as lost; others do its samples."""


class HeldOut(Sampling):
    """Fields of unseen materials, simulated finer than anything the network computes with."""

    samples: PositiveInt = 64
    """Number of held-out fields."""


class Target(Section):
    """What the network predicts: the projected potential in V·Å at a stated resolution."""

    pixel_angstrom: PositiveFloat
    """Pixel of the potential in Å."""
    blur_sigma_angstrom: NonNegativeFloat
    """Standard deviation in Å of the Gaussian that sets the resolution of the potential."""
