"""Shards from the run folder to the nodes: each where it belongs, checked on the way, and never less without a word."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from staging_cases import NAMES, stage_it, staged_it
from stemdl.config.storage import BurstBuffer
from stemdl.disks import FreeSpace
from stemdl.shards import ShardError, ShardSet, read_manifest, staging
from stemdl.shards.burst_buffer import BurstBufferError
from stemdl.shards.locks import RankLock
from stemdl.shards.schema import MANIFEST_NAME, shard_name
from stemdl.shards.staging import staged_folder
from tests.small_shards import assert_set, fill, flip


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


def test_a_source_without_shards_or_of_another_configuration_is_refused(source: Path, node: Path) -> None:
    with pytest.raises(ShardError, match="no shard is sealed in this folder; run `stemdl simulate` first"):
        stage_it(source.parent / "held_out", node)
    with pytest.raises(ShardError, match="made with config hash c1; this run has c2"):
        stage_it(source, node, config_hash="c2")
    with pytest.raises(ShardError, match="made with config hash c1; this run has c2"):
        staged_folder(source, node, rank=0, size=1, mode="whole", config_hash="c2")


def test_space_is_checked_for_all_that_the_node_gets_before_anything_is_copied(
    source: Path, node: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    total = sum(entry.bytes for entry in read_manifest(source))
    for free, refused in ((total + 1_000_000, False), (total + 999_999, True)):
        monkeypatch.setattr(staging, "free_space", lambda _, free=free: FreeSpace(free, None))
        options: dict[str, Any] = {"section": BurstBuffer(reserve_gb=0.001)}
        if refused:
            with pytest.raises(BurstBufferError, match=r"found at .*node/b 1.1 MB free, allowed ≥ 1.1 MB: 0.1 MB are"):
                stage_it(source, node / "b", 1, 2, **options)
            assert read_manifest(node / "b" / "staged" / "train" / "whole") == []
        else:
            stage_it(source, node / "a", 1, 2, **options)


def test_what_is_there_or_on_its_way_needs_no_space(source: Path, node: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another rank of the node is done with its share but for a part of one shard."""
    entries = read_manifest(source)
    folder = stage_it(source, node, 0, 2).folder
    half = folder / ".tmp-00000-stage-somehost-1.h5"
    half.write_bytes(bytes(1000))
    needed = sum(entry.bytes for entry in entries[1::2]) - 1000
    for free in (needed, needed - 1):
        monkeypatch.setattr(staging, "free_space", lambda _, free=free: FreeSpace(free, None))
        if free < needed:
            with pytest.raises(BurstBufferError, match="are needed"):
                stage_it(source, node, 1, 2)
    monkeypatch.setattr(staging, "free_space", lambda _: FreeSpace(needed, None))
    stage_it(source, node, 1, 2)


