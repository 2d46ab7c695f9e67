"""Pixel by pixel: Pearson's r, the normalised rms error, structural similarity."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Image = NDArray[np.float64]

SSIM_SIGMA_PIXELS = 1.5
SSIM_RADIUS_PIXELS = 5  # an 11 x 11 window, as in the paper
SSIM_K1 = 0.01
SSIM_K2 = 0.03


def as_image_pair(prediction: ArrayLike, truth: ArrayLike) -> tuple[Image, Image]:
    """Both as float64 (y, x).

    Raises:
        ValueError: not two-dimensional, different shapes, empty, or a value that is not finite.
    """
    pair = (np.asarray(prediction, dtype=np.float64), np.asarray(truth, dtype=np.float64))
    for name, image in zip(("prediction", "truth"), pair, strict=True):
        if image.ndim != 2 or image.size == 0:
            raise ValueError(f"{name} has shape {image.shape}; a picture has two axes (y, x) that are not empty")
        bad = int(np.count_nonzero(~np.isfinite(image)))
        if bad:
            raise ValueError(f"{name} holds {bad} of {image.size} values that are NaN or infinite; none can be scored")
    if pair[0].shape != pair[1].shape:
        raise ValueError(f"prediction has shape {pair[0].shape}, truth {pair[1].shape}; they must be equal")
    return pair


def _refuse_constant_truth(truth: Image) -> None:
    if np.ptp(truth) == 0:
        raise ValueError(f"truth is {truth.flat[0]:g} everywhere; without any contrast no score against it is defined")


def pearson_r(prediction: ArrayLike, truth: ArrayLike) -> float:
    """Pearson's correlation of two pictures (y, x): blind to scale and offset, 1 is perfect.

    A constant prediction has r = 0 by our definition (it says nothing about the truth); mathematically it is 0/0.

    Raises:
        ValueError: shapes differ, a value is not finite, or the truth is constant.
    """
    predicted, true = as_image_pair(prediction, truth)
    _refuse_constant_truth(true)
    if np.ptp(predicted) == 0:
        return 0.0
    # Scaled by the largest deviation first, so that squares of extreme values neither overflow nor vanish.
    a, b = (image - image.mean() for image in (predicted, true))
    a, b = a / np.abs(a).max(), b / np.abs(b).max()
    r = float((a * b).sum() / np.sqrt((a * a).sum() * (b * b).sum()))
    return min(1.0, max(-1.0, r))


def nrmse(prediction: ArrayLike, truth: ArrayLike) -> float:
    """Rms error over the truth's standard deviation: 0 is perfect, 1 is what the truth's own mean would score.

    Raises:
        ValueError: shapes differ, a value is not finite, or the truth is constant.
    """
    predicted, true = as_image_pair(prediction, truth)
    _refuse_constant_truth(true)
    return float(np.sqrt(np.mean((predicted - true) ** 2)) / true.std())


def _gaussian_mean(image: Image) -> Image:
    """Local mean under the Gaussian window, for windows that lie wholly inside the picture."""
    offsets = np.arange(-SSIM_RADIUS_PIXELS, SSIM_RADIUS_PIXELS + 1)
    weights = np.exp(-0.5 * (offsets / SSIM_SIGMA_PIXELS) ** 2)
    weights /= weights.sum()
    windows: Any = np.lib.stride_tricks.sliding_window_view
    rows = windows(image, weights.size, axis=0) @ weights
    result: Image = windows(rows, weights.size, axis=1) @ weights
    return result


def ssim(prediction: ArrayLike, truth: ArrayLike, data_range: float) -> float:
    """Mean structural similarity of two pictures (y, x), each side at least 11 pixels.

    Wang, Bovik, Sheikh and Simoncelli, IEEE Trans. Image Process. 13 (2004) 600, eq. 13: Gaussian window of
    σ 1.5 pixels in 11 x 11, K1 0.01, K2 0.03, population (co)variances, mean over windows wholly inside.

    Args:
        data_range: the span L of values; `score` uses truth.max() - truth.min(), in V·Å.

    Raises:
        ValueError: shapes differ, a side is too short, a value is not finite, or data_range is not positive.
    """
    x, y = as_image_pair(prediction, truth)
    if not (np.isfinite(data_range) and data_range > 0):
        raise ValueError(f"data_range is {data_range}; it must be a positive number (truth.max() - truth.min())")
    side = 2 * SSIM_RADIUS_PIXELS + 1
    if min(x.shape) < side:
        raise ValueError(f"pictures of shape {x.shape} are smaller than the {side} x {side} window of SSIM")
    c1, c2 = (SSIM_K1 * data_range) ** 2, (SSIM_K2 * data_range) ** 2
    mean_x, mean_y = _gaussian_mean(x), _gaussian_mean(y)
    var_x = _gaussian_mean(x * x) - mean_x**2
    var_y = _gaussian_mean(y * y) - mean_y**2
    cov = _gaussian_mean(x * y) - mean_x * mean_y
    numerator = (2 * mean_x * mean_y + c1) * (2 * cov + c2)
    denominator = (mean_x**2 + mean_y**2 + c1) * (var_x + var_y + c2)
    return float(np.mean(numerator / denominator))
