"""A reconstruction as an EMD 1.0 file (HDF5) that py4DSTEM and HyperSpy open, with axes and units.

Layout, as emdfile writes it (https://emdatasets.com/format): the root group `stemdl_root` holds one `array` group for
each picture, with `data` and the axes `dim0` (y) and `dim1` (x) as [start, start + step]; everything needed to repeat
the reconstruction lies under `stemdl_root/metadatabundle/stemdl/run`. The same content gives the same bytes.

A name ending in `.emd` opens everywhere by itself; HyperSpy goes by the ending and wants `reader="EMD"` for `.h5`.
"""

from __future__ import annotations

import hashlib
import io
import re
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import ArrayLike, NDArray

from stemdl import __version__
from stemdl.atomic_files import replace_atomically
from stemdl.reconstruct.emd_metadata import EmdError, read_items, write_items

__all__ = ["EmdError", "EmdMap", "EmdReconstruction", "read_emd", "write_emd"]

ROOT = "stemdl_root"
POTENTIAL = "potential"
UNCERTAINTY = "uncertainty"
VOLT_ANGSTROM = "V Å"
_RUN = "metadatabundle/stemdl/run"
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
_NO_UNIT = "none"  # what emdfile writes where it knows no unit


@dataclass(frozen=True)
class EmdMap:
    """A further picture (y, x) with its unit; pixel and origin in Å default to those of the potential."""

    data: NDArray[Any]
    units: str = ""
    pixel_angstrom: float | None = None
    origin_angstrom: tuple[float, float] | None = None


@dataclass(frozen=True)
class EmdReconstruction:
    """What a file holds: potential and uncertainty (y, x) float32 in V·Å, further maps, and how they were made."""

    potential: NDArray[np.float32]
    uncertainty: NDArray[np.float32] | None
    pixel_angstrom: float
    origin_angstrom: tuple[float, float]
    maps: dict[str, EmdMap] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)


def write_emd(
    path: Path,
    *,
    potential: ArrayLike,
    uncertainty: ArrayLike | None,
    pixel_angstrom: float,
    maps: Mapping[str, EmdMap | NDArray[Any]],
    metadata: Mapping[str, Any],
    origin_angstrom: tuple[float, float] = (0.0, 0.0),
) -> None:
    """Write one reconstruction; the name appears when the file is whole, and an old file stays until then.

    Args:
        potential, uncertainty: (y, x) in V·Å, stored as float32. A pixel that could not be reconstructed is NaN.
        pixel_angstrom: side of a pixel in Å.
        maps: further pictures by name (letters, digits, underscores): an `EmdMap`, or an array without unit on the
            potential's grid. Booleans are stored as uint8.
        metadata: names to numbers, strings, booleans, None, lists of numbers or of strings, arrays, mappings of these.
        origin_angstrom: (y, x) position of the middle of pixel (0, 0) in Å.

    Raises:
        EmdError: a picture has not two axes or another shape than the potential, a name is not allowed, a length is
            not a positive number, or metadata holds something EMD has no form for (named with its key).
        OSError: the folder is missing or cannot be written.
    """
    pictures = dict(_pictures(potential, uncertainty, pixel_angstrom, maps, origin_angstrom))
    memory = io.BytesIO()
    with h5py.File(memory, "w") as file:
        root = file.create_group(ROOT)
        root.attrs.update({"emd_group_type": "root", "python_class": "Root"})
        for name, picture in pictures.items():
            _write_picture(root, name, picture)
        bundle = root.create_group("metadatabundle")
        bundle.attrs["emd_group_type"] = "metadatabundle"
        group = bundle.create_group("stemdl")
        group.attrs.update({"emd_group_type": "metadata", "python_class": "Metadata"})
        # One level below the metadata group: HyperSpy takes members of EMD groups called data... for pictures.
        run = group.create_group("run")
        run.attrs["type"] = "dict"
        write_items(run, metadata)
        file.attrs.update(_file_attributes(pictures, metadata))
    replace_atomically(Path(path), memory.getvalue())


def _file_attributes(pictures: Mapping[str, EmdMap], metadata: Mapping[str, Any]) -> dict[str, Any]:
    digest = hashlib.sha256(repr(sorted(metadata.items())).encode())
    for name, picture in pictures.items():
        digest.update(f"{name}{picture.units}{picture.pixel_angstrom}{picture.origin_angstrom}".encode())
        digest.update(np.ascontiguousarray(picture.data).tobytes())
    return {
        "emd_group_type": "file",
        "version_major": 1,
        "version_minor": 0,
        "authoring_program": f"stemdl {__version__}",
        "authoring_user": "",
        # From the content, not at random: a repeated run gives the same bytes.
        "UUID": str(uuid.UUID(bytes=digest.digest()[:16], version=4)),
    }


