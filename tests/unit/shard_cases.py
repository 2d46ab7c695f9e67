"""Small shards, and the kinds of damage that befall them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from stemdl.shards import Sample, ShardAxes, ShardSet, ShardWriter, read_manifest
from stemdl.shards.schema import MANIFEST_NAME

AXES = ShardAxes(scan_step_angstrom=2.0, dk_per_angstrom=0.05, potential_pixel_angstrom=0.5)
CRYSTALS = ("Si-diamond", "MgO-rocksalt", "Al-fcc")


def sample_of(item: int, **changes: Any) -> Sample:
    """A sample that depends on its number alone."""
    rng = np.random.default_rng([9, item])
    amplitude = rng.random((2, 3, 8, 8))
    amplitude /= np.sqrt((amplitude**2).sum(axis=(2, 3), keepdims=True)) * 1.01
    crystal = CRYSTALS[item % 3]
    values: dict[str, Any] = {
        "item": item,
        "amplitude": amplitude.astype(np.float16),
        "potential": rng.normal(300.0, 200.0, (10, 12)).astype(np.float32),
        "parameters": {"energy_kev": 100.0, "thickness_angstrom": 20.0 + item},
        "provenance": {
            "crystal": crystal,
            "formula": crystal.partition("-")[0],
            "specimen": {"zone_axis": [0, 0, 1], "seed": [1, 2, item]},
            "phonon_seeds": [[1, 6, item, 0]],
        },
    }
    return Sample(**{**values, **changes})


def write(
    folder: Path, items: Iterable[int], *, rank: int = 0, per_shard: int = 3, config_hash: str = "c1",
    axes: ShardAxes = AXES,
) -> None:  # fmt: skip
    """Seal samples as one rank does."""
    with ShardWriter(folder, rank=rank, axes=axes, config_hash=config_hash, samples_per_shard=per_shard) as writer:
        for item in items:
            writer.add(sample_of(item))


def assert_holds(folder: Path, items: Iterable[int]) -> None:
    """The set has exactly these items, every one bit for bit, each once, and nothing unfinished beside it."""
    with ShardSet(folder, verify="hash", config_hash="c1") as shards:
        assert shards.items == sorted(items)
        assert not shards.duplicates
        for index, item in enumerate(shards.items):
            found, wanted = shards.item(index), sample_of(item)
            np.testing.assert_array_equal(found.amplitude, wanted.amplitude)
            np.testing.assert_array_equal(found.potential, wanted.potential)
            assert (found.parameters, found.provenance) == (wanted.parameters, wanted.provenance)
    assert not [name for name in os.listdir(folder) if name.startswith(".")]


def path_of(folder: Path, number: int = 0, rank: int = 0) -> Path:
    """A shard's file."""
    return folder / f"shard-{rank:05d}-{number:05d}.h5"


def flip_bit(path: Path, dataset: str = "potential", row: int = 0) -> None:
    """In the stored values of a row: length and structure stay as they are."""
    with h5py.File(path, "r") as file:
        position = file[dataset].id.get_chunk_info(row).byte_offset + 2
    content = bytearray(path.read_bytes())
    content[position] ^= 0x10
    path.write_bytes(content)


def truncate(path: Path, by: int = 100) -> None:
    """Cut the end off."""
    os.truncate(path, path.stat().st_size - by)


def lose_line(folder: Path, file: str) -> None:
    """What a writer leaves that is killed between the rename and the manifest's line."""
    path = folder / MANIFEST_NAME
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(line for line in lines if f'"{file}"' not in line))


def change_manifest(folder: Path, old: str, new: str) -> None:
    """Another manifest of lines that are sound in themselves, without the checksum that a change of one bit fails."""
    path = folder / MANIFEST_NAME
    path.write_text(re.sub(r',"crc32":"\w+"', "", path.read_text()).replace(old, new, 1))


def items_in(folder: Path) -> list[int]:
    """Items that the manifest names, in its order."""
    return [item for entry in read_manifest(folder) for item in entry.items]
