"""The layout of the public CBED database of 2019, read and written.

"A Database of Convergent Beam Electron Diffraction Patterns for Machine Learning of the Structural Properties of
Materials", N. Laanait, A. Borisevich, J. Yin, 2019, DOI 10.13139/OLCF/1510313. Its files are called
`batch_{train,dev,test}_<n>.h5`. Each has groups `sample_<material>_<energy>` with one dataset `cbed_stack`
(3, 512, 512) float32, three orientations of one material at one beam energy, and attributes of the group:

    space_group      bytes, the number in the International Tables as text
    material         bytes, a name such as mp-149
    formula          text
    energy_keV       whole number
    z_dirs, y_dirs   (1, 3, 3) [0, component, orientation]: along the beam, and along the picture's rows
    semi_angles_rad  (3,) convergence semi-angle of each orientation
    d_hkls_angstrom  (3,) spacing of the lattice planes of each orientation
    abc_angstrom     (3,) lattice constants
    angles_degree    (3,) lattice angles
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import h5py
import numpy as np
from numpy.typing import NDArray

from stemdl.errors import UserError
from stemdl.shards.cbed_attributes import AttributeFault, read_attributes

ORIENTATIONS = 3
PIXELS = 512

_KEY = re.compile(r"sample_(\d{1,9})_(\d{1,9})")
_LARGEST_PIXELS = 8192
_ATTRIBUTES = (
    "space_group", "material", "formula", "energy_keV", "z_dirs", "y_dirs", "semi_angles_rad", "d_hkls_angstrom",
    "abc_angstrom", "angles_degree",
)  # fmt: skip


class CbedError(UserError, ValueError):
    """A file is not laid out as the CBED database, or is damaged; names file, group and what was found."""


@dataclass(frozen=True, eq=False)
class CbedSample:
    """One material at one energy, in three orientations. What a file lacks is None, and named in `missing`.

    Attributes
    ----------
    cbed_stack
        (3, q, q) float32, a pattern for each orientation; ours are fractions of the incident beam.
    space_group
        Number in the International Tables as text; ours is "0" where it is not known.
    material, formula
        Names.
    energy_kev
        Beam energy.
    z_dirs, y_dirs
        (3, 3) [orientation, component] in units of the lattice vectors.
    semi_angles_rad, d_hkls_angstrom
        (3,) for each orientation.
    abc_angstrom, angles_degree
        (3,) lattice constants and angles.
    missing
        Attributes of the layout that the file does not have.
    extra
        Further texts of a group, such as our provenance.
    """

    cbed_stack: NDArray[np.float32]
    space_group: str | None = None
    material: str | None = None
    formula: str | None = None
    energy_kev: float | None = None
    z_dirs: NDArray[np.float64] | None = None
    y_dirs: NDArray[np.float64] | None = None
    semi_angles_rad: NDArray[np.float64] | None = None
    d_hkls_angstrom: NDArray[np.float64] | None = None
    abc_angstrom: NDArray[np.float64] | None = None
    angles_degree: NDArray[np.float64] | None = None
    missing: tuple[str, ...] = ()
    extra: Mapping[str, str] = field(default_factory=dict)

    @property
    def space_group_number(self) -> int | None:
        """1 to 230; None where it is not known."""
        text = self.space_group or ""
        return int(text) if text.isdecimal() and 1 <= int(text) <= 230 else None


def sample_name(material: int, energy: int) -> str:
    """Name of a sample's group."""
    return f"sample_{material}_{energy}"


def parse_sample_name(name: str) -> tuple[int, int] | None:
    """(material, energy) of a group's name, None for any other name."""
    match = _KEY.fullmatch(name)
    return None if match is None else (int(match[1]), int(match[2]))


