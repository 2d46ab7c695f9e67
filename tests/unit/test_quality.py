"""Quality figures: known properties, published definitions, refusals."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from stemdl.reconstruct import quality

PIXEL_ANGSTROM = 0.5
Image = NDArray[np.float64]


def atoms(shift_pixels: float = 0.0, side: int = 32) -> Image:
    """A lattice of Gaussian columns in V·Å, as a projected potential looks."""
    y, x = np.mgrid[0:side, 0:side].astype(float)
    picture = np.zeros((side, side))
    for row in range(2, side, 7):
        for column in range(3, side, 6):
            picture += (50 + row + 2 * column) * np.exp(
                -((y - row) ** 2 + (x - column - shift_pixels) ** 2) / (2 * 1.2**2)
            )
    return picture


def noise(seed: int, side: int = 32) -> Image:
    return np.random.default_rng(np.random.SeedSequence([seed])).normal(size=(side, side))


def score(prediction: Image, truth: Image) -> quality.FieldQuality:
    return quality.score(prediction, truth, pixel_angstrom=PIXEL_ANGSTROM, thickness_angstrom=20.0)


def test_an_identical_picture_is_perfect() -> None:
    result = score(atoms(), atoms())
    assert result.pearson_r == pytest.approx(1.0, abs=1e-12)
    assert result.nrmse == 0.0
    assert result.ssim == pytest.approx(1.0, abs=1e-12)
    assert result.frc_half_angstrom == pytest.approx(2 * PIXEL_ANGSTROM)
    assert result.mean_inner_potential_error_v == 0.0


def test_every_figure_gets_worse_with_the_shift() -> None:
    scores = [score(atoms(shift), atoms()) for shift in (0.0, 0.5, 1.0, 2.0)]
    for better, worse in itertools.pairwise(scores):
        assert worse.pearson_r < better.pearson_r
        assert worse.nrmse > better.nrmse
        assert worse.ssim < better.ssim
        assert worse.frc_half_angstrom >= better.frc_half_angstrom
    assert scores[-1].frc_half_angstrom > 2 * scores[0].frc_half_angstrom


def test_a_wrong_scale_and_offset_leave_r_but_not_the_others() -> None:
    truth = atoms()
    result = score(1.5 * truth + 40.0, truth)
    assert result.pearson_r == pytest.approx(1.0)
    assert result.nrmse > 0.5
    assert result.ssim < 0.95
    assert result.mean_inner_potential_error_v == pytest.approx((0.5 * truth.mean() + 40.0) / 20.0)


def test_nrmse_of_the_truths_own_mean_is_one_and_its_r_is_zero() -> None:
    truth = atoms()
    flat = np.full_like(truth, truth.mean())
    assert quality.nrmse(flat, truth) == pytest.approx(1.0)
    assert quality.pearson_r(flat, truth) == 0.0


@settings(max_examples=30, deadline=None)
@given(scale=st.floats(1e-3, 1e3), offset=st.floats(-1e3, 1e3), seed=st.integers(0, 1000))
def test_r_is_blind_to_scale_and_offset_and_changes_sign_with_the_picture(
    scale: float, offset: float, seed: int
) -> None:
    truth = atoms()
    guess = truth + 30 * noise(seed)
    r = quality.pearson_r(guess, truth)
    assert quality.pearson_r(scale * guess + offset, truth) == pytest.approx(r, abs=1e-9)
    assert quality.pearson_r(-guess, truth) == pytest.approx(-r, abs=1e-9)
    assert r == pytest.approx(np.corrcoef(guess.ravel(), truth.ravel())[0, 1], abs=1e-12)


def ssim_pictures() -> tuple[Image, Image]:
    y, x = np.mgrid[0:32, 0:40].astype(float)
    truth = 200 * np.exp(-((y - 15) ** 2 + (x - 20) ** 2) / 30) + 50 * np.sin(x / 3) * np.cos(y / 4) + 100
    return 0.8 * np.roll(truth, 1, axis=1) + 20 + 5 * np.sin(x * y / 7), truth


def test_ssim_equals_scikit_image() -> None:
    """scikit-image 0.26: structural_similarity(gaussian_weights=True, sigma=1.5, use_sample_covariance=False)."""
    other, truth = ssim_pictures()
    assert quality.ssim(other, truth, float(np.ptp(truth))) == pytest.approx(0.8973774140308677, abs=1e-12)
    assert quality.ssim(other, truth, 100.0) == pytest.approx(0.8829283126705784, abs=1e-12)


def test_ssim_is_symmetric_and_bounded_by_one() -> None:
    other, truth = ssim_pictures()
    assert quality.ssim(other, truth, 250.0) == pytest.approx(quality.ssim(truth, other, 250.0), abs=1e-12)
    assert quality.ssim(noise(1), noise(2), 4.0) < 0.3


def test_ssim_of_two_flat_pictures_is_the_luminance_term() -> None:
    """Wang 2004, eq. 6, with no structure left: (2ab + C1) / (a² + b² + C1)."""
    a, b, span = 3.0, 5.0, 10.0
    c1 = (0.01 * span) ** 2
    expected = (2 * a * b + c1) / (a * a + b * b + c1)
    assert quality.ssim(np.full((16, 16), a), np.full((16, 16), b), span) == pytest.approx(expected)


def test_frc_frequencies_end_at_nyquist_and_are_spaced_by_the_field() -> None:
    frequency, frc = quality.fourier_ring_correlation(noise(1), noise(1), PIXEL_ANGSTROM)
    assert frequency[0] == pytest.approx(1 / 16.0)
    assert frequency[-1] == pytest.approx(1 / (2 * PIXEL_ANGSTROM))
    assert frequency.shape == frc.shape == (16,)
    np.testing.assert_allclose(frc, 1.0, atol=1e-12)


def test_frc_of_unrelated_noise_is_near_zero_and_of_a_negative_minus_one() -> None:
    frc = quality.fourier_ring_correlation(noise(1, 128), noise(2, 128), PIXEL_ANGSTROM)[1]
    assert abs(float(frc[8:].mean())) < 0.03
    np.testing.assert_allclose(quality.fourier_ring_correlation(noise(1), -noise(1), 0.5)[1], -1.0, atol=1e-12)


def test_frc_finds_the_frequency_above_which_two_pictures_differ() -> None:
    """Common below 0.4/Å, independent above: the resolution is 1 / 0.4 Å, within a ring or two of the window's blur."""
    side, cutoff_per_angstrom = 128, 0.4
    k = np.hypot(*np.meshgrid(np.fft.fftfreq(side, PIXEL_ANGSTROM), np.fft.fftfreq(side, PIXEL_ANGSTROM)))

    def band(seed: int, keep: NDArray[np.bool_]) -> Image:
        return np.fft.ifft2(np.fft.fft2(noise(seed, side)) * keep).real

    low = band(1, k < cutoff_per_angstrom)
    a, b = (low + band(seed, k >= cutoff_per_angstrom) for seed in (2, 3))
    resolution = quality.resolution_angstrom(*quality.fourier_ring_correlation(a, b, PIXEL_ANGSTROM))
    assert 1 / resolution == pytest.approx(cutoff_per_angstrom, abs=2 / (side * PIXEL_ANGSTROM))


