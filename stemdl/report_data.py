"""From the files of a run folder to what its report shows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from stemdl.checkpoints import load_checkpoint
from stemdl.config import Config, stage_hash
from stemdl.config.yaml_layer import dump_yaml
from stemdl.errors import UserError
from stemdl.physics.constants import wavelength_angstrom
from stemdl.reconstruct.emd import read_emd
from stemdl.reconstruct.held_out import map_name
from stemdl.report.data import CrystalCounts, FieldRecord, ReportData, ShownField, TrainingCurve
from stemdl.shards import ShardSet
from stemdl.versions import installed_versions


class RunFolderIncomplete(UserError):
    """The run folder lacks what a report shows; names the file."""


def collect(config: Config) -> ReportData:
    """Everything the report of a finished run shows.

    Raises RunFolderIncomplete where a stage has not been done yet.
    """
    folder = config.run.folder
    summary = _read_json(folder / "reconstructions" / "fields.json")
    metrics_path = folder / "metrics.json"
    metrics = _read_json(metrics_path) if metrics_path.is_file() else dict(summary["metrics"])
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


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise RunFolderIncomplete(f"{path} is missing: run `stemdl run` first")
    data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return data


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


def _choose(records: tuple[FieldRecord, ...], count: int) -> list[int]:
    """Best, worst and evenly spaced quantiles of r between, each of another material where there are enough."""
    order = sorted(range(len(records)), key=lambda index: -records[index].quality["pearson_r"])
    chosen: list[int] = []
    seen: set[str] = set()
    for place in np.linspace(0, len(order) - 1, min(count, len(order))).round().astype(int):
        fresh = [i for i in order[place:] + order[:place][::-1] if i not in chosen and records[i].formula not in seen]
        index = order[-1] if place == len(order) - 1 and order[-1] not in chosen else (fresh or order)[0]
        chosen.append(index)
        seen.add(records[index].formula)
    return list(dict.fromkeys(chosen))


def _shown(config: Config, rows: list[dict[str, Any]], records: tuple[FieldRecord, ...]) -> tuple[ShownField, ...]:
    folder = config.run.folder
    shards = ShardSet(folder / "shards" / "held_out", config_hash=stage_hash(config, "simulate"))
    place = {item: index for index, item in enumerate(shards.items)}
    shown = []
    for index in _choose(records, config.report.fields_shown):
        emd = read_emd(folder / "reconstructions" / rows[index]["file"])
        pictures = {name: emd.maps[map_name(name)].data for name in records[index].baselines}
        shown.append(
            ShownField(
                record=records[index],
                amplitude=shards.amplitude(place[records[index].field]).astype(np.float32),
                truth=emd.maps["true_potential"].data,
                prediction=emd.potential,
                baselines=pictures,
                pixel_angstrom=config.target.pixel_angstrom,
                dk_per_angstrom=config.detector.dk_per_angstrom,
                wavelength_angstrom=wavelength_angstrom(config.microscope.energy_kev),
                uncertainty=emd.uncertainty,
            )
        )
    shards.close()
    return tuple(shown)


def _curves(folder: Path) -> tuple[TrainingCurve, ...]:
    history = load_checkpoint(folder / "checkpoints").meta["history"]
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
    """Crystals used, as the shards say, and those refused, as the simulation noted."""
    shards = ShardSet(config.run.folder / "shards" / "train", config_hash=stage_hash(config, "simulate"))
    train = len(set(shards.materials))
    shards.close()
    refused_path = config.run.folder / "shards" / "refused.json"
    refused = _read_json(refused_path) if refused_path.is_file() else {}
    return CrystalCounts(train=train, held_out=len({record.material for record in records}), refused=refused)
