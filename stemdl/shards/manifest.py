"""`manifest.jsonl`: one line for each sealed shard. What is not in it does not exist."""

from __future__ import annotations

import dataclasses
import errno
import json
import logging
import os
import re
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from stemdl.atomic_files import fsync_folder, replace_atomically
from stemdl.shards.locks import lock_descriptor
from stemdl.shards.schema import MANIFEST_NAME, SCHEMA_VERSION, ShardError, parse_shard_name

_log = logging.getLogger(__name__)

LOCK_TIMEOUT_S = 120.0
"""An append takes milliseconds; thousands of ranks ending at once take seconds."""

_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class ManifestEntry:
    """One sealed shard.

    Attributes
    ----------
    file
        Plain name in the manifest's folder.
    sha256
        Of the whole file, 64 hexadecimal digits.
    bytes
        Length of the file.
    count
        Number of samples.
    items
        Their numbers in the work list, in the order of the rows.
    config_hash
        Of the configuration that made them.
    schema
        Version of the shard's layout.
    part
        What its samples say: "train" or "held_out"; empty where they say none, and in lines of before it was kept.
    """

    file: str
    sha256: str
    bytes: int
    count: int
    items: list[int]
    config_hash: str
    schema: int
    part: str = ""


class ManifestScan(NamedTuple):
    """What a manifest's lines say, the damaged ones included."""

    entries: list[ManifestEntry]
    """Of the sound lines, in their order."""
    lines: list[bytes]
    """The sound lines themselves, without the newline."""
    faults: list[str]
    """One text for each damaged line, with its number."""
    torn: int
    """Bytes of a last line without its newline: torn by a kill, or being written just now."""


def scan_manifest(folder: Path) -> ManifestScan:
    """Read a manifest line by line and go on after a damaged one; nothing where there is no manifest."""
    path = folder / MANIFEST_NAME
    try:
        content = path.read_bytes()
    except NotADirectoryError as error:
        raise ShardError(f"{folder}: a file, where a folder of shards is needed") from error
    except FileNotFoundError:
        return ManifestScan([], [], [], 0)
    *lines, tail = content.split(b"\n")
    scan = ManifestScan([], [], [], len(tail))
    line_of: dict[str, int] = {}
    for number, line in enumerate(lines, start=1):
        where = f"{path}, line {number}"
        try:
            entry = _parse_line(line, where)
        except ShardError as error:
            scan.faults.append(str(error))
            continue
        if entry.file in line_of:
            scan.faults.append(f"{where}: {entry.file} is named before, in line {line_of[entry.file]}")
            continue
        line_of[entry.file] = number
        scan.entries.append(entry)
        scan.lines.append(line)
    return scan


def read_manifest(folder: Path) -> list[ManifestEntry]:
    """All sealed shards of a folder in the order of sealing; empty if there is no manifest yet.

    A last line without its newline was torn by a kill, or is being written just now: it is left out with a warning,
    and the next writer of that rank adds the shard again.

    Raises
    ------
    ShardError
        Another line is damaged, leads outside the folder or names a shard a second time; the line's number is given.
    """
    path = folder / MANIFEST_NAME
    scan = scan_manifest(folder)
    if scan.torn:
        number = len(scan.entries) + len(scan.faults) + 1
        _log.warning("%s: the last line (%d) is torn (%d bytes, no newline); left out", path, number, scan.torn)
    if scan.faults:
        raise ShardError(
            f"{scan.faults[0]}; to mend it, run `stemdl shards repair {folder}`, or delete {path} and run `stemdl "
            "simulate` again: the shards beside it are checked and taken in again"
        )
    return scan.entries


def sealed_items(folder: Path, config_hash: str) -> set[int]:
    """Numbers of all items that are sealed under this configuration. Raises ShardError as `read_manifest`."""
    return {item for entry in read_manifest(folder) if entry.config_hash == config_hash for item in entry.items}


