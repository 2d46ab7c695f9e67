"""Disks that are really full, out of files or read-only: a clear stop, and all sealed shards intact."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from stemdl.config.storage import BurstBuffer
from stemdl.shards import ShardError, read_manifest
from stemdl.shards.burst_buffer import BurstBufferError, check_burst_buffer, find_burst_buffer, node_folder
from stemdl.shards.drain import Drain, drain_left
from stemdl.shards.staging import StageSummary, stage, staged_folder
from tests.small_run import small_config
from tests.small_shards import CONFIG_HASH, Notes, assert_set, fill, make_sample, open_writer, remount, small_disk

pytestmark = pytest.mark.multiproc

PIXELS = 192
"""About 0.6 MB for a shard of two samples."""
NO_RESERVE = BurstBuffer(use=True, reserve_gb=0.0)


def _stage(source: Path, node: Path, progress: Notes | None = None, section: BurstBuffer = NO_RESERVE) -> StageSummary:
    return stage(
        source,
        node,
        rank=0,
        size=1,
        local_rank=0,
        local_size=1,
        mode="whole",
        config_hash=CONFIG_HASH,
        section=section,
        progress=progress or Notes(),
    )


def _drain_left(node: Path, run: Path) -> None:
    drain_left(node, run, CONFIG_HASH, rank=0, local_rank=0, local_size=1, progress=Notes())


def test_a_full_run_folder_stops_the_drain_and_a_larger_one_takes_the_rest(tmp_path: Path) -> None:
    node = tmp_path / "node"
    with small_disk(tmp_path / "disk", "size=2m") as disk:
        background = Drain(node, disk / "train", rank=0, config_hash=CONFIG_HASH)
        stopped = pytest.raises(
            ShardError, match=r"No space left on device \(it takes 0.\d MB, free: \d+(\.\d MB| kB); a quota"
        )
        with stopped, open_writer(node, on_seal=background.submit) as writer:
            for item in range(40):  # far more than fit
                writer.add(make_sample(item, PIXELS))
        with pytest.raises(ShardError, match=f"on this node alone, and whole, in {node}: shard-00000-0000"):
            background.close()
        drained = [item for entry in read_manifest(disk / "train") for item in entry.items]
        made = [item for entry in read_manifest(node) for item in entry.items]
        assert 0 < len(drained) < len(made)
        assert_set(disk / "train", drained, PIXELS)
        assert_set(node, made, PIXELS)
        with pytest.raises(ShardError, match="No space left on device"):
            _drain_left(node, disk / "train")
        assert_set(disk / "train", drained, PIXELS)
        remount(disk, "size=40m")
        _drain_left(node, disk / "train")
        assert_set(disk / "train", made, PIXELS)


def test_a_full_node_stops_the_writer_and_all_that_is_sealed_is_drained(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with small_disk(tmp_path / "disk", "size=2m") as disk:
        node = disk / "train"
        with (
            pytest.raises(ShardError, match=r"No space left on device|could not be written|could not be sealed"),
            Drain(node, run, rank=0, config_hash=CONFIG_HASH) as background,
            open_writer(node, on_seal=background.submit) as writer,
        ):
            for item in range(40):
                writer.add(make_sample(item, PIXELS))
        sealed = [item for entry in read_manifest(node) for item in entry.items]
        assert sealed
        assert_set(node, sealed, PIXELS)
        assert_set(run, sealed, PIXELS)


def test_a_small_node_holds_a_large_set_if_what_is_drained_makes_room(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with small_disk(tmp_path / "disk", "size=4m") as disk:
        node = disk / "train"
        with (
            Drain(node, run, rank=0, config_hash=CONFIG_HASH, reserve_bytes=2e6, make_room=True) as background,
            open_writer(node, on_seal=background.submit) as writer,
        ):
            for item in range(30):  # 9 MB
                writer.add(make_sample(item, PIXELS))
        assert background.close().removed
    assert_set(run, range(30), PIXELS)


def test_a_set_that_does_not_fit_is_refused_before_the_first_copy(tmp_path: Path) -> None:
    source = tmp_path / "run" / "train"
    fill(source, range(20), pixels=PIXELS)
    with small_disk(tmp_path / "disk", "size=2m") as disk:
        with pytest.raises(BurstBufferError, match=r"2.\d MB free, allowed ≥ \d.\d MB: \d.\d MB are needed"):
            _stage(source, disk)
        assert not list(disk.rglob("*.h5"))
        remount(disk, "size=20m")
        _stage(source, disk)
        assert_set(
            staged_folder(source, disk, rank=0, size=1, mode="whole", config_hash=CONFIG_HASH), range(20), PIXELS
        )


class _Filler(Notes):
    """Somebody else who fills the disk while the third shard is being staged."""

    def __init__(self, disk: Path) -> None:
        super().__init__()
        self.file = disk / "of-somebody-else"

    def advance(self, done: int, *, left_s: float | None = None, **figures: float) -> None:
        """Take all that is left."""
        if done == 2:
            with self.file.open("wb", buffering=0) as stream:
                try:
                    while stream.write(bytes(4096)):
                        pass
                except OSError:
                    return


def test_a_node_that_somebody_else_fills_stops_the_staging(tmp_path: Path) -> None:
    source = tmp_path / "run" / "train"
    fill(source, range(10), pixels=PIXELS)
    with small_disk(tmp_path / "disk", "size=8m") as disk:
        filler = _Filler(disk)
        with pytest.raises(
            BurstBufferError, match=r"staging stopped: shard-00000-00002.h5: No space left .*free: 0 kB"
        ):
            _stage(source, disk, filler)
        assert_set(disk / "staged" / "train" / "whole", range(4), PIXELS)
        with pytest.raises(BurstBufferError, match="3 of 5 shards are not staged"):
            staged_folder(source, disk, rank=0, size=1, mode="whole", config_hash=CONFIG_HASH)
        filler.file.unlink()
        assert len(_stage(source, disk).copied) == 3
        assert_set(
            staged_folder(source, disk, rank=0, size=1, mode="whole", config_hash=CONFIG_HASH), range(10), PIXELS
        )


def test_a_disk_without_files_left_is_said_beforehand_and_stops_the_drain(tmp_path: Path) -> None:
    node = tmp_path / "node"
    fill(node, range(12))
    with small_disk(tmp_path / "disk", "size=8m,nr_inodes=6") as disk:
        with pytest.raises(BurstBufferError, match=r"room for \d more files, allowed ≥ 64"):
            check_burst_buffer(disk, needed_bytes=1, section=NO_RESERVE)
        with pytest.raises(ShardError, match="No space left on device"):
            _drain_left(node, disk)
        drained = [item for entry in read_manifest(disk) for item in entry.items]
        assert 0 < len(drained) < 12
        assert_set(disk, drained)
        remount(disk, "nr_inodes=100")
        _drain_left(node, disk)
        assert_set(disk, range(12))


def test_read_only_disks_are_named(tmp_path: Path) -> None:
    node, source = tmp_path / "node", tmp_path / "run" / "train"
    fill(node, range(2))
    fill(source, range(4))
    with small_disk(tmp_path / "disk", "size=8m") as disk:
        fill(disk / "train", range(20, 22), rank=1)
        remount(disk, "ro")
        with pytest.raises(ShardError, match=f"{disk / 'train'}: shards cannot be copied here: Read-only file system"):
            Drain(node, disk / "train", rank=0, config_hash=CONFIG_HASH)
        with pytest.raises(ShardError, match=f"{disk / 'train'}: shards cannot be copied here: Read-only file system"):
            _drain_left(node, disk / "train")
        with pytest.raises(BurstBufferError, match="nothing can be staged here: Read-only file system"):
            _stage(source, disk)
        with pytest.raises(BurstBufferError, match="cannot be written: Read-only file system"):
            check_burst_buffer(disk, needed_bytes=1, section=NO_RESERVE)
        with pytest.raises(BurstBufferError, match="not writable for this user"):
            find_burst_buffer(BurstBuffer(folder=str(disk)), os.environ)
        with pytest.raises(BurstBufferError, match="cannot be made: Read-only file system"):
            node_folder(disk, "abc", os.environ)
        assert_set(disk / "train", range(20, 22))
    assert_set(node, range(2))


def test_memory_is_said_to_be_memory(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "size=8m") as disk:
        report = check_burst_buffer(disk, needed_bytes=1_000_000, section=NO_RESERVE)
        assert report.file_system == "tmpfs"
        assert "(tmpfs), 0.0 GB free" in report.line()
        assert "lies in memory" in report.line()
        assert os.listdir(disk) == []


def test_a_file_of_the_cbed_layout_on_a_full_disk_is_one_error_and_leaves_nothing(tmp_path: Path) -> None:
    """In a process of its own: HDF5 used to crash it at its end."""
    small_config(tmp_path, "crystals.held_out_fraction=0.4")
    with small_disk(tmp_path / "disk", "size=20k") as disk:
        command = [sys.executable, "-m", "stemdl.cli", "cbed", "write", str(tmp_path / "config.yaml"), "-o", str(disk)]
        command += ["--crystals", "1", "--energies", "100", "--workers", "1"]
        command += ["--set", "detector.pixels=[64, 64]"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 2, done.stderr
        (line,) = done.stderr.strip().splitlines()
        assert "No space left on device" in line
        assert os.listdir(disk) == []


def test_a_shard_on_a_full_disk_is_one_line_without_hdf5s_words(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        small_disk(tmp_path / "disk", "size=20k") as disk,
        pytest.raises(ShardError, match=r": No space left on device \(\d+ kB are free\); all sealed"),
        open_writer(disk) as writer,
    ):
        for item in range(8):
            writer.add(make_sample(item))
    assert not [record for record in caplog.records if "buf" in record.getMessage()]
