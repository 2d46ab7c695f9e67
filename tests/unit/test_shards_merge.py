"""Shards of many folders into one: nothing lost, nothing twice, nothing damaged, and safe to repeat."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from shard_cases import AXES, assert_holds, change_manifest, flip_bit, items_in, path_of, sample_of, truncate, write
from stemdl.shards import Sample, ShardAxes, ShardError, ShardSet, ShardWriter, read_manifest
from stemdl.shards import merge as merge_module
from stemdl.shards.copying import copy_checked
from stemdl.shards.h5_read import ShardFile
from stemdl.shards.locks import MERGE_LOCK_NAME, MergeLock, RankLock
from stemdl.shards.merge import MergeReport, merge_folders
from stemdl.shards.merge_plan import pair_folders
from stemdl.shards.schema import MANIFEST_NAME


@pytest.fixture
def nodes(tmp_path: Path) -> list[Path]:
    """Three nodes whose ranks 0, 1 and 2 made the items in turn; the first has two shards."""
    folders = [tmp_path / f"node-{number}" for number in range(3)]
    for rank, folder in enumerate(folders):
        write(folder, range(rank, 12, 3), rank=rank, per_shard=2)
    return folders


def counts(report: MergeReport) -> tuple[int, int, int, int]:
    return report.shards, report.samples, report.present, len(report.duplicates)


def test_the_set_is_joined_and_the_sources_stay(tmp_path: Path, nodes: list[Path]) -> None:
    told: list[int] = []
    report = merge_folders(tmp_path / "all", nodes, on_shard=told.append)
    assert counts(report) == (6, 12, 0, 0)
    assert (report.renamed, report.damaged, report.notes) == ([], [], [])
    assert told == [1, 2, 3, 4, 5, 6]
    assert report.bytes == sum(path.stat().st_size for path in (tmp_path / "all").glob("*.h5"))
    assert_holds(tmp_path / "all", range(12))
    for rank, folder in enumerate(nodes):
        assert_holds(folder, range(rank, 12, 3))


def test_hard_links_where_they_do_and_copies_where_they_do_not(
    tmp_path: Path, nodes: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    report = merge_folders(tmp_path / "linked", nodes)
    assert report.linked == report.shards == 6
    assert path_of(tmp_path / "linked").samefile(path_of(nodes[0]))

    assert merge_folders(tmp_path / "copied", nodes, hard_links=False).linked == 0
    assert not path_of(tmp_path / "copied").samefile(path_of(nodes[0]))

    def other_file_system(*_: object, **__: object) -> None:
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", other_file_system)
    assert merge_folders(tmp_path / "across", nodes).linked == 0
    for name in ("linked", "copied", "across"):
        assert_holds(tmp_path / name, range(12))


def test_a_second_call_does_nothing(tmp_path: Path, nodes: list[Path]) -> None:
    merge_folders(tmp_path / "all", nodes)
    before = (tmp_path / "all" / MANIFEST_NAME).read_bytes()
    report = merge_folders(tmp_path / "all", nodes)
    assert counts(report) == (0, 0, 6, 0)
    assert (tmp_path / "all" / MANIFEST_NAME).read_bytes() == before


def test_a_taken_name_becomes_the_next_of_its_rank(tmp_path: Path) -> None:
    for number in range(3):  # each node believed to be rank 0
        write(tmp_path / f"node-{number}", [number, number + 3], per_shard=1)
    report = merge_folders(tmp_path / "all", [tmp_path / f"node-{number}" for number in range(3)])
    assert [entry.file for entry in read_manifest(tmp_path / "all")] == [
        path_of(tmp_path, number).name for number in range(6)
    ]
    assert report.renamed == [
        (str(path_of(tmp_path / "node-1", 0)), "shard-00000-00002.h5"),
        (str(path_of(tmp_path / "node-1", 1)), "shard-00000-00003.h5"),
        (str(path_of(tmp_path / "node-2", 0)), "shard-00000-00004.h5"),
        (str(path_of(tmp_path / "node-2", 1)), "shard-00000-00005.h5"),
    ]
    assert_holds(tmp_path / "all", range(6))


def test_items_that_are_there_are_left_out_and_named(tmp_path: Path) -> None:
    write(tmp_path / "a", range(6))  # 0-2, 3-5
    write(tmp_path / "b", [2, 7, 5, 8, 9], rank=1)  # 2 7 5, 8 9: the first needs a part
    write(tmp_path / "c", [5, 4, 3], rank=2)  # all there, in a shard of other bytes
    report = merge_folders(tmp_path / "all", [tmp_path / name for name in "abc"])
    assert report.duplicates == {
        2: str(path_of(tmp_path / "b", rank=1)),
        **{item: str(path_of(tmp_path / "c", rank=2)) for item in (3, 4, 5)},
    }
    assert (report.shards, report.samples, report.rewritten, report.present) == (4, 9, 1, 0)
    assert [entry.items for entry in read_manifest(tmp_path / "all")] == [[0, 1, 2], [3, 4, 5], [7], [8, 9]]
    assert_holds(tmp_path / "all", [0, 1, 2, 3, 4, 5, 7, 8, 9])
    shard = ShardFile(path_of(tmp_path / "all", rank=1))
    shard.close()
    assert (shard.axes, shard.config_hash) == (AXES, "c1")
    assert h5py.is_hdf5(shard.path)


def test_damaged_shards_are_named_and_left_out(tmp_path: Path, nodes: list[Path]) -> None:
    flip_bit(path_of(nodes[0], 1))
    truncate(path_of(nodes[1], 0, rank=1))
    path_of(nodes[2], 1, rank=2).unlink()
    for copy in (False, True):
        destination = tmp_path / f"all-{copy}"
        report = merge_folders(destination, nodes, hard_links=not copy)
        assert counts(report) == (3, 6, 0, 0)
        assert [reason.partition(": ")[0] for reason in report.damaged] == [
            str(path_of(nodes[0], 1)),
            str(path_of(nodes[1], 0, rank=1)),
            str(path_of(nodes[2], 1, rank=2)),
        ]
        for reason, items in zip(report.damaged, ("6, 9", "1, 4", "8, 11"), strict=True):
            assert reason.endswith(f"; 2 fields (items {items}) left out")
        assert_holds(destination, [0, 2, 3, 5, 7, 10])
    # A whole copy from elsewhere comes in with the next call.
    write(tmp_path / "again", [6, 9], rank=9)
    assert counts(merge_folders(tmp_path / "all-True", [*nodes, tmp_path / "again"])) == (1, 2, 3, 0)


def test_a_damaged_duplicate_is_damage(tmp_path: Path) -> None:
    write(tmp_path / "a", range(3))
    write(tmp_path / "b", [2, 7, 8], rank=1)
    flip_bit(path_of(tmp_path / "b", rank=1))
    report = merge_folders(tmp_path / "all", [tmp_path / "a", tmp_path / "b"])
    assert report.duplicates == {}
    assert len(report.damaged) == 1
    assert_holds(tmp_path / "all", range(3))


def test_a_damaged_line_of_a_source_is_named(tmp_path: Path, nodes: list[Path]) -> None:
    path = nodes[1] / MANIFEST_NAME
    path.write_bytes(b"garbage\n" + path.read_bytes().splitlines(keepends=True)[1])
    report = merge_folders(tmp_path / "all", nodes)
    (fault,) = report.damaged
    assert fault.startswith(f"{path}, line 1: damaged")
    assert f"`stemdl shards repair {nodes[1]}`" in fault
    assert_holds(tmp_path / "all", [0, 2, 3, 5, 6, 7, 8, 9, 10, 11])


def test_a_link_in_a_source_leads_nowhere(tmp_path: Path, nodes: list[Path]) -> None:
    path = path_of(nodes[0])
    path.rename(tmp_path / "outside.h5")
    path.symlink_to(tmp_path / "outside.h5")
    report = merge_folders(tmp_path / "all", nodes)
    assert "a link, which no writer makes" in report.damaged[0]
    assert_holds(tmp_path / "all", set(range(12)) - {0, 3})


def test_two_configurations_are_refused_before_anything(tmp_path: Path, nodes: list[Path]) -> None:
    write(tmp_path / "other", [20], rank=4, config_hash="c2")
    message = rf"{path_of(tmp_path / 'other', rank=4)}: config hash is c2, but {path_of(nodes[0])} has c1"
    with pytest.raises(ShardError, match=message):
        merge_folders(tmp_path / "all", [*nodes, tmp_path / "other"])
    assert not (tmp_path / "all").exists()
    merge_folders(tmp_path / "all", nodes)
    with pytest.raises(ShardError, match="config hash is c2"):
        merge_folders(tmp_path / "all", [tmp_path / "other"])
    assert_holds(tmp_path / "all", range(12))


def test_two_kinds_of_axes_are_refused_before_anything(tmp_path: Path, nodes: list[Path]) -> None:
    write(tmp_path / "other", [20], rank=4, axes=ShardAxes(2.0, 0.06, 0.5))
    with pytest.raises(ShardError, match=rf"{path_of(tmp_path / 'other', rank=4)}: axes and shapes are .*0.06.*node-0"):
        merge_folders(tmp_path / "all", [*nodes, tmp_path / "other"])
    assert not (tmp_path / "all").exists()


def test_an_odd_shard_in_the_middle_is_refused_and_the_rest_is_valid(tmp_path: Path, nodes: list[Path]) -> None:
    write(tmp_path / "other", [20], rank=1, axes=ShardAxes(2.0, 0.06, 0.5))
    path_of(tmp_path / "other", rank=1).rename(path_of(nodes[1], 9, rank=1))
    change_manifest(tmp_path / "other", "00001-00000", "00001-00009")
    with (nodes[1] / MANIFEST_NAME).open("a") as stream:
        stream.write((tmp_path / "other" / MANIFEST_NAME).read_text())
    with pytest.raises(ShardError, match=rf"{path_of(nodes[1], 9, rank=1)}: axes and shapes"):
        merge_folders(tmp_path / "all", nodes)
    assert_holds(tmp_path / "all", [0, 1, 3, 4, 6, 7, 9, 10])


def test_an_unknown_schema_is_refused(tmp_path: Path, nodes: list[Path]) -> None:
    change_manifest(nodes[2], '"schema":1', '"schema":2')
    with pytest.raises(ShardError, match="schema 2 is unknown"):
        merge_folders(tmp_path / "all", nodes)


def test_writers_and_merges_at_the_destination_are_respected(tmp_path: Path, nodes: list[Path]) -> None:
    destination = tmp_path / "all"
    with ShardWriter(destination, rank=3, axes=AXES, config_hash="c1", samples_per_shard=2) as writer:
        with pytest.raises(ShardError, match="writers of rank 3 are at work in it"):
            merge_folders(destination, nodes)
        writer.add(sample_of(30))
    lock = MergeLock(destination)
    try:
        with pytest.raises(ShardError, match="another merge into this folder"):
            merge_folders(destination, nodes)
    finally:
        lock.release()
    merge_folders(destination, nodes)
    assert_holds(destination, [*range(12), 30])


def test_a_writer_at_a_source_is_noted(tmp_path: Path, nodes: list[Path]) -> None:
    lock = RankLock(nodes[1], 1)
    try:
        report = merge_folders(tmp_path / "all", nodes)
    finally:
        lock.release()
    assert report.notes == [f"{nodes[1]}: a writer is at work in it; what it seals from now on is not merged"]
    assert_holds(tmp_path / "all", range(12))


def test_a_full_disk_says_how_far_it_came(tmp_path: Path, nodes: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    real, calls = copy_checked, []

    def full(*arguments: Any) -> None:
        calls.append(arguments)
        if len(calls) == 4:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(*arguments)

    monkeypatch.setattr("stemdl.shards.merge.copy_checked", full)
    with pytest.raises(ShardError, match=r"No space left on device at .*; 3 shards are merged and valid; make room"):
        merge_folders(tmp_path / "all", nodes, hard_links=False)
    monkeypatch.undo()
    assert_holds(tmp_path / "all", [0, 1, 3, 4, 6, 9])
    merge_folders(tmp_path / "all", nodes, hard_links=False)
    assert_holds(tmp_path / "all", range(12))


def test_no_room_is_found_out_before_a_copy(tmp_path: Path, nodes: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    class Usage:
        free = 10

    monkeypatch.setattr(shutil, "disk_usage", lambda folder: Usage)
    with pytest.raises(ShardError, match=r"No space left.*0 shards are merged"):
        merge_folders(tmp_path / "all", nodes, hard_links=False)


def test_interrupted_at_every_step_a_second_call_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The names that a shard's way in hangs on, each interrupted at its n-th call, for n = 1, 2, ... to the end."""
    write(tmp_path / "a", [0, 1])
    write(tmp_path / "b", [1, 2], rank=1)
    sources = [tmp_path / "a", tmp_path / "b"]
    interrupts = 0
    for owner, name in ((os, "link"), (os, "rename"), (os, "replace"), (merge_module, "enter")):
        for stop_at in range(1, 100):
            destination = tmp_path / f"{name}-{stop_at}"
            if not _interrupted(monkeypatch, owner, name, stop_at, destination, sources):
                break
            interrupts += 1
            for entry in read_manifest(destination):
                assert (destination / entry.file).is_file()
            merge_folders(destination, sources)
            assert_holds(destination, [0, 1, 2])
    assert interrupts == 7


