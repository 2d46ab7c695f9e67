"""Writes files in the layout of the public CBED database, see `cbed_layout`."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

import h5py
import numpy as np

from stemdl.atomic_files import fsync_folder, temporary_name
from stemdl.shards.cbed_layout import ORIENTATIONS, PIXELS, CbedError, CbedSample, check_stack, sample_name
from stemdl.shards.h5_sink import DiskSink

_log = logging.getLogger(__name__)


class CbedWriter:
    """One new file, under a temporary name until it is closed without an exception; a context manager."""

    def __init__(self, path: Path, *, pixels: int = PIXELS, attributes: Mapping[str, str] | None = None) -> None:
        """Begin the file.

        pixels: of a pattern's side; the database has 512, and readers may count on it. attributes: texts of the file
        itself, beyond the database's layout.

        Raises CbedError where there is such a file already, OSError where the folder cannot be written.
        """
        if path.exists():
            raise CbedError(f"{path}: exists already; remove it or give another folder")
        self.path = path
        self._pixels = pixels
        self._names: set[str] = set()
        self._temporary = path.with_name(f"{temporary_name(path.stem)}.h5")
        self._sink = DiskSink(self._temporary)
        try:
            self._file = h5py.File(self._sink, "w")
            for name, text in (attributes or {}).items():
                self._file.attrs[name] = text
            self._sink.check()
        except BaseException:
            self._sink.close()
            self._temporary.unlink(missing_ok=True)
            raise

    def add(self, material: int, energy: int, sample: CbedSample) -> None:
        """Write one sample as group `sample_<material>_<energy>`.

        Raises
        ------
        CbedError
            Nothing is written: a wrong shape, NaN, infinite or negative values, an attribute that is None, or a group
            that is there already.
        OSError
            The disk is full; the file is of no use any more.
        """
        name = sample_name(material, energy)
        where = f"{self.path}, {name}"
        if material < 0 or energy < 0 or name in self._names:
            raise CbedError(f"{where}: numbers ≥ 0 are needed, each pair once")
        shape = (ORIENTATIONS, self._pixels, self._pixels)
        if sample.cbed_stack.shape != shape or sample.cbed_stack.dtype.kind != "f":
            raise CbedError(
                f"{where}: cbed_stack is {sample.cbed_stack.dtype} {sample.cbed_stack.shape}; floats {shape} are needed"
            )
        patterns = np.asarray(sample.cbed_stack, dtype=np.float32)
        check_stack(patterns, where)
        attributes = _attributes(sample, where)
        group = self._file.create_group(name)
        group.create_dataset("cbed_stack", data=patterns, track_times=False)
        for key, value in attributes.items():
            group.attrs[key] = value
        self._sink.check()
        self._names.add(name)

    def close(self) -> None:
        """Finish: the file is durable, then gets its name. Raises OSError; nothing is left then."""
        try:
            self._file.close()
            self._sink.close()
            self._sink.check()
            os.rename(self._temporary, self.path)
        except BaseException:
            self.abandon()
            raise
        fsync_folder(self.path.parent)

    def abandon(self) -> None:
        """Remove the unfinished file; its own errors go to the log, since another is on its way."""
        try:
            self._file.close()
        except (OSError, RuntimeError, ValueError) as error:
            _log.warning("%s: could not be closed (%s); it is removed all the same", self._temporary, error)
        self._sink.close()
        self._temporary.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.abandon()


def _attributes(sample: CbedSample, where: str) -> dict[str, object]:
    """As the database has them. Raises CbedError where one is not there, or of a wrong shape."""
    texts = {"space_group": sample.space_group, "material": sample.material, "formula": sample.formula}
    directions = {"z_dirs": sample.z_dirs, "y_dirs": sample.y_dirs}
    numbers = {
        "semi_angles_rad": sample.semi_angles_rad,
        "d_hkls_angstrom": sample.d_hkls_angstrom,
        "abc_angstrom": sample.abc_angstrom,
        "angles_degree": sample.angles_degree,
    }
    lacking = [name for name, value in {**texts, **directions, **numbers}.items() if value is None]
    if lacking or sample.energy_kev is None:
        raise CbedError(f"{where}: {', '.join(lacking or ['energy_kev'])} is needed to write a sample")
    for name, array in {**directions, **numbers}.items():
        shape = (3, 3) if name in directions else (3,)
        if array is None or array.shape != shape or not np.isfinite(array).all():
            raise CbedError(f"{where}: {name} is {array!r}; finite numbers of shape {shape} are needed")
    whole = float(sample.energy_kev).is_integer()
    return {
        "space_group": np.bytes_((sample.space_group or "").encode()),
        "material": np.bytes_((sample.material or "").encode()),
        "formula": sample.formula,
        "energy_keV": np.int64(sample.energy_kev) if whole else np.float64(sample.energy_kev),
        **{name: np.dstack(list(array)) for name, array in directions.items() if array is not None},
        **{name: np.asarray(array, dtype=np.float64) for name, array in numbers.items()},
        **sample.extra,
    }