def is_lost(folder: Path, entry: ManifestEntry) -> bool:
    """Say whether the file of an entry is missing or has another length. Raises OSError where that cannot be seen."""
    try:
        return (folder / entry.file).stat().st_size != entry.bytes
    except FileNotFoundError:
        return True


def drop_lost(folder: Path, config_hash: str) -> tuple[list[ManifestEntry], Path | None]:
    """Take the lines of lost shards of this configuration out of the manifest, so that their items are made again.

    Returns
    -------
    tuple of list of ManifestEntry and Path
        The entries taken out, and the copy of the manifest as it was, `manifest-N.jsonl` beside it (None if all are
        there).

    Raises
    ------
    ShardError
        As `read_manifest`; or the manifest's lock was held too long.
    OSError
        The disk is full, or the folder read-only; the manifest is then as it was.
    """

    def lost(entry: ManifestEntry) -> bool:
        return entry.config_hash == config_hash and is_lost(folder, entry)

    if not any(lost(entry) for entry in read_manifest(folder)):
        return [], None
    return take_out(folder, lost)


def take_out(folder: Path, unwanted: Callable[[ManifestEntry], bool]) -> tuple[list[ManifestEntry], Path | None]:
    """Rewrite the manifest without the unwanted entries, damaged lines and a torn end; under its lock.

    Returns
    -------
    tuple of list of ManifestEntry and Path
        The entries taken out, and the copy of the manifest as it was, `manifest-N.jsonl` beside it (None where nothing
        was to be changed, and nothing is).

    Raises
    ------
    ShardError
        The manifest's lock was held too long.
    OSError
        The disk is full, or the folder read-only; the manifest is then as it was.
    """
    path = folder / MANIFEST_NAME
    with locked_manifest(path):
        scan = scan_manifest(folder)
        kept = [(line, entry) for line, entry in zip(scan.lines, scan.entries, strict=True) if not unwanted(entry)]
        kept_files = {entry.file for _, entry in kept}
        gone = [entry for entry in scan.entries if entry.file not in kept_files]
        if not gone and not scan.faults and not scan.torn:
            return [], None
        number = 1
        while (copy := folder / f"manifest-{number}.jsonl").exists():
            number += 1
        replace_atomically(copy, path.read_bytes())
        replace_atomically(path, b"".join(line + b"\n" for line, _ in kept))
    return gone, copy