def _interrupted(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, stop_at: int, destination: Path, sources: list[Path]
) -> bool:
    real, count = getattr(owner, name), 0

    def call(*arguments: Any, **options: Any) -> Any:
        nonlocal count
        count += 1
        if count == stop_at:
            raise KeyboardInterrupt
        return real(*arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, call)
        try:
            merge_folders(destination, sources)
        except KeyboardInterrupt:
            return True
    return False


def test_which_folder_goes_where(tmp_path: Path, nodes: list[Path]) -> None:
    for number in range(2):
        for part in ("train", "held_out"):
            write(tmp_path / f"run-{number}" / part, [number], rank=number)
    runs = [tmp_path / "run-0", tmp_path / "run-1"]
    assert pair_folders(tmp_path / "all", nodes) == [(tmp_path / "all", nodes)]
    assert pair_folders(tmp_path / "all", runs) == [
        (tmp_path / "all" / "held_out", [runs[0] / "held_out", runs[1] / "held_out"]),
        (tmp_path / "all" / "train", [runs[0] / "train", runs[1] / "train"]),
    ]
    (tmp_path / "bare").mkdir()
    for sources, message in (
        ([tmp_path / "nowhere"], "no such folder"),
        ([tmp_path / "bare"], "no manifest.jsonl here or one folder below"),
        ([nodes[1], nodes[0]], "is the destination itself"),
    ):
        with pytest.raises(ShardError, match=message):
            pair_folders(nodes[0], sources)


