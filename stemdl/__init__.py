"""stemdl: from 4D-STEM diffraction patterns to the projected electrostatic potential."""

from __future__ import annotations

__version__ = "0.1.0"
