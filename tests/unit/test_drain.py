"""Shards from the node to the run folder: whole or not at all, under free names, and every failure named."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest

from drain_cases import drain_it, left_it, refuse_writes, wait_it
from stemdl.atomic_files import sha256_file
from stemdl.shards import ManifestEntry, ShardError, copying, read_manifest
from stemdl.shards.drain import Drain
from stemdl.shards.schema import shard_name
from tests.small_shards import DAMAGES, assert_set, damage, fill, make_sample, open_writer


@pytest.fixture
def node(tmp_path: Path) -> Path:
    return tmp_path / "node" / "shards" / "train"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return tmp_path / "run" / "shards" / "train"


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


def test_what_is_sealed_is_drained_and_stays_on_the_node(node: Path, run: Path) -> None:
    with drain_it(node, run, rank=5) as background, open_writer(node, rank=5, on_seal=background.submit) as writer:
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
    with drain_it(node, run, rank=2) as background:
        for entry in fill(node, range(4, 8), rank=2):
            background.submit(entry)
    assert background.close().drained == {shard_name(2, 0): shard_name(2, 2), shard_name(2, 1): shard_name(2, 3)}
    assert_set(run, range(8))
    assert {name: sha256_file(run / name) for name in before} == before


def test_what_is_there_is_not_copied_again(node: Path, run: Path) -> None:
    """The same shard, or all its items in other shards: a dead rank's items were made again meanwhile."""
    first, second = fill(node, range(4))
    fill(run, [2, 7, 3], rank=1)
    with drain_it(node, run) as background:
        for entry in (first, first, second):
            background.submit(entry)
    assert background.close().there == [first.file, second.file]
    assert background.take_safe() == [first, first, second]
    assert background.take_safe() == []
    assert_set(run, [0, 1, 2, 3, 7])


def test_a_second_drain_of_a_rank_is_refused_until_the_first_has_ended(node: Path, run: Path) -> None:
    fill(node, [0])
    background = drain_it(node, run)
    with pytest.raises(ShardError, match="another writer of rank 0"):
        drain_it(node, run)
    drain_it(node, run, rank=1).close()
    background.close()
    drain_it(node, run).close()


def test_another_configuration_is_refused_and_nothing_stays_locked(node: Path, run: Path) -> None:
    fill(run, [0])
    with pytest.raises(ShardError, match="made with config hash c1; this run has c2"):
        Drain(node, run, rank=0, config_hash="c2")
    drain_it(node, run).close()


@pytest.mark.parametrize("number", [errno.EDQUOT, errno.ENOSPC, errno.EROFS, errno.EIO])
def test_a_destination_that_takes_no_more_is_a_clear_stop(
    node: Path, run: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    first, second, third = fill(node, range(6))
    background = drain_it(node, run)
    background.submit(first)
    wait_it(lambda: background.waiting[0] == 0)
    with monkeypatch.context() as patch:
        refuse_writes(patch, run, number)
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
    assert left_it(node, run).drained == {second.file: shard_name(0, 1), third.file: shard_name(0, 2)}
    assert_set(run, range(6))


def test_a_manifest_that_takes_no_line_leaves_a_shard_that_is_taken_in_later(
    node: Path, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (entry,) = fill(node, range(2))

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    background = drain_it(node, run)
    with monkeypatch.context() as patch:
        patch.setattr(copying, "append_entry", fail)
        background.submit(entry)
        with pytest.raises(ShardError, match=r"No space left on device \(it takes \d+ kB, free: .* MB; a quota may be"):
            background.close()
    assert (run / shard_name(0, 0)).exists()
    assert not read_manifest(run)
    assert left_it(node, run).there == [entry.file]
    assert_set(run, range(2))


@pytest.mark.parametrize("how", DAMAGES)
def test_a_shard_damaged_on_the_node_is_named_and_left_out(node: Path, run: Path, how: str) -> None:
    entries = fill(node, range(6))
    damage(node / entries[1].file, how)
    background = drain_it(node, run)
    background.submit(entries[1])
    wait_it(lambda: background.waiting[0] == 0)
    with pytest.raises(ShardError, match=f"{entries[1].file}: .*{DAMAGES[how]}"):
        background.submit(entries[0])
    with pytest.raises(ShardError, match=f"{entries[1].file}: .*{DAMAGES[how]}"):
        background.close()
    assert background.take_safe() == [entries[0]]
    assert_set(run, range(2))


def test_an_error_elsewhere_does_not_keep_sealed_shards_on_the_node(node: Path, run: Path) -> None:
    with (
        pytest.raises(ValueError, match="elsewhere"),
        drain_it(node, run) as background,
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
    with pytest.raises(ValueError, match="elsewhere"), drain_it(node, run) as background:
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
    background = drain_it(node, run)
    background.submit(first)
    background.submit(second)
    with pytest.raises(ShardError, match=rf"not copied within 0.05 s.*{first.file}, {second.file}; once"):
        background.close(0.05)
    go.set()
    with pytest.raises(ShardError, match=rf"not copied within 0.05 s.*: {second.file}; once"):
        background.close()
    assert_set(run, range(2))
    assert list(left_it(node, run).drained) == [second.file]
