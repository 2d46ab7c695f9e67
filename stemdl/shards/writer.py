"""One rank's writer: samples in, sealed shards out. Killed at any moment, it loses at most the shard not sealed yet."""

from __future__ import annotations

import dataclasses
import logging
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from stemdl.atomic_files import fsync_file, fsync_folder, temporary_name
from stemdl.shards.encode import EncodedSample, check_alike, encode_sample
from stemdl.shards.faults import bytes_in_words
from stemdl.shards.h5_write import ShardFileWriter
from stemdl.shards.locks import RankLock
from stemdl.shards.manifest import ManifestEntry, append_entry
from stemdl.shards.recover import entry_of, next_number, take_over
from stemdl.shards.schema import Sample, ShardAxes, ShardError, shard_name

_ERRNO = re.compile(r"\berrno = (\d+)")

_log = logging.getLogger(__name__)


class ShardWriter:
    """Writes the shards of one rank into a folder that other ranks may write at the same time.

    Use it as a context manager: at the end of the block the last shard is sealed; on an exception the unsealed one is
    removed, and what is sealed stays. A sample that `add` refuses changes nothing: the caller may count it and go on.

    A process forked from the writer's cannot use it, and leaves its files alone.
    """

    def __init__(
        self,
        folder: Path,
        *,
        rank: int,
        axes: ShardAxes,
        config_hash: str,
        samples_per_shard: int,
        part: str = "",
        on_seal: Callable[[ManifestEntry], None] | None = None,
    ) -> None:
        """Make the folder if needed, clear up after a dead writer of this rank, and go on with the next number.

        part: "train" or "held_out": samples and folders of another one are refused. Empty: what the first sample says.
        `on_seal` is told of each shard once it is safe, in the thread that called; what it raises comes out of `add`,
        `seal` or `close`, while the shard stays sealed and the writer usable.

        Raises ShardError where the folder cannot be written or holds shards of another configuration or part, its
        manifest is damaged, another writer of this rank is alive, or an argument is out of range.
        """
        if rank < 0 or samples_per_shard < 1:
            raise ShardError(f"rank {rank} must be ≥ 0 and samples_per_shard {samples_per_shard} ≥ 1")
        if not config_hash:
            raise ShardError("config_hash is empty; shards are bound to the configuration that made them")
        self.folder = Path(folder)
        self.rank = rank
        self._axes = axes
        self._config_hash = config_hash
        self._samples_per_shard = samples_per_shard
        self._part = part
        self._on_seal = on_seal
        self._file: ShardFileWriter | None = None
        self._first: EncodedSample | None = None
        self._ended = False
        self._process = os.getpid()
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._lock = RankLock(self.folder, rank)
        except OSError as error:
            raise ShardError(f"{self.folder}: shards cannot be written here: {error}") from error
        try:
            entries = take_over(self.folder, rank, config_hash, part)
            self._sealed = {item for entry in entries for item in entry.items}
            self._number = next_number(entries, rank)
        except OSError as error:
            self._lock.release()
            raise ShardError(f"{self.folder}: shards cannot be written here: {error}") from error
        except BaseException:
            self._lock.release()
            raise

    @property
    def ended(self) -> bool:
        """Whether it can write no more: closed, or ended by an error of the disk."""
        return self._ended

    def add(self, sample: Sample) -> None:
        """Write one sample to the open shard, and seal that when it is full.

        Raises
        ------
        ShardError
            The sample is refused (names the item and the reason; the writer can go on), or it could not be written
            (disk full; the writer has ended, and what was sealed before is untouched).
        """
        self._check_usable()
        encoded = encode_sample(sample)
        if encoded.item in self._sealed:
            raise ShardError(f"item {encoded.item}: already sealed in {self.folder}")
        if self._file is not None and any(encoded.item == other.item for other in self._file.samples):
            raise ShardError(f"item {encoded.item}: already in the open shard")
        if self._part and encoded.part != self._part:
            raise ShardError(f"item {encoded.item}: is of the part {encoded.part!r}; this writer's is {self._part!r}")
        if self._first is not None:
            check_alike(encoded, self._first)
        try:
            if self._file is None:
                stem = shard_name(self.rank, self._number).removeprefix("shard-").removesuffix(".h5")
                self._file = ShardFileWriter(
                    self.folder / f"{temporary_name(stem)}.h5",
                    encoded,
                    capacity=self._samples_per_shard,
                    axes=self._axes,
                    config_hash=self._config_hash,
                )
            self._file.append(encoded)
            self._first = self._first or self._file.samples[0]
        except (OSError, RuntimeError) as error:  # h5py raises RuntimeError where HDF5 gives no errno
            raise self._failed("a sample could not be written", error) from error
        if len(self._file.samples) >= self._samples_per_shard:
            self.seal()

    def seal(self) -> None:
        """Seal the open shard before it is full; without one, does nothing.

        Raises
        ------
        ShardError
            It could not be written; the writer has ended, and what was sealed before is untouched.
        """
        self._check_usable()
        if self._file is None:
            return
        try:
            entry = self._seal_file(self._file)
        except (OSError, RuntimeError, ShardError) as error:
            raise self._failed("a shard could not be sealed", error) from error
        self._file = None
        self._sealed.update(entry.items)
        self._number += 1
        _log.info("%s: sealed %d samples, %.1f MB", self.folder / entry.file, entry.count, entry.bytes / 1e6)
        if self._on_seal is not None:
            self._on_seal(entry)

    def close(self) -> None:
        """Seal what is open and let another writer of this rank come; a second call does nothing. Raises as `seal`."""
        if self._ended or os.getpid() != self._process:
            return
        try:
            self.seal()
        finally:
            self._end()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self._end()

    def _seal_file(self, file: ShardFileWriter) -> ManifestEntry:
        """The order is the safety: content durable, then the final name, that durable, then the manifest's line."""
        file.finish()
        fsync_file(file.path)
        final = self.folder / shard_name(self.rank, self._number)
        entry = entry_of(file.path, [sample.item for sample in file.samples], self._config_hash, file.samples[0].part)
        if final.exists():  # only where the file system has no locks
            raise ShardError(f"{final}: another writer of rank {self.rank} made it; two must not have the same rank")
        os.rename(file.path, final)
        fsync_folder(self.folder)
        entry = dataclasses.replace(entry, file=final.name)
        append_entry(self.folder, entry)
        return entry

    def _check_usable(self) -> None:
        if self._ended:
            raise ShardError(f"{self.folder}: this writer of rank {self.rank} has ended; start a new one")
        if os.getpid() != self._process:
            raise ShardError(f"{self.folder}: this writer of rank {self.rank} belongs to the parent process")

    def _failed(self, what: str, error: Exception) -> ShardError:
        """End the writer and say why; a shard that has its final name but no line is found by the next writer."""
        try:
            free = f"{bytes_in_words(shutil.disk_usage(self.folder).free)} are free"
        except OSError as unknown:
            free = f"free space unknown: {unknown}"
        # HDF5 puts addresses and a date into its text; the number says it all, and the whole is kept as the cause.
        in_text = _ERRNO.search(str(error))
        number = error.errno if isinstance(error, OSError) and error.errno else int(in_text[1]) if in_text else 0
        reason = os.strerror(number) if number else str(error)
        where = self.folder / shard_name(self.rank, self._number)
        self._end()
        return ShardError(f"{where}: {what}: {reason} ({free}); all sealed shards are intact")

    def _end(self) -> None:
        if self._ended or os.getpid() != self._process:
            return
        self._ended = True
        if self._file is not None:
            self._file.abandon()
            self._file = None
        self._lock.release()
