"""What a lost maker has sealed without a word: its shards, and the one that it could not enter any more."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from data_gen.sample import axes_of
from data_gen.sharing.left_behind import sealed_by
from stemdl.config import Config, stage_hash
from stemdl.shards import ShardWriter, read_manifest
from tests.small_run import make_shards, small_config


@pytest.fixture
def config(tmp_path: Path) -> Config:
    """Both parts, by rank 0 in shards of four; the second shard to train on is another rank's without its line."""
    config = small_config(tmp_path)
    make_shards(config)
    folder = train(config)
    manifest = folder / "manifest.jsonl"
    lines = manifest.read_text().splitlines(keepends=True)
    manifest.write_text(lines[0] + lines[2])
    (folder / json.loads(lines[1])["file"]).rename(folder / "shard-00005-00000.h5")
    (folder / ".tmp-00005-00001-elsewhere-1.h5").write_bytes(b"half a shard")
    return config


def train(config: Config) -> Path:
    return config.run.folder / "shards" / "train"


def found(config: Config, number: int, *, is_dead: bool) -> list[tuple[str, int]]:
    return sorted(sealed_by(config, stage_hash(config, "simulate"), number, is_dead=is_dead))


def test_its_shards_of_both_parts_are_found_and_those_of_no_other(config: Config) -> None:
    mine = [("held_out", item) for item in range(5)] + [("train", item) for item in (0, 1, 2, 3, 8)]
    assert found(config, 0, is_dead=True) == mine
    assert found(config, 3, is_dead=True) == []


def test_a_shard_that_a_dead_maker_could_not_enter_any_more_is_entered(config: Config) -> None:
    assert found(config, 5, is_dead=True) == [("train", item) for item in (4, 5, 6, 7)]
    assert read_manifest(train(config))[-1].file == "shard-00005-00000.h5"
    (train(config) / ".lock-00002").touch()
    assert found(config, 2, is_dead=True) == []
    assert not [path.name for path in train(config).iterdir() if path.name.startswith(".")]


def test_of_a_maker_that_may_be_alive_nothing_is_touched(config: Config) -> None:
    """It holds the lock of its shards, and may still seal."""
    before = sorted(path.name for path in train(config).iterdir())
    digest = stage_hash(config, "simulate")
    with ShardWriter(train(config), rank=0, axes=axes_of(config), config_hash=digest, samples_per_shard=4):
        assert len(found(config, 0, is_dead=False)) == 10
    assert found(config, 5, is_dead=False) == []
    assert sorted(path.name for path in train(config).iterdir()) == before


def test_with_shards_on_nodes_their_next_job_enters_them(config: Config) -> None:
    buffer = config.run.folder / "node"
    on_nodes = config.burst_buffer.model_copy(update={"use": True, "folder": str(buffer)})
    changed = config.model_copy(update={"burst_buffer": on_nodes})
    assert sealed_by(changed, stage_hash(config, "simulate"), 5, is_dead=True) == ()


def test_before_the_first_shard_there_is_nothing(tmp_path: Path) -> None:
    assert found(small_config(tmp_path), 0, is_dead=True) == []
