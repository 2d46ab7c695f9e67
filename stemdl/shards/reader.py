"""All sealed samples of a folder as one sequence, in the order of their numbers in the work list."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Literal, NamedTuple, Self, TypeVar

import numpy as np

from stemdl.shards.faults import Verify, fault_of, remedy
from stemdl.shards.h5_read import ShardFile
from stemdl.shards.manifest import ManifestEntry, read_manifest
from stemdl.shards.open_files import OpenFiles
from stemdl.shards.schema import MANIFEST_NAME, Sample, ShardAxes, ShardError

_log = logging.getLogger(__name__)

T = TypeVar("T")

OnDamage = Literal["refuse", "leave_out"]

_NUM_NAMED = 10  # of a long list of problems


class LeftOut(NamedTuple):
    """A shard that a set does not read."""

    entry: ManifestEntry
    reason: str
    """What was found, with the file and its items."""


class _Layout(NamedTuple):
    axes: ShardAxes
    amplitude_shape: tuple[int, ...]
    potential_shape: tuple[int, ...]


class ShardSet:
    """Read-only view of a folder of shards; believes the manifest alone.

    Index 0 is the sample with the smallest item number, whatever rank wrote it and into which shard. May be pickled and
    forked: each process opens its own files, when it first reads from them.

    Attributes
    ----------
    folder
        Where the shards are.
    items
        Item numbers by index, ascending.
    duplicates
        Items found in several shards, with the names of those left aside; the first in the manifest is the one read.
    entries
        The manifest, without what is left out.
    left_out
        Damaged shards that are not read, each with the reason; empty unless `on_damage` allows it.
    config_hash
        Of the configuration that made the set.
    """

    def __init__(
        self,
        folder: Path,
        *,
        verify: Verify = "size",
        config_hash: str | None = None,
        max_open_files: int = 16,
        on_damage: OnDamage = "refuse",
    ) -> None:
        """Read the manifest and check every file in it, by length or by its sha256 (which reads all of them).

        With "size", a flipped bit is found when its chunk is read, and is then an error whatever `on_damage` says.

        on_damage: "refuse" the whole set, or "leave_out" what is damaged, which is named in a warning and listed in
        `left_out`. A smaller set may teach something else, so leaving out is for whoever asks for it.

        Raises
        ------
        ShardError
            There is no sealed shard (or none that is whole); or a file is missing, truncated, changed, outside the
            folder, of an unknown schema or of another configuration than `config_hash` (or than the first one's): all
            such files are named. Of these, an unknown schema and another configuration are no damage, and refused
            always.
        """
        if verify not in ("size", "hash"):
            raise ShardError(f"verify is {verify!r}; 'size' or 'hash' is allowed")
        if on_damage not in ("refuse", "leave_out"):
            raise ShardError(f"on_damage is {on_damage!r}; 'refuse' or 'leave_out' is allowed")
        if max_open_files < 1:
            raise ShardError(f"max_open_files is {max_open_files}; at least 1 is needed")
        self.folder = Path(folder)
        self.entries: list[ManifestEntry] = read_manifest(self.folder)
        if not self.entries:
            raise ShardError(f"{self.folder / MANIFEST_NAME}: missing or empty; no shard is sealed in this folder")
        self.config_hash: str = self.entries[0].config_hash if config_hash is None else config_hash
        self.left_out: list[LeftOut] = self._check_files(verify, on_damage)
        if self.left_out:
            fields = sum(one.entry.count for one in self.left_out)
            reasons = "; ".join(one.reason for one in self.left_out)
            _log.warning("%s: %d damaged shards LEFT OUT, %d fields: %s", folder, len(self.left_out), fields, reasons)
        self._rows, self.duplicates = _index(self.entries)
        self.items: list[int] = sorted(self._rows)
        if self.duplicates:
            names = "; ".join(f"item {item} again in {', '.join(files)}" for item, files in self.duplicates.items())
            _log.warning("%s: duplicates, the first in the manifest is kept: %s", self.folder, names)
        # Not `cached_property`: it has a lock in Python 3.11, and a forked child could find that held for ever.
        self._materials: list[str] | None = None
        self._first_layout: _Layout | None = None
        self._max_open_files = max_open_files
        self._open_files = OpenFiles(max_open_files)

    def __len__(self) -> int:
        """Number of samples."""
        return len(self.items)

    def item(self, index: int) -> Sample:
        """All of one sample. Raises IndexError; ShardError, naming the file, if it is damaged."""
        return self._read(index, lambda shard, row: shard.sample(row))

    def amplitude(self, index: int) -> np.ndarray:
        """(scan_y, scan_x, det_y, det_x) float16, √(fraction of the incident beam). Raises as `item`."""
        return self._read(index, lambda shard, row: shard.amplitude(row))

    def potential(self, index: int) -> np.ndarray:
        """(y, x) float32, projected potential in V·Å. Raises as `item`."""
        return self._read(index, lambda shard, row: shard.potential(row))

    def parameters(self, index: int) -> dict[str, float]:
        """Optical and specimen parameters, units in their names. Raises as `item`."""
        return self._read(index, lambda shard, row: shard.parameters(row))

    def provenance(self, index: int) -> dict[str, object]:
        """What is needed to make the sample again. Raises as `item`."""
        return self._read(index, lambda shard, row: shard.provenance(row))

    @property
    def materials(self) -> list[str]:
        """Name of the crystal by index (so as long as the set, with repetitions). Raises ShardError.

        The first call opens each shard once; patterns and potentials are not read.
        """
        if self._materials is None:
            names: dict[int, str] = {}
            for entry in reversed(self.entries):  # of duplicates the first in the manifest is the one that stays
                names.update(self._use(entry, _crystals))
            self._materials = [names[item] for item in self.items]
        return list(self._materials)

    @property
    def axes(self) -> ShardAxes:
        """Steps of the axes, equal for all shards (each is compared when it is opened). Raises ShardError."""
        return self._layout().axes

    @property
    def amplitude_shape(self) -> tuple[int, ...]:
        """(scan_y, scan_x, det_y, det_x) of every sample. Raises ShardError."""
        return self._layout().amplitude_shape

    @property
    def potential_shape(self) -> tuple[int, ...]:
        """(y, x) of every sample. Raises ShardError."""
        return self._layout().potential_shape

    def close(self) -> None:
        """Close all files; the next read opens them again."""
        if self._open_files.is_mine():
            self._open_files.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __getstate__(self) -> dict[str, object]:
        """For a spawned worker: everything but the open files."""
        return {name: value for name, value in self.__dict__.items() if name != "_open_files"}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self._open_files = OpenFiles(self._max_open_files)

    def _layout(self) -> _Layout:
        if self._first_layout is None:
            with_first = OpenFiles(1)  # not the shared ones: their check asks for this very value
            try:
                entry = self.entries[0]
                path = self.folder / entry.file
                self._first_layout = with_first.use(path, lambda shard: _check_entry(shard, entry), _layout_of)
            finally:
                with_first.close()
        return self._first_layout

    def _read(self, index: int, read: Callable[[ShardFile, int], T]) -> T:
        if not 0 <= index < len(self.items):
            raise IndexError(f"index {index}; the set has {len(self.items)} samples")
        number, row = self._rows[self.items[index]]
        return self._use(self.entries[number], lambda shard: read(shard, row))

    def _use(self, entry: ManifestEntry, read: Callable[[ShardFile], T]) -> T:
        layout = self._layout()

        def check(shard: ShardFile) -> None:
            _check_entry(shard, entry)
            if _layout_of(shard) != layout:
                raise ShardError(
                    f"{shard.path}: axes and shapes are {_layout_of(shard)}; "
                    f"those of {self.entries[0].file} are {layout}"
                )

        files = self._open_files
        if not files.is_mine():
            # Threads of a child may both come here; each then has whole files of its own, and one set is dropped.
            files.abandon()
            files = self._open_files = OpenFiles(self._max_open_files)
        path = self.folder / entry.file
        try:
            return files.use(path, check, read)
        except ShardError as error:
            raise ShardError(f"{error}; {remedy(path, entry)}") from error

    def _check_files(self, verify: Verify, on_damage: OnDamage) -> list[LeftOut]:
        """What is left out; ShardError where that is not wanted, or cannot be."""
        faults = [(e, f) for e in self.entries if (f := fault_of(self.folder, e, self.config_hash, verify)) is not None]
        fatal = [fault for _, fault in faults if on_damage == "refuse" or not fault.is_damage]
        if not fatal and len(faults) == len(self.entries):
            fatal = [fault for _, fault in faults]  # nothing would be left
        if fatal:
            more = f"; and {len(fatal) - _NUM_NAMED} more" if len(fatal) > _NUM_NAMED else ""
            raise ShardError("; ".join(fault.text for fault in fatal[:_NUM_NAMED]) + more)
        damaged = {entry.file for entry, _ in faults}
        self.entries = [entry for entry in self.entries if entry.file not in damaged]
        return [LeftOut(entry, fault.text) for entry, fault in faults]


def _index(entries: list[ManifestEntry]) -> tuple[dict[int, tuple[int, int]], dict[int, list[str]]]:
    """Item number to (entry, row), the first entry that has it, and the files that have it again."""
    rows: dict[int, tuple[int, int]] = {}
    duplicates: dict[int, list[str]] = {}
    for number, entry in enumerate(entries):
        for row, item in enumerate(entry.items):
            if item in rows:
                duplicates.setdefault(item, []).append(entry.file)
            else:
                rows[item] = (number, row)
    return rows, duplicates


def _check_entry(shard: ShardFile, entry: ManifestEntry) -> None:
    same_part = not entry.part or shard.part == entry.part  # lines of before it was kept say none
    if shard.config_hash != entry.config_hash or shard.items != entry.items or not same_part:
        raise ShardError(
            f"{shard.path}: its config hash, part or items are not those in the manifest; the file was exchanged"
        )


def _layout_of(shard: ShardFile) -> _Layout:
    return _Layout(shard.axes, shard.amplitude_shape, shard.potential_shape)


def _crystals(shard: ShardFile) -> dict[int, str]:
    return {item: str(shard.provenance(row)["crystal"]) for row, item in enumerate(shard.items)}
