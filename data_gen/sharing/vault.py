"""Where a maker's samples go: shards in the run folder, or on the node's storage and from there to the run folder."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from data_gen.sample import axes_of
from data_gen.sharing.messages import ItemKey
from data_gen.worklist import PartName
from stemdl.config import Config
from stemdl.progress import SilentProgress
from stemdl.shards import ManifestEntry, Sample, ShardError, ShardWriter, drop_lost, read_manifest
from stemdl.shards.burst_buffer import check_burst_buffer, find_burst_buffer, node_folder, run_id
from stemdl.shards.drain import Drain, drain_left
from stemdl.shards.part import require_part

PARTS: tuple[PartName, ...] = ("train", "held_out")

_DRAIN_TIMEOUT_S = 600.0
_LOOK_S = 0.02
_UNEVEN = 1.25  # a node may make more than its share: its cores may be the quicker ones
_BYTES_BESIDE = 4096  # provenance and parameters of a sample


@dataclass(frozen=True)
class Berth:
    """Which of the makers this is, in all and on its node."""

    number: int
    size: int
    local_rank: int
    local_size: int


@dataclass
class _Chest:
    """Writer and drain of one part, and what was sealed but is not known to be safe yet."""

    writer: ShardWriter
    drain: Drain | None
    on_the_way: set[str] = field(default_factory=set)
    taken_over: set[str] = field(default_factory=set)
    """Shards of lost makers."""


class Vault:
    """Writers of both parts, opened when they are needed; a context manager that seals and drains at its end.

    on_safe: told of the items of every shard that is safe: sealed in the run folder, or copied there by a drain, or
    sealed on the node where that is where shards stay.
    """

    def __init__(
        self, config: Config, berth: Berth, config_hash: str, on_safe: Callable[[tuple[ItemKey, ...]], None]
    ) -> None:
        self._config = config
        self._berth = berth
        self._hash = config_hash
        self._on_safe = on_safe
        self._chests: dict[PartName, _Chest] = {}
        self._stack = ExitStack()
        self._run = config.run.folder / "shards"
        self._node: Path | None = None
        self._drain_failed = False

    def prepare(self) -> tuple[str, tuple[ItemKey, ...]]:
        """Look for the node's storage, check it, and settle what earlier runs left there.

        The first maker of each node does the checks for all. Returns a line about the storage (empty without one), and
        the items that are sealed already. Raises BurstBufferError, ShardError.
        """
        section = self._config.burst_buffer
        if not section.use:
            return "", ()
        buffer = find_burst_buffer(section, os.environ)
        self._node = node_folder(buffer, run_id(self._config.run.folder, self._hash), os.environ) / "shards"
        if self._berth.local_rank > 0:
            return "", ()
        report = check_burst_buffer(buffer, needed_bytes=self._needed_bytes(), section=section)
        found: list[ItemKey] = []
        for part in PARTS:
            found += [(part, item) for item in self._settle(part, self._node / part)]
        return report.line(), tuple(found)

    def add(self, part: PartName, sample: Sample) -> None:
        """Put a sample into the open shard of its part. Raises ShardError, after which `usable` says what it means."""
        chest = self._chest(part)
        try:
            chest.writer.add(sample)
        except ShardError:
            entry = _entry_with(chest.writer.folder, sample.item) if self.usable(part) else None
            if entry is None:
                raise
            if entry.file not in chest.taken_over:  # a lost maker had sealed it here, and nobody heard of it
                chest.taken_over.add(entry.file)
                self._sealed(part, entry)
        self._look()

    def usable(self, part: PartName) -> bool:
        """Whether more can be written: a refused sample leaves that as it is, a full disk on either side does not."""
        return part in self._chests and not self._chests[part].writer.ended and not self._drain_failed

    def seal(self) -> None:
        """Seal what is open, and wait until all of it is safe. Raises ShardError."""
        for chest in self._chests.values():
            chest.writer.seal()
        deadline = time.monotonic() + _DRAIN_TIMEOUT_S
        while True:
            self._look()
            left = sorted(name for chest in self._chests.values() for name in chest.on_the_way)
            if not left:
                return
            if time.monotonic() > deadline:
                raise ShardError(f"{self._run}: {', '.join(left)} not copied within {_DRAIN_TIMEOUT_S:g} s")
            time.sleep(_LOOK_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is None:
            try:
                self.seal()
            except BaseException as failed:
                self._stack.__exit__(type(failed), failed, failed.__traceback__)
                raise
        self._stack.__exit__(kind, error, traceback)

    def _chest(self, part: PartName) -> _Chest:
        if part not in self._chests:
            section, drain = self._config.burst_buffer, None
            if self._node is not None and section.drain:
                drain = self._stack.enter_context(
                    Drain(
                        self._node / part,
                        self._run / part,
                        rank=self._berth.number,
                        config_hash=self._hash,
                        reserve_bytes=section.reserve_gb * 1e9,
                        make_room=True,
                    )
                )
            writer = ShardWriter(
                (self._node or self._run) / part,
                rank=self._berth.number,
                axes=axes_of(self._config),
                config_hash=self._hash,
                samples_per_shard=self._config.simulation.samples_per_shard,
                part=part,
                on_seal=lambda entry: self._sealed(part, entry),
            )
            self._chests[part] = _Chest(self._stack.enter_context(writer), drain)
        return self._chests[part]

    def _sealed(self, part: PartName, entry: ManifestEntry) -> None:
        chest = self._chests[part]
        if chest.drain is None:
            self._on_safe(tuple((part, item) for item in entry.items))
            return
        chest.on_the_way.add(entry.file)
        with self._drain_error_noted():
            chest.drain.submit(entry)

    def _look(self) -> None:
        """Tell of what the drains have copied meanwhile; they copy in order. Raises ShardError where one cannot."""
        for part, chest in self._chests.items():
            if chest.drain is None or not chest.on_the_way:
                continue
            for entry in chest.drain.take_safe():
                chest.on_the_way.discard(entry.file)
                self._on_safe(tuple((part, item) for item in entry.items))
            with self._drain_error_noted():
                chest.drain.check()

    @contextmanager
    def _drain_error_noted(self) -> Iterator[None]:
        """What a drain raises comes out of `add`, where it is not to be taken for a refusal of the sample."""
        try:
            yield
        except ShardError:
            self._drain_failed = True
            raise

    def _settle(self, part: PartName, folder: Path) -> list[int]:
        """Bring what is left on this node to the run folder, or count it; returns the items that are sealed now."""
        if not folder.is_dir():
            return []
        require_part(folder, part)
        if not self._config.burst_buffer.drain:
            drop_lost(folder, self._hash)
            return [item for entry in read_manifest(folder) for item in entry.items]
        target = self._run / part
        target.mkdir(parents=True, exist_ok=True)
        drain_left(
            folder, target, self._hash, rank=self._berth.number, local_rank=0, local_size=1, progress=SilentProgress()
        )
        return [item for entry in read_manifest(target) for item in entry.items]

    def _needed_bytes(self) -> int:
        """What this node's share of the set takes, about."""
        scan, detector = math.prod(self._config.scan.positions), math.prod(self._config.detector.pixels)
        field_y, field_x = (extent / self._config.target.pixel_angstrom for extent in self._config.scan.field_angstrom)
        sample = 2 * scan * detector + 4 * round(field_y * field_x) + _BYTES_BESIDE
        samples = self._config.simulation.samples + self._config.held_out.samples
        share = min(1.0, _UNEVEN * self._berth.local_size / self._berth.size)
        return math.ceil(sample * samples * share)


def _entry_with(folder: Path, item: int) -> ManifestEntry | None:
    return next((entry for entry in read_manifest(folder) if item in entry.items), None)
