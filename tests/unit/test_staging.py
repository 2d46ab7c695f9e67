"""Shards from the run folder to the nodes: each where it belongs, checked on the way, and never less without a word."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from staging_cases import NAMES, stage_it, staged_it
from stemdl.shards import read_manifest
from stemdl.shards.burst_buffer import BurstBufferError
from stemdl.shards.schema import MANIFEST_NAME
from tests.small_shards import DAMAGES, Notes, assert_set, damage, fill, flip


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Five shards with the items 0 to 9, of five ranks."""
    folder = tmp_path / "run" / "shards" / "train"
    for rank in range(5):
        fill(folder, [2 * rank, 2 * rank + 1], rank)
    return folder


@pytest.fixture
def node(tmp_path: Path) -> Path:
    folder = tmp_path / "node"
    folder.mkdir()
    return folder


def test_one_rank_brings_the_whole_set(source: Path, node: Path) -> None:
    progress = Notes()
    summary = stage_it(source, node, progress=progress)
    assert (summary.copied, summary.kept, summary.linked, summary.damaged) == (NAMES, [], [], {})
    assert summary.complete
    assert summary.bytes == sum(entry.bytes for entry in read_manifest(source))
    assert progress.done == [0, 1, 2, 3, 4, 5]
    assert summary.folder == staged_it(source, node) == node / "staged" / "train" / "whole"
    assert "5 shards copied" in summary.line()
    assert_set(summary.folder, range(10))
    assert read_manifest(summary.folder) == read_manifest(source)


def test_the_ranks_of_a_node_share_the_work(source: Path, node: Path) -> None:
    first = stage_it(source, node, 0, 2)
    with pytest.raises(BurstBufferError, match=f"2 of 5 shards are not staged on this node.*{NAMES[1]}, {NAMES[3]}; "):
        staged_it(source, node)
    second = stage_it(source, node, 1, 2)
    assert (first.copied, second.copied) == (NAMES[0::2], NAMES[1::2])
    assert_set(staged_it(source, node), range(10))


def test_every_node_gets_the_whole_set(source: Path, tmp_path: Path) -> None:
    """Two nodes with two ranks each."""
    for rank in range(4):
        folder = tmp_path / f"node-{rank // 2}"
        folder.mkdir(exist_ok=True)
        stage_it(source, folder, rank, 4, local_rank=rank % 2, local_size=2)
    for number in range(2):
        assert_set(staged_it(source, tmp_path / f"node-{number}", rank=2 * number, size=4), range(10))


def test_strided_gives_each_rank_its_own(source: Path, node: Path) -> None:
    for rank in range(3):
        assert stage_it(source, node, rank, 3, "strided").copied == NAMES[rank::3]
    folders = [staged_it(source, node, rank, 3, "strided") for rank in range(3)]
    assert folders[1] == node / "staged" / "train" / "rank-00001-of-00003"
    for rank, folder in enumerate(folders):
        assert_set(folder, [item for shard in range(rank, 5, 3) for item in (2 * shard, 2 * shard + 1)])


def test_more_ranks_than_shards_is_an_error_for_all_of_them(source: Path, node: Path) -> None:
    for rank in (0, 5):
        with pytest.raises(BurstBufferError, match=r"burst_buffer.stage: found strided, 6 ranks and 5 shards"):
            stage_it(source, node, rank, 6, "strided")
        with pytest.raises(BurstBufferError, match=r"burst_buffer.stage: found strided, 6 ranks and 5 shards"):
            staged_it(source, node, rank, 6, "strided")
    assert os.listdir(node) == []


def test_parts_do_not_meet(source: Path, node: Path) -> None:
    other = source.parent / "held_out"
    fill(other, range(20, 22))
    for folder in (source, other):
        stage_it(folder, node)
    assert_set(staged_it(source, node), range(10))
    assert_set(staged_it(other, node), [20, 21])


@pytest.mark.parametrize("mode", ["whole", "strided"])
def test_a_node_with_nothing_staged_is_an_error(source: Path, node: Path, mode: str) -> None:
    with pytest.raises(
        BurstBufferError, match=r"nothing is staged on this node; run `stemdl stage a.yaml` on every node"
    ):
        staged_it(source, node, 0, 1, mode)


def test_what_was_staged_for_other_ranks_does_not_count(source: Path, node: Path) -> None:
    stage_it(source, node, 0, 2, "strided")
    for rank, size in ((1, 2), (0, 3)):
        with pytest.raises(BurstBufferError, match="nothing is staged"):
            staged_it(source, node, rank, size, "strided")


