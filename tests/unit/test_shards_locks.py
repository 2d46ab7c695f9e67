"""One living writer per rank and folder."""

from __future__ import annotations

import errno
import fcntl
import gc
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from stemdl.shards import Sample, ShardAxes, ShardError, ShardWriter
from stemdl.shards.locks import RankLock


def test_the_lock_ends_with_release_and_leaves_no_file(tmp_path: Path) -> None:
    lock = RankLock(tmp_path, 3)
    with pytest.raises(ShardError, match="another writer of rank 3"):
        RankLock(tmp_path, 3)
    RankLock(tmp_path, 4).release()
    lock.release()
    lock.release()
    assert os.listdir(tmp_path) == []
    RankLock(tmp_path, 3).release()


@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")
def test_the_lock_ends_with_its_owner(tmp_path: Path) -> None:
    lock = RankLock(tmp_path, 0)
    del lock
    gc.collect()
    RankLock(tmp_path, 0).release()


def test_the_file_of_a_dead_writer_is_no_lock(tmp_path: Path) -> None:
    (tmp_path / ".lock-00000").touch()
    RankLock(tmp_path, 0).release()


def test_a_lock_on_a_file_removed_meanwhile_does_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The holder may remove the file between our opening and our locking it; a third writer would lock a new one."""
    real_flock = fcntl.flock
    calls = []

    def flock(descriptor: int, operation: int) -> None:
        calls.append(descriptor)
        if len(calls) == 1:
            (tmp_path / ".lock-00000").unlink()
        real_flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", flock)
    lock = RankLock(tmp_path, 0)
    assert len(calls) == 2
    with pytest.raises(ShardError, match="another writer"):
        RankLock(tmp_path, 0)
    lock.release()


def test_other_errors_are_not_taken_for_a_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(fcntl, "flock", fail)
    with pytest.raises(ShardError, match=r"shards cannot be written here: .*Input/output") as caught:
        ShardWriter(tmp_path, rank=0, axes=ShardAxes(1.0, 1.0, 1.0), config_hash="c1", samples_per_shard=1)
    assert isinstance(caught.value.__cause__, OSError)


def test_a_folder_that_vanishes_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "shards"
    provenance: dict[str, object] = {"crystal": "Si", "formula": "Si"}
    sample = Sample(0, np.full((1, 1, 4, 4), 0.1), np.ones((4, 4)), {"energy_kev": 100.0}, provenance)
    with ShardWriter(folder, rank=0, axes=ShardAxes(1.0, 1.0, 1.0), config_hash="c1", samples_per_shard=1) as writer:
        shutil.rmtree(folder)
        with pytest.raises(ShardError, match=r"a sample could not be written: No such file.*free space unknown"):
            writer.add(sample)
