"""Samples through a writer, a folder and a reader."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import pickle
import tempfile
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from stemdl.shards import Sample, ShardAxes, ShardError, ShardSet, ShardWriter, read_manifest, sealed_items
from stemdl.shards import writer as writer_module

AXES = ShardAxes(scan_step_angstrom=2.0, dk_per_angstrom=0.05, potential_pixel_angstrom=0.5)


def _sample(item: int, **changes: Any) -> Sample:
    rng = np.random.default_rng([9, item])
    amplitude = rng.random((2, 3, 8, 8))
    amplitude /= np.sqrt((amplitude**2).sum(axis=(2, 3), keepdims=True)) * 1.01
    values: dict[str, Any] = {
        "item": item,
        "amplitude": amplitude.astype(np.float16),
        "potential": rng.normal(300.0, 200.0, (10, 12)).astype(np.float32),
        "parameters": {"energy_kev": 100.0, "thickness_angstrom": 20.0 + item / 3},
        "provenance": {"crystal": f"crystal-{item % 3}", "formula": "SrTiO₃", "seed": [1, 2, item], "note": "x" * item},
    }
    return Sample(**{**values, **changes})


def _writer(folder: Path, rank: int = 0, samples_per_shard: int = 3, config_hash: str = "c1") -> ShardWriter:
    return ShardWriter(folder, rank=rank, axes=AXES, config_hash=config_hash, samples_per_shard=samples_per_shard)


def _write(folder: Path, items: list[int], **options: Any) -> None:
    with _writer(folder, **options) as writer:
        for item in items:
            writer.add(_sample(item))


def _assert_equal(found: Sample, wanted: Sample) -> None:
    assert found.item == wanted.item
    assert found.amplitude.dtype == np.float16
    assert found.potential.dtype == np.float32
    np.testing.assert_array_equal(found.amplitude, wanted.amplitude)
    np.testing.assert_array_equal(found.potential, wanted.potential)
    assert found.parameters == wanted.parameters
    assert found.provenance == wanted.provenance


def test_what_goes_in_comes_out(tmp_path: Path) -> None:
    _write(tmp_path / "new" / "folder", [4, 0, 2, 1, 3])
    with ShardSet(tmp_path / "new" / "folder", verify="hash", config_hash="c1") as shards:
        assert len(shards) == 5
        assert shards.items == [0, 1, 2, 3, 4]
        assert shards.materials == ["crystal-0", "crystal-1", "crystal-2", "crystal-0", "crystal-1"]
        assert (shards.axes, shards.amplitude_shape, shards.potential_shape) == (AXES, (2, 3, 8, 8), (10, 12))
        for index in range(5):
            wanted = _sample(index)
            _assert_equal(shards.item(index), wanted)
            np.testing.assert_array_equal(shards.amplitude(index), wanted.amplitude)
            np.testing.assert_array_equal(shards.potential(index), wanted.potential)
            assert shards.parameters(index) == wanted.parameters
            assert shards.provenance(index) == wanted.provenance
        for index in (-1, 5):
            with pytest.raises(IndexError, match="5 samples"):
                shards.item(index)


def test_order_does_not_depend_on_ranks_or_shard_sizes(tmp_path: Path) -> None:
    _write(tmp_path / "one", list(range(10)), samples_per_shard=100)
    for rank in range(3):
        _write(tmp_path / "many", list(range(rank, 10, 3))[::-1], rank=rank, samples_per_shard=rank + 1)
    one, many = ShardSet(tmp_path / "one"), ShardSet(tmp_path / "many", max_open_files=1)
    assert len(many.entries) == 4 + 2 + 1
    assert one.items == many.items
    assert one.materials == many.materials
    for index in np.random.default_rng(0).permutation(10):
        _assert_equal(one.item(int(index)), many.item(int(index)))


def test_the_file_is_laid_out_as_the_format_says(tmp_path: Path) -> None:
    _write(tmp_path, [5, 6])
    assert sorted(os.listdir(tmp_path)) == ["manifest.jsonl", "shard-00000-00000.h5"]
    with h5py.File(tmp_path / "shard-00000-00000.h5", "r") as file:
        assert (file["amplitude"].dtype, file["amplitude"].shape) == (np.dtype("f2"), (2, 2, 3, 8, 8))
        assert file["amplitude"].chunks == (1, 2, 3, 8, 8)
        assert (file["potential"].dtype, file["potential"].shape) == (np.dtype("f4"), (2, 10, 12))
        assert file["potential"].chunks == (1, 10, 12)
        assert sorted(file["parameters"]) == ["energy_kev", "thickness_angstrom"]
        assert file["item"][()].tolist() == [5, 6]
        assert file["provenance"].shape == (2,)
        assert file.attrs["schema"] == 1
        assert file.attrs["config_hash"] == "c1"
        assert file.attrs["count"] == 2
        assert file.attrs["dk_per_angstrom"] == 0.05
        assert file["amplitude"].attrs["steps"].tolist() == [1.0, 2.0, 2.0, 0.05, 0.05]
        assert list(file["amplitude"].attrs["units"]) == ["", "Å", "Å", "1/Å", "1/Å"]


def test_the_same_samples_give_the_same_bytes(tmp_path: Path) -> None:
    _write(tmp_path / "a", [1, 2, 3, 4])
    _write(tmp_path / "b", [1, 2, 3, 4])
    assert read_manifest(tmp_path / "a") == read_manifest(tmp_path / "b")  # the hashes are in it


def test_a_new_writer_goes_on_where_the_last_one_ended(tmp_path: Path) -> None:
    _write(tmp_path, [0, 1, 2, 3])
    _write(tmp_path, [7])
    _write(tmp_path, [8], rank=2)
    names = [entry.file for entry in read_manifest(tmp_path)]
    assert names == [f"shard-{name}.h5" for name in ("00000-00000", "00000-00001", "00000-00002", "00002-00000")]
    assert sealed_items(tmp_path, "c1") == {0, 1, 2, 3, 7, 8}


def test_items_come_once(tmp_path: Path) -> None:
    _write(tmp_path, [0, 1])
    with _writer(tmp_path, rank=1, samples_per_shard=1) as writer:
        with pytest.raises(ShardError, match="item 1: already sealed"):
            writer.add(_sample(1))
        writer.add(_sample(2))
        with pytest.raises(ShardError, match="item 2: already sealed"):
            writer.add(_sample(2))
    with _writer(tmp_path, rank=1) as writer:
        writer.add(_sample(3))
        with pytest.raises(ShardError, match="item 3: already in the open shard"):
            writer.add(_sample(3))
    assert sealed_items(tmp_path, "c1") == {0, 1, 2, 3}


def test_items_of_two_shards_are_named_and_the_first_is_read(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with _writer(tmp_path, rank=1) as second, _writer(tmp_path, rank=0) as first:  # neither has seen the other's items
        second.add(_sample(1, potential=np.zeros((10, 12))))
        second.add(_sample(2))
        first.add(_sample(0))
        first.add(_sample(1))
        first.seal()
    shards = ShardSet(tmp_path)
    assert shards.duplicates == {1: ["shard-00001-00000.h5"]}
    assert "item 1 again in shard-00001-00000.h5" in caplog.text
    assert shards.items == [0, 1, 2]
    _assert_equal(shards.item(1), _sample(1))


def test_a_refused_sample_changes_nothing(tmp_path: Path) -> None:
    with _writer(tmp_path) as writer:
        for item in range(4):
            with pytest.raises(ShardError, match=rf"item 1{item}: potential holds NaN"):
                writer.add(_sample(10 + item, potential=np.full((10, 12), np.nan)))
            writer.add(_sample(item))
        with pytest.raises(ShardError, match="item 9: potential has the shape"):
            writer.add(_sample(9, potential=np.ones((12, 10))))
    assert ShardSet(tmp_path, verify="hash").items == [0, 1, 2, 3]


def test_an_exception_in_the_block_removes_the_open_shard_alone(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="simulation"), _writer(tmp_path) as writer:
        for item in range(5):
            writer.add(_sample(item))
        assert any(name.startswith(".tmp-") for name in os.listdir(tmp_path))
        raise RuntimeError("simulation failed")
    assert sorted(os.listdir(tmp_path)) == ["manifest.jsonl", "shard-00000-00000.h5"]
    assert ShardSet(tmp_path, verify="hash").items == [0, 1, 2]
    with pytest.raises(ShardError, match="has ended"):
        writer.add(_sample(9))


def test_nothing_added_leaves_nothing(tmp_path: Path) -> None:
    with _writer(tmp_path) as writer:
        writer.seal()
    assert os.listdir(tmp_path) == []
    with pytest.raises(ShardError, match=r"manifest.jsonl: missing or empty"):
        ShardSet(tmp_path)


def test_two_writers_of_one_rank_are_refused(tmp_path: Path) -> None:
    with _writer(tmp_path) as first:
        first.add(_sample(0))
        with pytest.raises(ShardError, match="another writer of rank 0"):
            _writer(tmp_path)
        with _writer(tmp_path, rank=1) as other:
            other.add(_sample(1))
        first.add(_sample(2))
    with _writer(tmp_path) as again:
        again.add(_sample(3))
    assert ShardSet(tmp_path, verify="hash").items == [0, 1, 2, 3]


def test_another_configuration_is_refused(tmp_path: Path) -> None:
    _write(tmp_path, [0])
    with pytest.raises(ShardError, match=r"shard-00000-00000.h5: made with config hash c1; this run has c2"):
        _writer(tmp_path, config_hash="c2")
    with pytest.raises(ShardError, match=r"shard-00000-00000.h5: config hash is c1; c2 is needed"):
        ShardSet(tmp_path, config_hash="c2")


@pytest.mark.parametrize("wrong", [{"rank": -1}, {"samples_per_shard": 0}, {"config_hash": ""}])
def test_arguments_out_of_range(tmp_path: Path, wrong: dict[str, Any]) -> None:
    with pytest.raises(ShardError):
        _writer(tmp_path, **wrong)


def _no_space(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (h5py.Dataset, "__setitem__"),  # while a sample is written
        (h5py.Dataset, "resize"),  # while the shard is finished
        (h5py.File, "flush"),
        (os, "fsync"),
        (os, "rename"),
        (writer_module, "append_entry"),  # the file has its final name already
    ],
)
def test_a_full_disk_leaves_all_that_is_sealed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str
) -> None:
    message = r"shard-00000-00001.h5: .*No space left.*sealed shards are intact"
    with pytest.raises(ShardError, match=message), _writer(tmp_path) as writer:
        for item in range(6):
            if item == 5:
                monkeypatch.setattr(owner, name, _no_space)
            writer.add(_sample(item))
    monkeypatch.undo()
    assert ShardSet(tmp_path, verify="hash").items == [0, 1, 2]
    assert not [file for file in os.listdir(tmp_path) if file.startswith(".")]
    with _writer(tmp_path) as writer:  # space was made: the rerun completes the set
        for item in sorted(set(range(6)) - sealed_items(tmp_path, "c1")):
            writer.add(_sample(item))
    shards = ShardSet(tmp_path, verify="hash")
    assert shards.items == list(range(6))
    assert not shards.duplicates
    for item in range(6):
        _assert_equal(shards.item(item), _sample(item))


def test_a_read_only_folder_is_named() -> None:
    """Not below pytest's own folder: root gives up its rights here, and that one is closed to others."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "shards"
        folder.mkdir()
        Path(name).chmod(0o755)
        folder.chmod(0o555)
        user = os.geteuid()
        try:
            if user == 0:
                os.seteuid(65534)
            with pytest.raises(ShardError, match=r"shards cannot be written here: .*Permission denied"):
                _writer(folder)
        finally:
            os.seteuid(user)


