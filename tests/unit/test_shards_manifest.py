"""The manifest: lines appended by many, torn by kills, damaged by disks."""

from __future__ import annotations

import errno
import fcntl
import json
import os
from pathlib import Path
from typing import Any

import pytest

from stemdl.shards import ManifestEntry, ShardError, read_manifest, sealed_items
from stemdl.shards import manifest as manifest_module
from stemdl.shards.manifest import append_entry, scan_manifest
from stemdl.shards.schema import MANIFEST_NAME, shard_name


def _entry(number: int, config_hash: str = "c1") -> ManifestEntry:
    return ManifestEntry(shard_name(0, number), "0" * 64, 1000, 2, [2 * number, 2 * number + 1], config_hash, 1)


def _line(**changes: Any) -> str:
    return json.dumps({**vars(_entry(0)), **changes}) + "\n"


def _tear(folder: Path) -> None:
    with (folder / MANIFEST_NAME).open("a") as stream:
        stream.write('{"file":"shard-00009-0')


def test_entries_come_back_in_order(tmp_path: Path) -> None:
    assert read_manifest(tmp_path) == []
    entries = [_entry(2), _entry(0, "c2"), _entry(1)]
    for entry in entries:
        append_entry(tmp_path, entry)
    assert read_manifest(tmp_path) == entries
    assert (tmp_path / MANIFEST_NAME).read_text().count("\n") == 3
    assert sealed_items(tmp_path, "c1") == {4, 5, 2, 3}
    assert sealed_items(tmp_path, "c2") == {0, 1}


def test_every_bit_of_a_line_counts(tmp_path: Path) -> None:
    """A changed digit is JSON still: without a checksum it would name other items, another file or configuration."""
    append_entry(tmp_path, _entry(7))
    line = (tmp_path / MANIFEST_NAME).read_bytes()
    for place in range(len(line) - 1):
        for bit in range(8):
            changed = bytearray(line)
            changed[place] ^= 1 << bit
            (tmp_path / MANIFEST_NAME).write_bytes(changed)
            scan = scan_manifest(tmp_path)
            if scan.entries:  # the name of the checksum alone may change without any harm
                assert scan.entries == [_entry(7)]
                assert b'"crc32"' not in changed
            else:
                assert scan.faults


def test_lines_of_earlier_versions_without_a_checksum_are_read(tmp_path: Path) -> None:
    (tmp_path / MANIFEST_NAME).write_text(_line())
    append_entry(tmp_path, _entry(1))
    assert read_manifest(tmp_path) == [_entry(0), _entry(1)]


def test_a_torn_last_line_is_left_out_and_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    append_entry(tmp_path, _entry(0))
    _tear(tmp_path)
    assert read_manifest(tmp_path) == [_entry(0)]
    assert "last line (2) is torn" in caplog.text


@pytest.mark.parametrize("whole", [0, 1, 3000])  # 3000 lines are longer than the piece looked through at once
def test_the_next_append_cuts_the_torn_line(tmp_path: Path, caplog: pytest.LogCaptureFixture, whole: int) -> None:
    (tmp_path / MANIFEST_NAME).write_text(
        "".join(_line(file=shard_name(1, number), items=[number], count=1) for number in range(whole))
    )
    _tear(tmp_path)
    append_entry(tmp_path, _entry(5))
    assert len(read_manifest(tmp_path)) == whole + 1
    assert read_manifest(tmp_path)[-1] == _entry(5)
    assert "cut off the torn last line" in caplog.text