def test_strided_counts_the_other_ranks_of_the_node(source: Path, node: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entries = read_manifest(source)
    own = [sum(entry.bytes for entry in entries[rank::2]) for rank in range(2)]
    monkeypatch.setattr(staging, "free_space", lambda _: FreeSpace(2 * own[0] - 1, None))
    with pytest.raises(BurstBufferError, match="are needed"):
        stage_it(source, node, 0, 2, "strided")
    monkeypatch.setattr(staging, "free_space", lambda _: FreeSpace(2 * own[0], None))
    stage_it(source, node, 0, 2, "strided")
    # The first has all it needs now, so that only the second's share counts.
    monkeypatch.setattr(staging, "free_space", lambda _: FreeSpace(own[1], None))
    stage_it(source, node, 1, 2, "strided")


def test_too_few_free_files_are_refused(source: Path, node: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staging, "free_space", lambda _: FreeSpace(10**12, 68))
    with pytest.raises(BurstBufferError, match="room for 68 more files, allowed ≥ 69"):
        stage_it(source, node)


@pytest.mark.parametrize("number", [errno.EDQUOT, errno.ENOSPC, errno.EROFS])
def test_a_node_that_takes_no_more_is_a_clear_stop(
    source: Path, node: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """The third shard meets a quota that is used up: the first two stay, and nothing half is left."""
    real_write = os.write
    written: dict[str, int] = {}

    def write(descriptor: int, content: bytes) -> int:
        written[os.readlink(f"/proc/self/fd/{descriptor}")] = 1
        if len(written) > 3:  # two copies and the manifest
            raise OSError(number, os.strerror(number))
        return real_write(descriptor, content)

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", write)
        patch.setattr(staging, "temporary_path", lambda folder, _, __: folder / f".tmp-00000-stage-{len(written)}.h5")
        with pytest.raises(
            BurstBufferError, match=f"staging stopped: {NAMES[2]}: {os.strerror(number)}.* stay; make room"
        ):
            stage_it(source, node)
    folder = node / "staged" / "train" / "whole"
    assert_set(folder, range(4))
    with ShardSet(folder, verify="hash") as shards:
        assert len(shards.entries) == 2
    assert stage_it(source, node).copied == NAMES[2:]
    assert_set(staged_it(source, node), range(10))


def test_unfinished_copies_of_dead_ranks_are_removed(source: Path, node: Path) -> None:
    folder = stage_it(source, node).folder
    left = [folder / f".tmp-0000{rank}-stage-somehost-1.h5" for rank in (0, 1, 2, 3)]
    for path in left:
        path.write_bytes(b"half a shard")
    lock = RankLock(folder, 2)
    stage_it(source, node, 0, 2)
    assert [path.exists() for path in left] == [False, True, True, True]  # 2 is alive, the others are of local rank 1
    lock.release()
    for rank in range(2):
        stage_it(source, node, rank, 2)
    assert_set(folder, range(10))


def test_two_processes_of_one_local_rank_are_refused(source: Path, node: Path) -> None:
    folder = stage_it(source, node).folder
    lock = RankLock(folder, 0)
    with pytest.raises(ShardError, match="another writer of rank 0"):
        stage_it(source, node)
    lock.release()


@pytest.mark.parametrize("whole", [True, False])
def test_a_copy_without_its_line_is_taken_in_if_it_is_right(source: Path, node: Path, whole: bool) -> None:
    folder = stage_it(source, node).folder
    lines = (folder / MANIFEST_NAME).read_text().splitlines(keepends=True)
    (folder / MANIFEST_NAME).write_text("".join(lines[:4]))
    if not whole:
        flip(folder / NAMES[4])
    (folder / shard_name(9, 0)).write_bytes(b"of a rank that died while it removed this")
    summary = stage_it(source, node)
    assert (NAMES[4] in summary.kept) == whole
    assert (summary.copied == []) == whole
    assert_set(staged_it(source, node), range(10))


def test_shards_that_were_made_on_the_node_are_not_copied(source: Path, node: Path) -> None:
    """Under other names there than in the run folder; one is damaged, and one is of the node alone."""
    own = node / "shards" / "train"
    for rank, items in ((7, [4, 5]), (8, [6, 7]), (9, [20, 21])):
        fill(own, items, rank)
    flip(own / shard_name(8, 0))
    summary = stage_it(source, node)
    assert (summary.linked, summary.copied) == ([NAMES[2]], [NAMES[0], NAMES[1], *NAMES[3:]])
    assert (summary.folder / NAMES[2]).samefile(own / shard_name(7, 0))
    assert_set(staged_it(source, node), range(10))


def test_another_share_of_the_same_set_needs_no_second_copy(
    source: Path, node: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage_it(source, node)
    monkeypatch.setattr(staging, "free_space", lambda _: FreeSpace(0, None))
    for rank in range(2):
        assert stage_it(source, node, rank, 2, "strided").linked == NAMES[rank::2]
        staged_it(source, node, rank, 2, "strided")


def test_where_a_file_cannot_have_two_names_it_is_copied(
    source: Path, node: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    fill(node / "shards" / "train", [4, 5], 7)
    monkeypatch.setattr(os, "link", fail)
    assert stage_it(source, node).copied == NAMES
    assert_set(staged_it(source, node), range(10))