def test_a_set_that_has_grown_is_staged_further(source: Path, node: Path) -> None:
    stage_it(source, node)
    (new,) = fill(source, [10, 11], rank=8)
    with pytest.raises(BurstBufferError, match=f"1 of 6 shards are not staged.*{new.file}"):
        staged_it(source, node)
    summary = stage_it(source, node)
    assert (summary.kept, summary.copied) == (NAMES, [new.file])
    assert_set(staged_it(source, node), range(12))


def test_a_staged_file_that_is_gone_is_found_and_brought_again(source: Path, node: Path) -> None:
    folder = stage_it(source, node).folder
    (folder / NAMES[2]).unlink()
    os.truncate(folder / NAMES[3], 1000)
    with pytest.raises(BurstBufferError, match=f"2 of 5 shards .* damaged there: {NAMES[2]}, {NAMES[3]}"):
        staged_it(source, node)
    assert stage_it(source, node).copied == NAMES[2:4]
    assert_set(staged_it(source, node), range(10))


def test_what_is_there_is_kept_by_its_length_and_by_its_hash_when_asked(source: Path, node: Path) -> None:
    folder = stage_it(source, node).folder
    flip(folder / NAMES[1])
    before = {name: (folder / name).stat().st_ino for name in NAMES}
    assert stage_it(source, node).kept == NAMES
    again = stage_it(source, node, verify="hash")
    assert (again.kept, again.copied) == ([NAMES[0], *NAMES[2:]], [NAMES[1]])
    assert_set(folder, range(10))
    assert {name for name in NAMES if (folder / name).stat().st_ino == before[name]} >= set(again.kept)


@pytest.mark.parametrize("size", [1, 2])
def test_what_the_run_folder_does_not_name_any_more_is_removed(source: Path, node: Path, size: int) -> None:
    """One shard is gone from the run folder, and one was made again under its old name with other items."""
    for rank in range(size):
        stage_it(source, node, rank, size)
    for name in (NAMES[1], NAMES[4]):
        (source / name).unlink()
    lines = (source / MANIFEST_NAME).read_text().splitlines(keepends=True)
    (source / MANIFEST_NAME).write_text(
        "".join(line for line in lines if NAMES[1] not in line and NAMES[4] not in line)
    )
    fill(source, [30, 31], rank=4)
    with pytest.raises(BurstBufferError, match=f"1 of 4 shards are not staged .*: {NAMES[4]}; "):
        staged_it(source, node)
    copied = [name for rank in range(size) for name in stage_it(source, node, rank, size).copied]
    assert copied == [NAMES[4]]
    assert_set(staged_it(source, node), [0, 1, 4, 5, 6, 7, 30, 31])


def test_shards_too_many_are_not_read(source: Path, node: Path) -> None:
    stage_it(source, node)
    lines = (source / MANIFEST_NAME).read_text().splitlines(keepends=True)
    (source / MANIFEST_NAME).write_text("".join(lines[:4]))
    with pytest.raises(BurstBufferError, match=f"holds shards that .* does not name: {NAMES[4]}; run `stemdl stage"):
        staged_it(source, node)


@pytest.mark.parametrize("how", DAMAGES)
def test_a_damaged_shard_is_named_and_the_rest_goes_on(source: Path, node: Path, how: str) -> None:
    whole = (source / NAMES[2]).read_bytes()
    damage(source / NAMES[2], how)
    progress = Notes()
    summary = stage_it(source, node, progress=progress)
    assert not summary.complete
    assert list(summary.damaged) == [NAMES[2]]
    assert DAMAGES[how] in summary.damaged[NAMES[2]]
    assert DAMAGES[how] in summary.line()
    assert "INCOMPLETE" in summary.line()
    assert [f"{source / NAMES[2]}: " in note for note in progress.notes] == [True]
    assert_set(summary.folder, [0, 1, 2, 3, 6, 7, 8, 9])
    with pytest.raises(BurstBufferError, match=f"1 of 5 shards .*: {NAMES[2]}; "):
        staged_it(source, node)
    (source / NAMES[2]).unlink(missing_ok=True)
    (source / NAMES[2]).write_bytes(whole)
    assert stage_it(source, node).copied == [NAMES[2]]
    assert_set(staged_it(source, node), range(10))


def test_an_unreadable_shard_is_named(source: Path, node: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real_read = os.read

    def read(descriptor: int, count: int) -> bytes:
        if os.readlink(f"/proc/self/fd/{descriptor}") == str(source / NAMES[3]):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real_read(descriptor, count)

    monkeypatch.setattr(os, "read", read)
    assert "cannot be read: Input/output error" in stage_it(source, node).damaged[NAMES[3]]
