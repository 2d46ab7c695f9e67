"""The configuration: pydantic models (`root`), read from YAML (`loader`), hashed by section (`hashing`)."""

from __future__ import annotations

from stemdl.config.errors import ConfigError, Problem
from stemdl.config.hashing import STAGE_SECTIONS, config_hash, fingerprint, stage_hash
from stemdl.config.loader import load_config, save_config
from stemdl.config.root import Config

__all__ = [
    "STAGE_SECTIONS",
    "Config",
    "ConfigError",
    "Problem",
    "config_hash",
    "fingerprint",
    "load_config",
    "save_config",
    "stage_hash",
]
