"""Reconstruct the held-out fields, whose potential is known, and say how good it is."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from stemdl.atomic_files import replace_atomically
from stemdl.checkpoints import load_checkpoint
from stemdl.config import Config, stage_hash
from stemdl.models.predictor import Prediction, Predictor
from stemdl.models.registry import build_network
from stemdl.progress import Progress
from stemdl.reconstruct.baselines import Pictures, fitted_baselines
from stemdl.reconstruct.emd import EmdMap, write_emd
from stemdl.reconstruct.quality import FieldQuality, score, share_better, summarise
from stemdl.seeds import Purpose
from stemdl.shards.fields import Fields, load_fields

FIT_FIELDS = 128
"""Training fields on which the baselines' scale is fitted: two numbers need no more."""


@dataclass
class ReconstructionSummary:
    """What the stage did."""

    metrics: dict[str, Any]
    """The content of metrics.json but for the seconds."""
    fields: int
    seconds: float = 0.0
    skipped: bool = False
    files: list[Path] = field(default_factory=list)


def reconstruction_folder(config: Config) -> Path:
    """Where the reconstructions of a run are."""
    return config.run.folder / "reconstructions"


def reconstruct_held_out(config: Config, *, progress: Progress) -> ReconstructionSummary:
    """Apply the latest checkpoint to every held-out field; write one EMD file each and `fields.json` with all figures.

    Raises CheckpointError or ShardError where an input is missing, damaged or of another configuration.
    """
    started = time.monotonic()
    folder = reconstruction_folder(config)
    digest = stage_hash(config, "reconstruct")
    done = _complete(folder, digest)
    if done is not None:
        return ReconstructionSummary(done["metrics"], len(done["fields"]), skipped=True)
    threads = config.train.threads or len(os.sched_getaffinity(0))
    torch.set_num_threads(threads)
    predictor = _predictor(config, threads)
    fields = _load(config, "held_out", Purpose.HELD_OUT_DOSE, None)
    total = len(fields) * predictor.network.stages
    progress.start("reconstruct", total, "passes")
    prediction, first = predictor.predict(
        fields.amplitude,
        fields.thickness_angstrom,
        average=config.reconstruct.symmetry_average,
        batch=config.reconstruct.batch,
        done=progress.advance,
    )
    progress.finish()
    pictures = None if first is None else first.pictures.numpy()
    training = _load(config, "train", Purpose.TRAIN_DOSE, FIT_FIELDS)
    baselines = fitted_baselines(config, predictor, training, fields, pictures)
    qualities = _qualities(config, fields, prediction.potential)
    baseline_qualities = {
        name: _qualities(config, fields, pictures.astype(np.float32)) for name, pictures in baselines.items()
    }
    metrics = _metrics(fields, qualities, baseline_qualities)
    files = _write_files(config, folder, fields, prediction, baselines, qualities)
    rows = _rows(fields, files, qualities, baseline_qualities)
    text = json.dumps({"config_hash": digest, "metrics": metrics, "fields": rows}, indent=1)
    replace_atomically(folder / "fields.json", text.encode())
    return ReconstructionSummary(metrics, len(fields), seconds=time.monotonic() - started, files=files)


def _complete(folder: Path, digest: str) -> dict[str, Any] | None:
    """The summary of an earlier call for this configuration, where all of its files are still there."""
    path = folder / "fields.json"
    if not path.is_file():
        return None
    data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    if data.get("config_hash") != digest or not all((folder / row["file"]).is_file() for row in data["fields"]):
        return None
    return data


def _predictor(config: Config, threads: int) -> Predictor:
    checkpoint = load_checkpoint(config.run.folder / "checkpoints")
    network = build_network(config)
    network.load_state_dict(checkpoint.weights)
    return Predictor(config, network, threads=threads)


