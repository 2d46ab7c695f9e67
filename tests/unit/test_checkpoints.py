"""Checkpoints: one whole one stands whatever happens; damage is named; nothing in a file is executed."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from stemdl.checkpoints import (
    CheckpointError,
    find_checkpoint,
    load_checkpoint,
    read_meta,
    save_checkpoint,
)
from stemdl.errors import UserError

TOUCHES_THE_DISK = ("mkdir", "open", "write", "fsync", "replace", "rename", "unlink", "rmdir")


def weights(value: float) -> dict[str, torch.Tensor]:
    return {"layer.weight": torch.full((3, 2), value), "scale_v_angstrom": torch.tensor(value)}


def save(folder: Path, value: float, step: int = 10, **notes: Any) -> Path:
    meta = {"config_hash": "c", "stages_done": 1, "history": [{"loss": value}], **notes}
    return save_checkpoint(folder, step, weights(value), meta, f"value: {value:g}\n")


def value_of(folder: Path) -> float:
    """The one number that a whole checkpoint of these tests holds everywhere."""
    found = load_checkpoint(folder)
    value = float(found.weights["scale_v_angstrom"])
    assert torch.equal(found.weights["layer.weight"], torch.full((3, 2), value))
    assert found.meta["history"] == [{"loss": value}]
    assert (found.folder / "config.yaml").read_text() == f"value: {value:g}\n"
    return value


def rewrite_meta(folder: Path, **changes: Any) -> None:
    meta = json.loads((folder / "meta.json").read_text())
    meta.update(changes)
    (folder / "meta.json").write_text(json.dumps({key: value for key, value in meta.items() if value is not None}))


class Killed(BaseException):
    """The process ends here."""


class DeadlyDisk:
    """From the n-th call that touches the disk on, none does anything any more: as after a kill -9."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, die_at: int) -> None:
        self.calls = 0
        self.die_at = die_at
        for name in TOUCHES_THE_DISK:
            monkeypatch.setattr(os, name, self._deadly(getattr(os, name)))

    def _deadly(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **keys: Any) -> Any:
            if self.calls >= self.die_at:
                raise Killed
            self.calls += 1
            return real(*args, **keys)

        return call


def kill_everywhere(tmp_path: Path, before: Callable[[Path], object], step: int) -> list[float]:
    """Save value 2 once for each moment at which a kill may come; the values that stand afterwards (0: none)."""
    standing: list[float] = []
    for die_at in range(1000):
        folder = tmp_path / f"killed-{die_at}"
        before(folder)
        with pytest.MonkeyPatch.context() as patch:
            DeadlyDisk(patch, die_at)
            try:
                save(folder, 2, step)
                finished = True
            except Killed:
                finished = False
        standing.append(value_of(folder) if (folder / "latest").exists() else 0)
        if finished:
            return standing
        save(folder, 3, step)  # the next process goes on, and clears up
        assert value_of(folder) == 3
        names = {path.name for path in folder.iterdir()}
        assert not {name for name in names if name.startswith(".tmp-step")}
        assert len([name for name in names if name.startswith(f"step-{step:07d}")]) == 1
    raise AssertionError("the save never ends")