def test_a_file_system_without_locks_is_said_and_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def no_locks(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    _write(tmp_path, [0, 1, 2, 3])
    assert "has no file locks" in caplog.text
    assert ShardSet(tmp_path, verify="hash").items == [0, 1, 2, 3]
    # Two writers of one rank cannot be told apart here, but neither may replace the other's shard.
    with _writer(tmp_path) as first:
        first.add(_sample(4))
        second = _writer(tmp_path)
        second.add(_sample(5))
        second.close()
        with pytest.raises(ShardError, match=r"shard-00000-00002.h5"):
            first.seal()
    assert ShardSet(tmp_path, verify="hash").items == [0, 1, 2, 3, 5]


def test_the_number_of_open_files_is_bounded(tmp_path: Path) -> None:
    _write(tmp_path, list(range(8)), samples_per_shard=1)
    shards = ShardSet(tmp_path, max_open_files=3)

    def num_open() -> int:
        links = (Path("/proc/self/fd") / name for name in os.listdir("/proc/self/fd"))
        return sum(link.is_symlink() and str(tmp_path) in os.readlink(link) for link in links)

    assert num_open() == 0  # lazily
    for index in range(8):
        shards.amplitude(index)
    assert num_open() == 3
    shards.close()
    assert num_open() == 0
    _assert_equal(shards.item(7), _sample(7))


def test_a_set_goes_to_a_spawned_worker_without_its_files(tmp_path: Path) -> None:
    _write(tmp_path, [0, 1, 2, 3])
    shards = ShardSet(tmp_path)
    shards.amplitude(3)
    copy = pickle.loads(pickle.dumps(shards))
    assert copy.items == shards.items
    _assert_equal(copy.item(3), _sample(3))


def test_sealing_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="stemdl.shards"):
        _write(tmp_path, [0])
    assert "shard-00000-00000.h5: sealed 1 samples" in caplog.text
