"""Files that are not what the manifest says: each is named, and none gives wrong numbers silently."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from stemdl.atomic_files import sha256_file
from stemdl.shards import Sample, ShardAxes, ShardError, ShardSet, ShardWriter, read_manifest, sealed_items
from stemdl.shards.h5_read import ShardFile, verify_whole
from stemdl.shards.schema import MANIFEST_NAME

NAMES = ("shard-00000-00000.h5", "shard-00000-00001.h5")


def _sample(item: int) -> Sample:
    rng = np.random.default_rng([9, item])
    amplitude = rng.random((2, 2, 8, 8)) / 8
    return Sample(item, amplitude, rng.random((9, 9)), {"energy_kev": 100.0}, {"crystal": "Si", "formula": "Si"})


def _open_writer(folder: Path, rank: int = 0, config_hash: str = "c1") -> ShardWriter:
    axes = ShardAxes(2.0, 0.05, 0.5)
    return ShardWriter(folder, rank=rank, axes=axes, config_hash=config_hash, samples_per_shard=2)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two sealed shards with the items 0 to 3."""
    with _open_writer(tmp_path) as writer:
        for item in range(4):
            writer.add(_sample(item))
    return tmp_path


def _flip(path: Path, position: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 0x10
    path.write_bytes(content)


def _rewrite_manifest(folder: Path, **changes: Any) -> None:
    """Change the second line."""
    first, second = (vars(entry) for entry in read_manifest(folder))
    lines = [json.dumps(line) + "\n" for line in (first, {**second, **changes})]
    (folder / MANIFEST_NAME).write_text("".join(lines))


def _edit(folder: Path, change: Callable[[h5py.File], None]) -> None:
    """Change the second shard by an honest HDF5 program, and make the manifest agree with it."""
    path = folder / NAMES[1]
    with h5py.File(path, "r+") as file:
        change(file)
    _rewrite_manifest(folder, bytes=path.stat().st_size, sha256=sha256_file(path))


def test_a_truncated_shard_is_named(folder: Path) -> None:
    path = folder / NAMES[1]
    os.truncate(path, path.stat().st_size - 100)
    with pytest.raises(ShardError, match=rf"{NAMES[1]}: \d+ bytes long, \d+ when it was sealed"):
        ShardSet(folder)


def test_a_missing_shard_is_named(folder: Path) -> None:
    (folder / NAMES[0]).unlink()
    with pytest.raises(ShardError, match=f"{NAMES[0]}: missing"):
        ShardSet(folder)


def test_all_damaged_files_are_named_at_once(folder: Path) -> None:
    (folder / NAMES[0]).unlink()
    os.truncate(folder / NAMES[1], 10)
    with pytest.raises(ShardError, match=rf"(?s){NAMES[0]}: missing.*{NAMES[1]}: 10 bytes"):
        ShardSet(folder)


def test_an_unknown_schema_is_named(folder: Path) -> None:
    _rewrite_manifest(folder, schema=2)
    with pytest.raises(ShardError, match=f"{NAMES[1]}: schema 2 is unknown; this version reads 1"):
        ShardSet(folder)
    with pytest.raises(ShardError, match=f"{NAMES[1]}: schema 2 is unknown"):
        _open_writer(folder)


def test_a_link_out_of_the_folder_is_refused(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    outside = tmp_path_factory.mktemp("outside") / NAMES[1]
    (folder / NAMES[1]).rename(outside)
    (folder / NAMES[1]).symlink_to(outside)
    with pytest.raises(ShardError, match=f"{NAMES[1]}: leads outside the folder"):
        ShardSet(folder)


def test_a_flipped_bit_is_found_by_the_hash_and_at_the_latest_when_read(folder: Path) -> None:
    with h5py.File(folder / NAMES[1], "r") as file:
        position = file["amplitude"].id.get_chunk_info(1).byte_offset + 17  # of item 3
    _flip(folder / NAMES[1], position)
    with pytest.raises(ShardError, match=f"{NAMES[1]}: sha256 differs"):
        ShardSet(folder, verify="hash")
    shards = ShardSet(folder, verify="size")
    np.testing.assert_array_equal(shards.amplitude(2), _sample(2).amplitude.astype(np.float16))
    with pytest.raises(ShardError, match=rf"{NAMES[1]}: damaged.*/amplitude of item 3"):
        shards.amplitude(3)


def test_any_flipped_bit_gives_the_true_values_or_a_named_error(folder: Path) -> None:
    path = folder / NAMES[0]
    whole = path.read_bytes()
    found = 0
    for position in np.random.default_rng(3).choice(len(whole), 100, replace=False):
        _flip(path, int(position))
        try:
            with ShardSet(folder) as shards:
                for index in range(2):
                    sample, wanted = shards.item(index), _sample(index)
                    np.testing.assert_array_equal(sample.amplitude, wanted.amplitude.astype(np.float16))
                    np.testing.assert_array_equal(sample.potential, wanted.potential.astype(np.float32))
                    assert (sample.parameters, sample.provenance) == (wanted.parameters, wanted.provenance)
        except ShardError as error:
            assert NAMES[0] in str(error)
            found += 1
        path.write_bytes(whole)
    assert found > 5  # the rest hit padding and attributes that no value depends on


def _replace(name: str, **options: Any) -> Callable[[h5py.File], None]:
    def change(file: h5py.File) -> None:
        del file[name]
        file.create_dataset(name, **options)

    return change


def _claim_count(file: h5py.File) -> None:
    file.attrs["count"] = 10**12


def _empty_promise(file: h5py.File) -> None:
    """Petabytes of patterns in a few bytes of file."""
    shape = (2, 4096, 4096, 4096, 4096)
    _replace("amplitude", shape=shape, dtype="f2", chunks=(1, 8, 8, 64, 64))(file)


def _link_out(file: h5py.File) -> None:
    del file["amplitude"]
    file["amplitude"] = h5py.ExternalLink("/etc/other.h5", "/amplitude")


def _store_outside(file: h5py.File) -> None:
    shape = (2, 9, 9)
    _replace("potential", shape=shape, dtype="f4", external=[("/etc/passwd", 0, h5py.h5f.UNLIMITED)])(file)


def _virtual(file: h5py.File) -> None:
    layout = h5py.VirtualLayout(shape=(2, 9, 9), dtype="f4")
    layout[:] = h5py.VirtualSource("/etc/other.h5", "potential", shape=(2, 9, 9))
    del file["potential"]
    file.create_virtual_dataset("potential", layout)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda file: file.attrs.pop("format"), "not a shard"),
        (lambda file: file.attrs.modify("schema", 7), "schema 7 is unknown"),
        (lambda file: file.attrs.pop("count"), "never finished"),
        (lambda file: file.attrs.modify("dk_per_angstrom", np.nan), "dk_per_angstrom is nan"),
        (lambda file: file.attrs.modify("config_hash", "c2"), "not those in the manifest"),
        (lambda file: file["item"].write_direct(np.array([2, 5])), "not those in the manifest"),
        (lambda file: file.attrs.modify("dk_per_angstrom", 0.06), "axes and shapes are"),
        (_claim_count, r"/amplitude is float16 .* 1000000000000 rows"),
        (_empty_promise, r"/amplitude should hold \d{16} bytes"),
        (_link_out, "/amplitude is missing or leads elsewhere"),
        (_store_outside, "not a dataset inside"),
        (_virtual, "not a dataset inside"),
        (_replace("potential", data=np.ones((2, 9, 9))), "/potential is float64"),
        (_replace("potential", data=np.ones((2, 9, 9), "f4"), chunks=(2, 3, 3)), "one sample per chunk"),
        (_replace("potential", data=np.ones((3, 9, 9), "f4")), "2 rows are needed"),
        (_replace("parameters/energy_kev", shape=(1, 2), dtype="f8"), "/parameters/energy_kev is float64"),
        (_replace("provenance", data=np.array([b"{}", b"{}"])), "does not name its crystal"),
        (_replace("provenance", data=np.array([b"{", b"["])), "provenance of item 2 failed"),
    ],
)
def test_a_file_laid_out_otherwise_is_refused_by_name(
    folder: Path, change: Callable[[h5py.File], None], reason: str
) -> None:
    _edit(folder, change)
    shards = ShardSet(folder, verify="hash")
    np.testing.assert_array_equal(shards.potential(0), _sample(0).potential.astype(np.float32))
    with pytest.raises(ShardError, match=f"{NAMES[1]}: .*{reason}"):
        shards.item(2)