def _pictures(
    potential: ArrayLike,
    uncertainty: ArrayLike | None,
    pixel_angstrom: float,
    maps: Mapping[str, EmdMap | NDArray[Any]],
    origin_angstrom: tuple[float, float],
) -> Iterator[tuple[str, EmdMap]]:
    """Every picture as it will be stored, checked."""
    values = np.asarray(potential, dtype=np.float32)
    all_maps: dict[str, EmdMap] = {POTENTIAL: EmdMap(values, VOLT_ANGSTROM)}
    if uncertainty is not None:
        all_maps[UNCERTAINTY] = EmdMap(np.asarray(uncertainty, dtype=np.float32), VOLT_ANGSTROM)
    for name, item in maps.items():
        if name in (POTENTIAL, UNCERTAINTY):
            raise EmdError(f"a map is called {name!r}, which is the name of the file's own picture")
        all_maps[name] = item if isinstance(item, EmdMap) else EmdMap(np.asarray(item))
    _check_names(all_maps)
    for name, item in all_maps.items():
        data = item.data.astype(np.uint8) if item.data.dtype == np.bool_ else item.data
        own_grid = item.pixel_angstrom is not None
        if data.ndim != 2 or data.size == 0 or data.dtype.kind not in "iuf":
            raise EmdError(f"{name}: shape {data.shape}, type {data.dtype}; a picture is two axes (y, x) of numbers")
        if data.shape != values.shape and not own_grid:
            raise EmdError(f"{name}: shape {data.shape}, the potential {values.shape}; give its own pixel_angstrom")
        pixel = pixel_angstrom if item.pixel_angstrom is None else item.pixel_angstrom
        if not (np.isfinite(pixel) and pixel > 0):
            raise EmdError(f"{name}: pixel_angstrom is {pixel}; it must be a positive length in Å")
        origin = origin_angstrom if item.origin_angstrom is None else item.origin_angstrom
        yield name, EmdMap(data, item.units, float(pixel), (float(origin[0]), float(origin[1])))


def _check_names(names: Mapping[str, Any]) -> None:
    for name in names:
        if not _NAME.fullmatch(name) or name == "metadatabundle":
            raise EmdError(f"map name {name!r}: letters, digits and underscores are allowed, a letter first")
        longer = next((other for other in names if other != name and other.startswith(name)), None)
        if longer is not None:
            # HyperSpy stacks groups into one signal when one path contains another.
            raise EmdError(f"map name {longer!r} begins with {name!r}; HyperSpy would stack the two as one signal")


def _write_picture(root: h5py.Group, name: str, picture: EmdMap) -> None:
    assert picture.pixel_angstrom is not None
    assert picture.origin_angstrom is not None
    group = root.create_group(name)
    group.attrs.update({"emd_group_type": "array", "python_class": "Array"})
    group.create_dataset("data", data=picture.data).attrs["units"] = picture.units or _NO_UNIT
    for axis, (axis_name, start) in enumerate(zip("yx", picture.origin_angstrom, strict=True)):
        dim = group.create_dataset(f"dim{axis}", data=np.array([start, start + picture.pixel_angstrom]))
        dim.attrs.update({"name": axis_name, "units": "Å"})


def read_emd(path: Path) -> EmdReconstruction:
    """Read what `write_emd` wrote.

    Raises:
        EmdError: the file is no HDF5 file, or not in this layout.
        OSError: the file is missing or cannot be read.
    """
    path = Path(path)
    path.stat()  # a missing file is an OSError that says so; is_hdf5 would only answer no
    if not h5py.is_hdf5(path):
        raise EmdError(f"{path}: not an HDF5 file")
    with h5py.File(path, "r", locking=False) as file:
        version = (file.attrs.get("version_major"), file.attrs.get("version_minor"))
        if file.attrs.get("emd_group_type") != "file" or version != (1, 0) or ROOT not in file:
            raise EmdError(f"{path}: not an EMD 1.0 file with a group {ROOT!r}; it has {sorted(file)}")
        root = file[ROOT]
        if POTENTIAL not in root:
            raise EmdError(f"{path}: no picture {POTENTIAL!r} in {ROOT!r}; there are {sorted(root)}")
        maps = {name: _read_picture(root[name]) for name in root if root[name].attrs["emd_group_type"] == "array"}
        metadata = read_items(root[_RUN])
    potential, uncertainty = maps.pop(POTENTIAL), maps.pop(UNCERTAINTY, None)
    assert potential.pixel_angstrom is not None
    assert potential.origin_angstrom is not None
    return EmdReconstruction(
        potential=potential.data,
        uncertainty=None if uncertainty is None else uncertainty.data,
        pixel_angstrom=potential.pixel_angstrom,
        origin_angstrom=potential.origin_angstrom,
        maps=maps,
        metadata=metadata,
    )


def _read_picture(group: h5py.Group) -> EmdMap:
    units = str(group["data"].attrs["units"])
    dims = [group[f"dim{axis}"][()] for axis in (0, 1)]
    return EmdMap(
        data=group["data"][()],
        units="" if units == _NO_UNIT else units,
        pixel_angstrom=float(dims[0][1] - dims[0][0]),
        origin_angstrom=(float(dims[0][0]), float(dims[1][0])),
    )
