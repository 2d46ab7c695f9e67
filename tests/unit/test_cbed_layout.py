"""The layout of the public CBED database: files as it has them are read, files of ours are as it has them."""

from __future__ import annotations

import dataclasses
import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from stemdl.shards.cbed_layout import CbedError, CbedFile, CbedSample, parse_sample_name, sample_name
from stemdl.shards.cbed_writer import CbedWriter

Q = 16


def stack_of(seed: int, pixels: int = Q) -> np.ndarray:
    return np.random.default_rng(seed).random((3, pixels, pixels)).astype(np.float32)


def as_the_database(path: Path, *, pixels: int = 512) -> None:
    """A file as its authors' program writes it, two materials at two energies, by plain h5py."""
    with h5py.File(path, "w") as file:
        for material in (0, 10):
            for energy in range(2):
                group = file.create_group(f"sample_{material}_{energy}")
                group.create_dataset("cbed_stack", data=stack_of(material + energy, pixels))
                z_dirs = [np.array([1, 1, 1]), np.array([2, 2, 0]), np.array([4, 0, 0])]
                y_dirs = [np.array([0.5, -1.0, 0.5]), np.array([1.0, -1.0, 0.25]), np.array([0.0, 1.0, 0.0])]
                group.attrs["space_group"] = np.bytes_("227")
                group.attrs["material"] = np.bytes_("mp-149")
                group.attrs["energy_keV"] = 100 + 10 * energy
                group.attrs["z_dirs"] = np.dstack(z_dirs)
                group.attrs["y_dirs"] = np.dstack(y_dirs)
                group.attrs["semi_angles_rad"] = np.array([0.00295, 0.0048, 0.0068])
                group.attrs["d_hkls_angstrom"] = np.array([3.135, 1.920, 1.357])
                group.attrs["abc_angstrom"] = (5.43, 5.43, 5.43)
                group.attrs["angles_degree"] = (90.0, 90.0, 90.0)
                group.attrs["formula"] = "Si8"


def sample(seed: int = 0, pixels: int = Q, **changes: Any) -> CbedSample:
    values: dict[str, Any] = {
        "cbed_stack": stack_of(seed, pixels),
        "space_group": "227",
        "material": "Si-diamond",
        "formula": "Si",
        "energy_kev": 110.0,
        "z_dirs": np.array([[1.0, 1.0, 1.0], [2.0, 2.0, 0.0], [4.0, 0.0, 0.0]]),
        "y_dirs": np.array([[0.5, -1.0, 0.5], [1.0, -1.0, 0.25], [0.0, 1.0, 0.0]]),
        "semi_angles_rad": np.array([0.003, 0.005, 0.007]),
        "d_hkls_angstrom": np.array([3.1, 1.9, 1.4]),
        "abc_angstrom": np.array([5.43, 5.43, 5.43]),
        "angles_degree": np.array([90.0, 90.0, 90.0]),
        "extra": {"note": "where it comes from"},
    }
    return CbedSample(**{**values, **changes})


def test_a_file_of_the_database_is_read(tmp_path: Path) -> None:
    path = tmp_path / "batch_train_7.h5"
    as_the_database(path)
    with CbedFile(path) as file:
        assert file.names == ["sample_0_0", "sample_0_1", "sample_10_0", "sample_10_1"]
        assert len(file) == 4
        assert file.ignored == []
        found = file.sample("sample_10_1")
    np.testing.assert_array_equal(found.cbed_stack, stack_of(11, 512))
    assert found.cbed_stack.dtype == np.float32
    assert (found.space_group, found.space_group_number) == ("227", 227)
    assert (found.material, found.formula, found.energy_kev) == ("mp-149", "Si8", 110.0)
    assert found.z_dirs is not None
    assert found.y_dirs is not None
    assert found.z_dirs.tolist() == [[1, 1, 1], [2, 2, 0], [4, 0, 0]]
    assert found.y_dirs.tolist() == [[0.5, -1.0, 0.5], [1.0, -1.0, 0.25], [0.0, 1.0, 0.0]]
    assert found.semi_angles_rad is not None
    assert found.semi_angles_rad.tolist() == [0.00295, 0.0048, 0.0068]
    assert found.abc_angstrom is not None
    assert found.abc_angstrom.tolist() == [5.43, 5.43, 5.43]
    assert found.missing == ()


def test_what_is_written_is_laid_out_as_the_database(tmp_path: Path) -> None:
    as_the_database(tmp_path / "theirs.h5")
    with CbedWriter(tmp_path / "ours.h5") as writer:
        writer.add(0, 0, sample(pixels=512))
    with h5py.File(tmp_path / "theirs.h5") as theirs, h5py.File(tmp_path / "ours.h5") as ours:
        wanted, found = theirs["sample_0_0"], ours["sample_0_0"]
        assert (found["cbed_stack"].shape, found["cbed_stack"].dtype) == ((3, 512, 512), np.dtype("f4"))
        for name, value in wanted.attrs.items():
            own = found.attrs[name]
            assert type(own) is type(value), name
            if isinstance(value, np.ndarray):
                assert own.shape == value.shape, name
            else:
                assert found.attrs.get_id(name).dtype.kind == wanted.attrs.get_id(name).dtype.kind, name
        assert found.attrs["space_group"].decode("UTF-8") == "227"
        assert int(found.attrs["energy_keV"]) == 110


