"""Shards from the node to the run folder: whole or not at all, under free names, and every failure named."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from stemdl.atomic_files import sha256_file
from stemdl.disks import FreeSpace
from stemdl.shards import ManifestEntry, ShardError, copying, drain, read_manifest
from stemdl.shards.drain import Drain, DrainSummary, drain_left
from stemdl.shards.schema import MANIFEST_NAME, shard_name
from tests.small_shards import CONFIG_HASH, DAMAGES, Notes, assert_set, damage, fill, make_sample, open_writer


@pytest.fixture
def node(tmp_path: Path) -> Path:
    return tmp_path / "node" / "shards" / "train"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return tmp_path / "run" / "shards" / "train"


def _drain(node: Path, run: Path, rank: int = 0, reserve_bytes: float = 0.0, make_room: bool = False) -> Drain:
    return Drain(node, run, rank=rank, config_hash=CONFIG_HASH, reserve_bytes=reserve_bytes, make_room=make_room)


def _left(node: Path, run: Path, rank: int = 0, local_rank: int = 0, local_size: int = 1) -> DrainSummary:
    return drain_left(node, run, CONFIG_HASH, rank=rank, local_rank=local_rank, local_size=local_size, progress=Notes())


def _refuse_writes(monkeypatch: pytest.MonkeyPatch, folder: Path, number: int) -> None:
    """Files of a folder cannot be written any more, as with a quota that is used up."""
    real_write = os.write

    def write(descriptor: int, content: bytes) -> int:
        if folder in Path(os.readlink(f"/proc/self/fd/{descriptor}")).parents:
            raise OSError(number, os.strerror(number))
        return real_write(descriptor, content)

    monkeypatch.setattr(os, "write", write)


# The writer tells of each shard.


def test_the_writer_tells_of_a_shard_once_it_is_safe(node: Path) -> None:
    told: list[ManifestEntry] = []

    def on_seal(entry: ManifestEntry) -> None:
        assert read_manifest(node)[-1] == entry
        told.append(entry)

    with open_writer(node, rank=3, on_seal=on_seal) as writer:
        for item in range(3):
            writer.add(make_sample(item))
        assert [entry.items for entry in told] == [[0, 1]]
    assert told == read_manifest(node)


def test_an_error_of_the_listener_leaves_the_shard_sealed_and_the_writer_usable(node: Path) -> None:
    def on_seal(entry: ManifestEntry) -> None:
        if entry.items == [0, 1]:
            raise ShardError("the run folder is full")

    with open_writer(node, on_seal=on_seal) as writer:
        writer.add(make_sample(0))
        with pytest.raises(ShardError, match="the run folder is full"):
            writer.add(make_sample(1))
        for item in (2, 3):
            writer.add(make_sample(item))
    assert_set(node, range(4))


# In the background.


def test_what_is_sealed_is_drained_and_stays_on_the_node(node: Path, run: Path) -> None:
    with _drain(node, run, rank=5) as background, open_writer(node, rank=5, on_seal=background.submit) as writer:
        for item in range(5):
            writer.add(make_sample(item))
    summary = background.close()
    assert_set(run, range(5))
    assert_set(node, range(5))
    assert summary.drained == {shard_name(5, number): shard_name(5, number) for number in range(3)}
    assert summary.bytes == sum(entry.bytes for entry in read_manifest(node))
    assert (summary.there, summary.damaged, summary.removed) == ([], {}, [])
    assert background.waiting == (0, 0)


def test_a_name_that_is_taken_is_never_overwritten(node: Path, run: Path) -> None:
    """An earlier job of the same rank, on another node, left shards 0 and 1 in the run folder."""
    fill(run, range(4), rank=2)
    before = {entry.file: entry.sha256 for entry in read_manifest(run)}
    with _drain(node, run, rank=2) as background:
        for entry in fill(node, range(4, 8), rank=2):
            background.submit(entry)
    assert background.close().drained == {shard_name(2, 0): shard_name(2, 2), shard_name(2, 1): shard_name(2, 3)}
    assert_set(run, range(8))
    assert {name: sha256_file(run / name) for name in before} == before


def test_what_is_there_is_not_copied_again(node: Path, run: Path) -> None:
    """The same shard, or all its items in other shards: a dead rank's items were made again meanwhile."""
    first, second = fill(node, range(4))
    fill(run, [2, 7, 3], rank=1)
    with _drain(node, run) as background:
        for entry in (first, first, second):
            background.submit(entry)
    assert background.close().there == [first.file, second.file]
    assert background.take_safe() == [first, first, second]
    assert background.take_safe() == []
    assert_set(run, [0, 1, 2, 3, 7])


def test_a_second_drain_of_a_rank_is_refused_until_the_first_has_ended(node: Path, run: Path) -> None:
    fill(node, [0])
    background = _drain(node, run)
    with pytest.raises(ShardError, match="another writer of rank 0"):
        _drain(node, run)
    _drain(node, run, rank=1).close()
    background.close()
    _drain(node, run).close()


