"""Training on samples that were recorded differently: each with its own optics, scan step, and noise."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import stemdl.train.loop as loop_module
import stemdl.train.stage as stage_module
from field_cases import correlation, fields_of, small_config, write_fields
from stemdl.config import Config
from stemdl.models.predictor import Predictor
from stemdl.models.registry import build_network
from stemdl.shards.detector import DetectorError
from stemdl.shards.fields import Fields
from stemdl.train.data import gather as real_gather
from stemdl.train.data import load_training_fields
from stemdl.train.loop import train
from stemdl.train.stage import train_stage
from training_cases import Remembering, bits, prepared, run

FC_DENSENET = {"name": "fc_densenet", "growth": 4, "blocks": (1, 1, 1)}
ENERGIES = [60.0, 200.0] * 6
STEPS = [1.8, 2.2, 2.0] * 4


def two_energies(folder: Path, **changes: Any) -> Config:
    """A sealed training set of 60 and 200 keV; the configuration's own energy is neither."""
    config = small_config(run__folder=folder, vary={"energy_kev": {"choice": [60.0, 200.0]}}, **changes)
    write_fields(config, fields_of(config, energy_kev=ENERGIES))
    return config


def median_r(pictures: torch.Tensor, fields: Fields) -> float:
    last = pictures[:, -3]  # gradient and residual come behind it
    return float(np.median([correlation(a, b) for a, b in zip(last, fields.potential, strict=True)]))


