"""What `inspect_folder` finds: every damaged shard by name, whatever else is damaged, and everything that is odd."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import h5py
import numpy as np
import pytest

from shard_cases import flip_bit, lose_line, path_of, sample_of, truncate, write
from stemdl.atomic_files import sha256_file
from stemdl.shards import ShardAxes, ShardError, ShardSet, faults, read_manifest
from stemdl.shards.faults import fields_of, item_runs
from stemdl.shards.fields import load_fields
from stemdl.shards.inspect import FolderReport, duplicates_in_words, inspect_folder
from stemdl.shards.locks import RankLock
from stemdl.shards.schema import MANIFEST_NAME


def oddities(report: FolderReport) -> dict[str, str]:
    return {odd.file: odd.what for odd in report.oddities}


def test_a_sound_folder(tmp_path: Path) -> None:
    write(tmp_path, range(8))
    told: list[int] = []
    report = inspect_folder(tmp_path, deep=True, on_shard=told.append)
    assert report.is_sound
    assert (report.shards, report.samples, report.config_hash) == (3, 8, "c1")
    assert report.bytes == sum(path.stat().st_size for path in tmp_path.glob("*.h5"))
    assert (report.problems, report.duplicates, report.oddities) == ([], {}, [])
    assert told == [1, 2, 3]


def test_every_damaged_shard_is_named_with_its_fields_and_the_others_are_checked(tmp_path: Path) -> None:
    write(tmp_path, range(15))
    flip_bit(path_of(tmp_path, 0))
    truncate(path_of(tmp_path, 2))
    path_of(tmp_path, 3).unlink()
    report = inspect_folder(tmp_path)
    assert [(one.file[-8:], one.items) for one in report.damaged] == [
        ("00000.h5", [0, 1, 2]),
        ("00002.h5", [6, 7, 8]),
        ("00003.h5", [9, 10, 11]),
    ]
    reasons = [one.reason for one in report.damaged]
    for reason, what, fields in zip(
        reasons, ("sha256 differs", "bytes long", "missing"), ("items 0-2", "items 6-8", "items 9-11"), strict=True
    ):
        assert what in reason
        assert f"3 fields ({fields})" in reason
    assert (report.shards, report.samples) == (5, 6)


def test_a_damaged_line_hides_nothing(tmp_path: Path) -> None:
    write(tmp_path, range(9))
    path = tmp_path / MANIFEST_NAME
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join([lines[0], lines[1].replace('"count":3', '"count":4'), lines[2], lines[0]]))
    flip_bit(path_of(tmp_path, 2))
    report = inspect_folder(tmp_path)
    assert [fault.partition(": ")[0] for fault in report.manifest_faults] == [f"{path}, line 2", f"{path}, line 4"]
    assert [one.file for one in report.damaged] == [path_of(tmp_path, 2).name]
    assert report.samples == 3
    assert "does not name, was left by a dead writer of rank 0" in oddities(report)[path_of(tmp_path, 1).name]


def test_a_lost_manifest_is_a_problem(tmp_path: Path) -> None:
    write(tmp_path, range(6))
    (tmp_path / MANIFEST_NAME).unlink()
    report = inspect_folder(tmp_path)
    assert not report.is_sound
    (fault,) = report.manifest_faults
    assert fault.startswith(
        f"{tmp_path / MANIFEST_NAME}: missing, though 2 shards lie beside it; `stemdl shards repair"
    )


def test_remnants_and_living_writers_are_named_as_oddities(tmp_path: Path) -> None:
    write(tmp_path, range(6))
    lose_line(tmp_path, path_of(tmp_path, 1).name)
    (tmp_path / ".tmp-00004-00000-host-1.h5").write_bytes(b"half")
    (tmp_path / ".tmp-manifest.jsonl-host-1").write_bytes(b"half")
    (tmp_path / ".lock-00004").touch()
    with (tmp_path / MANIFEST_NAME).open("a") as stream:
        stream.write('{"file":')
    lock = RankLock(tmp_path, 7)
    try:
        (tmp_path / ".tmp-00007-00000-host-2.h5").write_bytes(b"half")
        found = oddities(inspect_folder(tmp_path))
    finally:
        lock.release()
    assert {name: what.partition(",")[0] for name, what in found.items()} == {
        MANIFEST_NAME: "the last line is torn (8 bytes): its writer was killed",
        path_of(tmp_path, 1).name: "a shard that the manifest does not name",
        ".tmp-00004-00000-host-1.h5": "unfinished shard",
        ".tmp-manifest.jsonl-host-1": "an unfinished file",
        ".lock-00004": "lock of a dead writer of rank 4",
        ".lock-00007": "a writer of rank 7 is alive",
        ".tmp-00007-00000-host-2.h5": "unfinished shard",
    }
    assert found[".tmp-00004-00000-host-1.h5"].endswith("was left by a dead writer of rank 4")
    assert found[".tmp-00007-00000-host-2.h5"].endswith("is being written by a writer that is alive of rank 7")
    assert inspect_folder(tmp_path).is_sound, "remnants are no damage"
    assert (tmp_path / ".lock-00004").exists(), "looking changes nothing"


def test_duplicates_are_named(tmp_path: Path) -> None:
    write(tmp_path / "a", [0, 1, 2, 3])
    write(tmp_path / "b", [2, 3], rank=1)
    for path in (tmp_path / "b").glob("*.h5"):
        path.rename(tmp_path / "a" / path.name)
    with (tmp_path / "a" / MANIFEST_NAME).open("a") as stream:
        stream.write((tmp_path / "b" / MANIFEST_NAME).read_text())
    report = inspect_folder(tmp_path / "a")
    assert report.duplicates == {2: ["shard-00001-00000.h5"], 3: ["shard-00001-00000.h5"]}
    assert duplicates_in_words(report.duplicates) == (
        "2 fields (items 2-3) are there again in shard-00001-00000.h5; the first in the manifest is read"
    )
    assert report.samples == 4


def spoil(folder: Path, number: int, name: str, row: int, value: float) -> None:
    """Change a stored value by an honest HDF5 program, and make the manifest agree."""
    path = path_of(folder, number)
    with h5py.File(path, "r+") as file:
        file[name][row] = np.full(file[name].shape[1:], value)
    lines = [vars(entry) for entry in read_manifest(folder)]
    lines[number].update(bytes=path.stat().st_size, sha256=sha256_file(path))
    (folder / MANIFEST_NAME).write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("amplitude", np.nan, "amplitude holds NaN"),
        ("amplitude", -0.1, "amplitude holds NaN, infinite or negative"),
        ("amplitude", 0.5, "the brightest pattern sums to 16"),
        ("amplitude", 0.0, "the brightest pattern sums to 0"),
        ("potential", np.inf, "potential holds NaN or infinite"),
        ("parameters/thickness_angstrom", np.nan, "parameters thickness_angstrom are not finite"),
        ("item", 77, "not those in the manifest"),
    ],
)
def test_the_deep_check_finds_what_no_hash_can(tmp_path: Path, name: str, value: float, reason: str) -> None:
    write(tmp_path, range(6))
    spoil(tmp_path, 1, name, 1, value)
    assert inspect_folder(tmp_path).is_sound
    report = inspect_folder(tmp_path, deep=True)
    (problem,) = report.damaged
    assert problem.file == path_of(tmp_path, 1).name
    assert reason in problem.reason
    assert "items 3-5" in problem.reason
    assert report.samples == 3


def test_the_deep_check_compares_layouts(tmp_path: Path) -> None:
    write(tmp_path, range(3))
    write(tmp_path / "other", [7], rank=1, axes=ShardAxes(2.0, 0.06, 0.5))
    path_of(tmp_path / "other", rank=1).rename(path_of(tmp_path, rank=1))
    with (tmp_path / MANIFEST_NAME).open("a") as stream:
        stream.write((tmp_path / "other" / MANIFEST_NAME).read_text())
    (problem,) = inspect_folder(tmp_path, deep=True).damaged
    assert "axes and shapes are" in problem.reason


def test_leaving_damage_out_is_loud_and_asked_for(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write(tmp_path, range(12))
    flip_bit(path_of(tmp_path, 1))
    truncate(path_of(tmp_path, 3))
    with pytest.raises(ShardError, match=r"(?s)00001.h5.*00003.h5"):
        ShardSet(tmp_path, verify="hash")
    with ShardSet(tmp_path, verify="hash", on_damage="leave_out") as shards:
        assert shards.items == [0, 1, 2, 6, 7, 8]
        assert [one.entry.items for one in shards.left_out] == [[3, 4, 5], [9, 10, 11]]
        assert "sha256 differs" in shards.left_out[0].reason
        for index, item in enumerate(shards.items):
            np.testing.assert_array_equal(shards.potential(index), sample_of(item).potential)
        assert shards.materials == [str(sample_of(item).provenance["crystal"]) for item in shards.items]
    assert "2 damaged shards LEFT OUT, 6 fields" in caplog.text
    assert path_of(tmp_path, 1).name in caplog.text
    assert "items 9-11" in caplog.text
    whole = ShardSet(tmp_path, on_damage="leave_out")  # by length alone: the flipped bit is found when it is read
    assert [one.entry.items for one in whole.left_out] == [[9, 10, 11]]
    with pytest.raises(ShardError, match=r"00001.h5.*/potential of item 3"):
        whole.potential(3)


def test_fields_are_loaded_without_what_is_damaged_if_asked_for(tmp_path: Path) -> None:
    write(tmp_path, range(9))
    flip_bit(path_of(tmp_path, 1))
    with pytest.raises(ShardError, match="sha256 differs"):
        load_fields(tmp_path, "c1")
    fields = load_fields(tmp_path, "c1", on_damage="leave_out")
    assert fields.items == (0, 1, 2, 6, 7, 8)
    np.testing.assert_array_equal(fields.potential[3], sample_of(6).potential)


def test_what_cannot_be_left_out(tmp_path: Path) -> None:
    write(tmp_path, range(6))
    with pytest.raises(ShardError, match="config hash is c1; c2 is needed"):
        ShardSet(tmp_path, config_hash="c2", on_damage="leave_out")
    for number in (0, 1):
        truncate(path_of(tmp_path, number))
    with pytest.raises(ShardError, match=r"(?s)00000.h5.*00001.h5"):
        ShardSet(tmp_path, on_damage="leave_out")  # nothing would be left
    with pytest.raises(ShardError, match="'refuse' or 'leave_out' is allowed"):
        ShardSet(tmp_path, on_damage="ignore")  # type: ignore[arg-type]


def test_a_disk_that_fails_is_told_from_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, range(6))

    def fail(path: Path) -> str:
        raise OSError(errno.EIO, "Input/output error", str(path))

    monkeypatch.setattr(faults, "sha256_file", fail)
    found = inspect_folder(tmp_path).damaged
    assert [one.reason.rpartition("cannot be read: ")[2] for one in found] == [
        f"[Errno 5] Input/output error: '{path_of(tmp_path, 0)}'; it holds 3 fields (items 0-2)",
        f"[Errno 5] Input/output error: '{path_of(tmp_path, 1)}'; it holds 3 fields (items 3-5)",
    ]


@pytest.mark.parametrize(
    ("items", "words"),
    [
        ([], ""),
        ([5], "5"),
        ([3, 1, 2], "1-3"),
        ([0, 1, 2, 10, 12, 14, 40], "0-2, 10-14 by 2, 40"),
        ([4, 9], "4, 9"),
        ([0, 5, 6, 7], "0, 5-7"),
        ([0, 5, 7, 20, 22, 50, 51, 90, 200], "0, 5, 7, 20, 22, 50-51, ... 200"),
    ],
)
def test_item_numbers_in_short(items: list[int], words: str) -> None:
    assert item_runs(items) == words


def test_fields_in_words() -> None:
    assert fields_of([7]) == "1 field (item 7)"
    assert fields_of([7, 8]) == "2 fields (items 7-8)"
