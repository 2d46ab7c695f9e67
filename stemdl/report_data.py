"""From the files of a run folder to what its report shows."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from stemdl.atomic_files import sha256_file
from stemdl.checkpoints import find_checkpoint, read_meta
from stemdl.config import Config, stage_hash
from stemdl.config.yaml_layer import dump_yaml
from stemdl.errors import UserError
from stemdl.physics.constants import wavelength_angstrom
from stemdl.reconstruct.baselines import MEAN
from stemdl.reconstruct.emd import read_emd
from stemdl.reconstruct.held_out import map_name
from stemdl.report.data import CrystalCounts, FieldRecord, ReportData, ShownField, TrainingCurve
from stemdl.shards import ShardSet
from stemdl.shards.source import reading_folder
from stemdl.versions import installed_versions


class RunFolderIncomplete(UserError):
    """The run folder lacks what a report shows; names the file."""


def collect(config: Config) -> ReportData:
    """Everything the report of a finished run shows.

    Raises RunFolderIncomplete where a stage has not been done yet or a file is missing; ShardError, CheckpointError or
    EmdError where one is damaged.
    """
    folder = config.run.folder
    summary: dict[str, Any] = _read_json(folder / "reconstructions" / "fields.json")
    metrics_path = folder / "metrics.json"
    metrics = _read_metrics(metrics_path) if metrics_path.is_file() else dict(summary["metrics"])
    records = tuple(_record(row) for row in summary["fields"])
    return ReportData(
        run_name=folder.name,
        config_yaml=dump_yaml(config.model_dump(mode="json")),
        versions=installed_versions(),
        records=records,
        shown=_shown(config, summary["fields"], records),
        curves=_curves(folder),
        seconds=metrics.get("seconds", {}),
        metrics=metrics,
        crystals=_counts(config, records),
        target_blur_sigma_angstrom=config.target.blur_sigma_angstrom,
    )


def _read_json(path: Path) -> Any:
    if not path.is_file():
        raise RunFolderIncomplete(f"{path} is missing; do `stemdl run` first")
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise RunFolderIncomplete(f"{path} is damaged ({error}); remove it and do `stemdl run` again") from error


def _read_metrics(path: Path) -> dict[str, Any]:
    """The metrics with the seconds of the stages."""
    metrics = _read_json(path)
    seconds = metrics.get("seconds", {}) if isinstance(metrics, dict) else None
    if (
        not isinstance(seconds, dict)
        or not all(isinstance(value, (int, float)) for value in seconds.values())
        or not all(isinstance(metrics.get(key), dict) for key in ("unseen", "baselines"))
    ):
        raise RunFolderIncomplete(f"{path} is damaged; remove it and do `stemdl run` again, which writes it anew")
    assert isinstance(metrics, dict)
    return metrics


def _record(row: dict[str, Any]) -> FieldRecord:
    axis = row["zone_axis"]
    return FieldRecord(
        field=row["item"],
        material=row["crystal"],
        formula=row["formula"],
        quality=row["quality"],
        baselines=row["baselines"],
        thickness_angstrom=row["thickness_angstrom"],
        zone_axis=None if axis is None else (axis[0], axis[1], axis[2]),
    )


def choose_fields(records: Sequence[FieldRecord], count: int) -> list[int]:
    """Indices of the fields to draw, from the best r to the worst: both of them, and evenly spaced quantiles between.

    Those between show other materials, as long as there are any: each quantile takes the nearest field that does.
    """
    order = sorted(range(len(records)), key=lambda index: -records[index].quality["pearson_r"])
    count = min(count, len(order))
    places = [int(place) for place in np.linspace(0, len(order) - 1, count).round()]
    chosen = set(places[:1] + places[-1:])
    for place in places[1:-1]:
        seen = {records[order[other]].formula for other in chosen}
        left = [other for other in range(len(order)) if other not in chosen]
        chosen.add(min(left, key=lambda other: (records[order[other]].formula in seen, abs(other - place), other)))
    return [order[place] for place in sorted(chosen)]


def _shown(config: Config, rows: list[dict[str, Any]], records: tuple[FieldRecord, ...]) -> tuple[ShownField, ...]:
    folder = config.run.folder
    with ShardSet(reading_folder(config, "held_out"), config_hash=stage_hash(config, "simulate")) as shards:
        place = {item: index for index, item in enumerate(shards.items)}
        shown = []
        for index in choose_fields(records, config.report.fields_shown):
            record, path = records[index], folder / "reconstructions" / rows[index]["file"]
            if not path.is_file() or sha256_file(path) != rows[index]["sha256"]:
                raise RunFolderIncomplete(f"{path} is missing or damaged; do `stemdl run` again, which makes it anew")
            if record.field not in place:
                raise RunFolderIncomplete(f"{shards.folder}: field {record.field} is in no shard of this configuration")
            emd = read_emd(path)
            shown.append(
                ShownField(
                    record=record,
                    amplitude=shards.amplitude(place[record.field]).astype(np.float32),
                    truth=emd.maps["true_potential"].data,
                    prediction=emd.potential,
                    # The mean is one number: there is nothing in its picture to look at.
                    baselines={name: emd.maps[map_name(name)].data for name in record.baselines if name != MEAN},
                    pixel_angstrom=config.target.pixel_angstrom,
                    dk_per_angstrom=config.detector.dk_per_angstrom,
                    wavelength_angstrom=wavelength_angstrom(config.microscope.energy_kev),
                    uncertainty=emd.uncertainty,
                )
            )
    return tuple(shown)


def _curves(folder: Path) -> tuple[TrainingCurve, ...]:
    history = read_meta(find_checkpoint(folder / "checkpoints"))["history"]
    return tuple(
        TrainingCurve(
            name=f"stage {record['stage'] + 1}",
            steps=np.array(record["steps"]),
            train_loss=np.array(record["train_loss"]),
            lr=np.array(record["lr"]),
            validation_steps=np.array(record["validation_steps"]),
            validation_loss=np.array(record["validation_loss"]),
            validation_r=np.array(record["validation_r"]),
        )
        for record in history
    )


def _counts(config: Config, records: tuple[FieldRecord, ...]) -> CrystalCounts:
    """Materials (formulas) in the shards, and the crystals refused, as the simulation noted."""
    with ShardSet(reading_folder(config, "train"), config_hash=stage_hash(config, "simulate")) as shards:
        train = {str(shards.provenance(index)["formula"]) for index in range(len(shards))}
    refused_path = config.run.folder / "shards" / "refused.json"
    refused: dict[str, str] = {}
    for entry in _read_json(refused_path) if refused_path.is_file() else []:
        name, number = entry["name"], 1
        while name in refused:  # two files of the same name, in two folders
            number += 1
            name = f"{entry['name']} ({number})"
        refused[name] = entry["reason"]
    return CrystalCounts(train=len(train), held_out=len({record.formula for record in records}), refused=refused)
