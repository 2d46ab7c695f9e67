"""Networks from diffraction patterns to potentials: what they share (`base`), one file for each, one registry.

`describe` counts weights, FLOP and memory of any of them without taking memory.
"""

from __future__ import annotations

from stemdl.models.base import FieldInputs, PotentialNetwork
from stemdl.models.errors import NetworkConfigError
from stemdl.models.registry import build_network

__all__ = ["FieldInputs", "NetworkConfigError", "PotentialNetwork", "build_network"]