class TestSaving:
    def test_what_is_saved_is_loaded(self, tmp_path: Path) -> None:
        path = save(tmp_path / "deep" / "checkpoints", 1.5, 1200, seed=7)
        assert path == tmp_path / "deep" / "checkpoints" / "step-0001200"
        assert value_of(path.parent) == value_of(path) == 1.5
        meta = load_checkpoint(path).meta
        assert (meta["step"], meta["seed"], meta["stages_done"]) == (1200, 7, 1)
        assert read_meta(find_checkpoint(path.parent)) == meta

    def test_the_latest_is_the_last_one_saved(self, tmp_path: Path) -> None:
        first, second = save(tmp_path, 1, 10), save(tmp_path, 2, 20)
        assert value_of(tmp_path) == 2
        assert value_of(first) == 1
        assert find_checkpoint(tmp_path) == second

    def test_the_same_weights_are_the_same_bytes(self, tmp_path: Path) -> None:
        one, other = save(tmp_path / "a", 1), save(tmp_path / "b", 1)
        for name in ("weights.pt", "meta.json", "config.yaml"):
            assert (one / name).read_bytes() == (other / name).read_bytes()

    def test_the_same_step_again_takes_the_place_of_the_old_one(self, tmp_path: Path) -> None:
        names = [save(tmp_path, value, 10).name for value in (1, 2, 3)]
        assert value_of(tmp_path) == 3
        assert sorted(path.name for path in tmp_path.iterdir()) == ["latest", names[2]]
        assert names == ["step-0000010", "step-0000010.1", "step-0000010"]

    def test_the_same_step_of_another_configuration_is_kept(self, tmp_path: Path) -> None:
        old = save(tmp_path, 1, 10, config_hash="other")
        new = save(tmp_path, 2, 10)
        assert (value_of(old), value_of(new), value_of(tmp_path)) == (1, 2, 2)

    def test_a_damaged_one_of_the_same_step_is_put_aside(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        for number in (1, 2):
            (save(tmp_path, number) / "weights.pt").write_bytes(b"damaged")
        save(tmp_path, 3)
        assert value_of(tmp_path) == 3
        aside = sorted(tmp_path.glob("step-*.damaged-*"))
        assert [path.name for path in aside] == ["step-0000010.1.damaged-1", "step-0000010.damaged-1"]
        assert all((path / "weights.pt").read_bytes() == b"damaged" for path in aside)
        assert "kept as step-0000010.damaged-1" in caplog.text

    def test_weights_of_a_training_come_without_their_graph(self, tmp_path: Path) -> None:
        parameter = nn.Parameter(torch.ones(2))
        meta = {"config_hash": "c", "stages_done": 1, "history": []}
        save_checkpoint(tmp_path, 1, {"a": parameter}, meta, "")
        assert not load_checkpoint(tmp_path).weights["a"].requires_grad

    def test_notes_of_the_trainer_are_needed(self, tmp_path: Path) -> None:
        with pytest.raises(AssertionError):
            save_checkpoint(tmp_path, 1, weights(1), {"history": []}, "")


class TestKill:
    def test_of_the_first_one_nothing_or_all_of_it_stands(self, tmp_path: Path) -> None:
        standing = kill_everywhere(tmp_path, lambda folder: None, 10)
        assert set(standing) == {0, 2}
        assert len(standing) > 10

    def test_of_a_later_one_the_old_or_the_new_stands(self, tmp_path: Path) -> None:
        standing = kill_everywhere(tmp_path, lambda folder: save(folder, 1, 10), 20)
        assert set(standing) == {1, 2}
        assert standing == sorted(standing)

    def test_of_another_one_of_the_same_step_too(self, tmp_path: Path) -> None:
        standing = kill_everywhere(tmp_path, lambda folder: save(folder, 1, 10), 10)
        assert set(standing) == {1, 2}
        assert standing == sorted(standing)

    @pytest.mark.parametrize("name", ["write", "fsync", "rename", "mkdir"])
    def test_a_full_disk_is_said_and_leaves_the_old_one(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
    ) -> None:
        save(tmp_path, 1)

        def full(*args: Any, **keys: Any) -> Any:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr(os, name, full)
        with pytest.raises(CheckpointError, match=r"step 20 could not be written: No space left on device"):
            save(tmp_path, 2, 20)
        monkeypatch.undo()
        assert value_of(tmp_path) == 1

    def test_a_folder_that_cannot_be_made_is_the_user_s_to_mend(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("in the way")
        with pytest.raises(UserError, match="could not be written"):
            save(tmp_path / "file" / "checkpoints", 1)

    def test_what_cannot_be_cleared_up_is_said_and_no_error(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        save(tmp_path, 1)

        def busy(path: Path) -> None:
            raise OSError(errno.EBUSY, "busy", str(path))

        monkeypatch.setattr("stemdl.checkpoints.shutil.rmtree", busy)
        save(tmp_path, 2)
        assert value_of(tmp_path) == 2
        assert "no longer needed, and could not be removed" in caplog.text


class TestDamage:
    def test_nothing_there(self, tmp_path: Path) -> None:
        for folder in (tmp_path, tmp_path / "absent"):
            with pytest.raises(CheckpointError, match=r"no checkpoint here: meta\.json is missing"):
                load_checkpoint(folder)

    @pytest.mark.parametrize("name", ["weights.pt", "meta.json"])
    def test_a_missing_file_is_named(self, tmp_path: Path, name: str) -> None:
        (save(tmp_path, 1) / name).unlink()
        with pytest.raises(CheckpointError, match=rf"step-0000010: no checkpoint here: {name} is missing"):
            load_checkpoint(tmp_path)

    @pytest.mark.parametrize("place", [0, 200, -1])
    def test_a_flipped_bit_in_the_weights(self, tmp_path: Path, place: int) -> None:
        path = save(tmp_path, 1) / "weights.pt"
        content = bytearray(path.read_bytes())
        content[place] ^= 1
        path.write_bytes(content)
        with pytest.raises(
            CheckpointError, match=r"weights\.pt: damaged: its sha256 is [0-9a-f]{64}, [0-9a-f]{64} when"
        ):
            load_checkpoint(tmp_path)

    @pytest.mark.parametrize("share", [0.0, 0.5, 0.99])
    @pytest.mark.parametrize("name", ["weights.pt", "meta.json"])
    def test_a_truncated_file(self, tmp_path: Path, name: str, share: float) -> None:
        path = save(tmp_path, 1) / name
        content = path.read_bytes()
        path.write_bytes(content[: int(share * len(content))])
        with pytest.raises(CheckpointError, match=rf"{name}: damaged: "):
            load_checkpoint(tmp_path)

    @pytest.mark.parametrize("text", ["[]", "3", "null", '"a"'])
    def test_notes_that_are_no_object(self, tmp_path: Path, text: str) -> None:
        (save(tmp_path, 1) / "meta.json").write_text(text)
        with pytest.raises(CheckpointError, match="where a JSON object is needed"):
            load_checkpoint(tmp_path)

    @pytest.mark.parametrize("key", ["step", "weights_sha256", "config_hash", "stages_done", "history"])
    @pytest.mark.parametrize("value", [None, True, 1.5])
    def test_notes_that_lack_a_key_or_have_a_wrong_one(self, tmp_path: Path, key: str, value: Any) -> None:
        rewrite_meta(save(tmp_path, 1), **{key: value})
        with pytest.raises(CheckpointError, match=rf"meta\.json: damaged: {key} missing or of a wrong type"):
            load_checkpoint(tmp_path)

    def test_bytes_that_are_no_text(self, tmp_path: Path) -> None:
        folder = save(tmp_path, 1)
        (folder / "meta.json").write_bytes(b"\xff\xfe{}")
        with pytest.raises(CheckpointError, match=r"meta\.json: damaged"):
            load_checkpoint(folder)
        (tmp_path / "latest").write_bytes(b"\xff\xfe")
        with pytest.raises(CheckpointError, match="latest: damaged"):
            load_checkpoint(tmp_path)

    def test_a_folder_in_the_place_of_a_file(self, tmp_path: Path) -> None:
        folder = save(tmp_path, 1)
        (folder / "weights.pt").unlink()
        (folder / "weights.pt").mkdir()
        with pytest.raises(CheckpointError, match=r"weights\.pt: cannot be read: Is a directory"):
            load_checkpoint(folder)

    @pytest.mark.parametrize("version", [0, 2, "1", None])
    def test_another_format_is_not_guessed_at(self, tmp_path: Path, version: Any) -> None:
        rewrite_meta(save(tmp_path, 1), format=version)
        with pytest.raises(CheckpointError, match=rf"format {version!r}; this program reads 1"):
            load_checkpoint(tmp_path)


class TestMalice:
    @pytest.mark.parametrize(
        "name",
        [
            "../whole",
            "step-0000010/../../whole",
            "/etc",
            "..",
            ".",
            "",
            "step-..",
            "step-0000001/../../x",
            "step-1",
            "step-0000001.a",
            "step-0000001\nx",
        ],
    )
    def test_latest_leads_nowhere_else(self, tmp_path: Path, name: str) -> None:
        folder = tmp_path / "checkpoints"
        save(folder, 1)
        save(tmp_path / "x", 2).rename(tmp_path / "whole")  # what it could lead to is a good checkpoint
        (folder / "latest").write_text(name)
        with pytest.raises(CheckpointError, match=r"latest: .* is no name of a checkpoint"):
            load_checkpoint(folder)

    @staticmethod
    def load_with(tmp_path: Path, content: bytes) -> None:
        """Load a checkpoint with these bytes as weights, its hash put right."""
        folder = save(tmp_path / "checkpoints", 1)
        (folder / "weights.pt").write_bytes(content)
        rewrite_meta(folder, weights_sha256=hashlib.sha256(content).hexdigest())
        load_checkpoint(folder)

    @pytest.mark.parametrize("as_zip", [True, False])
    def test_a_pickle_that_would_run_something_is_refused(self, tmp_path: Path, as_zip: bool) -> None:
        marker = tmp_path / "executed"

        class Payload:
            def __reduce__(self) -> tuple[Any, ...]:
                return os.mkdir, (str(marker),)

        path = tmp_path / "payload"
        torch.save({"a": Payload()}, path, _use_new_zipfile_serialization=as_zip)
        with pytest.raises(CheckpointError, match=r"weights\.pt: no weights, and nothing of it was executed"):
            self.load_with(tmp_path, path.read_bytes())
        assert not marker.exists()
        with pytest.raises(CheckpointError, match="nothing of it was executed"):
            self.load_with(tmp_path, pickle.dumps(Payload(), protocol=2))
        assert not marker.exists()

    @pytest.mark.parametrize("content", [b"", b"no weights at all", b"PK\x03\x04 and then nothing", b"\x80\x02N."])
    def test_what_is_no_archive_of_weights(self, tmp_path: Path, content: bytes) -> None:
        with pytest.raises(CheckpointError, match=r"weights\.pt: "):
            self.load_with(tmp_path, content)

    @pytest.mark.parametrize("weights", [[torch.ones(1)], {"a": 1}, {"a": {"b": torch.ones(1)}}, torch.ones(2)])
    def test_what_are_no_tensors_by_name(self, tmp_path: Path, weights: Any) -> None:
        torch.save(weights, tmp_path / "file")
        with pytest.raises(CheckpointError, match=r"weights\.pt: damaged: .* where tensors by name are needed"):
            self.load_with(tmp_path, (tmp_path / "file").read_bytes())


class TestRestore:
    def test_a_network_gets_its_weights(self, tmp_path: Path) -> None:
        network, other = nn.Linear(3, 2), nn.Linear(3, 2)
        meta = {"config_hash": "c", "stages_done": 1, "history": []}
        save_checkpoint(tmp_path, 1, network.state_dict(), meta, "")
        load_checkpoint(tmp_path).restore(other)
        assert torch.equal(other.weight, network.weight)

    @pytest.mark.parametrize("network", [nn.Linear(3, 3), nn.Linear(3, 2, bias=False), nn.Conv1d(3, 2, 1)])
    def test_another_network_is_refused_in_words(self, tmp_path: Path, network: nn.Module) -> None:
        meta = {"config_hash": "c", "stages_done": 1, "history": []}
        save_checkpoint(tmp_path, 1, nn.Linear(3, 2).state_dict(), meta, "")
        with pytest.raises(CheckpointError, match=r"0001: its weights do not fit the network: .*(weight|bias)"):
            load_checkpoint(tmp_path).restore(network)