class TestOptics:
    def test_pictures_made_with_each_sample_s_energy_are_better(self, tmp_path: Path) -> None:
        config = two_energies(tmp_path)
        fields = load_training_fields(config)
        predictor = Predictor(config, build_network(config), threads=1)
        own = predictor.look(fields.amplitude, fields.thickness_angstrom, parameters=fields.parameters)
        nominal = predictor.look(fields.amplitude, fields.thickness_angstrom)
        assert own is not None
        assert nominal is not None
        assert median_r(own.pictures, fields) > median_r(nominal.pictures, fields) + 0.1
        residuals = [float(look.pictures[:, -1].mean()) for look in (own, nominal)]
        assert residuals[1] > 5 * residuals[0]

    def test_training_sees_them_in_every_stage_and_learns(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        config = two_energies(tmp_path, train__steps=30, train__validate_every=15, train__log_every=10)
        seen: list[float] = []

        def remember(*args: Any) -> Any:
            seen.append(float(args[2].pictures[:, -1].mean()))
            return train_stage(*args)

        monkeypatch.setattr(loop_module, "train_stage", remember)
        summary = run(config)
        fields = load_training_fields(config)
        nominal = Predictor(config, build_network(config), threads=1).look(fields.amplitude, fields.thickness_angstrom)
        assert nominal is not None
        assert len(seen) == 2
        assert all(residual < 0.2 * float(nominal.pictures[:, -1].mean()) for residual in seen)
        assert all(record["train_loss"][-1] < record["train_loss"][0] for record in summary.history)
        assert summary.history[1]["validation_r"][-1] > 0.8

    def test_values_that_are_those_of_the_configuration_change_no_bit(self, tmp_path: Path) -> None:
        """A set whose samples record all of their parameters, against one that records the thickness alone."""
        scope = small_config().microscope.model_dump()
        plain = prepared(tmp_path / "plain")
        recorded = small_config(run__folder=tmp_path / "recorded")
        columns = {name: [float(value)] * 12 for name, value in {**scope, "scan_step_angstrom": 2.0}.items()}
        write_fields(recorded, fields_of(recorded, 12, **columns))
        assert run(plain).history == run(recorded).history
        assert bits(plain) == bits(recorded)

    def test_a_network_that_sees_patterns_alone_is_told_nothing_which_is_said(self, tmp_path: Path) -> None:
        vary = {"energy_kev": {"choice": [60.0, 200.0]}, "tilt_mrad": {"uniform": [0.0, 5.0]}}
        config = prepared(tmp_path, network=FC_DENSENET, target__pixel_angstrom=8 / 24, vary=vary, train__steps=1)
        progress = Remembering()
        train(config, progress=progress)
        assert "WARNING: fc_densenet sees patterns alone and is told nothing of vary.energy_kev" in progress.notes
        progress = Remembering()
        train(two_energies(tmp_path / "scanfield", train__steps=1), progress=progress)
        assert not any("told nothing" in note for note in progress.notes)


class TestSteps:
    def test_a_set_of_several_scan_steps_trains_with_its_own_rasters(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        vary = {"step_angstrom": {"choice": [1.8, 2.0, 2.2]}}
        config = small_config(run__folder=tmp_path, vary=vary, train__steps=20)
        write_fields(config, fields_of(config, scan_step_angstrom=STEPS))
        fields = load_training_fields(config)
        predictor = Predictor(config, build_network(config), threads=1)
        own = predictor.look(fields.amplitude, fields.thickness_angstrom, parameters=fields.parameters)
        nominal = predictor.look(fields.amplitude, fields.thickness_angstrom)
        assert own is not None
        assert nominal is not None
        assert median_r(own.pictures, fields) > median_r(nominal.pictures, fields) + 0.02
        real, told = Predictor.stage, []

        def listen(self: Predictor, *args: Any, parameters: Any, **keys: Any) -> Any:
            told.append(parameters["scan_step_angstrom"].tolist())
            return real(self, *args, parameters=parameters, **keys)

        monkeypatch.setattr(Predictor, "stage", listen)
        record = run(config).history[0]
        assert record["train_loss"][-1] < record["train_loss"][0]
        assert told == [STEPS]  # the first stage answers for the second


class TestNoise:
    """In which epoch each field is seen: the rule of `load_training_fields`."""

    @staticmethod
    def seen(config: Config, monkeypatch: pytest.MonkeyPatch) -> tuple[dict[int, set[bytes]], dict[int, set[bytes]]]:
        """The patterns of each field as they were trained on, and as they were validated on; nothing is turned."""
        trained: dict[int, set[bytes]] = {}
        validated: dict[int, set[bytes]] = {}

        def remember(*args: Any) -> Any:
            inputs, truth = real_gather(*args)
            for index, amplitude in zip(args[2], inputs.amplitude, strict=True):
                where = trained if len(args) == 5 else validated
                where.setdefault(int(index), set()).add(amplitude.numpy().tobytes())
            return inputs, truth

        monkeypatch.setattr(stage_module, "gather", remember)
        run(config)
        return trained, validated

    def test_patterns_alone_have_new_noise_in_every_epoch(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        config = prepared(
            tmp_path, network=FC_DENSENET, target__pixel_angstrom=8 / 24, detector__dose_e_per_a2=1e3,
            train__augment=False, train__steps=9, train__batch=3, train__validate_every=3,
        )  # fmt: skip
        trained, validated = self.seen(config, monkeypatch)
        assert len(trained) == 9
        assert all(len(patterns) == 3 for patterns in trained.values())  # nine steps of three are three epochs
        assert all(len(patterns) == 1 for patterns in validated.values())
        fields = load_training_fields(config)
        for index, patterns in (*trained.items(), *validated.items()):
            assert fields.amplitude[index].astype(np.float32).tobytes() in patterns  # epoch 0 is the one that is loaded

    def test_with_pictures_all_see_the_noise_that_the_pictures_are_made_of(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        config = prepared(tmp_path, detector__dose_e_per_a2=1e3, train__augment=False, train__steps=9, train__batch=3)
        trained, validated = self.seen(config, monkeypatch)
        fields = load_training_fields(config)
        for index, patterns in (*trained.items(), *validated.items()):
            assert patterns == {fields.amplitude[index].astype(np.float32).tobytes()}
        assert not np.array_equal(fields.amplitude, fields_of(config).amplitude)

    def test_noisy_trainings_end_in_the_same_bits(self, tmp_path: Path) -> None:
        keys = {"network": FC_DENSENET, "target__pixel_angstrom": 8 / 24, "detector__dose_e_per_a2": 1e3}
        configs = [prepared(tmp_path / name, **keys) for name in ("a", "b")]
        quiet = prepared(tmp_path / "c", **{**keys, "detector__dose_e_per_a2": None})
        for config in (*configs, quiet):
            run(config)
        assert bits(configs[0]) == bits(configs[1]) != bits(quiet)

    def test_a_detector_that_cannot_be_is_refused_before_anything_is_read(self, tmp_path: Path) -> None:
        with pytest.raises(DetectorError, match=r"detector\.hot_fraction: found without a dose"):
            run(small_config(run__folder=tmp_path, detector__hot_fraction=0.1))