def test_a_torn_tail_longer_than_one_piece_is_cut_whole(tmp_path: Path) -> None:
    (tmp_path / MANIFEST_NAME).write_text(_line() + "x" * 200_000)
    append_entry(tmp_path, _entry(5))
    assert read_manifest(tmp_path) == [_entry(0), _entry(5)]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('{"file":"shard-00\n', "not JSON"),
        ("\n", "not JSON"),
        ("\0\0\0\n", "not JSON"),
        ("[1]\n", "not a JSON object but list"),
        (_line(file="../shard-00000-00000.h5"), "plain name"),
        (_line(file="/etc/passwd"), "plain name"),
        (_line(sha256="abc"), "64 hexadecimal"),
        (_line(bytes="1000"), "bytes is '1000'; int"),
        (_line(count=True), "count is True; int"),
        (_line(count=3), "count is 3, but items lists 2"),
        (_line(items=[4, 4]), "items lists 1 different"),
        (_line(items=[0, -1]), "≥ 0"),
        (_line().replace("config_hash", "confug_hash"), "config_hash is missing"),
        (_line(file=shard_name(0, 8)), r"is named before, in line 1"),
    ],
)
def test_a_damaged_line_in_the_middle_is_named(tmp_path: Path, line: str, reason: str) -> None:
    append_entry(tmp_path, _entry(8))
    with (tmp_path / MANIFEST_NAME).open("a") as stream:
        stream.write(line)
    append_entry(tmp_path, _entry(9))
    with pytest.raises(ShardError, match=rf"{MANIFEST_NAME}, line 2: .*{reason}"):
        read_manifest(tmp_path)


def test_keys_of_a_later_version_do_not_hurt(tmp_path: Path) -> None:
    (tmp_path / MANIFEST_NAME).write_text(_line(schema=99, compression="zstd"))
    assert read_manifest(tmp_path)[0].schema == 99


@pytest.mark.parametrize("short", [False, True])
def test_a_full_disk_takes_the_line_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, short: bool) -> None:
    append_entry(tmp_path, _entry(0))
    before = (tmp_path / MANIFEST_NAME).read_bytes()
    real_write = os.write

    def write(descriptor: int, content: bytes) -> int:
        written = real_write(descriptor, content[:10])
        if short:
            return written
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", write)
    with pytest.raises(OSError, match=r"No space left|only 10 of"):
        append_entry(tmp_path, _entry(1))
    monkeypatch.undo()
    assert (tmp_path / MANIFEST_NAME).read_bytes() == before


def test_the_wait_for_the_lock_is_bounded_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifest_module, "LOCK_TIMEOUT_S", 0.05)
    append_entry(tmp_path, _entry(0))
    with (tmp_path / MANIFEST_NAME).open("ab") as holder:
        fcntl.flock(holder, fcntl.LOCK_EX)
        with pytest.raises(ShardError, match=rf"{MANIFEST_NAME}: another process holds the lock; waited 0.05 s"):
            append_entry(tmp_path, _entry(1))
    append_entry(tmp_path, _entry(1))
    assert len(read_manifest(tmp_path)) == 2


def test_without_locks_lines_are_added_but_never_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def no_locks(*_: object) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    append_entry(tmp_path, _entry(0))
    append_entry(tmp_path, _entry(1))
    assert len(read_manifest(tmp_path)) == 2
    assert "has no file locks" in caplog.text
    _tear(tmp_path)
    before = (tmp_path / MANIFEST_NAME).read_bytes()
    with pytest.raises(ShardError, match="delete that line"):
        append_entry(tmp_path, _entry(2))
    assert (tmp_path / MANIFEST_NAME).read_bytes() == before


def test_a_file_in_place_of_the_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "shards").write_text("no folder")
    with pytest.raises(ShardError, match="shards: a file, where a folder of shards is needed"):
        read_manifest(tmp_path / "shards")


def test_a_flipped_bit_in_the_name_of_the_checksum_is_noticed(tmp_path: Path) -> None:
    append_entry(tmp_path, ManifestEntry(shard_name(0, 0), "0" * 64, 10, 1, [3], "c" * 64, 1))
    path = tmp_path / MANIFEST_NAME
    path.write_bytes(path.read_bytes().replace(b'"crc32"', b'"csc32"'))
    with pytest.raises(ShardError, match="line 1: damaged, unknown key 'csc32'"):
        read_manifest(tmp_path)
