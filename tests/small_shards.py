"""Small shards for tests of where they go: made quickly, told apart by their items, checked as arrays."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from stemdl.progress import SilentProgress
from stemdl.shards import ManifestEntry, Sample, ShardAxes, ShardSet, ShardWriter, read_manifest
from stemdl.shards.schema import parse_shard_name

CONFIG_HASH = "c1"
PER_SHARD = 2
AXES = ShardAxes(2.0, 0.05, 0.5)


class Notes(SilentProgress):
    """Keeps what is said, and how far the work was."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.done: list[int] = []

    def note(self, text: str) -> None:
        """Keep a line."""
        self.notes.append(text)

    def advance(self, done: int, *, left_s: float | None = None, **figures: float) -> None:
        """Keep a number."""
        self.done.append(done)


def make_sample(item: int, pixels: int = 8) -> Sample:
    """A sample that depends on its number alone; `pixels` sets its size: 8 pixels² bytes of amplitude."""
    rng = np.random.default_rng([9, item])
    amplitude = rng.random((2, 2, pixels, pixels)) / pixels
    return Sample(item, amplitude, rng.random((9, 9)), {"energy_kev": 100.0}, {"crystal": "Si", "formula": "Si"})


def open_writer(folder: Path, rank: int = 0, **options: object) -> ShardWriter:
    """A writer of shards of two samples."""
    return ShardWriter(
        folder,
        rank=rank,
        axes=AXES,
        config_hash=CONFIG_HASH,
        samples_per_shard=PER_SHARD,
        **options,  # type: ignore[arg-type]
    )


def fill(folder: Path, items: Iterable[int], rank: int = 0, pixels: int = 8) -> list[ManifestEntry]:
    """Seal the items as one rank; returns the lines of its shards."""
    with open_writer(folder, rank) as writer:
        for item in items:
            writer.add(make_sample(item, pixels))
    return [entry for entry in read_manifest(folder) if parse_shard_name(entry.file) and _rank(entry) == rank]


def _rank(entry: ManifestEntry) -> int:
    return int(entry.file.split("-")[1])


def assert_set(folder: Path, items: Iterable[int], pixels: int = 8) -> None:
    """The folder holds these items, whole and with the right values, and nothing unfinished."""
    assert not [name for name in os.listdir(folder) if name.startswith(".")]
    wanted = sorted(items)
    with ShardSet(folder, verify="hash", config_hash=CONFIG_HASH) as shards:
        assert shards.items == wanted
        assert not shards.duplicates
        assert {path.name for path in folder.glob("*.h5")} == {entry.file for entry in shards.entries}
        for index, item in enumerate(wanted):
            sample = make_sample(item, pixels)
            np.testing.assert_array_equal(shards.amplitude(index), sample.amplitude.astype(np.float16))
            np.testing.assert_array_equal(shards.potential(index), sample.potential.astype(np.float32))


def flip(path: Path) -> None:
    """Flip one bit in the middle of a file."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0x10
    path.write_bytes(content)


def damage(path: Path, how: str) -> None:
    """Do to a file what disks and people do."""
    if how == "flipped":
        flip(path)
    elif how == "truncated":
        os.truncate(path, path.stat().st_size - 100)
    elif how == "missing":
        path.unlink()
    else:
        assert how == "link", how
        outside = path.parent.parent / f"outside-{path.name}"
        path.rename(outside)
        path.symlink_to(outside)


DAMAGES = {
    "flipped": "sha256 differs",
    "truncated": "bytes long",
    "missing": "missing, though the manifest names it",
    "link": "a link, which no writer makes",
}


@contextmanager
def small_disk(point: Path, options: str) -> Iterator[Path]:
    """A file system of its own in memory; the test is skipped where this user may not mount one."""
    point.mkdir()
    program = shutil.which("mount")
    if program is None:
        pytest.skip("no mount here")
    made = subprocess.run([program, "-t", "tmpfs", "-o", options, "tmpfs", str(point)], capture_output=True, text=True)
    if made.returncode != 0:
        pytest.skip(f"no file system can be mounted here: {made.stderr.strip()}")
    try:
        yield point
    finally:
        subprocess.run(["umount", "-l", str(point)], check=True)


def remount(point: Path, options: str) -> None:
    """Change a small disk: its size, or that it is read-only."""
    subprocess.run(["mount", "-o", f"remount,{options}", str(point)], check=True)
