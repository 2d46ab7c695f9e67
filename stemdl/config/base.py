"""The base of every section of a configuration file, and the few field types they share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field


class Section(BaseModel):
    """A frozen, strict part of the configuration: unknown keys and loose types are errors."""

    model_config = ConfigDict(
        frozen=True, strict=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True
    )


def list_to_tuple(value: Any) -> Any:
    """YAML and JSON know lists alone; the strict models keep tuples, which cannot change."""
    return tuple(value) if isinstance(value, list) else value


# Not strict: YAML and JSON know text alone. A path is still text or a Path and nothing else.
FilePath = Annotated[Path, Field(strict=False)]
PositiveFloat = Annotated[float, Field(gt=0)]
NonNegativeFloat = Annotated[float, Field(ge=0)]
PositiveInt = Annotated[int, Field(gt=0)]
IntPair = Annotated[tuple[PositiveInt, PositiveInt], BeforeValidator(list_to_tuple)]
FloatRange = Annotated[tuple[PositiveFloat, PositiveFloat], BeforeValidator(list_to_tuple)]
Names = Annotated[tuple[str, ...], BeforeValidator(list_to_tuple)]
Paths = Annotated[tuple[FilePath, ...], BeforeValidator(list_to_tuple)]
Ints = Annotated[tuple[PositiveInt, ...], BeforeValidator(list_to_tuple)]
ZoneAxis = Annotated[tuple[int, int, int], BeforeValidator(list_to_tuple)]
ZoneAxes = Annotated[tuple[ZoneAxis, ...], Field(min_length=1), BeforeValidator(list_to_tuple)]
