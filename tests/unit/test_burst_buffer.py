"""Where a node's storage is found, what is refused before the first sample, and whose place is whose."""

from __future__ import annotations

import errno
import os
import socket
import time
from pathlib import Path
from typing import Any

import pytest

from stemdl import disks
from stemdl.config.storage import BurstBuffer
from stemdl.disks import FreeSpace, file_system_of, is_network, write_speed_mb_per_s
from stemdl.errors import UserError
from stemdl.shards import burst_buffer
from stemdl.shards.burst_buffer import (
    BurstBufferError,
    check_burst_buffer,
    find_burst_buffer,
    node_folder,
    run_id,
)

NO_RESERVE = BurstBuffer(use=True, reserve_gb=0.0)


def _check(folder: Path, section: BurstBuffer = NO_RESERVE, needed_bytes: int = 1) -> burst_buffer.BurstBufferReport:
    return check_burst_buffer(folder, needed_bytes=needed_bytes, section=section)


def test_the_configured_folder_has_its_names_filled_in(tmp_path: Path) -> None:
    folder = tmp_path / "ann" / "fast-7"
    folder.mkdir(parents=True)
    section = BurstBuffer(folder=f"{tmp_path}/$USER/fast-${{JOB}}")
    environment = {"USER": "ann", "JOB": "7", "TMPDIR": str(tmp_path)}
    assert find_burst_buffer(section, environment) == folder.resolve()


@pytest.mark.parametrize(
    ("folder", "found"),
    [
        ("/fast/$NOBODY/${NEITHER}", r"'/fast/\$NOBODY/\$\{NEITHER\}', but \$NOBODY, \$NEITHER is not set on node n1"),
        ("fast/$USER", "which is fast/ann; allowed is an absolute path"),
        ("/no/such/$USER", "which is /no/such/ann: no such folder on node n1"),
        (__file__, "a file, no folder on node n1"),
        (f"{__file__}/below", "no such folder|Not a directory"),
    ],
)
def test_a_configured_folder_of_no_use_is_an_error_with_its_key(folder: str, found: str) -> None:
    with pytest.raises(BurstBufferError, match=f"burst_buffer.folder: found .*{found}") as caught:
        find_burst_buffer(BurstBuffer(folder=folder), {"USER": "ann", "SLURMD_NODENAME": "n1", "TMPDIR": "/tmp"})
    assert isinstance(caught.value, UserError)


def test_the_first_place_that_is_there_and_writable_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b", "c"):
        (tmp_path / name).mkdir()
    environment = {"SLURM_TMPDIR": "a", "LOCAL_SCRATCH": "b", "TMPDIR": "c"}
    environment = {name: str(tmp_path / folder) for name, folder in environment.items()}
    assert find_burst_buffer(BurstBuffer(), environment) == (tmp_path / "a").resolve()
    real_access = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path).name != "a" and real_access(path, mode))
    assert find_burst_buffer(BurstBuffer(), environment) == (tmp_path / "b").resolve()
    (tmp_path / "b").rmdir()
    assert find_burst_buffer(BurstBuffer(), environment) == (tmp_path / "c").resolve()


def test_the_site_s_own_place_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ann").mkdir()
    monkeypatch.setattr(burst_buffer, "CANDIDATES", (f"{tmp_path}/$USER", *burst_buffer.CANDIDATES[1:]))
    environment = {"USER": "ann", "TMPDIR": str(tmp_path)}
    assert find_burst_buffer(BurstBuffer(), environment) == (tmp_path / "ann").resolve()


def test_a_node_without_any_is_an_error_that_lists_what_was_looked_for(tmp_path: Path) -> None:
    environment = {"SLURM_TMPDIR": "", "LOCAL_SCRATCH": str(tmp_path / "gone"), "TMPDIR": __file__, "USER": "no-such"}
    with pytest.raises(BurstBufferError) as caught:
        find_burst_buffer(BurstBuffer(use=True), environment)
    text = str(caught.value)
    for part in (
        "/mnt/bb/$USER = /mnt/bb/no-such: no such folder",
        "$SLURM_TMPDIR: $SLURM_TMPDIR is not set",
        f"$LOCAL_SCRATCH = {tmp_path / 'gone'}: no such folder",
        f"$TMPDIR = {__file__}: a file, no folder",
        "burst_buffer.use: false",
    ):
        assert part in text


