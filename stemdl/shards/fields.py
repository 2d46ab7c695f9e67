"""A whole set of fields in memory, as training and reconstruction read it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stemdl.physics.detector import poisson_dose
from stemdl.shards.reader import ShardSet
from stemdl.shards.schema import Sample, ShardError


@dataclass(frozen=True, eq=False)
class Fields:
    """N fields in the order of their item numbers.

    amplitude: (N, sy, sx, qy, qx) float16; potential: (N, y, x) float32 in V·Å; thickness_angstrom: (N,).
    """

    items: tuple[int, ...]
    amplitude: NDArray[np.float16]
    potential: NDArray[np.float32]
    thickness_angstrom: NDArray[np.float64]
    crystals: tuple[str, ...]
    formulas: tuple[str, ...]
    zone_axes: tuple[tuple[int, int, int] | None, ...]

    def __len__(self) -> int:
        """Number of fields."""
        return len(self.items)


def load_fields(
    folder: Path,
    config_hash: str,
    *,
    dose_e_per_a2: float | None = None,
    scan_step_angstrom: float = 1.0,
    noise_seed: tuple[int, ...] = (),
    most: int | None = None,
) -> Fields:
    """Read every field of a folder, or the first `most`; each shard's hash is checked first.

    With a dose, shot noise is drawn for each field from (*noise_seed, item), whatever other fields are read. Raises
    ShardError where a shard is damaged, missing, of another configuration or without a thickness.
    """
    assert dose_e_per_a2 is None or noise_seed, "shot noise needs a seed"
    with ShardSet(folder, verify="hash", config_hash=config_hash) as shards:
        items = tuple(shards.items[:most])
        # Filled in place: a list of samples beside the whole would double the memory.
        amplitude = np.empty((len(items), *shards.amplitude_shape), dtype=np.float16)
        potential = np.empty((len(items), *shards.potential_shape), dtype=np.float32)
        notes = []
        for index, item in enumerate(items):
            sample = shards.item(index)
            notes.append(_notes(sample, folder))
            potential[index] = sample.potential
            amplitude[index] = sample.amplitude
            if dose_e_per_a2 is not None:
                intensity = sample.amplitude.astype(np.float32) ** 2
                amplitude[index] = np.sqrt(
                    poisson_dose(intensity, dose_e_per_a2, scan_step_angstrom, (*noise_seed, item))
                )
    return Fields(
        items=items,
        amplitude=amplitude,
        potential=potential,
        thickness_angstrom=np.array([note.thickness_angstrom for note in notes], dtype=np.float64),
        crystals=tuple(note.crystal for note in notes),
        formulas=tuple(note.formula for note in notes),
        zone_axes=tuple(note.zone_axis for note in notes),
    )


class _Notes(NamedTuple):
    thickness_angstrom: float
    crystal: str
    formula: str
    zone_axis: tuple[int, int, int] | None


def _notes(sample: Sample, folder: Path) -> _Notes:
    try:
        return _Notes(
            sample.parameters["thickness_angstrom"],
            str(sample.provenance["crystal"]),
            str(sample.provenance["formula"]),
            _zone_axis(sample.provenance),
        )
    except KeyError as error:
        raise ShardError(f"{folder}, item {sample.item}: {error.args[0]} is not recorded; simulate it again") from error


def _zone_axis(provenance: dict[str, object]) -> tuple[int, int, int] | None:
    specimen = provenance.get("specimen")
    axis = specimen.get("zone_axis") if isinstance(specimen, dict) else None
    return (int(axis[0]), int(axis[1]), int(axis[2])) if isinstance(axis, list) and len(axis) == 3 else None
