"""The physics: constants, probe, differentiable multislice, detector, back-projection. No input or output."""

from __future__ import annotations