def test_nothing_to_merge(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / MANIFEST_NAME).touch()
    assert counts(merge_folders(tmp_path / "all", [tmp_path / "empty"])) == (0, 0, 0, 0)
    assert not (tmp_path / "all").exists()


def test_remnants_of_a_killed_merge_are_cleared(tmp_path: Path, nodes: list[Path]) -> None:
    destination = tmp_path / "all"
    destination.mkdir()
    os.link(path_of(nodes[0]), destination / ".tmp-00000-merge-host-1.h5")
    (destination / MERGE_LOCK_NAME).touch()
    os.link(path_of(nodes[1], rank=1), path_of(destination, rank=1))  # renamed, but without its line yet
    report = merge_folders(destination, nodes)
    assert report.present == 1
    assert_holds(destination, range(12))
    assert sorted(items_in(destination)) == list(range(12))


def test_numbers_of_lost_shards_are_not_used_again(tmp_path: Path) -> None:
    write(tmp_path / "all", range(3))
    path_of(tmp_path / "all").unlink()
    write(tmp_path / "node", [7])
    merge_folders(tmp_path / "all", [tmp_path / "node"])
    assert [entry.file for entry in read_manifest(tmp_path / "all")] == ["shard-00000-00000.h5", "shard-00000-00001.h5"]


def test_a_sample_at_the_edge_of_the_tolerance_survives_being_rewritten(tmp_path: Path) -> None:
    """Rounding to float16 may lift a pattern above what `add` lets in; it was let in before."""
    amplitude = np.zeros((2, 3, 8, 8))
    amplitude[..., 0, :2] = np.sqrt(1.0009 / 2)
    bright: Sample = sample_of(1, amplitude=amplitude)
    with ShardWriter(tmp_path / "b", rank=1, axes=AXES, config_hash="c1", samples_per_shard=3) as writer:
        writer.add(sample_of(0))
        writer.add(bright)
    write(tmp_path / "a", [0])
    merge_folders(tmp_path / "all", [tmp_path / "a", tmp_path / "b"])
    with ShardSet(tmp_path / "all", verify="hash") as shards:
        np.testing.assert_array_equal(shards.amplitude(1), amplitude.astype(np.float16))
