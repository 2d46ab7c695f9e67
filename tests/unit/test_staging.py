"""Shards from the run folder to the nodes: each where it belongs, checked on the way, and never less without a word."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from stemdl.config.storage import BurstBuffer
from stemdl.disks import FreeSpace
from stemdl.shards import ShardError, ShardSet, read_manifest, staging
from stemdl.shards.burst_buffer import BurstBufferError
from stemdl.shards.locks import RankLock
from stemdl.shards.schema import MANIFEST_NAME, shard_name
from stemdl.shards.staging import StageSummary, stage, staged_folder
from tests.small_shards import CONFIG_HASH, DAMAGES, Notes, assert_set, damage, fill, flip

NO_RESERVE = BurstBuffer(use=True, reserve_gb=0.0)
NAMES = [shard_name(rank, 0) for rank in range(5)]


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


def _stage(source: Path, node: Path, rank: int = 0, size: int = 1, mode: Any = "whole", **options: Any) -> StageSummary:
    """All ranks are on one node unless the options say otherwise."""
    ranks = {"rank": rank, "size": size, "local_rank": rank, "local_size": size}
    rest = {"mode": mode, "config_hash": CONFIG_HASH, "section": NO_RESERVE, "progress": Notes()}
    return stage(source, node, **{**ranks, **rest, **options})


def _staged(source: Path, node: Path, rank: int = 0, size: int = 1, mode: Any = "whole") -> Path:
    return staged_folder(source, node, rank=rank, size=size, mode=mode, config_hash=CONFIG_HASH, file="a.yaml")


# Who gets what.


def test_one_rank_brings_the_whole_set(source: Path, node: Path) -> None:
    progress = Notes()
    summary = _stage(source, node, progress=progress)
    assert (summary.copied, summary.kept, summary.linked, summary.damaged) == (NAMES, [], [], {})
    assert summary.complete
    assert summary.bytes == sum(entry.bytes for entry in read_manifest(source))
    assert progress.done == [0, 1, 2, 3, 4, 5]
    assert summary.folder == _staged(source, node) == node / "staged" / "train" / "whole"
    assert "5 shards copied" in summary.line()
    assert_set(summary.folder, range(10))
    assert read_manifest(summary.folder) == read_manifest(source)


def test_the_ranks_of_a_node_share_the_work(source: Path, node: Path) -> None:
    first = _stage(source, node, 0, 2)
    with pytest.raises(BurstBufferError, match=f"2 of 5 shards are not staged on this node.*{NAMES[1]}, {NAMES[3]}; "):
        _staged(source, node)
    second = _stage(source, node, 1, 2)
    assert (first.copied, second.copied) == (NAMES[0::2], NAMES[1::2])
    assert_set(_staged(source, node), range(10))


def test_every_node_gets_the_whole_set(source: Path, tmp_path: Path) -> None:
    """Two nodes with two ranks each."""
    for rank in range(4):
        folder = tmp_path / f"node-{rank // 2}"
        folder.mkdir(exist_ok=True)
        _stage(source, folder, rank, 4, local_rank=rank % 2, local_size=2)
    for number in range(2):
        assert_set(_staged(source, tmp_path / f"node-{number}", rank=2 * number, size=4), range(10))


def test_strided_gives_each_rank_its_own(source: Path, node: Path) -> None:
    for rank in range(3):
        assert _stage(source, node, rank, 3, "strided").copied == NAMES[rank::3]
    folders = [_staged(source, node, rank, 3, "strided") for rank in range(3)]
    assert folders[1] == node / "staged" / "train" / "rank-00001-of-00003"
    for rank, folder in enumerate(folders):
        assert_set(folder, [item for shard in range(rank, 5, 3) for item in (2 * shard, 2 * shard + 1)])


def test_more_ranks_than_shards_is_an_error_for_all_of_them(source: Path, node: Path) -> None:
    for rank in (0, 5):
        with pytest.raises(BurstBufferError, match=r"burst_buffer.stage: found strided, 6 ranks and 5 shards"):
            _stage(source, node, rank, 6, "strided")
        with pytest.raises(BurstBufferError, match=r"burst_buffer.stage: found strided, 6 ranks and 5 shards"):
            _staged(source, node, rank, 6, "strided")
    assert os.listdir(node) == []


def test_parts_do_not_meet(source: Path, node: Path) -> None:
    other = source.parent / "held_out"
    fill(other, range(20, 22))
    for folder in (source, other):
        _stage(folder, node)
    assert_set(_staged(source, node), range(10))
    assert_set(_staged(other, node), [20, 21])


# A node that does not hold what it should.


@pytest.mark.parametrize("mode", ["whole", "strided"])
def test_a_node_with_nothing_staged_is_an_error(source: Path, node: Path, mode: str) -> None:
    with pytest.raises(
        BurstBufferError, match=r"nothing is staged on this node; run `stemdl stage a.yaml` on every node"
    ):
        _staged(source, node, 0, 1, mode)


def test_what_was_staged_for_other_ranks_does_not_count(source: Path, node: Path) -> None:
    _stage(source, node, 0, 2, "strided")
    for rank, size in ((1, 2), (0, 3)):
        with pytest.raises(BurstBufferError, match="nothing is staged"):
            _staged(source, node, rank, size, "strided")


def test_a_set_that_has_grown_is_staged_further(source: Path, node: Path) -> None:
    _stage(source, node)
    (new,) = fill(source, [10, 11], rank=8)
    with pytest.raises(BurstBufferError, match=f"1 of 6 shards are not staged.*{new.file}"):
        _staged(source, node)
    summary = _stage(source, node)
    assert (summary.kept, summary.copied) == (NAMES, [new.file])
    assert_set(_staged(source, node), range(12))


def test_a_staged_file_that_is_gone_is_found_and_brought_again(source: Path, node: Path) -> None:
    folder = _stage(source, node).folder
    (folder / NAMES[2]).unlink()
    os.truncate(folder / NAMES[3], 1000)
    with pytest.raises(BurstBufferError, match=f"2 of 5 shards .* damaged there: {NAMES[2]}, {NAMES[3]}"):
        _staged(source, node)
    assert _stage(source, node).copied == NAMES[2:4]
    assert_set(_staged(source, node), range(10))


def test_what_is_there_is_kept_by_its_length_and_by_its_hash_when_asked(source: Path, node: Path) -> None:
    folder = _stage(source, node).folder
    flip(folder / NAMES[1])
    before = {name: (folder / name).stat().st_ino for name in NAMES}
    assert _stage(source, node).kept == NAMES
    again = _stage(source, node, verify="hash")
    assert (again.kept, again.copied) == ([NAMES[0], *NAMES[2:]], [NAMES[1]])
    assert_set(folder, range(10))
    assert {name for name in NAMES if (folder / name).stat().st_ino == before[name]} >= set(again.kept)


@pytest.mark.parametrize("size", [1, 2])
def test_what_the_run_folder_does_not_name_any_more_is_removed(source: Path, node: Path, size: int) -> None:
    """One shard is gone from the run folder, and one was made again under its old name with other items."""
    for rank in range(size):
        _stage(source, node, rank, size)
    for name in (NAMES[1], NAMES[4]):
        (source / name).unlink()
    lines = (source / MANIFEST_NAME).read_text().splitlines(keepends=True)
    (source / MANIFEST_NAME).write_text(
        "".join(line for line in lines if NAMES[1] not in line and NAMES[4] not in line)
    )
    fill(source, [30, 31], rank=4)
    with pytest.raises(BurstBufferError, match=f"1 of 4 shards are not staged .*: {NAMES[4]}; "):
        _staged(source, node)
    copied = [name for rank in range(size) for name in _stage(source, node, rank, size).copied]
    assert copied == [NAMES[4]]
    assert_set(_staged(source, node), [0, 1, 4, 5, 6, 7, 30, 31])


def test_shards_too_many_are_not_read(source: Path, node: Path) -> None:
    _stage(source, node)
    lines = (source / MANIFEST_NAME).read_text().splitlines(keepends=True)
    (source / MANIFEST_NAME).write_text("".join(lines[:4]))
    with pytest.raises(BurstBufferError, match=f"holds shards that .* does not name: {NAMES[4]}; run `stemdl stage"):
        _staged(source, node)


# Damage at the source.


@pytest.mark.parametrize("how", DAMAGES)
def test_a_damaged_shard_is_named_and_the_rest_goes_on(source: Path, node: Path, how: str) -> None:
    whole = (source / NAMES[2]).read_bytes()
    damage(source / NAMES[2], how)
    progress = Notes()
    summary = _stage(source, node, progress=progress)
    assert not summary.complete
    assert list(summary.damaged) == [NAMES[2]]
    assert DAMAGES[how] in summary.damaged[NAMES[2]]
    assert DAMAGES[how] in summary.line()
    assert "INCOMPLETE" in summary.line()
    assert [f"{source / NAMES[2]}: " in note for note in progress.notes] == [True]
    assert_set(summary.folder, [0, 1, 2, 3, 6, 7, 8, 9])
    with pytest.raises(BurstBufferError, match=f"1 of 5 shards .*: {NAMES[2]}; "):
        _staged(source, node)
    (source / NAMES[2]).unlink(missing_ok=True)
    (source / NAMES[2]).write_bytes(whole)
    assert _stage(source, node).copied == [NAMES[2]]
    assert_set(_staged(source, node), range(10))


def test_an_unreadable_shard_is_named(source: Path, node: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real_read = os.read

    def read(descriptor: int, count: int) -> bytes:
        if os.readlink(f"/proc/self/fd/{descriptor}") == str(source / NAMES[3]):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real_read(descriptor, count)

    monkeypatch.setattr(os, "read", read)
    assert "cannot be read: Input/output error" in _stage(source, node).damaged[NAMES[3]]


def test_a_source_without_shards_or_of_another_configuration_is_refused(source: Path, node: Path) -> None:
    with pytest.raises(ShardError, match="no shard is sealed in this folder; run `stemdl simulate` first"):
        _stage(source.parent / "held_out", node)
    with pytest.raises(ShardError, match="made with config hash c1; this run has c2"):
        _stage(source, node, config_hash="c2")
    with pytest.raises(ShardError, match="made with config hash c1; this run has c2"):
        staged_folder(source, node, rank=0, size=1, mode="whole", config_hash="c2")


# Space.


def test_space_is_checked_for_all_that_the_node_gets_before_anything_is_copied(
    source: Path, node: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    total = sum(entry.bytes for entry in read_manifest(source))
    for free, refused in ((total + 1_000_000, False), (total + 999_999, True)):
        monkeypatch.setattr(staging, "free_space", lambda _, free=free: FreeSpace(free, None))
        options: dict[str, Any] = {"section": BurstBuffer(reserve_gb=0.001)}
        if refused:
            with pytest.raises(BurstBufferError, match=r"found at .*node/b 1.1 MB free, allowed ≥ 1.1 MB: 0.1 MB are"):
                _stage(source, node / "b", 1, 2, **options)
            assert read_manifest(node / "b" / "staged" / "train" / "whole") == []
        else:
            _stage(source, node / "a", 1, 2, **options)


def test_what_is_there_or_on_its_way_needs_no_space(source: Path, node: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another rank of the node is done with its share but for a part of one shard."""
    entries = read_manifest(source)
    folder = _stage(source, node, 0, 2).folder
    half = folder / ".tmp-00000-stage-somehost-1.h5"
    half.write_bytes(bytes(1000))
    needed = sum(entry.bytes for entry in entries[1::2]) - 1000
    for free in (needed, needed - 1):
        monkeypatch.setattr(staging, "free_space", lambda _, free=free: FreeSpace(free, None))
        if free < needed:
            with pytest.raises(BurstBufferError, match="are needed"):
                _stage(source, node, 1, 2)
    monkeypatch.setattr(staging, "free_space", lambda _: FreeSpace(needed, None))
    _stage(source, node, 1, 2)


