"""Shards from the node to the run folder: whole or not at all, under free names, and every failure named."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest

from drain_cases import disk_of, drain_it, left_it, refuse_writes, wait_it
from stemdl.disks import FreeSpace
from stemdl.shards import ManifestEntry, ShardError, copying, drain, read_manifest
from stemdl.shards.drain import DrainSummary
from stemdl.shards.schema import MANIFEST_NAME, shard_name
from tests.small_shards import DAMAGES, assert_set, damage, fill, make_sample, open_writer


@pytest.fixture
def node(tmp_path: Path) -> Path:
    return tmp_path / "node" / "shards" / "train"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return tmp_path / "run" / "shards" / "train"


def test_a_fault_of_ours_comes_out_as_it_is(node: Path, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError("ours")

    (entry,) = fill(node, range(2))
    monkeypatch.setattr(copying, "copy_checked", fail)
    background = drain_it(node, run)
    background.submit(entry)
    with pytest.raises(ZeroDivisionError, match="ours"):
        background.close()


def test_the_oldest_drained_shards_make_room(
    node: Path, run: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    disk_of(monkeypatch, node, room_for=3)
    with (
        drain_it(node, run, reserve_bytes=1.0, make_room=True) as background,
        open_writer(node, on_seal=background.submit) as writer,
    ):
        for item in range(10):
            writer.add(make_sample(item))
            assert len(list(node.glob("shard-*.h5"))) <= 3
    assert background.close().removed == [shard_name(0, number) for number in range(3)]
    assert f"{shard_name(0, 0)}: drained, and removed here to make room" in caplog.text
    assert_set(run, range(10))
    assert_set(node, range(6, 10))
    assert sorted(os.listdir(node)) == [MANIFEST_NAME, shard_name(0, 3), shard_name(0, 4)]
    assert left_it(node, run).there == [shard_name(0, 3), shard_name(0, 4)]


def test_the_writer_waits_while_shards_are_on_their_way_from_a_node_that_is_short(
    node: Path, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (entry,) = fill(node, range(2))
    go = threading.Event()
    real_copy = copying.copy_checked

    def slow_copy(entry: ManifestEntry, path: Path, temporary: Path) -> None:
        assert go.wait(20.0)
        real_copy(entry, path, temporary)

    monkeypatch.setattr(copying, "copy_checked", slow_copy)
    disk_of(monkeypatch, node, room_for=1)
    with drain_it(node, run, reserve_bytes=1.0, make_room=True) as background:
        writer = threading.Thread(target=background.submit, args=(entry,))
        writer.start()
        writer.join(0.1)
        assert writer.is_alive()
        go.set()
        writer.join(20.0)
        assert not writer.is_alive()
        assert not (node / entry.file).exists()
    assert_set(run, range(2))


def test_nothing_is_removed_unless_asked_or_before_it_is_short(
    node: Path, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk_of(monkeypatch, node, room_for=2)
    for make_room, reserve in ((False, 1.0), (True, 0.0)):
        with drain_it(node, run, reserve_bytes=reserve, make_room=make_room) as background:
            for entry in fill(node, range(4)) if make_room is False else read_manifest(node):
                background.submit(entry)
        assert background.close().removed == []
    assert_set(node, range(4))


def test_a_shard_whose_copy_is_gone_is_not_removed(
    node: Path, run: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    free = [10]
    monkeypatch.setattr(drain, "free_space", lambda _: FreeSpace(free[0], None))
    first, second = fill(node, range(4))
    with drain_it(node, run, reserve_bytes=5, make_room=True) as background:
        background.submit(first)
        wait_it(lambda: background.waiting[0] == 0)
        (run / first.file).unlink()
        free[0] = 0
        background.submit(second)
    assert background.close().removed == [second.file]
    assert (node / first.file).exists()
    assert f"{first.file}: kept, since its copy {first.file} is gone" in caplog.text


def test_content_is_durable_before_its_name_and_that_before_its_line(
    node: Path, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries = fill(node, range(2))
    done: list[str] = []
    real_fsync, real_rename = os.fsync, os.rename

    def fsync(descriptor: int) -> None:
        real_fsync(descriptor)
        name = Path(os.readlink(f"/proc/self/fd/{descriptor}")).name
        done.append("copy synced" if name.startswith(".tmp-") else f"{name} synced")

    def rename(old: Path, new: Path) -> None:
        done.append("renamed")
        real_rename(old, new)

    with drain_it(node, run) as background:
        monkeypatch.setattr(os, "fsync", fsync)
        monkeypatch.setattr(os, "rename", rename)
        background.submit(entries[0])
        background.close()
    assert done == ["copy synced", "renamed", "train synced", f"{MANIFEST_NAME} synced", "train synced"]


def test_nothing_left_is_nothing_to_do(node: Path, run: Path) -> None:
    assert left_it(node, run) == DrainSummary()
    assert not run.exists()


def test_only_what_is_missing_is_copied(node: Path, run: Path) -> None:
    entries = [*fill(node, range(4)), *fill(node, range(10, 13), rank=3)]
    with drain_it(node, run) as background:
        background.submit(entries[0])
    summary = left_it(node, run)
    assert summary.there == [entries[0].file]
    assert list(summary.drained) == [entry.file for entry in entries[1:]]
    assert_set(run, [*range(4), *range(10, 13)])
    assert_set(node, [*range(4), *range(10, 13)])


def test_the_ranks_of_a_node_share_what_is_left(node: Path, run: Path) -> None:
    for rank in range(5):
        fill(node, [2 * rank, 2 * rank + 1], rank=rank)
    shares = [list(left_it(node, run, 7 + local, local, 2).drained) for local in range(2)]
    assert shares == [[shard_name(rank, 0) for rank in (0, 2, 4)], [shard_name(rank, 0) for rank in (1, 3)]]
    assert {entry.file.split("-")[1] for entry in read_manifest(run)} == {"00007", "00008"}
    assert_set(run, range(10))


def test_a_whole_shard_without_its_line_is_drained_and_half_a_one_removed(node: Path, run: Path) -> None:
    fill(node, range(4), rank=1)
    lines = (node / MANIFEST_NAME).read_text().splitlines(keepends=True)
    (node / MANIFEST_NAME).write_text(lines[0])
    half = node / ".tmp-00001-00002-somehost-1.h5"
    half.write_bytes(b"half a shard")
    assert len(left_it(node, run).drained) == 2
    assert not half.exists()
    assert_set(run, range(4))


@pytest.mark.parametrize("how", DAMAGES)
def test_a_damaged_leftover_is_named_and_its_items_can_be_made_again(node: Path, run: Path, how: str) -> None:
    entries = fill(node, range(6))
    damage(node / entries[1].file, how)
    summary = left_it(node, run)
    assert DAMAGES[how] in summary.damaged[entries[1].file]
    assert list(summary.drained) == [entries[0].file, entries[2].file]
    assert_set(run, [0, 1, 4, 5])
    assert_set(node, [0, 1, 4, 5])
    with open_writer(node) as writer:
        for item in (2, 3):
            writer.add(make_sample(item))


def test_a_writer_at_work_is_not_disturbed(node: Path, run: Path) -> None:
    with open_writer(node, rank=1) as writer:
        writer.add(make_sample(0))
        writer.seal()
        with pytest.raises(ShardError, match="another writer of rank 1"):
            left_it(node, run)
        assert left_it(node, run, local_rank=0, local_size=2) == DrainSummary()
    assert list(left_it(node, run).drained) == [shard_name(1, 0)]


def test_a_full_destination_names_all_that_is_left(node: Path, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entries = fill(node, range(6))
    with drain_it(node, run) as background:
        background.submit(entries[0])
    with monkeypatch.context() as patch:
        refuse_writes(patch, run, errno.EDQUOT)
        with pytest.raises(ShardError, match=f"{os.strerror(errno.EDQUOT)}.*: {entries[1].file}, {entries[2].file};"):
            left_it(node, run)
    assert_set(run, range(2))
    assert_set(node, range(6))
    left_it(node, run)
    assert_set(run, range(6))
