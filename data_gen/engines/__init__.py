"""The engines that turn a specimen into diffraction patterns: same input, same output, chosen in the YAML file."""

from __future__ import annotations

from data_gen.engines.base import Engine, ImagingSetup, engine_by_name

__all__ = ["Engine", "ImagingSetup", "engine_by_name"]
