"""The file of a reconstruction: round trip, the layout other programs expect, refusals, whole or absent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from numpy.typing import NDArray

from stemdl.reconstruct import emd

REAL_FILE = Path(__file__).resolve().parents[3] / "shared/data/observations/py4DSTEM_size2x3x4x5.h5"
METADATA: dict[str, Any] = {
    "seed": 2019,
    "energy_kev": 100.0,
    "material": "β-Si₃N₄ <x>",
    "symmetry_average": True,
    "refine": None,
    "scan": {"positions": [8, 8], "step_angstrom": 2.0, "deep": {"names": ["a", "b"]}},
    "data_like_name": [0.5, 1.5],
    "empty": [],
}


def potential(shape: tuple[int, int] = (5, 7)) -> NDArray[np.float32]:
    return np.random.default_rng(np.random.SeedSequence([3])).uniform(0, 900, shape).astype(np.float32)


def write(path: Path, **changes: Any) -> None:
    arguments: dict[str, Any] = {
        "potential": potential(),
        "uncertainty": 0.1 * potential(),
        "pixel_angstrom": 0.5,
        "maps": {
            "validity": potential() > 100,
            "forward_consistency": emd.EmdMap(potential((3, 4)), "", pixel_angstrom=2.0, origin_angstrom=(1.0, 1.0)),
        },
        "metadata": METADATA,
        "origin_angstrom": (0.25, 4.0),
    }
    emd.write_emd(path, **(arguments | changes))


def test_what_was_written_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "a field.emd.h5"
    write(path)
    result = emd.read_emd(path)
    assert result.potential.dtype == np.float32
    np.testing.assert_array_equal(result.potential, potential())
    assert result.uncertainty is not None
    np.testing.assert_array_equal(result.uncertainty, np.float32(0.1 * potential()))
    assert (result.pixel_angstrom, result.origin_angstrom) == (0.5, (0.25, 4.0))
    assert result.metadata == METADATA
    assert set(result.maps) == {"validity", "forward_consistency"}
    np.testing.assert_array_equal(result.maps["validity"].data, potential() > 100)
    assert result.maps["validity"].pixel_angstrom == 0.5
    assert result.maps["forward_consistency"].pixel_angstrom == 2.0
    assert result.maps["forward_consistency"].data.shape == (3, 4)


def test_a_file_without_uncertainty_and_maps_says_so(tmp_path: Path) -> None:
    write(tmp_path / "a.emd.h5", uncertainty=None, maps={}, metadata={})
    result = emd.read_emd(tmp_path / "a.emd.h5")
    assert result.uncertainty is None
    assert result.maps == {}
    assert result.metadata == {}


def test_pixels_that_could_not_be_reconstructed_stay_nan(tmp_path: Path) -> None:
    holes = potential()
    holes[0, 1] = np.nan
    write(tmp_path / "a.emd.h5", potential=holes)
    np.testing.assert_array_equal(emd.read_emd(tmp_path / "a.emd.h5").potential, holes)


def test_the_layout_is_that_of_emd_1_0(tmp_path: Path) -> None:
    write(tmp_path / "a.emd.h5")
    with h5py.File(tmp_path / "a.emd.h5") as file:
        assert file.attrs["emd_group_type"] == "file"
        assert (file.attrs["version_major"], file.attrs["version_minor"]) == (1, 0)
        root = file["stemdl_root"]
        assert root.attrs["emd_group_type"] == "root"
        group = root["potential"]
        assert group.attrs["emd_group_type"] == "array"
        assert group["data"].attrs["units"] == "V Å"
        for axis, name, start in ((0, "y", 0.25), (1, "x", 4.0)):
            np.testing.assert_allclose(group[f"dim{axis}"][()], [start, start + 0.5])
            assert group[f"dim{axis}"].attrs["name"] == name
            assert group[f"dim{axis}"].attrs["units"] == "Å"


@pytest.mark.skipif(not REAL_FILE.exists(), reason=f"{REAL_FILE.name} is not beside this checkout")
def test_the_attributes_are_those_of_a_real_py4dstem_file(tmp_path: Path) -> None:
    """Same names of attributes at every kind of group, and the same types of values."""
    write(tmp_path / "a.emd.h5")
    pairs = {
        "/": "/",
        "datacube_root": "stemdl_root",
        "datacube_root/datacube": "stemdl_root/potential",
        "datacube_root/datacube/data": "stemdl_root/potential/data",
        "datacube_root/datacube/dim0": "stemdl_root/potential/dim0",
        "datacube_root/metadatabundle": "stemdl_root/metadatabundle",
        "datacube_root/metadatabundle/calibration": "stemdl_root/metadatabundle/stemdl",
        "datacube_root/metadatabundle/calibration/Q_pixel_size": "stemdl_root/metadatabundle/stemdl/run/energy_kev",
    }
    with h5py.File(REAL_FILE) as real, h5py.File(tmp_path / "a.emd.h5") as ours:
        for theirs, mine in pairs.items():
            assert set(ours[mine].attrs) == set(real[theirs].attrs), mine
            for name, value in real[theirs].attrs.items():
                assert isinstance(ours[mine].attrs[name], type(value)), (mine, name)
        assert real["datacube_root/datacube/dim0"].shape == ours["stemdl_root/potential/dim0"].shape == (2,)


def test_the_same_content_gives_the_same_bytes_and_another_another_identity(tmp_path: Path) -> None:
    for name, changes in {"a": {}, "b": {}, "c": {"potential": potential() + 1}}.items():
        write(tmp_path / name, **changes)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    with h5py.File(tmp_path / "a") as a, h5py.File(tmp_path / "c") as c:
        assert a.attrs["UUID"] != c.attrs["UUID"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"potential": potential()[0], "uncertainty": None, "maps": {}}, "potential: shape"),
        ({"uncertainty": potential((5, 6))}, "uncertainty: shape"),
        ({"maps": {"validity": potential((2, 2))}}, "validity: shape"),
        ({"maps": {"a/b": potential()}}, "map name 'a/b'"),
        ({"maps": {"potential": potential()}}, "own picture"),
        ({"maps": {"potential_rms": potential()}}, "HyperSpy would stack"),
        ({"maps": {"phase": potential().astype(complex)}}, "two axes"),
        ({"pixel_angstrom": 0.0}, "positive length"),
        ({"metadata": {"scan": {"when": object()}}}, r"metadata\.scan\.when"),
        ({"metadata": {"a/b": 1}}, "'a/b' cannot be a name"),
    ],
)
def test_what_has_no_form_is_refused_and_nothing_is_left(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(emd.EmdError, match=message):
        write(tmp_path / "a.emd.h5", **changes)
    assert list(tmp_path.iterdir()) == []


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "a.emd.h5"
    write(path)
    before = path.read_bytes()
    with pytest.raises(emd.EmdError, match="positive length"):
        write(path, pixel_angstrom=-1.0)
    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.emd.h5"]


def test_other_files_are_refused_by_what_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "text.h5").write_text("no")
    with pytest.raises(emd.EmdError, match="not an HDF5 file"):
        emd.read_emd(tmp_path / "text.h5")
    with h5py.File(tmp_path / "plain.h5", "w") as file:
        file["x"] = 1
    with pytest.raises(emd.EmdError, match="not an EMD"):
        emd.read_emd(tmp_path / "plain.h5")
    with pytest.raises(FileNotFoundError):
        emd.read_emd(tmp_path / "absent.h5")
