"""What a detector makes of electrons: point spread, counting, saturation, gain, bad pixels, in this order."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from stemdl.physics.detector_effects import DetectorEffects, bad_pixels, gaussian_kernel, point_spread, read_out

IDEAL = DetectorEffects()
ELECTRONS = 4096.0  # a power of two, and fractions below are binary: no rounding anywhere


def flat(fraction: float, shape: tuple[int, int, int, int] = (8, 8, 16, 16)) -> NDArray[np.float16]:
    """Amplitudes of patterns that have the same intensity everywhere."""
    return np.full(shape, fraction**0.5, dtype=np.float16)


def electrons(
    amplitude: NDArray[np.float16], effects: DetectorEffects = IDEAL, sent: float = ELECTRONS, seed: int = 1
) -> NDArray[np.float64]:
    """What is read, in electrons."""
    read = read_out(amplitude, effects, sent, noise_seed=(seed, 8, 0, 0), bad_pixel_seed=(seed, 20, 0, 0))
    assert read.dtype == np.float16
    assert read.shape == amplitude.shape
    return np.asarray(read.astype(np.float64) ** 2 * sent)


class TestPointSpread:
    def test_it_spreads_by_its_standard_deviation_and_keeps_electrons(self) -> None:
        amplitude = np.zeros((1, 1, 41, 41), dtype=np.float16)
        amplitude[0, 0, 20, 17] = 1
        seen = point_spread(amplitude, 1.7)[0, 0].astype(np.float64) ** 2
        assert seen.sum() == pytest.approx(1, abs=2e-3)  # float16
        axis = np.arange(41)
        for sums, middle in ((seen.sum(axis=1), 20), (seen.sum(axis=0), 17)):
            assert (sums * axis).sum() == pytest.approx(middle, rel=2e-3)
            assert (sums * (axis - middle) ** 2).sum() == pytest.approx(1.7**2, rel=0.01)

    def test_it_loses_what_leaves_the_edge_and_only_that(self) -> None:
        amplitude = np.zeros((1, 1, 32, 32), dtype=np.float16)
        amplitude[0, 0, 0, 16] = 1
        half = float(gaussian_kernel(2.0)[8:].sum())
        assert np.square(point_spread(amplitude, 2.0).astype(np.float64)).sum() == pytest.approx(half, abs=2e-3)

    def test_it_is_a_convolution_of_intensities(self) -> None:
        rng = np.random.default_rng(1)
        amplitude = rng.random((2, 3, 9, 14)).astype(np.float16)
        kernel = gaussian_kernel(0.8).astype(np.float64)
        intensity = amplitude.astype(np.float64) ** 2
        for axis in (2, 3):
            intensity = np.apply_along_axis(np.convolve, axis, intensity, kernel, mode="same")
        assert np.allclose(point_spread(amplitude, 0.8).astype(np.float64) ** 2, intensity, rtol=2e-3)

    def test_a_detector_smaller_than_the_kernel_and_none_at_all(self) -> None:
        assert np.square(point_spread(flat(0.25, (1, 1, 3, 2)), 5.0).astype(float)).sum() < 0.25 * 6
        amplitude = flat(0.25)
        assert point_spread(amplitude, 0.0) is amplitude


class TestCounting:
    @pytest.mark.parametrize("sent", [64.0, 4096.0, 2.0**18])
    def test_mean_and_variance_are_those_of_counting(self, sent: float) -> None:
        """Fractions have the variance I / electrons: a quarter of it at four times the dose, or at twice the step."""
        fraction = 1 / 64
        counts = electrons(flat(fraction), sent=sent)
        expected = fraction * sent
        assert counts.size == 16384
        assert abs(counts.mean() - expected) < 5 * (expected / counts.size) ** 0.5 + 1e-3 * expected
        assert counts.var() == pytest.approx(expected, rel=0.06)

    def test_electrons_are_whole(self) -> None:
        counts = electrons(flat(1 / 1024))  # few, so that float16 still tells one from two
        assert np.abs(counts - counts.round()).max() < 0.02
        assert set(counts.round().ravel()) > {0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0}

    def test_no_electron_falls_where_none_can(self) -> None:
        amplitude = flat(1 / 64)
        amplitude[..., ::2] = 0
        assert electrons(amplitude)[..., ::2].max() == 0

    def test_the_noise_follows_from_its_seed_alone(self) -> None:
        np.random.seed(0)
        first = electrons(flat(1 / 64), seed=3)
        np.random.seed(1)  # global state must not matter
        assert np.array_equal(first, electrons(flat(1 / 64), seed=3))
        assert not np.array_equal(first, electrons(flat(1 / 64), seed=4))

    def test_rows_positions_and_pixels_are_independent(self) -> None:
        counts = electrons(flat(1 / 64))
        counts -= counts.mean()
        for axis in range(4):
            neighbours = (counts * np.roll(counts, 1, axis=axis)).mean()
            assert abs(neighbours) < 5 * counts.var() / counts.size**0.5


class TestSaturationAndGain:
    def test_a_pixel_counts_no_further_than_its_saturation(self) -> None:
        effects = DetectorEffects(saturation_electrons=64.0)
        counts, free = electrons(flat(1 / 64), effects), electrons(flat(1 / 64))
        assert counts.max() == pytest.approx(64, rel=1e-3)
        assert np.array_equal(counts, np.where(free > 64, counts.max(), free))
        assert 0.3 < (free > 64).mean() < 0.6

    def test_readings_are_whole_adu(self) -> None:
        effects = DetectorEffects(adu_per_electron=0.5)
        adu = electrons(flat(1 / 256), effects) * 0.5
        assert np.abs(adu - adu.round()).max() < 0.02
        assert len(set(adu.round().ravel())) > 5

    def test_a_large_gain_changes_nothing_and_a_small_one_does_not_bias(self) -> None:
        amplitude = flat(1 / 64)
        free = electrons(amplitude)
        assert np.allclose(electrons(amplitude, DetectorEffects(adu_per_electron=1000.0)), free, rtol=2e-3)
        small = electrons(amplitude, DetectorEffects(adu_per_electron=0.1))
        assert len(set(small.ravel())) < 12
        assert small.mean() == pytest.approx(free.mean(), rel=0.01)

    def test_readout_noise_adds_its_variance(self) -> None:
        effects = DetectorEffects(adu_per_electron=20.0, readout_sigma_adu=200.0)  # 10 electrons
        counts = electrons(flat(1 / 64), effects)
        assert counts.mean() == pytest.approx(64, rel=0.01)
        assert counts.var() == pytest.approx(64 + 100, rel=0.06)

    def test_readings_below_zero_are_clipped(self) -> None:
        """Half of the readings of an empty pixel: what is left is the mean of half a Gaussian."""
        effects = DetectorEffects(adu_per_electron=20.0, readout_sigma_adu=200.0)
        counts = electrons(flat(0.0), effects)
        assert counts.min() == 0
        assert (counts == 0).mean() == pytest.approx(0.5, abs=0.03)
        assert counts.mean() == pytest.approx(10 / (2 * np.pi) ** 0.5, rel=0.05)

    def test_the_readout_comes_behind_the_saturation(self) -> None:
        effects = DetectorEffects(saturation_electrons=16.0, adu_per_electron=20.0, readout_sigma_adu=20.0)
        counts = electrons(flat(1 / 64), effects)
        assert counts.mean() == pytest.approx(16, rel=0.01)
        assert counts.std() == pytest.approx(1, rel=0.05)


class TestBadPixels:
    dead = DetectorEffects(dead_fraction=0.1)
    hot = DetectorEffects(hot_fraction=0.1, hot_electrons=1000.0)

    def test_dead_ones_read_nothing_at_the_same_place_in_every_pattern(self) -> None:
        counts, free = electrons(flat(1 / 16), self.dead), electrons(flat(1 / 16))
        assert free.min() > 0
        nothing = counts == 0
        assert np.array_equal(nothing, np.broadcast_to(nothing[0, 0], nothing.shape))
        assert 10 < nothing[0, 0].sum() < 45  # of 256
        assert np.array_equal(counts[~nothing], free[~nothing])
        mask, _ = bad_pixels((16, 16), self.dead, (1, 20, 0, 0))
        assert np.array_equal(nothing[0, 0], mask)

    def test_hot_ones_read_their_excess_on_top(self) -> None:
        counts, free = electrons(flat(1 / 64), self.hot), electrons(flat(1 / 64))
        _, mask = bad_pixels((16, 16), self.hot, (1, 20, 0, 0))
        assert 10 < mask.sum() < 45
        assert np.allclose(counts[..., mask], free[..., mask] + 1000, rtol=2e-3)
        assert np.array_equal(counts[..., ~mask], free[..., ~mask])

    def test_or_are_stuck_at_the_saturation(self) -> None:
        effects = replace(self.hot, saturation_electrons=2.0**14, adu_per_electron=3.0, readout_sigma_adu=10.0)
        _, mask = bad_pixels((16, 16), effects, (1, 20, 0, 0))
        counts = electrons(flat(1 / 64), effects)
        assert np.all(counts[..., mask] == 2.0**14)
        amplitude = (counts / ELECTRONS) ** 0.5
        assert amplitude.max() == 2  # more than the whole beam
        assert counts[..., ~mask].max() < 2000

    def test_they_follow_from_their_own_seed_and_none_is_both(self) -> None:
        effects = DetectorEffects(dead_fraction=0.3, hot_fraction=0.5)
        dead, hot = bad_pixels((300, 200), effects, (1, 2))
        assert not np.any(dead & hot)
        assert dead.mean() == pytest.approx(0.3, abs=0.01)
        assert hot.mean() == pytest.approx(0.5, abs=0.01)
        again, other = (bad_pixels((300, 200), effects, seed)[0] for seed in ((1, 2), (1, 3)))
        assert np.array_equal(dead, again)
        assert not np.array_equal(dead, other)

    def test_dead_pixels_need_no_electrons(self) -> None:
        amplitude = flat(1 / 16)
        read = read_out(amplitude, self.dead, None, noise_seed=(1,), bad_pixel_seed=(1, 20, 0, 0))
        mask, _ = bad_pixels((16, 16), self.dead, (1, 20, 0, 0))
        assert np.array_equal(read, np.where(mask, 0, amplitude).astype(np.float16))
        assert read_out(amplitude, IDEAL, None, noise_seed=(1,), bad_pixel_seed=(1,)) is amplitude

    @pytest.mark.parametrize("keys", [{"hot_fraction": 0.1}, {"saturation_electrons": 4.0}, {"adu_per_electron": 4.0}])
    def test_what_is_in_electrons_needs_some(self, keys: dict[str, Any]) -> None:
        with pytest.raises(AssertionError, match="no electrons"):
            read_out(flat(1 / 16), DetectorEffects(**keys), None, noise_seed=(1,), bad_pixel_seed=(1,))