MOUNTS = """\
27 1 254:0 / / rw,relatime - ext4 /dev/vda rw
30 27 0:25 / /mnt/bb rw - xfs /dev/nvme0n1 rw
31 27 0:26 / /mnt/bb rw shared:2 master:1 - nfs4 server:/bb rw
32 27 0:27 / /mnt/bb/big\\040disk rw - lustre mgs:/fs rw
33 27 0:28 / /mnt/b rw - tmpfs tmpfs rw
damaged line
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/home/ann", "ext4"),
        ("/mnt/bb", "nfs4"),  # mounted over xfs
        ("/mnt/bb/ann", "nfs4"),
        ("/mnt/bb/big disk/x", "lustre"),
        ("/mnt/b/x", "tmpfs"),
        ("/mnt/bbb", "ext4"),  # no prefix of a name
    ],
)
def test_the_longest_mount_point_says_the_type(path: str, kind: str) -> None:
    assert file_system_of(Path(path), MOUNTS) == kind


def test_without_a_table_the_type_is_unknown() -> None:
    assert file_system_of(Path("/"), "") == "unknown"


@pytest.mark.parametrize("kind", ["nfs", "nfs4", "lustre", "gpfs", "beegfs", "cifs", "smb3", "fuse.sshfs", "fuse.ceph"])
def test_network_file_systems(kind: str) -> None:
    assert is_network(kind)


@pytest.mark.parametrize("kind", ["ext4", "xfs", "btrfs", "tmpfs", "overlay", "zfs", "fuseblk", "unknown"])
def test_file_systems_of_the_node_itself(kind: str) -> None:
    assert not is_network(kind)


def test_a_fit_folder_is_measured_and_left_as_it_was(tmp_path: Path) -> None:
    report = _check(tmp_path)
    assert os.listdir(tmp_path) == []
    assert report.folder == tmp_path
    assert report.file_system == file_system_of(tmp_path)
    assert report.free_bytes > 0
    assert report.write_mb_per_s > 0
    assert str(tmp_path) in report.line()
    assert f"{report.write_mb_per_s:.0f} MB/s" in report.line()


@pytest.mark.parametrize(
    ("kind", "warning"), [("tmpfs", "lies in memory"), ("unknown", "type of its file system is unknown"), ("xfs", "")]
)
def test_what_is_allowed_but_should_be_known_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, warning: str
) -> None:
    monkeypatch.setattr(burst_buffer, "file_system_of", lambda _: kind)
    report = _check(tmp_path)
    assert [warning in one for one in report.warnings] == ([True] if warning else [])
    assert warning in report.line()


def test_a_network_file_system_is_used_only_where_the_user_named_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(burst_buffer, "file_system_of", lambda _: "lustre")
    with pytest.raises(
        BurstBufferError, match=r"burst_buffer.folder: found .* network file system \(lustre\), allowed"
    ):
        _check(tmp_path)
    named = BurstBuffer(folder=str(tmp_path), reserve_gb=0.0)
    assert "lustre is a network file system" in _check(tmp_path, named).line()


def test_too_little_space_is_refused_with_what_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(burst_buffer, "free_space", lambda _: FreeSpace(5_000_000_000, None))
    section = BurstBuffer(reserve_gb=2.0)
    assert _check(tmp_path, section, needed_bytes=3_000_000_000).free_files is None
    with pytest.raises(
        BurstBufferError,
        match=r"found at .* 5.0 GB free, allowed ≥ 5.0 GB: 3.0 GB are needed, and 2.0 GB stay free "
        r"\(burst_buffer.reserve_gb\)",
    ):
        _check(tmp_path, section, needed_bytes=3_000_000_001)


def test_too_few_free_files_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(burst_buffer, "free_space", lambda _: FreeSpace(10**12, 63))
    with pytest.raises(BurstBufferError, match="room for 63 more files, allowed ≥ 64"):
        _check(tmp_path)


def test_slow_storage_is_refused(tmp_path: Path) -> None:
    section = BurstBuffer(reserve_gb=0.0, least_write_mb_per_s=1e9)
    with pytest.raises(BurstBufferError, match=r"least_write_mb_per_s: found \d+ MB/s at .*, allowed ≥ 1e\+09 MB/s"):
        _check(tmp_path, section)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("number", [errno.EDQUOT, errno.ENOSPC, errno.EROFS])
def test_a_failed_write_is_said_and_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def fail(_: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(BurstBufferError, match=f"cannot be written: {os.strerror(number)}"):
        _check(tmp_path)
    assert os.listdir(tmp_path) == []


def test_the_measurement_takes_no_more_than_half_of_what_is_spare(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []

    def measure(_: Path, size: int) -> float:
        sizes.append(size)
        return 100.0

    monkeypatch.setattr(burst_buffer, "write_speed_mb_per_s", measure)
    for free in (3_000_000, 10**12):
        monkeypatch.setattr(burst_buffer, "free_space", lambda _, free=free: FreeSpace(free, None))
        _check(tmp_path, BurstBuffer(reserve_gb=0.001))
    assert sizes == [1_000_000, disks.PROBE_BYTES]


def test_the_measurement_ends_on_slow_storage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each sync takes 2 s by this clock: after two of them it is over, and 32 MiB are written."""
    now = [0.0]
    real_fsync = os.fsync

    def fsync(descriptor: int) -> None:
        now[0] += 2.0
        real_fsync(descriptor)

    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(os, "fsync", fsync)
    assert write_speed_mb_per_s(tmp_path) == pytest.approx(32 * 1024**2 / 1e6 / 6.0)


