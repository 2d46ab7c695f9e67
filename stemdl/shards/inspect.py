"""Everything that is wrong with a folder of shards, and everything that is odd: one report, nothing changed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from stemdl.shards.encode import INTENSITY_TOLERANCE
from stemdl.shards.faults import compare, fields_of, remedy
from stemdl.shards.h5_read import ShardFile
from stemdl.shards.locks import is_held
from stemdl.shards.manifest import ManifestEntry, scan_manifest
from stemdl.shards.part import part_of
from stemdl.shards.recover import Leftover, leftovers
from stemdl.shards.schema import MANIFEST_NAME, ShardError

_STORED_TOLERANCE = (1 + INTENSITY_TOLERANCE) * (1 + 2.0**-10)
"""What a pattern may sum to once its amplitudes are rounded to float16, which moves an intensity by up to 2**-10."""


@dataclass(frozen=True)
class ShardProblem:
    """A shard that must not be read."""

    file: str
    reason: str
    """The path, what was found, which fields it holds, what mends it."""
    items: list[int]


@dataclass(frozen=True)
class Oddity:
    """A file that is no damage: a remnant, or the sign of a living writer."""

    file: str
    what: str


@dataclass(frozen=True)
class FolderReport:
    """What `inspect_folder` found."""

    folder: Path
    shards: int
    """Named in the manifest."""
    samples: int
    """Different items in shards without a problem."""
    bytes: int
    """Of all shards that the manifest names, as it says."""
    config_hash: str
    """Of the first shard; empty where there is none."""
    damaged: list[ShardProblem]
    manifest_faults: list[str]
    duplicates: dict[int, list[str]]
    """Items found again, with the files in which they are not read."""
    oddities: list[Oddity]

    @property
    def is_sound(self) -> bool:
        """Whether every shard can be read and the manifest too."""
        return not self.damaged and not self.manifest_faults

    @property
    def problems(self) -> list[str]:
        """One text for each line and shard that is wrong."""
        return [*self.manifest_faults, *(shard.reason for shard in self.damaged)]


def inspect_folder(
    folder: Path, *, deep: bool = False, on_shard: Callable[[int], None] = lambda done: None
) -> FolderReport:
    """Compare every shard's sha256 with the manifest, and name what else is wrong or odd in the folder.

    A damaged shard or line of the manifest ends nothing: all others are checked. `on_shard` is told how many shards are
    done. deep: open each shard as well and check every sample: items and configuration as the manifest says, shapes and
    axes as in the first shard, all values finite, no pattern brighter than the beam, none of the samples dark.
    """
    scan = scan_manifest(folder)
    config_hash = scan.entries[0].config_hash if scan.entries else ""
    damaged: list[ShardProblem] = []
    sound: list[ManifestEntry] = []
    first: ShardFile | None = None
    part: str | None = None  # of the first that says it
    for done, (entry, fault) in enumerate(compare(folder, scan.entries, config_hash), start=1):
        reason = None if fault is None else fault.text
        if reason is None and (own := part_of(folder, entry)) is not None:
            part = own if part is None else part
            if own != part:
                reason = (
                    f"{folder / entry.file}: is of the part {own!r}, {sound[0].file} of {part!r}; move one part away"
                )
        if reason is None and deep:
            try:
                shard = _checked(folder / entry.file, entry, first)
                first = first or shard
            except ShardError as error:
                reason = f"{error}; {remedy(folder / entry.file, entry)}"
        if reason is None:
            sound.append(entry)
        else:
            damaged.append(ShardProblem(entry.file, reason, entry.items))
        on_shard(done)
    seen, duplicates = _duplicates(sound)
    return FolderReport(
        folder=folder,
        shards=len(scan.entries),
        samples=len(seen),
        bytes=sum(entry.bytes for entry in scan.entries),
        config_hash=config_hash,
        damaged=damaged,
        manifest_faults=[*scan.faults, *_missing_manifest(folder)],
        duplicates=duplicates,
        oddities=list(_oddities(folder, scan.entries, scan.torn)),
    )


def _missing_manifest(folder: Path) -> Iterator[str]:
    orphans = 0 if (folder / MANIFEST_NAME).exists() else sum(one.kind == "orphan" for one in leftovers(folder, ()))
    if orphans:
        found = f"missing, though {orphans} shards lie beside it; `stemdl shards repair {folder}` writes it anew"
        yield f"{folder / MANIFEST_NAME}: {found}"


def _checked(path: Path, entry: ManifestEntry, first: ShardFile | None) -> ShardFile:
    """The shard, closed, once every sample of it was looked at. Raises ShardError."""
    shard = ShardFile(path)
    try:
        if shard.items != entry.items or shard.config_hash != entry.config_hash:
            raise ShardError(f"{path}: its config hash or items are not those in the manifest; the file was exchanged")
        if first is not None and _layout(shard) != _layout(first):
            raise ShardError(
                f"{path}: axes and shapes are {_layout(shard)}; those of {first.path} are {_layout(first)}"
            )
        for row in range(shard.count):
            _check_values(shard, row)
    finally:
        shard.close()
    return shard


def _layout(shard: ShardFile) -> tuple[object, ...]:
    return shard.axes, shard.amplitude_shape, shard.potential_shape


def _check_values(shard: ShardFile, row: int) -> None:
    sample = shard.sample(row)
    where = f"{shard.path}: item {sample.item}"
    brightest = 0.0
    for line in sample.amplitude:  # one scan row at a time bounds the memory
        line64 = line.astype(np.float64)
        if not np.isfinite(line64).all() or line64.min() < 0:
            raise ShardError(f"{where}: amplitude holds NaN, infinite or negative values")
        brightest = max(brightest, float(np.einsum("xab,xab->x", line64, line64).max()))
    if not 0 < brightest <= _STORED_TOLERANCE:
        raise ShardError(
            f"{where}: the brightest pattern sums to {brightest:.6g} of the incident beam; 0 to 1 is possible"
        )
    if not np.isfinite(sample.potential).all():
        raise ShardError(f"{where}: potential holds NaN or infinite values")
    wrong = [name for name, value in sample.parameters.items() if not math.isfinite(value)]
    if wrong:
        raise ShardError(f"{where}: parameters {', '.join(wrong)} are not finite")


def _duplicates(entries: Sequence[ManifestEntry]) -> tuple[set[int], dict[int, list[str]]]:
    seen: set[int] = set()
    duplicates: dict[int, list[str]] = {}
    for entry in entries:
        for item in entry.items:
            if item in seen:
                duplicates.setdefault(item, []).append(entry.file)
        seen.update(entry.items)
    return seen, duplicates


def _oddities(folder: Path, entries: Sequence[ManifestEntry], torn: int) -> Iterator[Oddity]:
    """Remnants and living writers; what is in the folder for good reasons is not named."""
    if torn:
        yield Oddity(MANIFEST_NAME, f"the last line is torn ({torn} bytes): its writer was killed, or writes right now")
    left = leftovers(folder, {entry.file for entry in entries})
    alive = {one.rank for one in left if one.kind == "lock" and is_held(folder / one.file)} - {None}
    for one in left:
        yield Oddity(one.file, _what_it_is(folder, one, one.rank in alive))


def _what_it_is(folder: Path, one: Leftover, alive: bool) -> str:
    if one.kind == "lock":
        who = "merge" if one.rank is None else f"writer of rank {one.rank}"
        held = is_held(folder / one.file)
        if held is None:
            return f"lock of a {who}; whether that is alive cannot be told"
        return f"a {who} is alive" if held else f"lock of a dead {who}"
    if one.kind == "unfinished":
        return "an unfinished file, of a dead process or of one that writes right now"
    does = "is being written by" if alive else "was left by"
    state = "a writer that is alive" if alive else "a dead writer"
    if one.kind == "temporary":
        return f"unfinished shard, {does} {state} of rank {one.rank}"
    return f"a shard that the manifest does not name, {does} {state} of rank {one.rank}"


def duplicates_in_words(duplicates: dict[int, list[str]]) -> str:
    """The items that are there twice, and the files in which they are not read."""
    files = sorted({file for names in duplicates.values() for file in names})
    shown = ", ".join(files[:5]) + (f" and {len(files) - 5} more" if len(files) > 5 else "")
    verb = "is" if len(duplicates) == 1 else "are"
    return f"{fields_of(sorted(duplicates))} {verb} there again in {shown}; the first in the manifest is read"
