"""Whole or absent: `stemdl.atomic_files`."""

from __future__ import annotations

import errno
import hashlib
import os
from pathlib import Path

import pytest

from stemdl.atomic_files import fsync_folder, replace_atomically, sha256_file


def _no_space(*_: object) -> int:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_replace_puts_the_new_content_and_leaves_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "latest"
    replace_atomically(path, b"step-1")
    replace_atomically(path, b"step-2" * 100_000)
    assert path.read_bytes() == b"step-2" * 100_000
    assert os.listdir(tmp_path) == ["latest"]


@pytest.mark.parametrize("call", ["write", "fsync", "replace"])
def test_a_failure_keeps_the_old_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    path = tmp_path / "latest"
    replace_atomically(path, b"old")
    monkeypatch.setattr(os, call, _no_space)
    with pytest.raises(OSError, match="No space left"):
        replace_atomically(path, b"new")
    monkeypatch.undo()
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["latest"]


def test_short_writes_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real_write = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: real_write(fd, bytes(data)[:3]))
    replace_atomically(tmp_path / "a", b"0123456789")
    monkeypatch.undo()
    assert (tmp_path / "a").read_bytes() == b"0123456789"


def test_sha256_is_that_of_the_content(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abc" * 1_000_000)
    assert sha256_file(tmp_path / "a") == hashlib.sha256(b"abc" * 1_000_000).hexdigest()


def test_folder_sync_tolerates_only_file_systems_that_cannot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fsync_folder(tmp_path)
    with pytest.raises(FileNotFoundError):
        fsync_folder(tmp_path / "absent")

    def refuse(number: int) -> None:
        def fsync(_: int) -> None:
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr(os, "fsync", fsync)

    refuse(errno.EINVAL)
    fsync_folder(tmp_path)
    assert "cannot sync a folder" in caplog.text
    refuse(errno.EIO)
    with pytest.raises(OSError, match="Input/output"):
        fsync_folder(tmp_path)
