"""What a report is made of: plain arrays, numbers and text, so that it depends on no stage."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stemdl.errors import UserError

REQUIRED = ("pearson_r", "nrmse")


class ReportError(UserError):
    """The parts of a report do not fit together: the message names the part and what is wrong."""


@dataclass(frozen=True)
class FieldRecord:
    """One held-out field and its figures."""

    field: int
    """Number of the field, unique in the report."""
    material: str
    """The crystal's name in the library, or its file's."""
    formula: str
    """Chemical formula, by which materials are told apart."""
    quality: Mapping[str, float]
    """pearson_r and nrmse; ssim, frc_half_angstrom, mean_inner_potential_error_v where known."""
    baselines: Mapping[str, Mapping[str, float]] = dataclasses.field(default_factory=dict)
    """The same for each baseline, by its name as a reader should see it ("back-projection")."""
    thickness_angstrom: float | None = None
    """Thickness of the specimen in Å."""
    zone_axis: tuple[int, int, int] | None = None
    """Lattice direction [uvw] along the beam."""

    def __post_init__(self) -> None:
        for owner, quality in {"the network": self.quality, **self.baselines}.items():
            for name in REQUIRED:
                if name not in quality:
                    raise ReportError(f"field {self.field} ({self.material}): {owner} has no {name!r}: {dict(quality)}")
            bad = {name: value for name, value in quality.items() if not np.isfinite(value)}
            if bad:
                raise ReportError(f"field {self.field} ({self.material}): {owner} has figures not finite: {bad}")


@dataclass(frozen=True)
class ShownField:
    """One field drawn in full. Potentials are (y, x) in V·Å on one grid."""

    record: FieldRecord
    """Its figures."""
    amplitude: NDArray[Any]
    """(scan_y, scan_x, det_y, det_x): √intensity as fraction of the beam, the beam at pixel n // 2."""
    truth: NDArray[Any]
    """True potential."""
    prediction: NDArray[Any]
    """Reconstructed potential."""
    baselines: Mapping[str, NDArray[Any]]
    """Pictures of baselines in V·Å, as they were scored, by the names used in the record."""
    pixel_angstrom: float
    """Side of a pixel of the potentials in Å."""
    dk_per_angstrom: float
    """Reciprocal width of a detector pixel in 1/Å, without 2π."""
    wavelength_angstrom: float
    """Wavelength of the electrons in Å: angle in rad is wavelength times 1/Å."""
    uncertainty: NDArray[Any] | None = None
    """Standard deviation of the reconstruction in V·Å, where there is one."""

    def __post_init__(self) -> None:
        where = f"field {self.record.field} ({self.record.material})"
        if np.ndim(self.amplitude) != 4:
            raise ReportError(f"{where}: amplitude has shape {np.shape(self.amplitude)}; four axes are needed")
        pictures = {"truth": self.truth, "prediction": self.prediction, **self.baselines}
        if self.uncertainty is not None:
            pictures["uncertainty"] = self.uncertainty
        for name, picture in pictures.items():
            if np.ndim(picture) != 2 or np.shape(picture) != np.shape(self.truth):
                raise ReportError(f"{where}: {name} has shape {np.shape(picture)}, truth {np.shape(self.truth)}")
        for name, picture in {"amplitude": self.amplitude, **pictures}.items():
            if not np.isfinite(picture).all():
                raise ReportError(f"{where}: {name} holds values that are NaN or infinite")


@dataclass(frozen=True)
class TrainingCurve:
    """How one stage of training went; steps start at 0 in each stage."""

    name: str
    """Name of the stage."""
    steps: NDArray[Any]
    """(n,) steps at which the training loss was noted."""
    train_loss: NDArray[Any]
    """(n,) training loss."""
    lr: NDArray[Any]
    """(n,) learning rate."""
    validation_steps: NDArray[Any]
    """(m,) steps at which materials kept aside were tried."""
    validation_loss: NDArray[Any]
    """(m,) loss on them."""
    validation_r: NDArray[Any]
    """(m,) their median Pearson r."""

    def __post_init__(self) -> None:
        for steps, names in (
            ("steps", ("train_loss", "lr")),
            ("validation_steps", ("validation_loss", "validation_r")),
        ):
            for name in names:
                if np.shape(getattr(self, name)) != np.shape(getattr(self, steps)) or np.ndim(getattr(self, name)) != 1:
                    shapes = np.shape(getattr(self, name)), np.shape(getattr(self, steps))
                    raise ReportError(f"curve {self.name!r}: {name} has shape {shapes[0]}, {steps} {shapes[1]}")


@dataclass(frozen=True)
class CrystalCounts:
    """Materials of the run."""

    train: int
    """Materials learned from."""
    held_out: int
    """Materials kept for the test alone."""
    refused: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Crystals that were refused: name to reason."""


@dataclass(frozen=True)
class ReportData:
    """Everything a report shows."""

    run_name: str
    """Name of the run, as a reader knows it."""
    config_yaml: str
    """The resolved configuration as YAML."""
    versions: Mapping[str, str]
    """Program or library to version."""
    records: tuple[FieldRecord, ...]
    """Every held-out field."""
    shown: tuple[ShownField, ...]
    """Fields drawn in full, in the order of the page."""
    curves: tuple[TrainingCurve, ...]
    """Training, stage after stage."""
    seconds: Mapping[str, float]
    """Wall time of each stage of the run in s, in order."""
    metrics: Mapping[str, Any]
    """The content of metrics.json, folded in at the end of the page."""
    crystals: CrystalCounts
    """Materials of the run."""
    target_blur_sigma_angstrom: float | None = None
    """Standard deviation in Å of the Gaussian that sets the resolution of the truth."""

    def __post_init__(self) -> None:
        if not self.records:
            raise ReportError("no field was scored; a report needs at least one")
        numbers = [record.field for record in self.records]
        twice = sorted({number for number in numbers if numbers.count(number) > 1})
        if twice:
            raise ReportError(f"fields are numbered twice: {twice}")
        names = set(self.records[0].baselines)
        for record in self.records:
            if set(record.baselines) != names:
                raise ReportError(
                    f"field {record.field} has baselines {sorted(record.baselines)}, the first field {sorted(names)}"
                )
        missing = [shown.record.field for shown in self.shown if shown.record.field not in set(numbers)]
        if missing:
            raise ReportError(f"shown fields {missing} are not among the records")