def test_a_round_trip(tmp_path: Path) -> None:
    with CbedWriter(tmp_path / "a.h5", pixels=Q, attributes={"digest": "abc"}) as writer:
        for material, energy in ((3, 1), (0, 0), (12, 0)):
            writer.add(material, energy, sample(material + energy, energy_kev=100.5 if energy else 110.0))
        assert not (tmp_path / "a.h5").exists(), "no name before it is complete"
    assert os.listdir(tmp_path) == ["a.h5"]
    with CbedFile(tmp_path / "a.h5") as file:
        assert file.names == ["sample_0_0", "sample_3_1", "sample_12_0"]
        assert file.attributes == {"digest": "abc"}
        assert file.shape_of("sample_0_0") == (3, Q, Q)
        found, wanted = file.sample("sample_3_1"), sample(4, energy_kev=100.5)
    for one in dataclasses.fields(CbedSample):
        value, expected = getattr(found, one.name), getattr(wanted, one.name)
        if isinstance(expected, np.ndarray):
            np.testing.assert_array_equal(value, expected)
        else:
            assert value == expected, one.name


def test_missing_attributes_are_named_and_the_rest_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    as_the_database(path, pixels=Q)
    with h5py.File(path, "r+") as file:
        group = file["sample_0_0"]
        for name in ("formula", "y_dirs", "energy_keV"):
            del group.attrs[name]
        group.attrs["space_group"] = "225"  # text in place of bytes
        group.attrs["material"] = np.array([b"mp-1"])
        group.attrs["z_dirs"] = np.array([[0, 0, 1], [0, 1, 1], [1, 1, 1]])
        del file["sample_0_1"].attrs["space_group"]
        file["sample_0_1"].attrs["space_group"] = 14
    with CbedFile(path) as opened:
        found = opened.sample("sample_0_0")
        assert found.missing == ("formula", "energy_keV", "y_dirs")
        assert (found.formula, found.energy_kev, found.y_dirs) == (None, None, None)
        assert (found.space_group, found.material) == ("225", "mp-1")
        assert found.z_dirs is not None
        assert found.z_dirs[2].tolist() == [1, 1, 1]
        assert opened.sample("sample_0_1").space_group_number == 14


def test_other_members_are_named_and_not_read(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    as_the_database(path, pixels=Q)
    with h5py.File(path, "r+") as file:
        file.create_group("point_group_labels")
        file["sample_1"] = 3
    with CbedFile(path) as opened:
        assert opened.ignored == ["point_group_labels", "sample_1"]
        assert len(opened) == 4
        with pytest.raises(CbedError, match=r"no sample 'sample_1'; it has sample_0_0 to sample_10_1 \(4\)"):
            opened.sample("sample_1")


def _replace(**options: Any) -> Callable[[h5py.Group], None]:
    def change(group: h5py.Group) -> None:
        del group["cbed_stack"]
        if options:
            group.create_dataset("cbed_stack", **options)

    return change


def _link_out(group: h5py.Group) -> None:
    del group["cbed_stack"]
    group["cbed_stack"] = h5py.ExternalLink("/etc/other.h5", "/cbed_stack")


def _store_outside(group: h5py.Group) -> None:
    external = [("/etc/passwd", 0, h5py.h5f.UNLIMITED)]
    _replace(shape=(3, Q, Q), dtype="f4", external=external)(group)


def _value(value: float) -> Callable[[h5py.Group], None]:
    def change(group: h5py.Group) -> None:
        group["cbed_stack"][1, 2, 3] = value

    return change


def _attribute(name: str, value: Any) -> Callable[[h5py.Group], None]:
    def change(group: h5py.Group) -> None:
        group.attrs[name] = value

    return change


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (_replace(), "cbed_stack is missing"),
        (_replace(data=np.zeros((2, Q, Q), "f4")), r"float32 \(2, 16, 16\); floats \(3, q, q\)"),
        (_replace(data=np.zeros((3, Q, Q + 1), "f4")), "floats"),
        (_replace(data=np.zeros((3, Q, Q), "i4")), "cbed_stack is int32"),
        (_replace(shape=(3, 10**6, 10**6), dtype="f4", chunks=(1, 64, 64)), "8192 are allowed"),
        (_replace(shape=(3, 4096, 4096), dtype="f4", chunks=(1, 64, 64)), "should hold 201326592 bytes; 0 are stored"),
        (_link_out, "cbed_stack is missing, or not a dataset inside"),
        (_store_outside, "not a dataset inside this file"),
        (_value(np.nan), "1 of 768 pixels are NaN or infinite"),
        (_value(np.inf), "1 of 768 pixels are NaN or infinite"),
        (_value(-1e-9), "pixels are negative"),
        (_attribute("energy_keV", "hot"), "attribute energy_keV is"),
        (_attribute("energy_keV", -100), "attribute energy_keV is .*above 0"),
        (_attribute("abc_angstrom", (5.0, np.nan, 5.0)), "attribute abc_angstrom holds NaN"),
        (_attribute("abc_angstrom", (5.0, 5.0)), r"attribute abc_angstrom is float64 \(2,\)"),
        (_attribute("z_dirs", np.zeros(3)), "attribute z_dirs"),
        (_attribute("semi_angles_rad", np.zeros(1000)), r"attribute semi_angles_rad has the shape \(1000,\)"),
        (_attribute("space_group", b"\xff\xfe"), "attribute space_group is .* no text"),
        (_attribute("material", np.bytes_(b"x" * 5000)), "attribute material is 5000 bytes long"),
        (_attribute("formula", 3.5), "attribute formula is 3.5; a text is needed"),
    ],
)
def test_a_sample_laid_out_otherwise_is_refused_by_name(
    tmp_path: Path, change: Callable[[h5py.Group], None], reason: str
) -> None:
    path = tmp_path / "a.h5"
    as_the_database(path, pixels=Q)
    with h5py.File(path, "r+") as file:
        change(file["sample_0_1"])
    with CbedFile(path) as opened:
        opened.sample("sample_0_0")
        with pytest.raises(CbedError, match=f"a.h5, sample_0_1: .*{reason}"):
            opened.sample("sample_0_1")


