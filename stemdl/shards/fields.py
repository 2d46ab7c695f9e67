"""A whole set of fields in memory, as training and reconstruction read it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stemdl.shards.detector import DOSE, DetectorModel
from stemdl.shards.reader import OnDamage, ShardSet
from stemdl.shards.schema import Sample, ShardError

Parameters = dict[str, NDArray[np.float64]]


@dataclass(frozen=True, eq=False)
class Fields:
    """N fields in the order of their item numbers.

    amplitude: (N, sy, sx, qy, qx) float16; potential: (N, y, x) float32 in V·Å; thickness_angstrom: (N,).

    parameters: what each sample records of its optics and specimen, (N,) by name, and the dose it is seen at where
    there is one. detector: where every epoch is to see its own noise, what draws it; `amplitude` is then what reaches
    that detector, and `recorded` what it reads. Else None, and `amplitude` is what is read; noise_misfit (N,) is then
    what the detector's noise and bad pixels add to the misfit of each field: the summed squared change of the
    amplitudes, mean over positions. None without a detector.
    """

    items: tuple[int, ...]
    amplitude: NDArray[np.float16]
    potential: NDArray[np.float32]
    thickness_angstrom: NDArray[np.float64]
    crystals: tuple[str, ...]
    formulas: tuple[str, ...]
    zone_axes: tuple[tuple[int, int, int] | None, ...]
    parameters: Parameters = field(default_factory=dict)
    detector: DetectorModel | None = None
    noise_misfit: NDArray[np.float64] | None = None

    def __len__(self) -> int:
        """Number of fields."""
        return len(self.items)

    def parameters_of(self, index: int) -> dict[str, float]:
        """The parameters of one field."""
        return {name: float(column[index]) for name, column in self.parameters.items()}

    def recorded(self, indices: NDArray[np.int64], epochs: NDArray[np.int64] | None = None) -> NDArray[np.float16]:
        """(b, sy, sx, qy, qx) amplitudes as the detector reads them, each field in its epoch (0 if not given)."""
        if self.detector is None:
            return self.amplitude[indices]
        read = np.empty((len(indices), *self.amplitude.shape[1:]), dtype=np.float16)
        for row, index in enumerate(indices):
            epoch = 0 if epochs is None else int(epochs[row])
            read[row] = self.detector.record(
                self.amplitude[index], self.items[index], epoch, self.parameters_of(int(index))
            )
        return read


def load_fields(
    folder: Path,
    config_hash: str,
    *,
    detector: DetectorModel | None = None,
    every_epoch: bool = False,
    most: int | None = None,
    on_damage: OnDamage = "refuse",
) -> Fields:
    """Read every field of a folder, or the first `most`; each shard's hash is checked first.

    on_damage: "leave_out" reads on without damaged shards, which are named in a warning; by default they are refused,
    since a smaller set may teach something else.

    With a detector, fields are what it reads of them in epoch 0, or, with `every_epoch` and where that differs from
    epoch to epoch, they keep the detector with them. Raises ShardError where a shard is damaged, missing, of another
    configuration, without a thickness, or without a drawn dose that the detector needs.
    """
    with ShardSet(folder, verify="hash", config_hash=config_hash, on_damage=on_damage) as shards:
        items = tuple(shards.items[:most])
        # Filled in place: a list of samples beside the whole would double the memory.
        amplitude = np.empty((len(items), *shards.amplitude_shape), dtype=np.float16)
        potential = np.empty((len(items), *shards.potential_shape), dtype=np.float32)
        later = every_epoch and detector is not None and detector.is_random
        noise = None if detector is None or later else np.zeros(len(items), dtype=np.float64)
        notes: list[_Notes] = []
        for index, item in enumerate(items):
            sample = shards.item(index)
            notes.append(_notes(sample, folder, detector, notes[0] if notes else None))
            potential[index] = sample.potential
            if detector is None:
                amplitude[index] = sample.amplitude
                continue
            spread = detector.spread(sample.amplitude)
            amplitude[index] = spread if later else detector.record(spread, item, 0, sample.parameters)
            if noise is not None:
                noise[index] = _squared_change(spread, amplitude[index])
    return Fields(
        items=items,
        amplitude=amplitude,
        potential=potential,
        thickness_angstrom=np.array([note.parameters["thickness_angstrom"] for note in notes], dtype=np.float64),
        crystals=tuple(note.crystal for note in notes),
        formulas=tuple(note.formula for note in notes),
        zone_axes=tuple(note.zone_axis for note in notes),
        parameters=_columns([note.parameters for note in notes]),
        detector=detector if later else None,
        noise_misfit=noise,
    )


def _squared_change(before: NDArray[np.float16], after: NDArray[np.float16]) -> float:
    """Summed over the detector, mean over the positions of a field."""
    total = 0.0
    for one, other in zip(before, after, strict=True):  # a row of the scan at a time bounds the memory
        change = other.astype(np.float32) - one.astype(np.float32)
        total += float(np.square(change).sum(dtype=np.float64))
    positions: int = before.shape[0] * before.shape[1]
    return total / positions


class _Notes(NamedTuple):
    parameters: dict[str, float]
    crystal: str
    formula: str
    zone_axis: tuple[int, int, int] | None


def _notes(sample: Sample, folder: Path, detector: DetectorModel | None, first: _Notes | None) -> _Notes:
    """What is recorded of a sample, with the dose it is seen at; the same names for all samples."""
    name = f"{folder}, item {sample.item}"
    for needed, record in (
        ("thickness_angstrom", sample.parameters),
        ("crystal", sample.provenance),
        ("formula", sample.provenance),
    ):
        if needed not in record:
            raise ShardError(f"{name}: {needed} is not recorded; simulate it again")
    parameters = dict(sample.parameters)
    try:
        dose = None if detector is None else detector.dose_of(parameters)
    except ShardError as error:
        raise ShardError(f"{name}: {error}") from error
    if dose is not None:
        parameters[DOSE] = dose
    if first is not None and parameters.keys() != first.parameters.keys():
        odd = ", ".join(sorted(parameters.keys() ^ first.parameters.keys()))
        raise ShardError(f"{name}: it records other parameters than the first item ({odd}); simulate it again")
    formula, crystal = str(sample.provenance["formula"]), str(sample.provenance["crystal"])
    return _Notes(parameters, crystal, formula, _zone_axis(sample.provenance))


def _columns(rows: Sequence[dict[str, float]]) -> Parameters:
    return {name: np.array([row[name] for row in rows], dtype=np.float64) for name in (rows[0] if rows else ())}


def _zone_axis(provenance: dict[str, object]) -> tuple[int, int, int] | None:
    specimen = provenance.get("specimen")
    axis = specimen.get("zone_axis") if isinstance(specimen, dict) else None
    return (int(axis[0]), int(axis[1]), int(axis[2])) if isinstance(axis, list) and len(axis) == 3 else None
