"""The figures of one field, their spread over many, and the share of fields on which one method beats another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import ArrayLike

from stemdl.reconstruct.quality.fourier import fourier_ring_correlation, resolution_angstrom
from stemdl.reconstruct.quality.pixels import as_image_pair, nrmse, pearson_r, ssim


@dataclass(frozen=True)
class FieldQuality:
    """How good the reconstruction of one field is."""

    pearson_r: float
    """Pearson's correlation with the truth; 0 for a constant prediction."""
    nrmse: float
    """Rms error over the truth's standard deviation."""
    ssim: float
    """Structural similarity with data range truth.max() - truth.min()."""
    frc_half_angstrom: float
    """Resolution in Å: where the Fourier ring correlation falls below 0.5 for good; two pixels (Nyquist) if never."""
    mean_inner_potential_error_v: float
    """Mean of prediction minus truth over the thickness, in V; the sign is kept."""


def score(prediction: ArrayLike, truth: ArrayLike, *, pixel_angstrom: float, thickness_angstrom: float) -> FieldQuality:
    """Every figure for one field: prediction and truth are projected potentials (y, x) in V·Å.

    Raises:
        ValueError: shapes differ, a side is under 11 pixels, a value is not finite, the truth is constant, or a
            length is not positive.
    """
    if not (np.isfinite(thickness_angstrom) and thickness_angstrom > 0):
        raise ValueError(f"thickness_angstrom is {thickness_angstrom}; it must be a positive length in Å")
    predicted, true = as_image_pair(prediction, truth)
    frequency, frc = fourier_ring_correlation(predicted, true, pixel_angstrom)
    return FieldQuality(
        pearson_r=pearson_r(predicted, true),
        nrmse=nrmse(predicted, true),
        ssim=ssim(predicted, true, float(np.ptp(true))),
        frc_half_angstrom=resolution_angstrom(frequency, frc),
        mean_inner_potential_error_v=float((predicted - true).mean() / thickness_angstrom),
    )


def summarise(qualities: Sequence[FieldQuality]) -> dict[str, dict[str, float]]:
    """Spread of every figure over fields: {name: {median, mean, p05, p95, min, max}}.

    Raises:
        ValueError: there are no fields.
    """
    if not qualities:
        raise ValueError("no field was scored; there is nothing to summarise")
    summary: dict[str, dict[str, float]] = {}
    for name in (field.name for field in fields(FieldQuality)):
        values = np.array([getattr(quality, name) for quality in qualities], dtype=np.float64)
        summary[name] = {
            "median": float(np.median(values)),
            "mean": float(values.mean()),
            "p05": float(np.percentile(values, 5)),
            "p95": float(np.percentile(values, 95)),
            "min": float(values.min()),
            "max": float(values.max()),
        }
    return summary


def share_better(ours: Sequence[FieldQuality], baseline: Sequence[FieldQuality]) -> dict[str, float]:
    """Share of fields (0 to 1) on which ours is strictly better: {pearson_r: higher, nrmse: lower, both: both at once}.

    Args:
        ours, baseline: the same fields in the same order.

    Raises:
        ValueError: different numbers of fields, or none.
    """
    if len(ours) != len(baseline) or not ours:
        raise ValueError(f"{len(ours)} fields of ours against {len(baseline)} of the baseline; need the same, not none")
    higher = np.array([a.pearson_r > b.pearson_r for a, b in zip(ours, baseline, strict=True)])
    lower = np.array([a.nrmse < b.nrmse for a, b in zip(ours, baseline, strict=True)])
    return {
        "pearson_r": float(higher.mean()),
        "nrmse": float(lower.mean()),
        "both": float((higher & lower).mean()),
    }