def test_another_configuration_is_refused_and_nothing_stays_locked(node: Path, run: Path) -> None:
    fill(run, [0])
    with pytest.raises(ShardError, match="made with config hash c1; this run has c2"):
        Drain(node, run, rank=0, config_hash="c2")
    _drain(node, run).close()


@pytest.mark.parametrize("number", [errno.EDQUOT, errno.ENOSPC, errno.EROFS, errno.EIO])
def test_a_destination_that_takes_no_more_is_a_clear_stop(
    node: Path, run: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    first, second, third = fill(node, range(6))
    background = _drain(node, run)
    background.submit(first)
    _wait(lambda: background.waiting[0] == 0)
    with monkeypatch.context() as patch:
        _refuse_writes(patch, run, number)
        background.submit(second)
        background._thread.join(20.0)
        with pytest.raises(ShardError, match="could not be drained here"):
            background.check()
        assert background.take_safe() == [first]
        why = f"{second.file}: {os.strerror(number)}"
        with pytest.raises(ShardError, match=f"could not be drained here: {why}.*{second.file}, {third.file}; once"):
            background.submit(third)
        with pytest.raises(ShardError, match=f"{node}: {second.file}, {third.file}; once this is mended"):
            background.close()
    assert_set(node, range(6))
    assert_set(run, range(2))
    assert _left(node, run).drained == {second.file: shard_name(0, 1), third.file: shard_name(0, 2)}
    assert_set(run, range(6))


def test_a_manifest_that_takes_no_line_leaves_a_shard_that_is_taken_in_later(
    node: Path, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (entry,) = fill(node, range(2))

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    background = _drain(node, run)
    with monkeypatch.context() as patch:
        patch.setattr(copying, "append_entry", fail)
        background.submit(entry)
        with pytest.raises(ShardError, match=r"No space left on device \(it takes 0.0 MB, free: .* MB; a quota may be"):
            background.close()
    assert (run / shard_name(0, 0)).exists()
    assert not read_manifest(run)
    assert _left(node, run).there == [entry.file]
    assert_set(run, range(2))


@pytest.mark.parametrize("how", DAMAGES)
def test_a_shard_damaged_on_the_node_is_named_and_left_out(node: Path, run: Path, how: str) -> None:
    entries = fill(node, range(6))
    damage(node / entries[1].file, how)
    background = _drain(node, run)
    background.submit(entries[1])
    _wait(lambda: background.waiting[0] == 0)
    with pytest.raises(ShardError, match=f"{entries[1].file}: .*{DAMAGES[how]}"):
        background.submit(entries[0])
    with pytest.raises(ShardError, match=f"{entries[1].file}: .*{DAMAGES[how]}"):
        background.close()
    assert background.take_safe() == [entries[0]]
    assert_set(run, range(2))


def test_an_error_elsewhere_does_not_keep_sealed_shards_on_the_node(node: Path, run: Path) -> None:
    with (
        pytest.raises(ValueError, match="elsewhere"),
        _drain(node, run) as background,
        open_writer(node, on_seal=background.submit) as writer,
    ):
        for item in range(3):
            writer.add(make_sample(item))
        raise ValueError("elsewhere")
    assert_set(run, range(2))


def test_an_error_elsewhere_is_not_hidden_by_one_of_the_drain(
    node: Path, run: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (entry,) = fill(node, range(2))
    damage(node / entry.file, "flipped")
    with pytest.raises(ValueError, match="elsewhere"), _drain(node, run) as background:
        background.submit(entry)
        raise ValueError("elsewhere")
    assert f"{entry.file}: sha256 differs" in caplog.text


def test_a_close_that_takes_too_long_names_what_is_left(node: Path, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = fill(node, range(4))
    go = threading.Event()
    real_copy = copying.copy_checked

    def slow_copy(entry: ManifestEntry, path: Path, temporary: Path) -> None:
        assert go.wait(20.0)
        real_copy(entry, path, temporary)

    monkeypatch.setattr(copying, "copy_checked", slow_copy)
    background = _drain(node, run)
    background.submit(first)
    background.submit(second)
    with pytest.raises(ShardError, match=rf"not copied within 0.05 s.*{first.file}, {second.file}; once"):
        background.close(0.05)
    go.set()
    with pytest.raises(ShardError, match=rf"not copied within 0.05 s.*: {second.file}; once"):
        background.close()
    assert_set(run, range(2))
    assert list(_left(node, run).drained) == [second.file]


def test_a_fault_of_ours_comes_out_as_it_is(node: Path, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError("ours")

    (entry,) = fill(node, range(2))
    monkeypatch.setattr(copying, "copy_checked", fail)
    background = _drain(node, run)
    background.submit(entry)
    with pytest.raises(ZeroDivisionError, match="ours"):
        background.close()


def _wait(until: Callable[[], bool]) -> None:
    tick = threading.Event()
    for _ in range(2000):
        if until():
            return
        tick.wait(0.01)
    pytest.fail("waited 20 s in vain")


# Room on the node.


def _disk_of(monkeypatch: pytest.MonkeyPatch, node: Path, room_for: int) -> None:
    """The node has space for so many shards, and nothing else is on its disk."""
    monkeypatch.setattr(
        drain, "free_space", lambda folder: FreeSpace(room_for - len(list(folder.glob("shard-*.h5"))), None)
    )


def test_the_oldest_drained_shards_make_room(
    node: Path, run: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    _disk_of(monkeypatch, node, room_for=3)
    with (
        _drain(node, run, reserve_bytes=1.0, make_room=True) as background,
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
    assert _left(node, run).there == [shard_name(0, 3), shard_name(0, 4)]


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
    _disk_of(monkeypatch, node, room_for=1)
    with _drain(node, run, reserve_bytes=1.0, make_room=True) as background:
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
    _disk_of(monkeypatch, node, room_for=2)
    for make_room, reserve in ((False, 1.0), (True, 0.0)):
        with _drain(node, run, reserve_bytes=reserve, make_room=make_room) as background:
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
    with _drain(node, run, reserve_bytes=5, make_room=True) as background:
        background.submit(first)
        _wait(lambda: background.waiting[0] == 0)
        (run / first.file).unlink()
        free[0] = 0
        background.submit(second)
    assert background.close().removed == [second.file]
    assert (node / first.file).exists()
    assert f"{first.file}: kept, since its copy {first.file} is gone" in caplog.text


# A power cut.


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

    with _drain(node, run) as background:
        monkeypatch.setattr(os, "fsync", fsync)
        monkeypatch.setattr(os, "rename", rename)
        background.submit(entries[0])
        background.close()
    assert done == ["copy synced", "renamed", "train synced", f"{MANIFEST_NAME} synced", "train synced"]


# What an earlier process left.


def test_nothing_left_is_nothing_to_do(node: Path, run: Path) -> None:
    assert _left(node, run) == DrainSummary()
    assert not run.exists()


def test_only_what_is_missing_is_copied(node: Path, run: Path) -> None:
    entries = [*fill(node, range(4)), *fill(node, range(10, 13), rank=3)]
    with _drain(node, run) as background:
        background.submit(entries[0])
    summary = _left(node, run)
    assert summary.there == [entries[0].file]
    assert list(summary.drained) == [entry.file for entry in entries[1:]]
    assert_set(run, [*range(4), *range(10, 13)])
    assert_set(node, [*range(4), *range(10, 13)])


def test_the_ranks_of_a_node_share_what_is_left(node: Path, run: Path) -> None:
    for rank in range(5):
        fill(node, [2 * rank, 2 * rank + 1], rank=rank)
    shares = [list(_left(node, run, 7 + local, local, 2).drained) for local in range(2)]
    assert shares == [[shard_name(rank, 0) for rank in (0, 2, 4)], [shard_name(rank, 0) for rank in (1, 3)]]
    assert {entry.file.split("-")[1] for entry in read_manifest(run)} == {"00007", "00008"}
    assert_set(run, range(10))


def test_a_whole_shard_without_its_line_is_drained_and_half_a_one_removed(node: Path, run: Path) -> None:
    fill(node, range(4), rank=1)
    lines = (node / MANIFEST_NAME).read_text().splitlines(keepends=True)
    (node / MANIFEST_NAME).write_text(lines[0])
    half = node / ".tmp-00001-00002-somehost-1.h5"
    half.write_bytes(b"half a shard")
    assert len(_left(node, run).drained) == 2
    assert not half.exists()
    assert_set(run, range(4))


@pytest.mark.parametrize("how", DAMAGES)
def test_a_damaged_leftover_is_named_and_its_items_can_be_made_again(node: Path, run: Path, how: str) -> None:
    entries = fill(node, range(6))
    damage(node / entries[1].file, how)
    summary = _left(node, run)
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
            _left(node, run)
        assert _left(node, run, local_rank=0, local_size=2) == DrainSummary()
    assert list(_left(node, run).drained) == [shard_name(1, 0)]


def test_a_full_destination_names_all_that_is_left(node: Path, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entries = fill(node, range(6))
    with _drain(node, run) as background:
        background.submit(entries[0])
    with monkeypatch.context() as patch:
        _refuse_writes(patch, run, errno.EDQUOT)
        with pytest.raises(ShardError, match=f"{os.strerror(errno.EDQUOT)}.*: {entries[1].file}, {entries[2].file};"):
            _left(node, run)
    assert_set(run, range(2))
    assert_set(node, range(6))
    _left(node, run)
    assert_set(run, range(6))
