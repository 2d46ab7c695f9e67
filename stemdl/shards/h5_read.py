"""The inside of a shard, reading side. Nothing is believed before it is checked, and nothing in it is executed."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from stemdl.shards.h5_write import NO_CHUNK_CACHE
from stemdl.shards.schema import FORMAT, SCHEMA_VERSION, Sample, ShardAxes, ShardError


@contextlib.contextmanager
def _naming(path: Path, doing: str) -> Iterator[None]:
    """Make one error with a name of all that h5py raises on a damaged file (the class depends on what was hit)."""
    try:
        yield
    except ShardError:
        raise
    except (OSError, RuntimeError, KeyError, ValueError, TypeError, AttributeError) as error:
        raise ShardError(f"{path}: damaged, or not a shard; {doing} failed: {error}") from error


class ShardFile:
    """One shard, open read-only. Rows count from 0 in the order of writing.

    Attributes
    ----------
    count, config_hash, axes
        As the file's attributes say.
    part
        "train" or "held_out", as the attribute says; in shards of before there was one as the provenance of the first
        sample does; empty where neither does.
    items
        Numbers in the work list, one per row.
    amplitude_shape, potential_shape
        (scan_y, scan_x, det_y, det_x) and (y, x) of one sample.
    """

    def __init__(self, path: Path) -> None:
        """Open and check the structure; the sizes are checked against the file's length before any memory is taken.

        Raises
        ------
        ShardError
            The file is missing, truncated, of an unknown schema, or not laid out as a shard.
        """
        self.path = path
        self._columns: dict[str, Any] = {}
        with _naming(path, "opening"):
            self._num_bytes = path.stat().st_size
            # locking=False: a sealed file never changes, and a shared file system may refuse locks (errno 11, 37).
            self._file = h5py.File(path, "r", locking=False, **NO_CHUNK_CACHE)
        try:
            with _naming(path, "reading its structure"):
                self._read_attributes()
                self.amplitude_shape = self._check_dataset("amplitude", "<f2", 5).shape[1:]
                self.potential_shape = self._check_dataset("potential", "<f4", 3).shape[1:]
                self._check_dataset("item", "<i8", 1)
                self._check_dataset("provenance", "S", 1)
                self._parameter_names = self._list_parameters()
                self.items: list[int] = [int(i) for i in self._column("item")]
                self.part: str = self._read_part()
        except BaseException:
            self.close()
            raise

    def amplitude(self, row: int) -> np.ndarray:
        """(scan_y, scan_x, det_y, det_x) float16, √(fraction of the incident beam). Raises ShardError if damaged."""
        return self._row("amplitude", row)

    def potential(self, row: int) -> np.ndarray:
        """(y, x) float32, V·Å. Raises ShardError if damaged."""
        return self._row("potential", row)

    def parameters(self, row: int) -> dict[str, float]:
        """Optical and specimen parameters by name. Raises ShardError if damaged."""
        return {name: float(self._column(f"parameters/{name}")[row]) for name in self._parameter_names}

    def provenance(self, row: int) -> dict[str, object]:
        """What is needed to make the sample again. Raises ShardError if damaged."""
        with _naming(self.path, f"reading the provenance of item {self.items[row]}"):
            record = json.loads(self._column("provenance")[row])
            if not isinstance(record, dict) or not isinstance(record.get("crystal"), str):
                raise ShardError(f"{self.path}: provenance of item {self.items[row]} does not name its crystal")
            return record

    def sample(self, row: int) -> Sample:
        """All of one row. Raises ShardError if damaged."""
        return Sample(
            item=self.items[row],
            amplitude=self.amplitude(row),
            potential=self.potential(row),
            parameters=self.parameters(row),
            provenance=self.provenance(row),
        )

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        self._file.close()

    def _read_attributes(self) -> None:
        attributes = self._file.attrs
        if attributes.get("format") != FORMAT:
            raise ShardError(f"{self.path}: not a shard (attribute format is {attributes.get('format')!r})")
        schema = attributes.get("schema")
        if not isinstance(schema, np.integer) or schema != SCHEMA_VERSION:
            raise ShardError(f"{self.path}: schema {schema} is unknown; this version reads {SCHEMA_VERSION}")
        count = attributes.get("count")
        if not isinstance(count, np.integer) or count < 1:
            raise ShardError(f"{self.path}: never finished (attribute count is {count})")
        self.count = int(count)
        config_hash = attributes.get("config_hash")
        if not isinstance(config_hash, str):
            raise ShardError(f"{self.path}: attribute config_hash is {config_hash!r}")
        self.config_hash = config_hash
        steps = {name: float(attributes[name]) for name in ShardAxes.__dataclass_fields__}
        try:
            self.axes = ShardAxes(**steps)
        except ShardError as error:
            raise ShardError(f"{self.path}: {error}") from error

    def _read_part(self) -> str:
        part = self._file.attrs["part"] if "part" in self._file.attrs else self.provenance(0).get("part", "")
        if not isinstance(part, str):
            raise ShardError(f"{self.path}: part is {part!r}; a name is needed")
        return part

    def _check_dataset(self, name: str, dtype: str, num_axes: int) -> h5py.Dataset:
        """A dataset that lies whole in this very file, with `count` rows of the stated type."""
        if not isinstance(self._file.get(name, getlink=True), h5py.HardLink):
            raise ShardError(f"{self.path}: /{name} is missing or leads elsewhere")
        dataset = self._file[name]
        if not isinstance(dataset, h5py.Dataset) or dataset.is_virtual or dataset.external is not None:
            raise ShardError(f"{self.path}: /{name} is not a dataset inside this file")
        same_type = dataset.dtype.kind == "S" if dtype == "S" else dataset.dtype == np.dtype(dtype)
        if not same_type or dataset.ndim != num_axes or dataset.shape[0] != self.count:
            raise ShardError(
                f"{self.path}: /{name} is {dataset.dtype} {dataset.shape}; "
                f"{dtype} with {num_axes} axes and {self.count} rows are needed"
            )
        # Uncompressed, so a dataset that claims more than it stores is damaged; without this check a few bad bytes
        # could ask for terabytes, and chunks that were never written would read as zeros.
        stored = dataset.id.get_storage_size()
        if dataset.size == 0 or dataset.nbytes > min(stored, self._num_bytes):
            raise ShardError(
                f"{self.path}: /{name} should hold {dataset.nbytes} bytes; "
                f"{stored} are stored in a file of {self._num_bytes}"
            )
        if num_axes > 1 and dataset.chunks != (1, *dataset.shape[1:]):
            raise ShardError(f"{self.path}: /{name} has chunks of {dataset.chunks}; one sample per chunk is needed")
        return dataset

    def _list_parameters(self) -> list[str]:
        if not isinstance(self._file.get("parameters", getlink=True), h5py.HardLink):
            return []  # a set without parameters has no such group
        names = sorted(self._file["parameters"])
        for name in names:
            self._check_dataset(f"parameters/{name}", "<f8", 1)
        return names

    def _column(self, name: str) -> Any:
        """A small dataset as a whole, kept: reading it row by row would fetch its chunk each time."""
        if name not in self._columns:
            with _naming(self.path, f"reading /{name}"):
                self._columns[name] = self._file[name][()]
        return self._columns[name]

    def _row(self, name: str, row: int) -> np.ndarray:
        with _naming(self.path, f"reading /{name} of item {self.items[row]}"):
            array = self._file[name][row]
            assert isinstance(array, np.ndarray)  # the number of axes was checked when opening
            return array


def verify_whole(path: Path) -> ShardFile:
    """Read every byte of a shard's content once, so that all its checksums are looked at; returns it closed.

    Raises
    ------
    ShardError
        Names the first thing that is damaged.
    """
    shard = ShardFile(path)
    try:
        for row in range(shard.count):
            shard.sample(row)
    finally:
        shard.close()
    if len(set(shard.items)) != shard.count or min(shard.items) < 0:
        raise ShardError(f"{path}: its items are not {shard.count} different numbers ≥ 0")
    return shard
