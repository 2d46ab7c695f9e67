"""`stemdl shards list | verify | show | merge | repair`: what is printed, what is written, how they end."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shard_cases import assert_holds, flip_bit, lose_line, path_of, sample_of, truncate, write
from stemdl.cli import main
from stemdl.report.shard_picture import save_sample_picture
from stemdl.shards import read_manifest
from stemdl.shards.describe import describe_sample
from stemdl.shards.locks import RankLock
from stemdl.shards.schema import ShardAxes
from stemdl.shards.summary import summarise


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    """The shards of a run: nine training samples by two ranks, two held-out ones."""
    write(tmp_path / "shards" / "train", range(0, 9, 2), rank=0)
    write(tmp_path / "shards" / "train", range(1, 9, 2), rank=1)
    write(tmp_path / "shards" / "held_out", range(2))
    return tmp_path / "shards"


def shards(*words: object) -> int:
    return main(["shards", *map(str, words)])


def written(path: Path) -> dict[str, Any]:
    record = json.loads(path.read_text())
    assert isinstance(record, dict)
    return record


def test_list_says_what_is_there(run_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "list.json"
    assert shards("list", run_folder, "--json", target) == 0
    out = capsys.readouterr().out
    train = run_folder / "train"
    assert f"{path_of(train)}  3 samples" in out
    assert "items 0-4 by 2" in out
    assert f"{train}: 4 shards, 9 samples" in out
    assert "config hash c1" in out
    assert "rank 1: 2 shards, 4 samples" in out
    assert "3 crystals of 3 materials, 3 samples of each crystal" in out
    assert "parameters, the same in all: energy_kev 100" in out
    assert "parameters, from ... to: thickness_angstrom 20 to 28" in out
    record = written(target)
    assert [one["items"] for one in record["folders"][str(train)]] == [[0, 2, 4], [6, 8], [1, 3, 5], [7]]
    summary = record["summary"][str(train)]
    assert (summary["shards"], summary["samples"]) == (4, 9)
    assert summary["ranks"]["1"]["samples"] == 4
    assert summary["crystals"] == {"Si-diamond": 3, "MgO-rocksalt": 3, "Al-fcc": 3}
    assert summary["parameters"]["thickness_angstrom"] == [20.0, 28.0]


def test_a_short_list_opens_no_shard(run_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for path in (run_folder / "train").glob("*.h5"):
        path.write_bytes(b"")
    assert shards("list", run_folder / "train", "--short") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"{run_folder / 'train'}: 4 shards, 9 samples")
    assert len(lines) == 4
    assert shards("list", run_folder / "train") == 0
    assert capsys.readouterr().out.count("NOT READ") == 4


def test_many_ranks_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for rank in range(9):
        write(tmp_path, [rank] if rank else [20, 21], rank=rank)
    assert shards("list", tmp_path, "--short") == 0
    assert "9 ranks (0-8): 1 (rank 1) to 2 (rank 0) samples, median 1" in capsys.readouterr().out


def test_verify_names_every_problem_of_every_folder(
    run_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "verify.json"
    assert shards("verify", run_folder, "--json", target) == 0
    out = capsys.readouterr().out
    assert f"{run_folder / 'train'}: 4 shards, 9 samples, every sha256 agrees" in out
    assert written(target)["folders"] == {str(run_folder / name): None for name in ("held_out", "train")}

    flip_bit(path_of(run_folder / "train", 1))
    truncate(path_of(run_folder / "held_out"))
    (run_folder / "train" / ".tmp-00003-00000-host-1.h5").write_bytes(b"half")
    assert shards("verify", run_folder, "--json", target) == 2
    captured = capsys.readouterr()
    assert "problems: 2, shards: 5, fields damaged: 4" in captured.err
    assert f"{path_of(run_folder / 'train', 1)}: sha256 differs" in captured.err
    assert "2 fields (items 6, 8)" in captured.err
    assert f"{path_of(run_folder / 'held_out')}: " in captured.err
    assert "note: .tmp-00003-00000-host-1.h5: unfinished shard" in captured.out
    record = written(target)
    assert "sha256 differs" in record["folders"][str(run_folder / "train")]
    details = record["details"][str(run_folder / "train")]
    assert [(one["file"], one["items"]) for one in details["damaged"]] == [("shard-00000-00001.h5", [6, 8])]
    assert (details["shards"], details["samples"], details["config_hash"]) == (4, 7, "c1")
    assert set(details) == {
        "shards", "samples", "bytes", "config_hash", "damaged", "manifest_faults", "duplicates", "oddities",
    }  # fmt: skip


def test_verify_sees_a_folder_that_lost_its_manifest(run_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (run_folder / "held_out" / "manifest.jsonl").unlink()
    assert shards("verify", run_folder) == 2
    assert f"{run_folder / 'held_out' / 'manifest.jsonl'}: missing, though 1 shards" in capsys.readouterr().err


def test_verify_deep(run_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert shards("verify", run_folder, "--deep") == 0
    assert capsys.readouterr().out.count("every sample is sound") == 2


def test_show_describes_a_sample(run_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train = run_folder / "train"
    assert shards("show", train) == 0
    assert f"{train}: sample 0 of 9\nitem        0\n" in capsys.readouterr().out
    assert shards("show", train, "--index", "3") == 0
    assert "item        3" in capsys.readouterr().out
    picture = tmp_path / "sample.png"
    assert shards("show", train, "--item", "5", "-o", picture) == 0
    out = capsys.readouterr().out
    sample = sample_of(5)
    assert "crystal     Al-fcc, Al" in out
    assert "thickness_angstrom 25" in out
    assert "specimen.seed [1, 2, 5]" in out
    assert f"{sample.potential.min():.1f} to {sample.potential.max():.1f} V·Å" in out
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_show_beside_damage(run_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    truncate(path_of(run_folder / "train", 0))
    assert shards("show", run_folder / "train", "--item", "7") == 0
    assert "item        7" in capsys.readouterr().out
    assert shards("show", run_folder / "train", "--item", "2") == 2
    assert "--item 2: not in the set, which has the items 1-5 by 2, 6-8" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("train", "--index", "9"), "--index 9: the set has 9 samples, 0 to 8"),
        (("",), "several folders of shards: "),
        (("train/shard-00000-00000.h5",), "a file; give its folder"),
        (("train", "-o", "sample.jpg"), "a name that ends in .png is needed"),
        (("nowhere",), "no such folder"),
    ],
)
def test_show_says_what_is_wrong(
    run_folder: Path, words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert shards("show", run_folder / words[0], *words[1:]) == 2
    assert said in capsys.readouterr().err


def test_merge_joins_run_folders(run_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "node" / "train", [20, 21, 22])
    destination, target = tmp_path / "all", tmp_path / "merge.json"
    assert shards("merge", destination, run_folder, tmp_path / "node", "--json", target) == 0
    out = capsys.readouterr().out
    assert f"{destination / 'train'}: merged 5 shards, 12 samples" in out
    assert "(5 as hard links, 0 copied)" in out
    assert f"renamed: {path_of(tmp_path / 'node' / 'train')} is shard-00000-00002.h5" in out
    assert_holds(destination / "train", [*range(9), 20, 21, 22])
    assert_holds(destination / "held_out", range(2))
    record = written(target)["folders"][str(destination / "train")]
    assert (record["shards"], record["samples"], record["linked"]) == (5, 12, 5)

    assert shards("merge", destination, run_folder, "--copy") == 0
    assert "there already: 4 shards" in capsys.readouterr().out


def test_merge_with_damage_ends_with_3(run_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flip_bit(path_of(run_folder / "train", 0))
    assert shards("merge", tmp_path / "all", run_folder / "train") == 3
    out = capsys.readouterr().out
    assert f"DAMAGED, not merged: {path_of(run_folder / 'train', 0)}: length or sha256 differs" in out
    assert "3 fields (items 0-4 by 2) left out" in out
    assert_holds(tmp_path / "all", [1, 3, 5, 6, 7, 8])


def test_merge_tells_duplicates(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "a", range(4))
    write(tmp_path / "b", [3, 1, 7], rank=1)
    assert shards("merge", tmp_path / "all", tmp_path / "a", tmp_path / "b") == 0
    out = capsys.readouterr().out
    assert f"left out, since they are there: 2 fields (items 1, 3), of {path_of(tmp_path / 'b', rank=1)}" in out


def test_merge_refuses_two_configurations(run_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "other" / "train", [30], config_hash="c2")
    assert shards("merge", tmp_path / "all", run_folder, tmp_path / "other") == 2
    err = capsys.readouterr().err
    assert "config hash is c2" in err
    assert "has c1" in err
    assert not (tmp_path / "all").exists(), "not even the other folder of the pair"


def test_repair_mends_every_folder_below(run_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train, target = run_folder / "train", tmp_path / "repair.json"
    flip_bit(path_of(train, 0))
    lose_line(train, path_of(train, 0, rank=1).name)
    (run_folder / "held_out" / "manifest.jsonl").unlink()
    assert shards("repair", run_folder, "--dry-run") == 0
    out = capsys.readouterr().out
    assert f"{train}: 2 things would be done" in out
    assert f"{run_folder / 'held_out'}: 1 things would be done" in out
    assert "`stemdl simulate` makes 3 fields (items 0-4 by 2) again" in out
    assert shards("verify", run_folder) == 2
    capsys.readouterr()

    assert shards("repair", run_folder, "--json", target) == 0
    assert written(target)["folders"][str(train)]["items_lost"] == [0, 2, 4]
    assert shards("verify", run_folder, "--deep") == 0
    write(train, [0, 2, 4], rank=2)
    assert_holds(train, range(9))
    capsys.readouterr()
    assert shards("repair", run_folder) == 0
    assert capsys.readouterr().out.count("nothing to repair") == 2, "the folder for damaged files is none of shards"


def test_repair_beside_a_living_writer_ends_with_3(run_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lock = RankLock(run_folder / "train", 4)
    try:
        assert shards("repair", run_folder / "train") == 3
    finally:
        lock.release()
    assert "LEFT ALONE: " in capsys.readouterr().out


@pytest.mark.parametrize("verb", ["list", "verify", "show", "repair"])
def test_folders_without_shards(tmp_path: Path, verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert shards(verb, tmp_path) == 2
    assert "manifest.jsonl" in capsys.readouterr().err
    assert shards(verb, tmp_path / "nowhere") == 2
    assert "no such folder" in capsys.readouterr().err


def test_nothing_is_written_by_verbs_that_look(run_folder: Path) -> None:
    flip_bit(path_of(run_folder / "train", 0))
    before = {path: path.stat().st_mtime_ns for path in run_folder.rglob("*")}
    for words in (("list",), ("verify",), ("repair", "--dry-run")):
        shards(words[0], run_folder, *words[1:])
    shards("show", run_folder / "train")
    assert {path: path.stat().st_mtime_ns for path in run_folder.rglob("*")} == before


def test_a_sample_without_energy_or_parameters_is_drawn_too(tmp_path: Path) -> None:
    sample = sample_of(3, parameters={}, amplitude=np.zeros((1, 1, 4, 4), np.float16))
    text = describe_sample(sample, ShardAxes(2.0, 0.05, 0.5))
    assert "parameters" not in text
    save_sample_picture(tmp_path / "a.png", sample, ShardAxes(2.0, 0.05, 0.5), text)
    assert (tmp_path / "a.png").stat().st_size > 10_000


def test_a_summary_counts_each_shard_once(run_folder: Path) -> None:
    told: list[int] = []
    entries = read_manifest(run_folder / "train")
    summary = summarise(run_folder / "train", entries, on_shard=told.append)
    assert told == [1, 2, 3, 4]
    assert summary.bytes == sum(os.path.getsize(run_folder / "train" / entry.file) for entry in entries)
    assert sum(share.bytes for share in summary.ranks.values()) == summary.bytes
