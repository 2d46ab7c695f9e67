"""Training and held-out shards have the same item numbers and hash: they are told apart wherever they are read."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import h5py
import pytest

from data_gen.generate import simulate
from shard_cases import AXES, change_manifest, lose_line, path_of, sample_of
from stemdl.atomic_files import sha256_file
from stemdl.cli import main
from stemdl.config import Config, stage_hash
from stemdl.progress import SilentProgress
from stemdl.shards import ShardError, ShardSet, ShardWriter, read_manifest
from stemdl.shards.h5_read import ShardFile
from stemdl.shards.inspect import inspect_folder
from stemdl.shards.merge import merge_folders
from stemdl.shards.merge_plan import pair_folders
from stemdl.shards.part import part_of, require_part
from stemdl.shards.repair import repair_folder
from stemdl.shards.source import reading_folder, stage_alone
from tests.small_run import make_shards, small_config

PARTS = ("train", "held_out")


def _write(folder: Path, part: str, items: range = range(3), rank: int = 0) -> None:
    with ShardWriter(folder, rank=rank, axes=AXES, config_hash="c1", samples_per_shard=2, part=part) as writer:
        for item in items:
            sample = sample_of(item)
            sample.provenance.update({"part": part} if part else {})
            writer.add(sample)


def _make_old(folder: Path) -> None:
    """As shards were before they said their part: neither an attribute nor a key of the manifest."""
    lines = []
    for entry in read_manifest(folder):
        path = folder / entry.file
        with h5py.File(path, "r+") as file:
            del file.attrs["part"]
        record = {"file": entry.file, "bytes": path.stat().st_size, "count": entry.count, "items": entry.items}
        lines.append({**record, "sha256": sha256_file(path), "config_hash": entry.config_hash, "schema": entry.schema})
    (folder / "manifest.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.fixture(params=[False, True], ids=["new", "old"])
def both(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    for part in PARTS:
        _write(tmp_path / part, part)
        if request.param:
            _make_old(tmp_path / part)
    return tmp_path


def test_a_shard_and_its_line_say_the_part(tmp_path: Path) -> None:
    _write(tmp_path / "train", "train")
    (entry, _) = read_manifest(tmp_path / "train")
    assert entry.part == "train"
    with h5py.File(tmp_path / "train" / entry.file) as file:
        assert file.attrs["part"] == "train"
    change_manifest(tmp_path / "train", '"part":"train"', '"part":"held_out"')
    with ShardSet(tmp_path / "train") as shards, pytest.raises(ShardError, match="part or items are not those"):
        shards.item(0)


def test_shards_of_before_are_told_by_the_provenance_of_their_samples(both: Path) -> None:
    for part in PARTS:
        require_part(both / part, part)
        assert {part_of(both / part, entry) for entry in read_manifest(both / part)} == {part}
    with pytest.raises(
        ShardError, match=r"shard-00000-00000.h5: is of the part 'train'; .* needs shards of 'held_out'"
    ):
        require_part(both / "train", "held_out")
    _write(both / "none", "")
    with pytest.raises(ShardError, match="does not say of which part it is"):
        require_part(both / "none", "train")


@pytest.mark.parametrize("existing", [True, False])
def test_parts_are_not_merged_into_one_folder(both: Path, existing: bool, capsys: pytest.CaptureFixture[str]) -> None:
    if not existing:
        shutil.rmtree(both / "held_out")
    assert main(["shards", "merge", str(both / "held_out"), str(both / "train")]) == 2
    said = capsys.readouterr().err
    assert str(both / "held_out") in said
    assert "'train'" in said
    assert (both / "held_out").exists() is existing
    if existing:
        assert f"{both / 'train'} and {both / 'held_out'} do not go" in said
        assert main(["shards", "merge", str(both / "all"), str(both / "held_out"), str(both / "train")]) == 2
        assert not (both / "all").exists()


def test_one_part_is_merged_and_the_lines_of_old_shards_get_it(both: Path) -> None:
    _write(both / "node" / "train", "train", range(3, 6), rank=1)
    merge_folders(both / "all" / "train", [both / "train", both / "node" / "train"])
    assert [entry.part for entry in read_manifest(both / "all" / "train")] == ["train"] * 4
    with ShardSet(both / "all" / "train", verify="hash") as shards:
        assert shards.items == list(range(6))
        assert {str(shards.provenance(index)["part"]) for index in range(6)} == {"train"}


def test_a_writer_takes_neither_samples_nor_folders_of_another_part(tmp_path: Path) -> None:
    _write(tmp_path, "train")
    with pytest.raises(ShardError, match="is of the part 'train'"):
        _write(tmp_path, "held_out", range(3, 5), rank=1)
    with ShardWriter(
        tmp_path / "b", rank=0, axes=AXES, config_hash="c1", samples_per_shard=2, part="held_out"
    ) as writer:
        sample = sample_of(1)
        sample.provenance["part"] = "train"
        with pytest.raises(ShardError, match="item 1: is of the part 'train'; this writer's is 'held_out'"):
            writer.add(sample)


def test_a_shard_without_its_line_is_taken_in_as_its_own_part_alone(both: Path) -> None:
    shutil.copy(path_of(both / "train", 1), path_of(both / "held_out", 0, rank=4))
    lose_line(both / "held_out", "shard-00000-00001.h5")
    report = repair_folder(both / "held_out")
    assert sorted(path.name for path in (both / "held_out" / "damaged").iterdir()) == ["shard-00004-00000.h5"]
    assert not report.items_lost
    require_part(both / "held_out", "held_out")
    assert ShardFile(path_of(both / "held_out", 1)).part == "held_out"


def _mix(shards: Path) -> None:
    """What merging one part into the other did: its shards before the others, under their own lines."""
    wrong = (shards / "train" / "manifest.jsonl").read_text().replace("shard-00000", "shard-00007")
    for path in (shards / "train").glob("*.h5"):
        shutil.copy(path, shards / "held_out" / path.name.replace("shard-00000", "shard-00007"))
    manifest = shards / "held_out" / "manifest.jsonl"
    manifest.write_text(wrong.replace(',"crc32"', ',"_"') + manifest.read_text())
    manifest.write_text(re.sub(r',"(_|crc32)":"\w+"', "", manifest.read_text()))


def test_a_folder_of_two_parts_is_named_by_verify_and_not_repaired_blindly(both: Path) -> None:
    _mix(both)
    report = inspect_folder(both / "held_out")
    assert [problem.file for problem in report.damaged] == ["shard-00000-00000.h5", "shard-00000-00001.h5"]
    assert "is of the part 'held_out'" in report.damaged[0].reason
    before = sorted(path.name for path in (both / "held_out").iterdir())
    with pytest.raises(ShardError, match=r"shards of several parts: .*one folder holds one"):
        repair_folder(both / "held_out")
    assert sorted(path.name for path in (both / "held_out").iterdir()) == before


@pytest.fixture
def run(tmp_path: Path) -> Config:
    config = small_config(tmp_path, f"burst_buffer.folder={tmp_path}", "burst_buffer.reserve_gb=0")
    make_shards(config)
    _mix(config.run.folder / "shards")
    return config


def test_no_stage_reads_or_goes_on_with_the_other_part(run: Config) -> None:
    assert reading_folder(run, "train")
    refused = pytest.raises(ShardError, match=r"is of the part 'train'.* needs shards of 'held_out'")
    with refused:
        reading_folder(run, "held_out")
    with refused:
        simulate(run, progress=SilentProgress())
    with refused:
        stage_alone(run, SilentProgress())
    assert stage_hash(run, "simulate") == read_manifest(run.run.folder / "shards" / "train")[0].config_hash


def test_a_destination_inside_a_source_is_refused(tmp_path: Path) -> None:
    _write(tmp_path / "train", "train")
    with pytest.raises(ShardError, match=f"{tmp_path / 'train' / 'sub'}: lies inside the source {tmp_path / 'train'}"):
        pair_folders(tmp_path / "train" / "sub", [tmp_path / "train"])