def test_no_hdf5_file(tmp_path: Path) -> None:
    (tmp_path / "a.h5").write_text("hello")
    for path in (tmp_path / "a.h5", tmp_path / "none.h5"):
        with pytest.raises(CbedError, match=rf"{path}: cannot be opened as HDF5"):
            CbedFile(path)


def test_a_truncated_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    as_the_database(path, pixels=Q)
    os.truncate(path, path.stat().st_size // 2)
    with pytest.raises(CbedError, match=r"a\.h5"), CbedFile(path) as file:
        for name in file.names:
            file.sample(name)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"cbed_stack": stack_of(0, Q + 1)}, r"floats \(3, 16, 16\) are needed"),
        ({"cbed_stack": np.zeros((3, Q, Q), int)}, "cbed_stack is int64"),
        ({"cbed_stack": np.full((3, Q, Q), np.nan)}, "NaN or infinite"),
        ({"cbed_stack": np.full((3, Q, Q), -1.0)}, "negative"),
        ({"formula": None}, "formula is needed"),
        ({"energy_kev": None}, "energy_kev is needed"),
        ({"z_dirs": np.zeros((1, 3, 3))}, "z_dirs is"),
        ({"abc_angstrom": np.array([1.0, np.inf, 1.0])}, "abc_angstrom is"),
    ],
)
def test_the_writer_refuses_by_name_and_goes_on(tmp_path: Path, changes: dict[str, Any], reason: str) -> None:
    with CbedWriter(tmp_path / "a.h5", pixels=Q) as writer:
        with pytest.raises(CbedError, match=f"a.h5, sample_2_3: .*{reason}"):
            writer.add(2, 3, sample(**changes))
        writer.add(2, 3, sample())
        with pytest.raises(CbedError, match="each pair once"):
            writer.add(2, 3, sample())
    with CbedFile(tmp_path / "a.h5") as file:
        assert file.names == ["sample_2_3"]


def test_an_exception_or_a_full_disk_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RuntimeError, match="simulation"), CbedWriter(tmp_path / "a.h5", pixels=Q) as writer:
        writer.add(0, 0, sample())
        raise RuntimeError("simulation")
    assert os.listdir(tmp_path) == []

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"), CbedWriter(tmp_path / "a.h5", pixels=Q) as writer:
        writer.add(0, 0, sample())
    assert os.listdir(tmp_path) == []


def test_a_file_that_is_there_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "a.h5").write_text("precious")
    with pytest.raises(CbedError, match="exists already"):
        CbedWriter(tmp_path / "a.h5")


def test_names() -> None:
    assert sample_name(12, 3) == "sample_12_3"
    assert parse_sample_name("sample_12_3") == (12, 3)
    for name in ("sample_1", "sample_1_2_3", "sample_-1_2", "Sample_1_2", "sample_1_x"):
        assert parse_sample_name(name) is None


@pytest.mark.parametrize(("text", "number"), [("225", 225), ("0", None), ("231", None), ("", None), (None, None)])
def test_the_space_group_as_a_number(text: str | None, number: int | None) -> None:
    assert sample(space_group=text).space_group_number == number
