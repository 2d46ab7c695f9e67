"""What is drawn for every sample: from its item alone, each quantity by itself, as likely as the configuration says."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from data_gen.draws import PLACE_OF, draw_parameters, scan_noise
from data_gen.worklist import Part, parts
from stemdl.config import Config
from stemdl.config.instrument import Scan
from stemdl.config.variation import Vary
from tests.small_run import small_config

ENERGY = "vary.energy_kev={uniform: [60, 300]}"
DEFOCUS = "vary.defocus_angstrom={uniform: [-100, 100]}"
DOSE = "vary.dose_e_per_a2={log_uniform: [100, 1e6]}"
TILT = "vary.tilt_mrad={choice: [0, 5, 10]}"


def train(config: Config) -> Part:
    return parts(config)[0][0]


def table(config: Config, part: Part, count: int = 2000) -> dict[str, np.ndarray]:
    rows = [draw_parameters(config, part, item) for item in range(count)]
    return {name: np.array([row[name] for row in rows]) for name in rows[0]}


def test_every_key_has_its_place_and_places_never_change() -> None:
    assert set(PLACE_OF) == set(Vary.model_fields)
    assert sorted(PLACE_OF.values()) == list(range(len(PLACE_OF)))
    pinned = {
        "dose_e_per_a2": 0,
        "energy_kev": 1,
        "c3_angstrom": 4,
        "step_angstrom": 8,
        "displacement_sigma_angstrom": 12,
    }
    assert pinned.items() <= PLACE_OF.items(), "part of the format: samples of old runs are made again by it"


def test_values_are_pinned(tmp_path: Path) -> None:
    """The numbers of item 5 of seed 7: a run is continued by another version with the same draws."""
    config = small_config(tmp_path, ENERGY, TILT)
    drawn = draw_parameters(config, train(config), 5)
    numbers = np.random.default_rng(np.random.SeedSequence([7, 16, 5])).random(12)
    assert drawn == {
        "energy_kev": 60 + numbers[1] * 240,
        "tilt_mrad": (0.0, 5.0, 10.0)[int(3 * numbers[11])],
        "dose_quantile": numbers[0],
    }


def test_draws_follow_from_seed_part_and_item_alone(tmp_path: Path) -> None:
    config = small_config(tmp_path, ENERGY, DEFOCUS)
    (part, held_out), _ = parts(config)
    first = draw_parameters(config, part, 11)
    draw_parameters(config, part, 3)
    assert draw_parameters(small_config(tmp_path, ENERGY, DEFOCUS), part, 11) == first
    others = (
        draw_parameters(config, part, 12),
        draw_parameters(config, held_out, 11),
        draw_parameters(small_config(tmp_path, ENERGY, DEFOCUS, "run.seed=8"), part, 11),
    )
    for other in others:
        assert all(other[name] != first[name] for name in first)


def test_one_more_draw_changes_no_other(tmp_path: Path) -> None:
    alone = small_config(tmp_path, ENERGY)
    more = small_config(tmp_path, DEFOCUS, TILT, DOSE, ENERGY, "vary.c3_angstrom={uniform: [0, 1e5]}")
    part = train(alone)
    for item in range(20):
        assert draw_parameters(more, part, item).items() >= draw_parameters(alone, part, item).items()


def test_nothing_varies_but_the_quantile_of_the_dose(tmp_path: Path) -> None:
    config = small_config(tmp_path)
    part = train(config)
    drawn = [draw_parameters(config, part, item) for item in range(300)]
    assert all(set(one) == {"dose_quantile"} for one in drawn)
    quantiles = np.array([one["dose_quantile"] for one in drawn])
    assert 0 <= quantiles.min() < 0.02 < 0.98 < quantiles.max() < 1
    dosed = small_config(tmp_path, DOSE)
    assert [draw_parameters(dosed, part, item) for item in range(300)] == drawn, "the dose comes at load time"


def test_ranges_and_choices_are_drawn_as_they_say(tmp_path: Path) -> None:
    choice = "vary.semiangle_mrad={choice: [10, 20, 30, 40]}"
    config = small_config(tmp_path, ENERGY, choice, "vary.c3_angstrom={log_uniform: [1e2, 1e6]}")
    drawn = table(config, train(config), 4000)
    energy = np.sort(drawn["energy_kev"])
    assert 60 <= energy[0] < 61 < 299 < energy[-1] <= 300
    largest = np.abs((energy - 60) / 240 - (np.arange(4000) + 0.5) / 4000).max()
    assert largest < 1.63 / math.sqrt(4000), "Kolmogorov and Smirnov, 1 %"
    decades = np.sort(np.log10(drawn["c3_angstrom"]))
    assert np.abs((decades - 2) / 4 - (np.arange(4000) + 0.5) / 4000).max() < 1.63 / math.sqrt(4000)
    values, counts = np.unique(drawn["semiangle_mrad"], return_counts=True)
    assert values.tolist() == [10, 20, 30, 40]
    assert np.abs(counts - 1000).max() < 4 * math.sqrt(4000 * 0.25 * 0.75)
    correlations = np.corrcoef(list(drawn.values()))
    assert np.abs(correlations - np.eye(len(drawn))).max() < 4 / math.sqrt(4000), "one draw says nothing of another"


class TestScanNoise:
    @staticmethod
    def offsets(seed: int = 1, positions: tuple[int, int] = (4, 5), **noise: float) -> np.ndarray:
        scan = Scan(positions=positions, step_angstrom=1.0, **noise)
        return np.array(scan_noise(scan, (7, 18, seed)).offsets_angstrom).reshape(-1, 2)

    def test_a_quiet_scan_is_the_raster_itself(self) -> None:
        noise = scan_noise(Scan(positions=(4, 5), step_angstrom=1.0), (7, 18, 0))
        assert (noise.offsets_angstrom, noise.drift_azimuth_rad) == ((), 0.0)
        assert len(self.offsets(positions=(1, 1), drift_angstrom=3.0)) == 0, "no time to drift"

    def test_drift_is_linear_from_first_to_last_about_no_offset(self) -> None:
        scan = Scan(positions=(4, 5), step_angstrom=1.0, drift_angstrom=3.0)
        noise = scan_noise(scan, (7, 18, 1))
        offsets = np.array(noise.offsets_angstrom)
        assert offsets.shape == (20, 2)
        way = offsets[-1] - offsets[0]
        assert np.hypot(*way) == pytest.approx(3.0)
        assert np.allclose(np.diff(offsets, axis=0), way / 19)
        assert np.allclose(offsets.mean(axis=0), 0.0)
        assert way == pytest.approx(
            3 * np.array([math.sin(noise.drift_azimuth_rad), math.cos(noise.drift_azimuth_rad)])
        )

    def test_directions_are_uniform(self) -> None:
        scan = Scan(positions=(2, 2), step_angstrom=1.0, drift_angstrom=1.0)
        azimuths = np.array([scan_noise(scan, (7, 18, item)).drift_azimuth_rad for item in range(2000)])
        assert azimuths.min() >= 0
        counts = np.histogram(azimuths, bins=8, range=(0, 2 * math.pi))[0]
        assert counts.sum() == 2000
        assert np.abs(counts - 250).max() < 4 * math.sqrt(2000 / 8 * 7 / 8)

    def test_jitter_is_normal_with_sigma_along_each_axis(self) -> None:
        offsets = np.concatenate([self.offsets(seed, (8, 8), jitter_sigma_angstrom=0.2) for seed in range(100)])
        assert np.allclose(offsets.std(axis=0), 0.2, rtol=0.03)
        assert np.allclose(offsets.mean(axis=0), 0.0, atol=4 * 0.2 / 80)
        assert np.mean(np.abs(offsets) < 0.2) == pytest.approx(0.683, abs=0.02)
        assert abs(np.corrcoef(offsets.T)[0, 1]) < 4 / 80
        assert abs(np.corrcoef(offsets[:-1, 0], offsets[1:, 0])[0, 1]) < 4 / 80, "neighbours know nothing of each other"

    def test_drift_and_jitter_add_up_and_follow_from_the_seed(self) -> None:
        drift, jitter = self.offsets(drift_angstrom=2.0), self.offsets(jitter_sigma_angstrom=0.1)
        both = self.offsets(drift_angstrom=2.0, jitter_sigma_angstrom=0.1)
        assert np.allclose(both, drift + jitter)
        rng = np.random.default_rng(np.random.SeedSequence([7, 18, 1], spawn_key=(1,)))
        assert np.array_equal(jitter, rng.normal(0.0, 0.1, (20, 2))), "part of the format, as the places of draws are"
        assert np.array_equal(both, self.offsets(drift_angstrom=2.0, jitter_sigma_angstrom=0.1))
        assert not np.allclose(both, self.offsets(2, drift_angstrom=2.0, jitter_sigma_angstrom=0.1))
        assert np.allclose(self.offsets(jitter_sigma_angstrom=0.3), 3 * jitter), "the same noise, three times as large"
