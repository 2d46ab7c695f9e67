"""Training on a small synthetic set: it learns, and ends in the same bits however it got there."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import stemdl.train.loop as loop_module
import stemdl.train.stage as stage_module
from field_cases import correlation, fields_of, small_config, write_fields
from stemdl.checkpoints import CheckpointError, load_checkpoint
from stemdl.config import Config, stage_hash
from stemdl.models.base import FieldInputs
from stemdl.models.predictor import Predictor
from stemdl.models.registry import build_network
from stemdl.shards import ShardError
from stemdl.train.data import load_training_fields, split_fields
from stemdl.train.loop import TrainSummary, checkpoint_folder, thread_count, train
from stemdl.train.loss import potential_loss
from stemdl.train.schedule import learning_rate
from stemdl.train.stage import train_stage
from training_cases import Interrupted, Remembering, bits, prepared, run

FC_DENSENET = {"name": "fc_densenet", "growth": 4, "blocks": (1, 1, 1), "dropout": 0.3}


def interrupt_in_stage(patch: pytest.MonkeyPatch, stage: int) -> list[int]:
    """Have the training die when it comes to a stage; returns the stages that it trains."""
    trained: list[int] = []

    def dying(*args: Any) -> Any:
        if args[4] == stage:
            raise Interrupted
        trained.append(args[4])
        return train_stage(*args)

    patch.setattr(loop_module, "train_stage", dying)
    return trained


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Config, TrainSummary]:
    config = prepared(tmp_path_factory.mktemp("finished"))
    return config, run(config)


class TestLearning:
    def test_the_loss_falls_and_other_materials_are_seen_better(self, tmp_path: Path) -> None:
        config = prepared(tmp_path, train__steps=40, train__validate_every=10, train__log_every=10)
        summary = run(config)
        for record in summary.history:
            assert record["train_loss"][-1] < 0.8 * record["train_loss"][0]
            assert record["validation_loss"][-1] < 0.9 * record["validation_loss"][0]
            assert record["steps"] == record["validation_steps"] == [10, 20, 30, 40]
        first, second = summary.history
        assert second["validation_loss"][-1] < first["validation_loss"][-1]
        assert second["validation_r"][-1] > 0.9

    def test_what_is_saved_is_what_was_validated(self, finished: tuple[Config, TrainSummary]) -> None:
        """The averaged weights, on the materials kept aside."""
        config, summary = finished
        network = build_network(config)
        load_checkpoint(summary.checkpoint).restore(network)
        fields = load_training_fields(config)
        split = split_fields(fields.formulas, config.train.validation_fraction, config.run.seed)
        aside = dataclasses.replace(
            fields,
            amplitude=fields.amplitude[split.validation],
            potential=fields.potential[split.validation],
            thickness_angstrom=fields.thickness_angstrom[split.validation],
        )
        prediction, _ = Predictor(config, network, threads=1).predict(
            aside.amplitude, aside.thickness_angstrom, average=True, batch=16
        )
        # Stage 2 started from symmetry-averaged answers, and was itself validated without the average.
        predictor = Predictor(config, network, threads=1)
        look = predictor.look(aside.amplitude, aside.thickness_angstrom)
        answer = predictor.stage(aside.amplitude, look, 0, average=True, batch=16)
        again = predictor.look(aside.amplitude, aside.thickness_angstrom, (answer.potential, look))
        assert again is not None
        inputs = FieldInputs(torch.from_numpy(aside.amplitude.astype(np.float32)), again.pictures)
        with torch.no_grad():
            loss = potential_loss(
                network(inputs, 1),
                torch.from_numpy(aside.potential),
                network.scale_v_angstrom,
                mean_weight=config.train.mean_weight,
                root_weight=config.train.root_weight,
                huber_beta=config.train.huber_beta,
            )
        assert float(loss) == pytest.approx(summary.history[1]["validation_loss"][-1], rel=1e-4)
        r = [correlation(a, b) for a, b in zip(prediction.potential, aside.potential, strict=True)]
        assert float(np.median(r)) == pytest.approx(summary.history[1]["validation_r"][-1], abs=0.05)

    def test_the_scale_is_the_mean_of_the_training_set(self, finished: tuple[Config, TrainSummary]) -> None:
        config, summary = finished
        checkpoint = load_checkpoint(summary.checkpoint)
        mean = float(load_training_fields(config).potential.mean())
        assert float(checkpoint.weights["scale_v_angstrom"]) == pytest.approx(mean, rel=1e-6)
        assert checkpoint.meta["scale_v_angstrom"] == pytest.approx(mean, rel=1e-6)


class TestSameBits:
    def test_of_two_trainings(self, finished: tuple[Config, TrainSummary], tmp_path: Path) -> None:
        torch.manual_seed(77)  # global state must not matter
        state = torch.get_rng_state()
        config = prepared(tmp_path)
        summary = run(config)
        assert bits(config) == bits(finished[0])
        assert summary.history == finished[1].history
        assert torch.equal(torch.get_rng_state(), state)

    def test_of_another_seed_they_are_others(self, finished: tuple[Config, TrainSummary], tmp_path: Path) -> None:
        config = prepared(tmp_path, run__seed=4)
        run(config)
        assert bits(config) != bits(finished[0])

    def test_of_one_that_was_interrupted_between_its_stages(
        self, finished: tuple[Config, TrainSummary], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        config = prepared(tmp_path)
        with pytest.raises(Interrupted), monkeypatch.context() as patch:
            interrupt_in_stage(patch, 1)
            run(config)
        assert load_checkpoint(checkpoint_folder(config)).meta["stages_done"] == 1
        assert bits(config) != bits(finished[0])
        torch.manual_seed(1234)  # another process, another state
        progress = Remembering()
        trained = interrupt_in_stage(monkeypatch, 99)
        summary = train(config, progress=progress)
        assert trained == [1]
        assert any("goes on after stage 1 (step-0000006)" in note for note in progress.notes)
        assert bits(config) == bits(finished[0])
        assert summary.history == finished[1].history
        assert summary.steps == finished[1].steps == 12
        lines = [(tmp_path / "log" / "rank-0.jsonl"), finished[0].run.folder / "log" / "rank-0.jsonl"]
        assert lines[0].read_text() == lines[1].read_text()

    @pytest.mark.parametrize("stage", [0, 1])
    def test_of_one_that_was_interrupted_within_a_stage(
        self,
        finished: tuple[Config, TrainSummary],
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        stage: int,
    ) -> None:
        config = prepared(tmp_path)
        calls = [0]

        def dying(*args: Any) -> float:
            calls[0] += 1
            if calls[0] == 6 * stage + 3:
                raise Interrupted
            return learning_rate(*args)

        with pytest.raises(Interrupted), monkeypatch.context() as patch:
            patch.setattr(stage_module, "learning_rate", dying)
            run(config)
        run(config)
        assert bits(config) == bits(finished[0])

    def test_of_the_2019_network_and_its_dropout(self, tmp_path: Path) -> None:
        hashes: set[str] = set()
        for name, dropout in (("a", 0.3), ("b", 0.3), ("c", 0.0)):
            network = {**FC_DENSENET, "dropout": dropout}
            config = prepared(tmp_path / name, network=network, target__pixel_angstrom=8 / 24, train__steps=2)
            torch.manual_seed(len(name))
            torch.rand(len(hashes) + 1)
            summary = run(config)
            assert (summary.steps, len(summary.history)) == (2, 1)
            hashes.add(bits(config))
        assert len(hashes) == 2


class TestGoingOn:
    def test_what_is_complete_is_left_alone(
        self, finished: tuple[Config, TrainSummary], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        config, summary = finished
        monkeypatch.setattr(loop_module, "load_training_fields", None)
        again = run(config)
        assert again.skipped
        assert (again.checkpoint, again.steps, again.history) == (summary.checkpoint, 12, summary.history)
        assert not summary.skipped

    def test_another_configuration_starts_anew_whatever_the_old_one_is_like(self, tmp_path: Path) -> None:
        config = prepared(tmp_path)
        old = run(config).checkpoint
        (old / "weights.pt").write_bytes(b"damaged")
        other = small_config(run__folder=tmp_path, train__lr=1e-3)
        summary = run(other)
        assert not summary.skipped
        assert load_checkpoint(checkpoint_folder(other)).meta["config_hash"] == stage_hash(other, "train")
        text = (tmp_path / "log" / "rank-0.jsonl").read_text()
        rows = [json.loads(line) for line in text.splitlines()]
        assert len({(row["event"], row["stage"], row["step"]) for row in rows}) == len(rows) == 10

    @pytest.mark.parametrize("name", ["weights.pt", "meta.json"])
    def test_of_a_damaged_checkpoint_it_goes_back_to_the_one_before(
        self, finished: tuple[Config, TrainSummary], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
    ) -> None:
        config = prepared(tmp_path)
        path = run(config).checkpoint / name
        content = path.read_bytes()[:-30]
        path.write_bytes(content)
        progress, trained = Remembering(), interrupt_in_stage(monkeypatch, 99)
        train(config, progress=progress)
        assert trained == [1]
        assert any(
            note.startswith("WARNING: ") and f"{name}: damaged" in note and "step-0000006 is used instead" in note
            for note in progress.notes
        )
        assert bits(config) == bits(finished[0])
        assert (checkpoint_folder(config) / "step-0000012.damaged-1" / name).read_bytes() == content
        logs = [folder / "log" / "rank-0.jsonl" for folder in (tmp_path, finished[0].run.folder)]
        assert logs[0].read_text() == logs[1].read_text()

    def test_where_all_are_damaged_it_says_what_to_do(self, tmp_path: Path) -> None:
        config = prepared(tmp_path)
        run(config)
        paths = sorted(checkpoint_folder(config).glob("step-*/weights.pt"))
        for path in paths:
            path.write_bytes(b"damaged")
        with pytest.raises(CheckpointError, match=rf"pt: damaged.*; .*: to train from the start, remove {tmp_path}"):
            run(config)
        assert [path.read_bytes() for path in paths] == [b"damaged"] * 2

    def test_without_the_name_of_the_latest_nothing_is_trained_again(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        config = prepared(tmp_path)
        summary = run(config)
        (checkpoint_folder(config) / "latest").unlink()
        log = tmp_path / "log" / "rank-0.jsonl"
        whole = log.read_text()
        log.write_text(whole[:-20])
        monkeypatch.setattr(loop_module, "load_training_fields", None)
        progress = Remembering()
        again = train(config, progress=progress)
        assert again.skipped
        assert again.checkpoint == summary.checkpoint
        assert any("latest is missing; step-0000012 is used instead" in note for note in progress.notes)
        assert load_checkpoint(checkpoint_folder(config)).folder == summary.checkpoint
        assert log.read_text() == whole

    def test_weights_of_another_network_are_refused(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """As after a change of the program: the configuration is the same, the network is not."""
        config = prepared(tmp_path)
        with pytest.raises(Interrupted), monkeypatch.context() as patch:
            interrupt_in_stage(patch, 1)
            run(config)
        wider = small_config(network={**config.network.model_dump(), "trunk": 16})
        monkeypatch.setattr(loop_module, "build_network", lambda _: build_network(wider))
        with pytest.raises(CheckpointError, match="its weights do not fit the network"):
            run(config)

    def test_without_a_training_set_it_says_so(self, tmp_path: Path) -> None:
        with pytest.raises(ShardError, match="no shard is sealed"):
            run(small_config(run__folder=tmp_path))
        other = prepared(tmp_path / "other", run__seed=9)
        with pytest.raises(ShardError, match="config hash"):
            run(small_config(run__folder=other.run.folder))


class TestLog:
    def test_one_line_for_each_logged_step(self, finished: tuple[Config, TrainSummary]) -> None:
        config, summary = finished
        text = (config.run.folder / "log" / "rank-0.jsonl").read_text()
        rows = [json.loads(line) for line in text.splitlines()]
        trained = [(row["stage"], row["step"]) for row in rows if row["event"] == "train"]
        validated = [(row["stage"], row["step"]) for row in rows if row["event"] == "validate"]
        assert trained == [(1, 2), (1, 4), (1, 6), (2, 2), (2, 4), (2, 6)]
        assert validated == [(1, 3), (1, 6), (2, 3), (2, 6)]
        assert rows[0]["loss"] == summary.history[0]["train_loss"][0]
        assert all(np.isfinite(row["loss"]) for row in rows)

    def test_a_stage_that_ends_between_two_lines_has_a_last_one(self, tmp_path: Path) -> None:
        config = prepared(tmp_path, train__steps=5, train__log_every=2, train__validate_every=4)
        record = run(config).history[0]
        assert record["steps"] == [2, 4, 5]
        assert record["validation_steps"] == [4, 5]
        assert len(record["train_loss"]) == len(record["lr"]) == 3

    def test_progress_is_told_and_every_part_ended(self, tmp_path: Path) -> None:
        progress = Remembering()
        train(prepared(tmp_path), progress=progress)
        assert progress.stages == ["physics of the patterns", "train stage 1", "physics after stage 1", "train stage 2"]
        assert progress.open == 0
        assert progress.done[:12] == list(range(1, 13))
        assert sum("validation loss" in note for note in progress.notes) == 4

    def test_one_material_alone_is_said(self, tmp_path: Path) -> None:
        config = small_config(run__folder=tmp_path)
        fields = fields_of(config)
        write_fields(config, dataclasses.replace(fields, formulas=("Al",) * len(fields)))
        progress = Remembering()
        train(config, progress=progress)
        assert "all training fields are of one material, Al: it is validated on itself" in progress.notes

    def test_threads_are_those_asked_for_or_all(self) -> None:
        assert thread_count(small_config(train__threads=3)) == 3
        assert thread_count(small_config(train__threads=0)) >= 1
