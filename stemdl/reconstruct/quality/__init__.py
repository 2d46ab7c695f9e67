"""How close a predicted potential is to the true one: five figures a field, their spread, and who is better."""

from __future__ import annotations

from stemdl.reconstruct.quality.fourier import fourier_ring_correlation, resolution_angstrom
from stemdl.reconstruct.quality.pixels import nrmse, pearson_r, ssim
from stemdl.reconstruct.quality.scores import FieldQuality, score, share_better, summarise

__all__ = [
    "FieldQuality",
    "fourier_ring_correlation",
    "nrmse",
    "pearson_r",
    "resolution_angstrom",
    "score",
    "share_better",
    "ssim",
    "summarise",
]
