"""Training: data, one optimisation step, the loop over stages, checkpoints."""

from __future__ import annotations
