"""What can be wrong with a sealed shard, seen from outside, and how it is said."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal, NamedTuple

from stemdl.atomic_files import sha256_file
from stemdl.launch import allowed_cores
from stemdl.shards.manifest import ManifestEntry
from stemdl.shards.schema import SCHEMA_VERSION

Verify = Literal["size", "hash"]
FaultKind = Literal["schema", "config", "outside", "missing", "length", "hash", "unreadable"]

_NUM_RUNS_NAMED = 6
_MOST_THREADS = 8


class Fault(NamedTuple):
    """One shard that is not what the manifest says."""

    kind: FaultKind
    text: str
    """The file, what was found, its items, and what mends it."""

    @property
    def is_damage(self) -> bool:
        """Whether the file is broken or gone; false where it is whole and merely not for this reader."""
        return self.kind not in ("schema", "config")


def fault_of(folder: Path, entry: ManifestEntry, config_hash: str, verify: Verify) -> Fault | None:
    """Compare a shard's file with its line in the manifest, by length or by its sha256 too; None where they agree."""
    path = folder / entry.file
    if entry.schema != SCHEMA_VERSION:
        return Fault("schema", f"{path}: schema {entry.schema} is unknown; this version reads {SCHEMA_VERSION}")
    if entry.config_hash != config_hash:
        return Fault("config", f"{path}: config hash is {entry.config_hash}; {config_hash} is needed")
    try:
        if path.resolve(strict=True).parent != folder.resolve():
            return Fault("outside", f"{path}: leads outside the folder; {remedy(path, entry)}")
        num_bytes = path.stat().st_size
        if num_bytes != entry.bytes:
            what = f"{num_bytes} bytes long, {entry.bytes} when it was sealed (truncated or changed)"
            return Fault("length", f"{path}: {what}; {remedy(path, entry)}")
        if verify == "hash" and sha256_file(path) != entry.sha256:
            what = "sha256 differs from the one when it was sealed (changed or damaged)"
            return Fault("hash", f"{path}: {what}; {remedy(path, entry)}")
    except FileNotFoundError:
        return Fault("missing", f"{path}: missing, though the manifest names it; {remedy(None, entry)}")
    except OSError as error:
        return Fault("unreadable", f"{path}: cannot be read: {error}; it holds {fields_of(entry.items)}")
    return None


def compare(
    folder: Path, entries: Sequence[ManifestEntry], config_hash: str
) -> Iterator[tuple[ManifestEntry, Fault | None]]:
    """Each shard with what is wrong with it, in order; several are hashed at once, which frees Python's lock."""
    pool = ThreadPoolExecutor(max_workers=min(_MOST_THREADS, allowed_cores()))
    try:
        faults = pool.map(lambda entry: fault_of(folder, entry, config_hash, "hash"), entries)
        yield from zip(entries, faults, strict=True)
    finally:
        pool.shutdown(cancel_futures=True)  # an interrupt need not wait for terabytes


def remedy(path: Path | None, entry: ManifestEntry) -> str:
    """What mends a damaged shard; `path` is None where there is no file to remove."""
    first = "" if path is None else f"run `stemdl shards repair {path.parent}`, or remove {path} and "
    verb = "is" if entry.count == 1 else "are"
    return f"{first}run `stemdl simulate` again: its {fields_of(entry.items)} {verb} made anew"


def bytes_in_words(num_bytes: float) -> str:
    """An amount of space: "12.3 MB", and below a tenth of one "52 kB"."""
    return f"{num_bytes / 1e6:.1f} MB" if num_bytes >= 1e5 else f"{num_bytes / 1e3:.0f} kB"


def fields_of(items: list[int]) -> str:
    """How many fields and which: "3 fields (items 0-1, 7)"."""
    return f"{len(items)} {'field (item' if len(items) == 1 else 'fields (items'} {item_runs(items)})"


def item_runs(items: Iterable[int], most: int = _NUM_RUNS_NAMED) -> str:
    """Item numbers in short, as runs of one step: "0-63, 100-118 by 2, 130"; a long list is cut, and says so."""
    numbers = sorted(items)
    runs: list[tuple[int, int, int]] = []  # first, last, step
    start = 0
    while start < len(numbers):
        end, step = start, 1
        if start + 1 < len(numbers):
            step = numbers[start + 1] - numbers[start]
            while end + 1 < len(numbers) and numbers[end + 1] - numbers[end] == step:
                end += 1
        if end == start + 1 and step != 1:  # two numbers are no run
            end, step = start, 1
        runs.append((numbers[start], numbers[end], step))
        start = end + 1
    words = [f"{a}" if a == b else f"{a}-{b}" + (f" by {step}" if step != 1 else "") for a, b, step in runs]
    return ", ".join(words[:most]) + (f", ... {numbers[-1]}" if len(words) > most else "")