@contextmanager
def locked_manifest(path: Path) -> Iterator[tuple[int, bool]]:
    """Give the manifest's descriptor, to append, and whether it is locked; makes the file. Raises as `append_entry`."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            locked = lock_descriptor(descriptor, path, timeout_s=LOCK_TIMEOUT_S)
            # Another process may have put a new manifest in its place while this one waited: a line would be lost.
            if locked and not _still_named(descriptor, path):
                continue
            yield descriptor, locked
            return
        finally:
            os.close(descriptor)  # and the lock with it


def _still_named(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False


def append_entry(folder: Path, entry: ManifestEntry) -> None:
    """Add one line, durably, beside any number of other processes.

    The line goes out in one `write` on an O_APPEND descriptor. Local file systems, Lustre and GPFS put such a write at
    the end in one piece whoever else appends; NFS does not, which is what the lock is for. The lock also makes it safe
    to cut off the torn line of a killed writer: without it, that could be the line another process writes right now.

    Raises
    ------
    ShardError
        The lock was held too long, or a torn line is in the way and there are no locks.
    OSError
        The disk is full, or the folder read-only; the manifest then holds what it held before.
    """
    path = folder / MANIFEST_NAME
    is_new = not path.exists()
    content = _line_of(entry)
    with locked_manifest(path) as (descriptor, locked):
        end = _cut_torn_line(descriptor, path, locked)
        try:
            written = os.write(descriptor, content)
            if written != len(content):
                raise OSError(errno.ENOSPC, f"only {written} of {len(content)} bytes of a line were written", str(path))
            os.fsync(descriptor)
        except OSError:
            if locked:  # else others may have appended since; a torn last line is what readers tolerate
                os.ftruncate(descriptor, end)
            raise
    if is_new:
        fsync_folder(folder)


def _cut_torn_line(descriptor: int, path: Path, locked: bool) -> int:
    """Make the manifest end with a whole line; returns its length in bytes."""
    end = os.fstat(descriptor).st_size
    if end == 0 or os.pread(descriptor, 1, end - 1) == b"\n":
        return end
    if not locked:
        raise ShardError(
            f"{path}: the last line is torn, and this file system has no locks to tell whether its writer is dead; "
            "when no writer runs, delete that line"
        )
    content = b""
    start = end
    while start > 0 and b"\n" not in content:
        step = min(start, 65536)
        start -= step
        content = os.pread(descriptor, step, start) + content
    whole = start + content.rfind(b"\n") + 1
    _log.warning("%s: cut off the torn last line of a killed writer (%d bytes)", path, end - whole)
    os.ftruncate(descriptor, whole)
    return whole


def _line_of(entry: ManifestEntry) -> bytes:
    """A line with its own checksum as the last key: a changed digit would still be JSON, and name other items."""
    record = dataclasses.asdict(entry)
    if not entry.part:
        del record["part"]
    text = json.dumps(record, separators=(",", ":")).encode("ascii")
    return text[:-1] + b',"crc32":"%08x"}\n' % zlib.crc32(text)


def _parse_line(line: bytes, where: str) -> ManifestEntry:
    try:
        record = json.loads(line)
    except ValueError as error:  # also bytes that are not UTF-8
        raise ShardError(f"{where}: damaged, not JSON: {error}") from error
    if not isinstance(record, dict):
        raise ShardError(f"{where}: damaged, not a JSON object but {type(record).__name__}")
    if "crc32" in record:  # lines written before there was one have none
        text, _, check = line.rpartition(b',"crc32":')
        if check != b'"%08x"}' % zlib.crc32(text + b"}"):
            raise ShardError(f"{where}: damaged, its checksum is not that of the line")
    entry = ManifestEntry(
        file=_take(record, "file", str, where),
        sha256=_take(record, "sha256", str, where),
        bytes=_take(record, "bytes", int, where),
        count=_take(record, "count", int, where),
        items=_take(record, "items", list, where),
        config_hash=_take(record, "config_hash", str, where),
        schema=_take(record, "schema", int, where),
        part=_take({"part": "", **record}, "part", str, where),
    )
    # A later schema may have more keys, and is refused by its number where it is read. Here one more is a damaged one:
    # that of the checksum itself, for instance.
    unknown = sorted(record.keys() - {field.name for field in dataclasses.fields(ManifestEntry)} - {"crc32"})
    if unknown and entry.schema == SCHEMA_VERSION:
        raise ShardError(f"{where}: damaged, unknown key {unknown[0]!r}")
    if parse_shard_name(entry.file) is None:
        raise ShardError(
            f"{where}: file is {entry.file!r}; only a plain name shard-RRRRR-NNNNN.h5 in this folder is allowed"
        )
    if not _SHA256.fullmatch(entry.sha256):
        raise ShardError(f"{where}: sha256 is {entry.sha256!r}; 64 hexadecimal digits are needed")
    if any(type(item) is not int or item < 0 for item in entry.items):
        raise ShardError(f"{where}: items must be integers ≥ 0")
    if entry.count != len(entry.items) or entry.count < 1 or len(set(entry.items)) != entry.count:
        raise ShardError(f"{where}: count is {entry.count}, but items lists {len(set(entry.items))} different numbers")
    return entry


def _take(record: dict[str, Any], key: str, kind: type, where: str) -> Any:
    if key not in record:
        raise ShardError(f"{where}: {key} is missing")
    value = record[key]
    if type(value) is not kind:  # not isinstance: true is an int to Python
        raise ShardError(f"{where}: {key} is {value!r}; {kind.__name__} is needed")
    return value
