"""Repair heals each kind of damage: afterwards verify passes, nothing whole is lost, and what is gone is made again."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from shard_cases import (
    AXES,
    assert_holds,
    change_manifest,
    flip_bit,
    items_in,
    lose_line,
    path_of,
    sample_of,
    truncate,
    write,
)
from stemdl.atomic_files import temporary_name
from stemdl.shards import ShardError, ShardWriter, read_manifest
from stemdl.shards.inspect import inspect_folder
from stemdl.shards.locks import MERGE_LOCK_NAME, MergeLock, RankLock
from stemdl.shards.repair import DAMAGED_FOLDER, is_shard_folder, repair_folder
from stemdl.shards.schema import MANIFEST_NAME

ITEMS = range(9)  # in the shards 0, 1 and 2


def content_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def heal(folder: Path) -> None:
    """What follows a repair: verify passes, and a writer makes the items that are missing."""
    report = inspect_folder(folder, deep=True)
    assert report.is_sound
    assert report.oddities == []
    write(folder, [item for item in ITEMS if item not in items_in(folder)], rank=5)
    assert_holds(folder, ITEMS)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path / "shards", ITEMS)
    return tmp_path / "shards"


def test_nothing_is_done_to_a_sound_folder(folder: Path) -> None:
    before = content_of(folder)
    report = repair_folder(folder)
    assert (report.actions, report.left_alone, report.items_lost) == ([], [], [])
    assert content_of(folder) == before


def test_a_flipped_bit(folder: Path) -> None:
    flip_bit(path_of(folder, 1))
    report = repair_folder(folder)
    assert report.items_lost == [3, 4, 5]
    assert f"{path_of(folder, 1)}: changed: moved to damaged/; 3 fields (items 3-5) to make again" in report.actions
    assert (folder / DAMAGED_FOLDER / path_of(folder, 1).name).is_file()
    assert (folder / "manifest-1.jsonl").is_file()
    heal(folder)


def test_a_truncated_and_a_missing_shard(folder: Path) -> None:
    truncate(path_of(folder, 0))
    path_of(folder, 2).unlink()
    report = repair_folder(folder)
    assert report.items_lost == [0, 1, 2, 6, 7, 8]
    assert any("00002.h5: missing: its line is taken out" in action for action in report.actions)
    assert os.listdir(folder / DAMAGED_FOLDER) == [path_of(folder, 0).name]
    heal(folder)


def test_damage_twice_keeps_both_files(folder: Path) -> None:
    for _ in range(2):
        flip_bit(path_of(folder, 2))
        repair_folder(folder)
        write(folder, [6, 7, 8])
        assert path_of(folder, 2).is_file(), "the same number again: that name was free"
    assert sorted(os.listdir(folder / DAMAGED_FOLDER)) == ["shard-00000-00002.h5", "shard-00000-00002.h5.1"]
    heal(folder)


def test_a_missing_manifest_is_written_anew(folder: Path) -> None:
    write(folder, [], rank=3)
    (folder / MANIFEST_NAME).unlink()
    flip_bit(path_of(folder, 1))
    assert is_shard_folder(folder)
    report = repair_folder(folder)
    assert (
        f"{path_of(folder, 0)}: whole, but not in the manifest: taken in, with 3 fields (items 0-2)" in report.actions
    )
    assert f"{path_of(folder, 1)}: neither in the manifest nor sound: moved to damaged/" in report.actions
    assert items_in(folder) == [0, 1, 2, 6, 7, 8]
    heal(folder)


def test_damaged_lines_and_a_torn_end(folder: Path) -> None:
    path = folder / MANIFEST_NAME
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([lines[0], b"\0\0 garbage\n", lines[2][:-30]]))
    report = repair_folder(folder)
    assert any(f"{path}, line 2: damaged, not JSON" in action for action in report.actions)
    assert any("the torn last line" in action for action in report.actions)
    assert sorted(items_in(folder)) == list(ITEMS), "both shards were whole and are back"
    heal(folder)


def test_a_line_that_is_there_twice(folder: Path) -> None:
    path = folder / MANIFEST_NAME
    path.write_bytes(path.read_bytes() + path.read_bytes().splitlines(keepends=True)[0])
    repair_folder(folder)
    assert items_in(folder) == list(ITEMS)
    heal(folder)


def test_remnants_of_dead_writers_of_every_rank(folder: Path) -> None:
    write(folder, [20], rank=2)
    lose_line(folder, path_of(folder, rank=2).name)
    for name in (".tmp-00000-00003-host-1.h5", ".tmp-00007-00000-host-9.h5", ".lock-00007", ".lock-00011"):
        (folder / name).write_bytes(b"half")
    report = repair_folder(folder)
    assert sorted(action.removeprefix(f"{folder}/") for action in report.actions) == [
        ".lock-00007: lock of a dead writer: removed",
        ".lock-00011: lock of a dead writer: removed",
        ".tmp-00000-00003-host-1.h5: unfinished shard of a dead writer: removed",
        ".tmp-00007-00000-host-9.h5: unfinished shard of a dead writer: removed",
        "shard-00002-00000.h5: whole, but not in the manifest: taken in, with 1 field (item 20)",
    ]
    assert_holds(folder, [*ITEMS, 20])


def test_an_orphan_whose_items_are_sealed_elsewhere_goes_aside(folder: Path) -> None:
    path_of(folder, 0, rank=4).write_bytes(path_of(folder, 0).read_bytes())
    repair_folder(folder)
    assert os.listdir(folder / DAMAGED_FOLDER) == ["shard-00004-00000.h5"]
    assert items_in(folder) == list(ITEMS)


def test_a_living_writer_is_left_alone_and_named(folder: Path) -> None:
    (folder / ".tmp-00003-00000-host-1.h5").write_bytes(b"half")
    with ShardWriter(folder, rank=1, axes=AXES, config_hash="c1", samples_per_shard=5) as writer:
        writer.add(sample_of(30))
        flip_bit(path_of(folder, 0))
        report = repair_folder(folder)
        assert report.left_alone == [f"{folder}: a writer of rank 1 is alive: its files are left alone"]
        assert report.items_lost == [0, 1, 2], "what nobody writes is mended all the same"
        assert not (folder / ".tmp-00003-00000-host-1.h5").exists()
        writer.add(sample_of(31))
    assert_holds(folder, [3, 4, 5, 6, 7, 8, 30, 31])


def test_other_temporary_files(folder: Path) -> None:
    mine = temporary_name("progress")
    dead = mine.rpartition("-")[0] + "-999999999"
    elsewhere = ".tmp-progress-anotherhost-1"
    for name in (".tmp-manifest.jsonl-anotherhost-1", mine, dead, elsewhere):
        (folder / name).write_bytes(b"half")
    report = repair_folder(folder)
    left = {name for name in os.listdir(folder) if name.startswith(".")}
    assert left == {mine, elsewhere}
    assert sorted(report.left_alone) == sorted(
        f"{folder / name}: an unfinished file of a process that lives, or of another host: left alone"
        for name in (mine, elsewhere)
    )


def test_the_lock_of_a_dead_merge(folder: Path) -> None:
    (folder / MERGE_LOCK_NAME).touch()
    assert [odd.what for odd in inspect_folder(folder).oddities] == ["lock of a dead merge"]
    assert repair_folder(folder).actions == [f"{folder / MERGE_LOCK_NAME}: lock of a dead merge: removed"]
    lock = MergeLock(folder)
    try:
        assert [odd.what for odd in inspect_folder(folder).oddities] == ["a merge is alive"]
        assert repair_folder(folder).left_alone == [f"{folder}: a merge into it is at work"]
    finally:
        lock.release()
    assert_holds(folder, ITEMS)


def test_a_dry_run_says_the_same_and_does_nothing(folder: Path) -> None:
    flip_bit(path_of(folder, 1))
    lose_line(folder, path_of(folder, 2).name)
    path_of(folder, 0, rank=4).write_bytes(b"no shard")
    for name in (".tmp-00007-00000-host-9.h5", ".lock-00007", ".tmp-manifest.jsonl-host-1", MERGE_LOCK_NAME):
        (folder / name).write_bytes(b"half")
    (folder / MANIFEST_NAME).write_bytes((folder / MANIFEST_NAME).read_bytes() + b'{"torn')
    before = content_of(folder)
    planned = repair_folder(folder, dry_run=True)
    assert content_of(folder) == before
    done = repair_folder(folder)
    assert planned.items_lost == done.items_lost == [3, 4, 5]

    def subjects(actions: list[str]) -> list[str]:
        return sorted({action.partition(": ")[0] for action in actions})

    assert subjects(planned.actions) == subjects(done.actions)
    assert any(
        path_of(folder, 0, rank=4).name in action and "moved to damaged/" in action for action in planned.actions
    )
    heal(folder)


def test_a_dry_run_names_a_living_writer(folder: Path) -> None:
    lock = RankLock(folder, 1)
    try:
        assert repair_folder(folder, dry_run=True).left_alone == [
            f"{folder}: a writer of rank 1 is alive: its files are left alone"
        ]
    finally:
        lock.release()


def test_two_configurations_are_refused_by_name(folder: Path, tmp_path: Path) -> None:
    write(tmp_path / "other", [0], rank=1, config_hash="c2")
    path_of(tmp_path / "other", rank=1).rename(path_of(folder, rank=1))
    (folder / MANIFEST_NAME).unlink()
    before = content_of(folder)
    with pytest.raises(ShardError, match=r"c1 \(shard-00000-00000.h5\) and c2 \(shard-00001-00000.h5\)"):
        repair_folder(folder)
    assert content_of(folder) == before


def test_a_shard_of_an_unknown_schema_is_left_alone(folder: Path) -> None:
    change_manifest(folder, '"schema":1', '"schema":2')
    report = repair_folder(folder)
    assert len(report.left_alone) == 1
    assert "schema 2 is unknown" in report.left_alone[0]
    assert len(read_manifest(folder)) == 3
    assert path_of(folder, 0).is_file()


def test_killed_between_the_lines_and_the_files_a_second_call_goes_on(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flip_bit(path_of(folder, 0))
    flip_bit(path_of(folder, 1))

    def killed(source: object, target: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", killed)
        with pytest.raises(KeyboardInterrupt):
            repair_folder(folder)
    assert items_in(folder) == [6, 7, 8]
    repair_folder(folder)
    assert sorted(os.listdir(folder / DAMAGED_FOLDER)) == [path_of(folder, number).name for number in (0, 1)]
    heal(folder)


def test_one_call_keeps_one_copy_of_the_manifest_as_it_was(folder: Path) -> None:
    flip_bit(path_of(folder, 0))
    with (folder / MANIFEST_NAME).open("ab") as stream:
        stream.write(b"garbage\n")
    before = (folder / MANIFEST_NAME).read_bytes()
    report = repair_folder(folder)
    assert [path.name for path in folder.glob("manifest-*.jsonl")] == ["manifest-1.jsonl"]
    assert (folder / "manifest-1.jsonl").read_bytes() == before
    assert sum("as it was in manifest-1.jsonl" in action for action in report.actions) == 1
    assert report.items_lost