class CbedFile:
    """One file of the database, open read-only; a context manager.

    Attributes
    ----------
    path
        The file.
    names
        Of the samples, by material and energy.
    ignored
        Members of the file that are no samples.
    attributes
        Texts of the file itself; the database's files have none, ours say how they were made.
    """

    def __init__(self, path: Path) -> None:
        """Open and list. Raises CbedError where the file is missing, damaged or no HDF5 file."""
        self.path = path
        try:
            # locking=False: a finished file never changes, and a shared file system may refuse locks.
            self._file = h5py.File(path, "r", locking=False)
        except (OSError, RuntimeError) as error:
            raise CbedError(f"{path}: cannot be opened as HDF5: {error}") from error
        try:
            members = list(self._file)
            self.attributes = _texts(self._file.attrs)
        except (OSError, RuntimeError, KeyError, ValueError, UnicodeDecodeError) as error:
            self._file.close()
            raise CbedError(f"{path}: damaged, its members cannot be listed: {error}") from error
        numbered = [(number, name) for name in members if (number := parse_sample_name(name)) is not None]
        self.names: list[str] = [name for _, name in sorted(numbered)]
        self.ignored: list[str] = sorted(set(members) - set(self.names))

    def __len__(self) -> int:
        """Number of samples."""
        return len(self.names)

    def sample(self, name: str) -> CbedSample:
        """Read one sample, all values checked.

        Raises CbedError where there is no such sample; its patterns are not (3, q, q) numbers that lie whole in this
        file, or hold NaN, infinite or negative values; or an attribute is of another kind than the layout's.
        """
        stack, attributes = self._open(name), self.attributes_of(name)
        where = f"{self.path}, {name}"
        try:
            patterns = np.asarray(stack[()], dtype=np.float32)
        except (OSError, RuntimeError, ValueError, TypeError) as error:
            raise CbedError(f"{where}: damaged, cbed_stack cannot be read: {error}") from error
        check_stack(patterns, where)
        extra = {key: text for key, text in _texts(self._file[name].attrs).items() if key not in _ATTRIBUTES}
        return CbedSample(
            cbed_stack=patterns,
            space_group=attributes.get("space_group"),
            material=attributes.get("material"),
            formula=attributes.get("formula"),
            energy_kev=attributes.get("energy_keV"),
            z_dirs=attributes.get("z_dirs"),
            y_dirs=attributes.get("y_dirs"),
            semi_angles_rad=attributes.get("semi_angles_rad"),
            d_hkls_angstrom=attributes.get("d_hkls_angstrom"),
            abc_angstrom=attributes.get("abc_angstrom"),
            angles_degree=attributes.get("angles_degree"),
            missing=self.missing_from(attributes),
            extra=extra,
        )

    def attributes_of(self, name: str) -> dict[str, Any]:
        """The layout's attributes that a sample has, by their names in the file, without its patterns. Raises as
        `sample`."""
        group = self._group(name)
        try:
            return read_attributes(group.attrs, _ATTRIBUTES)
        except AttributeFault as error:
            raise CbedError(f"{self.path}, {name}: {error}") from error

    @staticmethod
    def missing_from(attributes: Mapping[str, Any]) -> tuple[str, ...]:
        """Attributes of the layout that are not among these."""
        return tuple(key for key in _ATTRIBUTES if key not in attributes)

    def shape_of(self, name: str) -> tuple[int, int, int]:
        """(3, q, q) of a sample's patterns. Raises as `sample`."""
        three, rows, columns = self._open(name).shape
        return int(three), int(rows), int(columns)

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _group(self, name: str) -> h5py.Group:
        if name not in self.names:
            raise CbedError(f"{self.path}: no sample {name!r}; it has {_some(self.names)}")
        try:
            own = isinstance(self._file.get(name, getlink=True), h5py.HardLink)
            group = self._file[name] if own else None
        except (OSError, RuntimeError, KeyError, ValueError) as error:
            raise CbedError(f"{self.path}, {name}: damaged: {error}") from error
        if not isinstance(group, h5py.Group):
            raise CbedError(f"{self.path}, {name}: not a group inside this file")
        return group

    def _open(self, name: str) -> h5py.Dataset:
        """The patterns' dataset, of a shape that may be read."""
        group, where = self._group(name), f"{self.path}, {name}"
        try:
            own = isinstance(group.get("cbed_stack", getlink=True), h5py.HardLink)
            stack = group["cbed_stack"] if own else None
        except (OSError, RuntimeError, KeyError, ValueError) as error:
            raise CbedError(f"{where}: damaged: {error}") from error
        if not isinstance(stack, h5py.Dataset) or stack.is_virtual or stack.external is not None:
            raise CbedError(f"{where}: cbed_stack is missing, or not a dataset inside this file")
        shape = stack.shape
        if stack.dtype.kind != "f" or len(shape) != 3 or shape[0] != ORIENTATIONS or shape[1] != shape[2]:
            raise CbedError(f"{where}: cbed_stack is {stack.dtype} {shape}; floats ({ORIENTATIONS}, q, q) are needed")
        if not 1 <= shape[1] <= _LARGEST_PIXELS:
            raise CbedError(f"{where}: patterns of {shape[1]} x {shape[2]} pixels; 1 to {_LARGEST_PIXELS} are allowed")
        stored, uncompressed = stack.id.get_storage_size(), stack.compression is None
        if stored == 0 or (uncompressed and stack.nbytes > stored):
            raise CbedError(f"{where}: cbed_stack should hold {stack.nbytes} bytes; {stored} are stored")
        return stack


def check_stack(patterns: NDArray[np.float32], where: str) -> None:
    """Raise CbedError unless all values are finite and none is negative."""
    wrong = int(np.count_nonzero(~np.isfinite(patterns)))
    if wrong:
        raise CbedError(f"{where}: {wrong} of {patterns.size} pixels are NaN or infinite")
    if float(patterns.min()) < 0:
        raise CbedError(f"{where}: pixels are negative, the lowest {patterns.min():g}; intensities are needed")


def _texts(attributes: h5py.AttributeManager) -> dict[str, str]:
    """The short texts among the attributes, so no large or nested one is read."""
    found = {}
    for name in attributes:
        if attributes.get_id(name).shape == () and attributes.get_id(name).dtype.kind in "OS":
            value = attributes[name]
            if isinstance(value, bytes):
                value = value.decode("utf-8", "replace")
            if isinstance(value, str):
                found[name] = value
    return found


def _some(names: list[str]) -> str:
    return f"{names[0]} to {names[-1]} ({len(names)})" if names else "none"
