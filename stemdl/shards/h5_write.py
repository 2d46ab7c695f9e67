"""The inside of a shard, writing side: one HDF5 file that grows by a sample at a time."""

from __future__ import annotations

import dataclasses
import logging
from pathlib import Path

import h5py
import numpy as np

from stemdl.shards.encode import EncodedSample
from stemdl.shards.schema import FORMAT, SCHEMA_VERSION, ShardAxes

_log = logging.getLogger(__name__)

# No compression. Measured on 32 samples of 8x8 noise-free multislice patterns of 64x64 pixels in float16 (their low
# bits are as good as random): gzip-1 + shuffle makes them 1.37x smaller, gzip-4 1.39x, lzf 1.18x, while writing falls
# from 555 to 49, 36 and 82 MB/s and reading from 1800 to 214, 222 and 245 MB/s. A training set is written once and read
# every epoch. (Counts at a low dose would shrink 6 to 10 times, but the dose is drawn at training time.)
# fletcher32 costs a third of the reading speed (1200 MB/s left) and finds a flipped bit in the very chunk being read.
_CHECKED = {"fletcher32": True}

# Every access moves one whole chunk: a cache would only hold memory, and put off a write error to a later call.
NO_CHUNK_CACHE = {"rdcc_nbytes": 0}

_ROWS_PER_CHUNK = 256  # of the small columns


class ShardFileWriter:
    """An unsealed shard under a temporary name.

    The large arrays go to the disk sample by sample, so the memory taken does not depend on the length of the shard;
    the small columns wait for `finish`.
    """

    def __init__(self, path: Path, first: EncodedSample, *, capacity: int, axes: ShardAxes, config_hash: str) -> None:
        """Create the file for up to `capacity` samples shaped like `first`. Raises OSError."""
        self.path = path
        self.samples: list[EncodedSample] = []  # without their arrays
        self._capacity = capacity
        self._config_hash = config_hash
        # No locking: nobody opens a temporary name, and some shared file systems refuse locks (errno 37).
        try:
            self._file = h5py.File(path, "w", locking=False, **NO_CHUNK_CACHE)
        except OSError:
            path.unlink(missing_ok=True)
            raise
        try:
            self._amplitude = self._create("amplitude", first.amplitude)
            self._potential = self._create("potential", first.potential)
            self._describe(axes)
            if first.part:
                self._file.attrs["part"] = first.part
        except BaseException:
            self.abandon()
            raise

    def append(self, sample: EncodedSample) -> None:
        """Write one sample, which must be like the first (`encode.check_alike`).

        Raises
        ------
        OSError
            The disk is full or failed; the file is of no use any more.
        """
        row = len(self.samples)
        if row >= self._capacity:
            raise AssertionError(f"{self.path}: more than {self._capacity} samples")
        self._amplitude[row] = sample.amplitude
        self._potential[row] = sample.potential
        self.samples.append(sample.without_values())

    def finish(self) -> None:
        """Write the columns and close. Raises OSError."""
        count = len(self.samples)
        for dataset in (self._amplitude, self._potential):
            dataset.resize(count, axis=0)
        self._column("item", np.array([s.item for s in self.samples], dtype=np.int64))
        for name in self.samples[0].parameters:
            self._column(f"parameters/{name}", np.array([s.parameters[name] for s in self.samples], dtype=np.float64))
        # Fixed length (the longest one's), since variable-length strings lie in a heap that no checksum covers.
        texts = [s.provenance.encode("ascii") for s in self.samples]
        longest = max(len(text) for text in texts)
        self._column("provenance", np.array(texts, dtype=h5py.string_dtype("ascii", longest)))
        self._file.attrs["count"] = count
        self._file.flush()
        self._file.close()

    def abandon(self) -> None:
        """Close without finishing and remove the file; its own errors go to the log, since another is on its way."""
        try:
            self._file.close()
        except (OSError, RuntimeError, ValueError) as error:  # a full disk refuses the last metadata as well
            # HDF5's text would only tell again, with addresses, what is said of the error that is on its way.
            _log.debug("%s: could not be closed (%s); it is removed all the same", self.path, error)
        try:
            self.path.unlink(missing_ok=True)
        except OSError as error:
            _log.warning("%s: could not be removed (%s); the next writer of this rank will try again", self.path, error)

    def _create(self, name: str, like: np.ndarray) -> h5py.Dataset:
        shape = (self._capacity, *like.shape)
        # One sample per chunk: a random read takes exactly what it needs (other chunk shapes are up to 100x slower).
        return self._file.create_dataset(
            name, shape, like.dtype, chunks=(1, *like.shape), maxshape=shape, track_times=False, **_CHECKED
        )

    def _column(self, name: str, values: np.ndarray) -> None:
        chunks = (min(len(values), _ROWS_PER_CHUNK),)
        self._file.create_dataset(name, data=values, chunks=chunks, track_times=False, **_CHECKED)

    def _describe(self, axes: ShardAxes) -> None:
        self._file.attrs.update({"format": FORMAT, "schema": SCHEMA_VERSION, "config_hash": self._config_hash})
        self._file.attrs.update(dataclasses.asdict(axes))
        self._amplitude.attrs["quantity"] = "square root of intensity as fraction of the incident beam"
        self._amplitude.attrs["axes"] = ["sample", "scan_y", "scan_x", "det_y", "det_x"]
        self._amplitude.attrs["units"] = ["", "Å", "Å", "1/Å", "1/Å"]
        scan, dk, pixel = axes.scan_step_angstrom, axes.dk_per_angstrom, axes.potential_pixel_angstrom
        self._amplitude.attrs["steps"] = [1.0, scan, scan, dk, dk]
        self._potential.attrs["quantity"] = "projected potential in V·Å"
        self._potential.attrs["axes"] = ["sample", "y", "x"]
        self._potential.attrs["units"] = ["", "Å", "Å"]
        self._potential.attrs["steps"] = [1.0, pixel, pixel]
