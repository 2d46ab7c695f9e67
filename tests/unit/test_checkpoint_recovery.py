"""Which checkpoint training goes on from where the latest one is missing, damaged or of another configuration."""

from __future__ import annotations

from pathlib import Path

import pytest

from stemdl.checkpoints import CheckpointError, recover_checkpoint
from test_checkpoints import save, value_of


class TestRecovery:
    def test_of_nothing(self, tmp_path: Path) -> None:
        assert recover_checkpoint(tmp_path / "absent", "c") == (None, [])

    def test_the_latest_is_taken_without_a_word(self, tmp_path: Path) -> None:
        save(tmp_path, 1, 20)
        latest = save(tmp_path, 2, 10)
        found, problems = recover_checkpoint(tmp_path, "c")
        assert found is not None
        assert (found.folder, problems) == (latest, [])

    def test_without_latest_the_one_of_most_steps_is_taken(self, tmp_path: Path) -> None:
        for value, step in ((1, 10), (3, 10_000_000), (2, 9_999_999)):
            save(tmp_path, value, step)
        (tmp_path / "latest").unlink()
        found, problems = recover_checkpoint(tmp_path, "c")
        assert found is not None
        assert found.folder.name == "step-10000000"
        assert problems == [f"{tmp_path}/latest is missing"]
        assert value_of(tmp_path) == 3  # and is the latest again

    @pytest.mark.parametrize("content", [b"damaged", None])
    @pytest.mark.parametrize("name", ["weights.pt", "meta.json", ""])
    def test_of_a_damaged_latest_the_newest_whole_one_before(
        self, tmp_path: Path, name: str, content: bytes | None
    ) -> None:
        save(tmp_path, 1, 10)
        save(tmp_path, 2, 20)
        save(tmp_path, 5, 25, config_hash="other")
        path = save(tmp_path, 3, 30)
        if not name:
            path.rename(tmp_path / "gone")
        elif content is None:
            (path / name).unlink()
        else:
            (path / name).write_bytes(content)
        found, problems = recover_checkpoint(tmp_path, "c")
        assert found is not None
        assert found.folder.name == "step-0000020"
        assert len(problems) == 1
        assert "step-0000030" in problems[0]
        assert value_of(tmp_path) == 2
        assert path.exists() == bool(name)

    def test_of_a_latest_that_names_nothing(self, tmp_path: Path) -> None:
        save(tmp_path, 1)
        (tmp_path / "latest").write_text("../elsewhere")
        found, problems = recover_checkpoint(tmp_path, "c")
        assert found is not None
        assert "is no name of a checkpoint" in problems[0]

    def test_of_damaged_ones_alone_nothing_is_guessed(self, tmp_path: Path) -> None:
        for step in (10, 20):
            (save(tmp_path, 1, step) / "weights.pt").write_bytes(b"damaged")
        save(tmp_path, 1, 5, config_hash="other")
        (tmp_path / "latest").write_text("step-0000020")
        before = sorted(tmp_path.rglob("*"))
        with pytest.raises(
            CheckpointError, match=r"step-0000020/weights\.pt: damaged.*step-0000010/weights\.pt: damaged"
        ):
            recover_checkpoint(tmp_path, "c")
        (tmp_path / "latest").unlink()
        with pytest.raises(CheckpointError, match=r"latest is missing; .*damaged"):
            recover_checkpoint(tmp_path, "c")
        assert sorted([*tmp_path.rglob("*"), tmp_path / "latest"]) == before

    def test_another_configuration_is_never_taken(self, tmp_path: Path) -> None:
        save(tmp_path, 1)
        assert recover_checkpoint(tmp_path, "new") == (None, [])
        assert value_of(tmp_path) == 1
        (tmp_path / "latest").unlink()
        assert recover_checkpoint(tmp_path, "new")[0] is None
