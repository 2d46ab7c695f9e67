"""One stage of training: which fields it turns how, and what it says when the loss is no number any more."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import stemdl.train.stage as stage_module
from field_cases import fields_of, small_config
from stemdl.config import Config
from stemdl.errors import UserError
from stemdl.models.predictor import Predictor
from stemdl.models.registry import build_network
from stemdl.models.symmetry import IDENTITY
from stemdl.progress import SilentProgress
from stemdl.train.data import Split, batches
from stemdl.train.data import gather as real_gather
from stemdl.train.loop import checkpoint_folder
from stemdl.train.stage import TrainingDiverged, train_stage
from training_cases import Remembering, prepared, run


class TestStage:
    """Single stages, without files."""

    @staticmethod
    def stage_of(config: Config, fields: Any, split: Split | None = None, progress: Any = None) -> Any:
        torch.manual_seed(0)
        network = build_network(config)
        network.scale_v_angstrom.fill_(250.0)
        predictor = Predictor(config, network, threads=1)
        physics = predictor.look(fields.amplitude, fields.thickness_angstrom)
        everything = np.arange(len(fields))
        split = split or Split(everything, everything)
        return train_stage(predictor, fields, physics, split, 0, progress or SilentProgress())

    @pytest.mark.parametrize("log_every", [1, 4, 100])
    def test_a_loss_that_is_no_number_names_step_and_fields(self, log_every: int) -> None:
        config = small_config(train__batch=2, train__steps=6, train__log_every=log_every, train__hard_share=0.0)
        fields = dataclasses.replace(fields_of(config, 12), items=tuple(range(100, 112)))
        potential = fields.potential.copy()
        order = [part.indices for part in batches(np.arange(12), 2, 6, config.run.seed, 0)]
        potential[order[2][0], 3, 3] = np.nan  # seen for the first time in step 3
        progress = Remembering()
        items = ", ".join(str(100 + i) for i in order[2])
        with pytest.raises(TrainingDiverged) as caught:
            self.stage_of(config, dataclasses.replace(fields, potential=potential), progress=progress)
        message = str(caught.value)
        assert f"training stage 1: the loss is nan at step 3 (items of the batch: {items})" in message
        assert "train.lr (now 0.003)" in message
        assert isinstance(caught.value, UserError)
        assert progress.open == 0

    def test_weights_that_burst_in_the_last_step_are_seen_too(self) -> None:
        config = small_config(train__batch=2, train__steps=6)
        fields = fields_of(config, 12)
        potential = fields.potential.copy()
        potential[11, 0, 0] = np.inf
        with pytest.raises(TrainingDiverged, match=r"validation loss is (nan|inf) after step 3"):
            self.stage_of(
                config, dataclasses.replace(fields, potential=potential), Split(np.arange(11), np.array([11]))
            )

    def test_a_learning_rate_that_bursts_is_an_error_and_no_checkpoint(self, tmp_path: Path) -> None:
        config = prepared(tmp_path, train__lr=1e30, train__warmup_steps=0)
        with pytest.raises(TrainingDiverged, match=r"lower train\.lr"):
            run(config)
        assert not (checkpoint_folder(config) / "latest").exists()

    @pytest.mark.parametrize(
        ("changes", "allowed"),
        [
            ({}, set(range(8))),
            ({"train__augment": False}, {IDENTITY}),
            ({"scan__positions": (4, 3)}, {0, 2, 4, 6}),
            ({"detector__pixels": (24, 20)}, {0, 2, 4, 6}),
            ({"microscope__astigmatism_angstrom": 30.0}, {0, 6}),
        ],
    )
    def test_fields_are_turned_as_the_probe_and_the_shapes_allow(
        self, changes: dict[str, Any], allowed: set[int], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        config = small_config(train__steps=40, train__validate_every=1000, train__batch=1, **changes)
        seen: list[int] = []

        def remember(*args: Any) -> Any:
            seen.append(args[3])
            return real_gather(*args)

        monkeypatch.setattr(stage_module, "gather", remember)
        self.stage_of(config, fields_of(config, 3))
        assert set(seen[:-1]) == allowed
        assert seen[-1] == IDENTITY  # the validation

    def test_what_noise_adds_to_the_misfit_makes_no_field_hard(self, monkeypatch: pytest.MonkeyPatch) -> None:
        config = small_config(train__batch=4, train__hard_share=0.5, train__validate_every=1000)
        seen: list[int] = []

        def remember(*args: Any) -> Any:
            seen.extend(int(i) for i in args[2][2:4])
            return real_gather(*args)

        monkeypatch.setattr(stage_module, "gather", remember)
        noise = np.full(6, 1e9)
        noise[4] = 0.0
        self.stage_of(config, dataclasses.replace(fields_of(config, 6), noise_misfit=noise))
        assert seen[:-2] == [4] * 12  # the last two are those of the validation

    def test_another_stage_is_not_touched(self) -> None:
        config = small_config()
        fields = fields_of(config, 4)
        network = build_network(config)
        before = {name: value.clone() for name, value in network.state_dict().items()}
        predictor = Predictor(config, network, threads=1)
        first = predictor.look(fields.amplitude, fields.thickness_angstrom)
        physics = predictor.look(fields.amplitude, fields.thickness_angstrom, (fields.potential, first))
        train_stage(predictor, fields, physics, Split(np.arange(4), np.arange(4)), 1, SilentProgress())
        changed = {name for name, value in network.state_dict().items() if not torch.equal(value, before[name])}
        assert changed
        assert all(name.startswith("parts.1.") for name in changed)