def test_resolution_interpolates_between_rings_and_has_its_two_limits() -> None:
    frequency = [0.1, 0.2, 0.3, 0.4]
    assert 1 / quality.resolution_angstrom(frequency, [1.0, 0.75, 0.25, 0.1]) == pytest.approx(0.25)
    assert 1 / quality.resolution_angstrom(frequency, [0.0, 0.1, 0.75, 0.25]) == pytest.approx(0.35)
    assert quality.resolution_angstrom(frequency, [1.0, 0.9, 0.8, 0.5]) == pytest.approx(2.5)
    assert quality.resolution_angstrom(frequency, [0.4, 0.1, 0.3, 0.4]) == pytest.approx(10.0)


def test_frc_works_on_oblong_fields_and_calls_a_flat_picture_uncorrelated() -> None:
    truth = noise(1)[:24, :]
    frequency, frc = quality.fourier_ring_correlation(np.full_like(truth, 7.0), truth, PIXEL_ANGSTROM)
    assert frequency[-1] == pytest.approx(1 / (2 * PIXEL_ANGSTROM))
    np.testing.assert_allclose(frc, 0.0, atol=1e-12)


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("which", ["prediction", "truth"])
def test_values_that_are_not_finite_are_refused_by_name(value: float, which: str) -> None:
    pictures = {"prediction": atoms(), "truth": atoms()}
    pictures[which][3, 4] = value
    with pytest.raises(ValueError, match=f"{which} holds 1 of 1024"):
        score(pictures["prediction"], pictures["truth"])


def test_what_cannot_be_scored_is_refused() -> None:
    truth = atoms()
    with pytest.raises(ValueError, match="must be equal"):
        quality.nrmse(truth[:, :-1], truth)
    with pytest.raises(ValueError, match="two axes"):
        quality.pearson_r(truth[None], truth[None])
    with pytest.raises(ValueError, match="everywhere"):
        quality.pearson_r(truth, np.zeros_like(truth))
    with pytest.raises(ValueError, match="data_range"):
        quality.ssim(truth, truth, 0.0)
    with pytest.raises(ValueError, match="11 x 11"):
        quality.ssim(truth[:8], truth[:8], 1.0)
    with pytest.raises(ValueError, match="pixel_angstrom"):
        quality.fourier_ring_correlation(truth, truth, 0.0)
    with pytest.raises(ValueError, match="thickness_angstrom"):
        quality.score(truth, truth, pixel_angstrom=0.5, thickness_angstrom=0.0)


def fields(*r_and_nrmse: tuple[float, float]) -> list[quality.FieldQuality]:
    return [quality.FieldQuality(r, error, 0.9, 1.0, -0.5) for r, error in r_and_nrmse]


def test_the_summary_names_every_figure_and_its_spread() -> None:
    summary = quality.summarise(fields(*[(index / 100, 1 - index / 100) for index in range(101)]))
    assert set(summary) == {field.name for field in dataclasses.fields(quality.FieldQuality)}
    expected = {"median": 0.5, "mean": 0.5, "p05": 0.05, "p95": 0.95, "min": 0.0, "max": 1.0}
    assert summary["pearson_r"] == pytest.approx(expected)
    assert summary["mean_inner_potential_error_v"]["median"] == -0.5
    with pytest.raises(ValueError, match="no field"):
        quality.summarise([])


def test_better_means_strictly_better_on_the_same_field() -> None:
    ours = fields((0.9, 0.3), (0.9, 0.3), (0.9, 0.3), (0.9, 0.3))
    baseline = fields((0.8, 0.4), (0.8, 0.2), (0.95, 0.4), (0.9, 0.3))
    assert quality.share_better(ours, baseline) == {"pearson_r": 0.5, "nrmse": 0.5, "both": 0.25}
    with pytest.raises(ValueError, match="4 fields of ours against 3"):
        quality.share_better(ours, baseline[:3])
