"""The detector that a configuration describes: its dose, its seeds, and what it cannot be."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from field_cases import small_config
from stemdl.errors import UserError
from stemdl.physics.detector_effects import DetectorEffects, bad_pixels
from stemdl.seeds import Purpose
from stemdl.shards import ShardError
from stemdl.shards.detector import DetectorError, DetectorModel, detector_model

AMPLITUDE = np.full((2, 3, 16, 16), 1 / 16, dtype=np.float16)  # 1 / 256 of the beam in every pixel


def model(part: Any = "train", **changes: Any) -> DetectorModel:
    found = detector_model(small_config(**changes), part)
    assert found is not None
    return found


class TestDescription:
    def test_an_ideal_detector_is_none(self) -> None:
        assert detector_model(small_config(), "train") is None
        assert detector_model(small_config(detector__hot_electrons=5.0), "held_out") is None  # of no pixel

    def test_it_has_every_key_of_its_section(self) -> None:
        section = {
            "blur_sigma_pixels": 0.5,
            "dead_fraction": 0.01,
            "hot_fraction": 0.02,
            "hot_electrons": 3.0,
            "saturation_electrons": 4.0,
            "adu_per_electron": 5.0,
            "readout_sigma_adu": 6.0,
        }
        found = model(detector__pixels=(24, 24), detector={
            "pixels": (24, 24), "dk_per_angstrom": 1 / 16, "dose_e_per_a2": 7.0, **section
        })  # fmt: skip
        assert found.effects == DetectorEffects(**section)
        assert found.dose_e_per_a2 == 7.0
        assert found.scan_step_angstrom == 2.0
        assert found.is_random

    @pytest.mark.parametrize(
        ("key", "value", "is_random"),
        [("blur_sigma_pixels", 0.5, False), ("dead_fraction", 0.01, True), ("dose_e_per_a2", 1e3, True)],
    )
    def test_one_effect_is_enough(self, key: str, value: float, is_random: bool) -> None:
        assert model(**{f"detector__{key}": value}).is_random is is_random

    def test_both_parts_have_random_numbers_of_their_own(self) -> None:
        train, held_out = (model(part, detector__dose_e_per_a2=1e3, run__seed=17) for part in ("train", "held_out"))
        assert (train.noise, train.bad_pixels) == (Purpose.TRAIN_DOSE, Purpose.TRAIN_DETECTOR)
        assert (held_out.noise, held_out.bad_pixels) == (Purpose.HELD_OUT_DOSE, Purpose.HELD_OUT_DETECTOR)
        assert train.seed == held_out.seed == 17


class TestDose:
    def test_counts_per_pattern_are_dose_times_the_step_squared_of_the_sample(self) -> None:
        """The variance of the fractions says how many electrons there were."""
        detector = model(detector__dose_e_per_a2=1e3)  # the nominal step is 2 Å
        for parameters, sent in (({}, 4e3), ({"scan_step_angstrom": 2.0}, 4e3), ({"scan_step_angstrom": 4.0}, 16e3)):
            read = np.concatenate([detector.record(AMPLITUDE, item, 0, parameters) for item in range(20)])
            fractions = read.astype(np.float64) ** 2
            assert fractions.mean() == pytest.approx(1 / 256, rel=0.02)
            assert fractions.var() == pytest.approx(1 / 256 / sent, rel=0.06)

    def test_a_drawn_one_follows_from_the_quantile_of_the_sample(self) -> None:
        drawn = model(vary={"dose_e_per_a2": {"log_uniform": [1e2, 1e4]}}, detector__dose_e_per_a2=5.0)
        assert [drawn.dose_of({"dose_quantile": q}) for q in (0.0, 0.5)] == pytest.approx([1e2, 1e3])
        chosen = model(vary={"dose_e_per_a2": {"choice": [1e2, 1e3]}})
        assert [chosen.dose_of({"dose_quantile": q}) for q in (0.4, 0.6)] == [1e2, 1e3]
        low, high = (
            np.var(drawn.record(AMPLITUDE, 0, 0, {"dose_quantile": q}).astype(np.float64) ** 2) for q in (0.25, 0.75)
        )
        assert low / high == pytest.approx(10, rel=0.2)
        with pytest.raises(ShardError, match=r"dose_quantile is not recorded, which vary\.dose_e_per_a2 needs"):
            drawn.dose_of({"energy_kev": 1.0})

    def test_one_dose_for_all_asks_for_no_quantile(self) -> None:
        assert model(detector__dose_e_per_a2=5.0).dose_of({"dose_quantile": 0.9}) == 5.0
        assert model(detector__dead_fraction=0.1).dose_of({}) is None


class TestSeeds:
    detector = model(detector__dose_e_per_a2=1e3)
    other_seed = model(detector__dose_e_per_a2=1e3, run__seed=4)
    other_part = model("held_out", detector__dose_e_per_a2=1e3)

    def test_each_seed_part_epoch_and_item_has_its_own_noise(self) -> None:
        reads = [
            self.detector.record(AMPLITUDE, 0, 0, {}),
            self.detector.record(AMPLITUDE, 1, 0, {}),
            self.detector.record(AMPLITUDE, 0, 1, {}),
            self.other_seed.record(AMPLITUDE, 0, 0, {}),
            self.other_part.record(AMPLITUDE, 0, 0, {}),
        ]
        assert len({read.tobytes() for read in reads}) == len(reads)
        assert np.array_equal(self.detector.record(AMPLITUDE, 0, 1, {}), reads[2])

    def test_each_of_them_has_its_own_bad_pixels(self) -> None:
        keys = {"detector__dead_fraction": 0.2}
        detectors = [
            (model(**keys), 0, 0),
            (model(**keys), 1, 0),
            (model(**keys), 0, 1),
            (model("held_out", **keys), 0, 0),
        ]
        masks = []
        for detector, item, epoch in detectors:
            read = detector.record(AMPLITUDE, item, epoch, {})
            masks.append(read[0, 0] == 0)
            assert np.array_equal(read == 0, np.broadcast_to(masks[-1], read.shape))
            expected, _ = bad_pixels((16, 16), detector.effects, (3, detector.bad_pixels, epoch, item))
            assert np.array_equal(masks[-1], expected)
        assert len({mask.tobytes() for mask in masks}) == len(masks)

    def test_noise_does_not_change_with_the_bad_pixels(self) -> None:
        bad = model(detector={
            "pixels": (24, 24), "dk_per_angstrom": 1 / 16, "dose_e_per_a2": 1e3, "dead_fraction": 0.2
        })  # fmt: skip
        one, other = (detector.record(AMPLITUDE, 0, 0, {}) for detector in (self.detector, bad))
        mask, _ = bad_pixels((16, 16), bad.effects, (3, Purpose.TRAIN_DETECTOR, 0, 0))
        assert np.array_equal(one[..., ~mask], other[..., ~mask])


class TestRefused:
    @pytest.mark.parametrize(
        ("changes", "said"),
        [
            ({"hot_fraction": 0.1}, r"detector\.hot_fraction: found without a dose"),
            (
                {"saturation_electrons": 10.0, "adu_per_electron": 1.0},
                r"detector\.saturation_electrons, detector\.adu_per_electron: found without a dose; allowed with "
                r"detector\.dose_e_per_a2",
            ),
            (
                {"readout_sigma_adu": 2.5, "dose_e_per_a2": 1e3},
                r"detector\.readout_sigma_adu: found 2\.5 without a gain; allowed with detector\.adu_per_electron",
            ),
            ({"dose_e_per_a2": 1e18}, r"found 4e\+18 to 4e\+18 electrons a pattern; allowed are"),
            ({"dose_e_per_a2": 1e-12}, "found 4e-12 to 4e-12 electrons"),
            ({"dose_e_per_a2": 1.0, "hot_fraction": 0.1, "hot_electrons": 1e12}, "found 4 to 4 electrons"),
            ({"dose_e_per_a2": 1.0, "hot_fraction": 0.1, "saturation_electrons": 1e12}, "found 4 to 4 electrons"),
        ],
    )
    def test_what_it_cannot_be_names_its_keys(self, changes: dict[str, Any], said: str) -> None:
        config = small_config(detector={"pixels": (24, 24), "dk_per_angstrom": 1 / 16, **changes})
        with pytest.raises(DetectorError, match=said) as caught:
            detector_model(config, "train")
        assert isinstance(caught.value, UserError)

    def test_the_ends_of_drawn_doses_and_steps_count(self) -> None:
        vary = {"dose_e_per_a2": {"uniform": [1.0, 1e17]}, "step_angstrom": {"choice": [0.5, 4.0]}}
        with pytest.raises(DetectorError, match=r"found 0\.25 to 1\.6e\+18 electrons"):
            detector_model(small_config(vary=vary), "train")

    def test_whatever_is_allowed_can_be_kept(self) -> None:
        """The smallest dose that is allowed gives no infinite amplitudes."""
        detector = model(detector={
            "pixels": (24, 24), "dk_per_angstrom": 1 / 16, "dose_e_per_a2": 1e-7, "hot_fraction": 0.5,
        })  # fmt: skip
        read = detector.record(AMPLITUDE, 0, 0, {})
        assert np.isfinite(read).all()
        assert read.max() > 1000