def test_not_hdf5_at_all(tmp_path: Path) -> None:
    path = tmp_path / "shard-00000-00000.h5"
    path.write_text("hello")
    with pytest.raises(ShardError, match=r"shard-00000-00000.h5: damaged, or not a shard"):
        ShardFile(path)


def _drop_last_line(folder: Path) -> None:
    path = folder / MANIFEST_NAME
    path.write_text(path.read_text().splitlines(keepends=True)[0])


def test_a_whole_shard_without_its_line_is_taken_back(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    entries = read_manifest(folder)
    _drop_last_line(folder)
    assert ShardSet(folder).items == [0, 1]
    with _open_writer(folder) as writer:
        writer.add(_sample(4))
    assert f"{NAMES[1]}: whole but not in the manifest" in caplog.text
    assert read_manifest(folder)[:2] == entries
    assert ShardSet(folder, verify="hash").items == [0, 1, 2, 3, 4]


def test_a_line_torn_in_the_middle_is_made_again(folder: Path) -> None:
    entries = read_manifest(folder)
    path = folder / MANIFEST_NAME
    os.truncate(path, path.stat().st_size - 30)
    _open_writer(folder).close()
    assert read_manifest(folder) == entries


@pytest.mark.parametrize("reason", ["sha", "truncated", "config", "twice", "link"])
def test_a_doubtful_shard_without_its_line_is_removed(
    folder: Path, caplog: pytest.LogCaptureFixture, tmp_path_factory: pytest.TempPathFactory, reason: str
) -> None:
    path = folder / NAMES[1]
    _drop_last_line(folder)
    if reason == "sha":
        with h5py.File(path, "r") as file:
            position = file["potential"].id.get_chunk_info(1).byte_offset
        _flip(path, position)
    elif reason == "truncated":
        os.truncate(path, 4000)
    elif reason == "config":
        with h5py.File(path, "r+") as file:
            file.attrs.modify("config_hash", "c2")
    elif reason == "twice":
        path.write_bytes((folder / NAMES[0]).read_bytes())
    else:
        outside = tmp_path_factory.mktemp("outside") / NAMES[1]
        path.rename(outside)
        path.symlink_to(outside)
    with _open_writer(folder) as writer:
        assert not path.exists()
        assert f"{NAMES[1]}: not in the manifest and removed" in caplog.text
        for item in sorted({0, 1, 2, 3} - sealed_items(folder, "c1")):
            writer.add(_sample(item))
    assert ShardSet(folder, verify="hash").items == [0, 1, 2, 3]


def test_only_leftovers_of_the_own_rank_are_removed(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    left = [folder / f".tmp-0000{rank}-00002-somehost-1.h5" for rank in (0, 1)]
    for path in left:
        path.write_bytes(b"half a shard")
    orphan = folder / "shard-00001-00000.h5"
    orphan.write_bytes(b"half a shard")
    _open_writer(folder).close()
    assert [path.exists() for path in left] == [False, True]
    assert orphan.exists()
    assert f"{left[0].name}: unfinished shard of a dead writer" in caplog.text
    _open_writer(folder, rank=1).close()
    assert sorted(os.listdir(folder)) == [MANIFEST_NAME, *NAMES]


def test_verify_whole_reads_every_chunk(folder: Path) -> None:
    path = folder / NAMES[0]
    assert verify_whole(path).items == [0, 1]
    with h5py.File(path, "r") as file:
        chunks = [
            file[name].id.get_chunk_info(row).byte_offset for name in ("amplitude", "potential") for row in (0, 1)
        ]
        chunks += [
            file[name].id.get_chunk_info(0).byte_offset for name in ("item", "provenance", "parameters/energy_kev")
        ]
    whole = path.read_bytes()
    for position in chunks:
        _flip(path, position + 2)
        with pytest.raises(ShardError, match=NAMES[0]):
            verify_whole(path)
        path.write_bytes(whole)