def test_runs_do_not_meet(tmp_path: Path) -> None:
    first = run_id(tmp_path / "run", "c1")
    assert len(first) == 12
    assert first == run_id(tmp_path / "other" / ".." / "run", "c1")
    assert len({first, run_id(tmp_path / "run-2", "c1"), run_id(tmp_path / "run", "c2")}) == 3


def test_each_node_has_its_own_place_on_a_shared_disk(tmp_path: Path) -> None:
    folders = [node_folder(tmp_path, "abc", environment) for environment in ({"SLURMD_NODENAME": "n/1"}, {}, {})]
    assert folders[0].name == "stemdl-abc-n_1"
    assert folders[1] == folders[2] != folders[0]
    assert socket.gethostname()[:1] in folders[1].name.removeprefix("stemdl-abc-")
    assert folders[0].stat().st_mode & 0o777 == 0o700


def test_what_is_in_a_place_stays(tmp_path: Path) -> None:
    folder = node_folder(tmp_path, "abc", {})
    (folder / "shard").touch()
    (tmp_path / "stemdl-other-node").mkdir()
    assert node_folder(tmp_path, "abc", {}) == folder
    assert os.listdir(folder) == ["shard"]
    assert (tmp_path / "stemdl-other-node").exists()


@pytest.mark.parametrize("what", ["file", "link", "dangling", "other"])
def test_a_place_that_somebody_else_made_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    environment = {"SLURMD_NODENAME": "n1"}
    folder = tmp_path / "stemdl-abc-n1"
    elsewhere: Any = tmp_path / "elsewhere"
    if what == "file":
        folder.touch()
    elif what == "other":
        folder.mkdir()
        monkeypatch.setattr(os, "geteuid", lambda: folder.stat().st_uid + 1)
    else:
        if what == "link":
            elsewhere.mkdir()
        folder.symlink_to(elsewhere)
    with pytest.raises(
        BurstBufferError, match=r"stemdl-abc-n1 (cannot be made: File exists|is not a folder of this user)"
    ):
        node_folder(tmp_path, "abc", environment)
    assert folder.is_symlink() or folder.exists()