def test_strided_counts_the_other_ranks_of_the_node(source: Path, node: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entries = read_manifest(source)
    own = [sum(entry.bytes for entry in entries[rank::2]) for rank in range(2)]
    monkeypatch.setattr(staging, "free_space", lambda _: FreeSpace(2 * own[0] - 1, None))
    with pytest.raises(BurstBufferError, match="are needed"):
        _stage(source, node, 0, 2, "strided")
    monkeypatch.setattr(staging, "free_space", lambda _: FreeSpace(2 * own[0], None))
    _stage(source, node, 0, 2, "strided")
    # The first has all it needs now, so that only the second's share counts.
    monkeypatch.setattr(staging, "free_space", lambda _: FreeSpace(own[1], None))
    _stage(source, node, 1, 2, "strided")


def test_too_few_free_files_are_refused(source: Path, node: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staging, "free_space", lambda _: FreeSpace(10**12, 68))
    with pytest.raises(BurstBufferError, match="room for 68 more files, allowed ≥ 69"):
        _stage(source, node)


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
            _stage(source, node)
    folder = node / "staged" / "train" / "whole"
    assert_set(folder, range(4))
    with ShardSet(folder, verify="hash") as shards:
        assert len(shards.entries) == 2
    assert _stage(source, node).copied == NAMES[2:]
    assert_set(_staged(source, node), range(10))


# What killed ranks left.


def test_unfinished_copies_of_dead_ranks_are_removed(source: Path, node: Path) -> None:
    folder = _stage(source, node).folder
    left = [folder / f".tmp-0000{rank}-stage-somehost-1.h5" for rank in (0, 1, 2, 3)]
    for path in left:
        path.write_bytes(b"half a shard")
    lock = RankLock(folder, 2)
    _stage(source, node, 0, 2)
    assert [path.exists() for path in left] == [False, True, True, True]  # 2 is alive, the others are of local rank 1
    lock.release()
    for rank in range(2):
        _stage(source, node, rank, 2)
    assert_set(folder, range(10))


def test_two_processes_of_one_local_rank_are_refused(source: Path, node: Path) -> None:
    folder = _stage(source, node).folder
    lock = RankLock(folder, 0)
    with pytest.raises(ShardError, match="another writer of rank 0"):
        _stage(source, node)
    lock.release()


@pytest.mark.parametrize("whole", [True, False])
def test_a_copy_without_its_line_is_taken_in_if_it_is_right(source: Path, node: Path, whole: bool) -> None:
    folder = _stage(source, node).folder
    lines = (folder / MANIFEST_NAME).read_text().splitlines(keepends=True)
    (folder / MANIFEST_NAME).write_text("".join(lines[:4]))
    if not whole:
        flip(folder / NAMES[4])
    (folder / shard_name(9, 0)).write_bytes(b"of a rank that died while it removed this")
    summary = _stage(source, node)
    assert (NAMES[4] in summary.kept) == whole
    assert (summary.copied == []) == whole
    assert_set(_staged(source, node), range(10))


# What is on the node already.


def test_shards_that_were_made_on_the_node_are_not_copied(source: Path, node: Path) -> None:
    """Under other names there than in the run folder; one is damaged, and one is of the node alone."""
    own = node / "shards" / "train"
    for rank, items in ((7, [4, 5]), (8, [6, 7]), (9, [20, 21])):
        fill(own, items, rank)
    flip(own / shard_name(8, 0))
    summary = _stage(source, node)
    assert (summary.linked, summary.copied) == ([NAMES[2]], [NAMES[0], NAMES[1], *NAMES[3:]])
    assert (summary.folder / NAMES[2]).samefile(own / shard_name(7, 0))
    assert_set(_staged(source, node), range(10))


def test_another_share_of_the_same_set_needs_no_second_copy(
    source: Path, node: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _stage(source, node)
    monkeypatch.setattr(staging, "free_space", lambda _: FreeSpace(0, None))
    for rank in range(2):
        assert _stage(source, node, rank, 2, "strided").linked == NAMES[rank::2]
        _staged(source, node, rank, 2, "strided")


def test_where_a_file_cannot_have_two_names_it_is_copied(
    source: Path, node: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    fill(node / "shards" / "train", [4, 5], 7)
    monkeypatch.setattr(os, "link", fail)
    assert _stage(source, node).copied == NAMES
    assert_set(_staged(source, node), range(10))