def _load(config: Config, part: str, purpose: Purpose, most: int | None) -> Fields:
    return load_fields(
        config.run.folder / "shards" / part,
        stage_hash(config, "simulate"),
        dose_e_per_a2=config.detector.dose_e_per_a2,
        scan_step_angstrom=config.scan.step_angstrom,
        noise_seed=(config.run.seed, purpose),
        most=most,
    )


def _qualities(config: Config, fields: Fields, potentials: NDArray[np.float32]) -> list[FieldQuality]:
    return [
        score(
            potential,
            truth,
            pixel_angstrom=config.target.pixel_angstrom,
            thickness_angstrom=float(thickness),
        )
        for potential, truth, thickness in zip(potentials, fields.potential, fields.thickness_angstrom, strict=True)
    ]


def _summary(qualities: list[FieldQuality]) -> dict[str, Any]:
    """Spreads by name, the ring correlation under its short name."""
    spreads: dict[str, Any] = dict(summarise(qualities))
    spreads["frc"] = spreads.pop("frc_half_angstrom")
    return spreads


def _metrics(fields: Fields, qualities: list[FieldQuality], baselines: dict[str, list[FieldQuality]]) -> dict[str, Any]:
    """The stable keys of metrics.json: unseen and baselines."""
    unseen = {"fields": len(fields), "materials": len(set(fields.formulas)), **_summary(qualities)}
    return {
        "unseen": unseen,
        "baselines": {
            name: {**_summary(figures), "share_of_fields_where_network_is_better": share_better(qualities, figures)}
            for name, figures in baselines.items()
        },
    }


def _write_files(
    config: Config,
    folder: Path,
    fields: Fields,
    prediction: Prediction,
    baselines: Pictures,
    qualities: list[FieldQuality],
) -> list[Path]:
    """One EMD file for each field: potential, spread, truth, difference and the baselines."""
    folder.mkdir(parents=True, exist_ok=True)
    step, pixel = config.scan.step_angstrom, config.target.pixel_angstrom
    map_of: Callable[[NDArray[Any]], EmdMap] = lambda picture: EmdMap(  # noqa: E731
        picture.astype(np.float32), "V*Å", pixel, (0.0, 0.0)
    )
    files = []
    for index, item in enumerate(fields.items):
        path = folder / f"field-{item:05d}.emd"
        maps = {
            "true_potential": map_of(fields.potential[index]),
            "error": map_of(prediction.potential[index] - fields.potential[index]),
        }
        maps |= {map_name(name): map_of(pictures[index]) for name, pictures in baselines.items()}
        write_emd(
            path,
            potential=prediction.potential[index],
            uncertainty=prediction.spread[index],
            pixel_angstrom=pixel,
            maps=maps,
            metadata={
                "crystal": fields.crystals[index],
                "formula": fields.formulas[index],
                "item": int(item),
                "thickness_angstrom": float(fields.thickness_angstrom[index]),
                "scan_step_angstrom": step,
                "uncertainty_is": "standard deviation over the symmetries of the scan",
                "config_hash": stage_hash(config, "reconstruct"),
                "quality": asdict(qualities[index]),
            },
        )
        files.append(path)
    return files


def map_name(baseline: str) -> str:
    """The name of a baseline's map in an EMD file: letters, digits and underscores."""
    return "baseline_" + "".join(c if c.isalnum() else "_" for c in baseline)


def _rows(
    fields: Fields,
    files: list[Path],
    qualities: list[FieldQuality],
    baselines: dict[str, list[FieldQuality]],
) -> list[dict[str, Any]]:
    return [
        {
            "item": int(item),
            "file": files[index].name,
            "crystal": fields.crystals[index],
            "formula": fields.formulas[index],
            "zone_axis": fields.zone_axes[index],
            "thickness_angstrom": float(fields.thickness_angstrom[index]),
            "quality": asdict(qualities[index]),
            "baselines": {name: asdict(figures[index]) for name, figures in baselines.items()},
        }
        for index, item in enumerate(fields.items)
    ]
