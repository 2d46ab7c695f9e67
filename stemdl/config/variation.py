"""Quantities that are drawn anew for every sample: ranges and choices around the values of the other sections."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any, Self

from pydantic import (
    BeforeValidator,
    Field,
    TypeAdapter,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from stemdl.config.base import Section, list_to_tuple
from stemdl.config.instrument import Detector, Microscope, Scan
from stemdl.config.simulation import SpecimenSection

Pair = Annotated[tuple[float, float], BeforeValidator(list_to_tuple)]
Choices = Annotated[tuple[float, ...], Field(min_length=1), BeforeValidator(list_to_tuple)]

OUT_OF_LIMITS = "drawn_value_out_of_limits"
"""Kind of the validation error of a draw that its section would not take; `ctx` has value, section and name."""


class Draw(Section):
    """How a quantity is drawn: exactly one of the three keys."""

    uniform: Pair | None = None
    """Smallest and largest value; every value between is equally likely."""
    log_uniform: Pair | None = None
    """Smallest and largest value, both above zero; every factor between is equally likely."""
    choice: Choices | None = None
    """Values of which one is taken, each equally likely."""

    @model_validator(mode="after")
    def _one_of_three(self) -> Self:
        given = [name for name in ("uniform", "log_uniform", "choice") if getattr(self, name) is not None]
        if len(given) != 1:
            found = " and ".join(given) or "no key"  # of the section as a whole: no name before the colon
            raise ValueError(f": {found} given, exactly one of the three is needed")
        for name in ("uniform", "log_uniform"):
            pair = getattr(self, name)
            if pair is not None and pair[0] > pair[1]:
                raise ValueError(f"{name}: the smallest ({pair[0]:g}) is above the largest ({pair[1]:g})")
        if self.log_uniform is not None and self.log_uniform[0] <= 0:
            raise ValueError(f"log_uniform: {self.log_uniform[0]:g} is not above zero")
        return self

    @property
    def values(self) -> tuple[float, ...]:
        """The numbers that were given: both ends of a range, or all choices."""
        values = self.uniform or self.log_uniform or self.choice
        assert values is not None
        return values

    @property
    def limits(self) -> tuple[float, float]:
        """Smallest and largest value that can be drawn."""
        return min(self.values), max(self.values)

    def nearest(self, value: float) -> float:
        """The value nearest to the one given that can be drawn."""
        if self.choice is not None:
            return min(self.choice, key=lambda one: abs(one - value))
        low, high = self.limits
        return min(high, max(low, value))

    def at(self, quantile: float) -> float:
        """The value at a quantile in [0, 1): a uniform random number there gives a draw."""
        if self.choice is not None:
            return self.choice[min(len(self.choice) - 1, int(quantile * len(self.choice)))]
        low, high = self.limits
        if self.uniform is not None:
            return min(high, low + quantile * (high - low))
        return min(high, max(low, math.exp(math.log(low) + quantile * (math.log(high) - math.log(low)))))


class Vary(Section):
    """Quantities drawn for every sample in place of the one value in their own section; null keeps that value.

    Thickness has its range in specimen.thickness_angstrom. What is drawn is stored with every sample.
    """

    energy_kev: Draw | None = None
    """Beam energy in keV, in place of microscope.energy_kev."""
    semiangle_mrad: Draw | None = None
    """Convergence semi-angle in mrad, in place of microscope.semiangle_mrad."""
    defocus_angstrom: Draw | None = None
    """Defocus in Å, in place of microscope.defocus_angstrom."""
    c3_angstrom: Draw | None = None
    """Third-order spherical aberration in Å, in place of microscope.c3_angstrom."""
    astigmatism_angstrom: Draw | None = None
    """Two-fold astigmatism in Å, in place of microscope.astigmatism_angstrom."""
    astigmatism_azimuth_rad: Draw | None = None
    """Azimuth of the astigmatism in rad, in place of microscope.astigmatism_azimuth_rad."""
    source_sigma_angstrom: Draw | None = None
    """Effective source size in Å, in place of microscope.source_sigma_angstrom."""
    step_angstrom: Draw | None = None
    """Scan step in Å, in place of scan.step_angstrom; the potential keeps the field of that one."""
    jitter_sigma_angstrom: Draw | None = None
    """Jitter of the probe in Å, in place of scan.jitter_sigma_angstrom."""
    drift_angstrom: Draw | None = None
    """Drift over the scan in Å, in place of scan.drift_angstrom."""
    tilt_mrad: Draw | None = None
    """Standard deviation of the random tilt in mrad, in place of specimen.tilt_mrad."""
    displacement_sigma_angstrom: Draw | None = None
    """Thermal displacement in Å, in place of specimen.displacement_sigma_angstrom."""
    dose_e_per_a2: Draw | None = None
    """Dose in e/Å², in place of detector.dose_e_per_a2; like that one applied when samples are loaded."""

    @field_validator("*")
    @classmethod
    def _within_limits(cls, draw: Draw | None, info: ValidationInfo) -> Draw | None:
        """What may be drawn is what the section of the quantity takes."""
        assert info.field_name is not None
        for value in () if draw is None else draw.values:
            try:
                _value_of(info.field_name).validate_python(value)
            except ValidationError as error:
                context = {"value": value, "section": SECTION_OF[info.field_name], "name": info.field_name}
                message = "{value} is outside the limits of {section}.{name}"
                raise PydanticCustomError(OUT_OF_LIMITS, message, context) from error
        return draw

    @property
    def draws(self) -> Mapping[str, Draw]:
        """What is drawn, by name, in the order of the keys."""
        named = ((name, getattr(self, name)) for name in type(self).model_fields)
        return {name: draw for name, draw in named if draw is not None}


SECTION_OF: Mapping[str, str] = {
    **dict.fromkeys(
        (
            "energy_kev",
            "semiangle_mrad",
            "defocus_angstrom",
            "c3_angstrom",
            "astigmatism_angstrom",
            "astigmatism_azimuth_rad",
            "source_sigma_angstrom",
        ),
        "microscope",
    ),
    **dict.fromkeys(("step_angstrom", "jitter_sigma_angstrom", "drift_angstrom"), "scan"),
    **dict.fromkeys(("tilt_mrad", "displacement_sigma_angstrom"), "specimen"),
    "dose_e_per_a2": "detector",
}
"""The section whose value of the same name a draw takes the place of."""

_SECTIONS: Mapping[str, type[Section]] = {
    "microscope": Microscope,
    "scan": Scan,
    "specimen": SpecimenSection,
    "detector": Detector,
}


@cache
def _value_of(name: str) -> TypeAdapter[Any]:
    """Checks a value against the limits of the key of this name in its section."""
    field = _SECTIONS[SECTION_OF[name]].model_fields[name]
    limited: Any = Annotated[(field.annotation, field)]
    return TypeAdapter(limited)
