"""A whole set of fields in memory, as training and reconstruction read it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from stemdl.physics.detector import poisson_dose
from stemdl.shards.reader import ShardSet


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

    With a dose, shot noise is drawn for each field from (*noise_seed, item). Raises ShardError where a shard is damaged,
    missing or of another configuration.
    """
    shards = ShardSet(folder, verify="hash", config_hash=config_hash)
    amplitudes, potentials, thicknesses, provenances = [], [], [], []
    for index, item in enumerate(shards.items[:most]):
        sample = shards.item(index)
        amplitude = sample.amplitude
        if dose_e_per_a2 is not None:
            intensity = amplitude.astype(np.float32) ** 2
            noisy = poisson_dose(intensity, dose_e_per_a2, scan_step_angstrom, (*noise_seed, item))
            amplitude = np.sqrt(noisy).astype(np.float16)
        amplitudes.append(amplitude)
        potentials.append(sample.potential)
        thicknesses.append(sample.parameters["thickness_angstrom"])
        provenances.append(sample.provenance)
    shards.close()
    return Fields(
        items=tuple(shards.items[:most]),
        amplitude=np.stack(amplitudes),
        potential=np.stack(potentials),
        thickness_angstrom=np.array(thicknesses, dtype=np.float64),
        crystals=tuple(str(p["crystal"]) for p in provenances),
        formulas=tuple(str(p["formula"]) for p in provenances),
        zone_axes=tuple(_zone_axis(p) for p in provenances),
    )


def _zone_axis(provenance: dict[str, object]) -> tuple[int, int, int] | None:
    specimen = provenance.get("specimen")
    axis = specimen.get("zone_axis") if isinstance(specimen, dict) else None
    return (int(axis[0]), int(axis[1]), int(axis[2])) if isinstance(axis, list) and len(axis) == 3 else None
