"""Reconstruct the held-out fields, whose potential is known, and say how good it is."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from stemdl.atomic_files import replace_atomically, sha256_file
from stemdl.checkpoints import CheckpointError, find_checkpoint, load_checkpoint, read_meta
from stemdl.config import Config, stage_hash
from stemdl.launch import allowed_cores
from stemdl.models.predictor import Prediction, Predictor
from stemdl.models.registry import build_network
from stemdl.models.symmetry import symmetries
from stemdl.progress import Progress
from stemdl.reconstruct.baselines import Pictures, fitted_baselines, is_own_physics
from stemdl.reconstruct.emd import VOLT_ANGSTROM, EmdMap, write_emd
from stemdl.reconstruct.quality import FieldQuality, score, share_better, summarise
from stemdl.shards.detector import detector_model
from stemdl.shards.fields import Fields, load_fields
from stemdl.shards.source import reading_folder

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

    Skipped where every file of an earlier call for this configuration and these weights is there and unchanged; done
    again where one is missing or damaged. Raises CheckpointError or ShardError where an input is missing, damaged, not
    complete or of another configuration, DetectorError where the detector cannot be.
    """
    started = time.monotonic()
    folder = reconstruction_folder(config)
    checkpoint = find_checkpoint(config.run.folder / "checkpoints")
    meta = read_meta(checkpoint)
    if meta["config_hash"] != stage_hash(config, "train"):
        raise CheckpointError(f"{checkpoint}: trained with another configuration; do `stemdl train` first")
    made_of = {"config_hash": stage_hash(config, "reconstruct"), "weights_sha256": meta["weights_sha256"]}
    done, problem = _earlier(folder, made_of)
    if problem:
        progress.note(f"{problem}; the held-out fields are reconstructed again")
    if done is not None:
        return ReconstructionSummary(done["metrics"], len(done["fields"]), skipped=True)
    predictor = _predictor(config, checkpoint)
    fields = _load(config, "held_out", None)
    passes = len(fields) * predictor.network.stages
    progress.start("reconstruct", passes, "passes")
    prediction, first = predictor.predict(
        fields.amplitude,
        fields.thickness_angstrom,
        parameters=fields.parameters,
        average=config.reconstruct.symmetry_average,
        batch=config.reconstruct.batch,
        done=progress.advance,
    )
    progress.advance(passes)  # the predictor counts fields of physics, and a network may have none
    progress.finish()
    training = _load(config, "train", FIT_FIELDS)
    channels = None if first is None else first.pictures.numpy()
    baselines = fitted_baselines(config, predictor, training, fields, channels)
    qualities = _qualities(config, fields, prediction.potential)
    baseline_qualities = {
        name: _qualities(config, fields, pictures.astype(np.float32)) for name, pictures in baselines.items()
    }
    metrics = _metrics(fields, qualities, baseline_qualities)
    files = _write_files(config, folder, fields, prediction, baselines, qualities)
    rows = _rows(fields, files, qualities, baseline_qualities)
    text = json.dumps({**made_of, "metrics": metrics, "fields": rows}, indent=1)
    replace_atomically(folder / "fields.json", text.encode())
    return ReconstructionSummary(metrics, len(fields), seconds=time.monotonic() - started, files=files)


def _earlier(folder: Path, made_of: Mapping[str, str]) -> tuple[dict[str, Any] | None, str]:
    """The summary of an earlier call with the same hashes (`made_of`) where all of its files are as it left them.

    Else None, and what is wrong with it in words (nothing where there was no such call).
    """
    path = folder / "fields.json"
    if not path.is_file():
        return None, ""
    try:
        data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if any(data[name] != digest for name, digest in made_of.items()):
            return None, ""
        for row in data["fields"]:
            file = folder / row["file"]
            if not file.is_file():
                return None, f"{file} is missing"
            if sha256_file(file) != row["sha256"]:
                return None, f"{file} is damaged (its sha256 is not the one in fields.json)"
    except (ValueError, KeyError, TypeError) as error:
        return None, f"{path} is damaged ({type(error).__name__}: {error})"
    return data, ""


def _predictor(config: Config, folder: Path) -> Predictor:
    """The trained network of a checkpoint. Raises CheckpointError where it is damaged or its training not complete."""
    checkpoint = load_checkpoint(folder)
    network = build_network(config)
    done = checkpoint.meta["stages_done"]
    if done != network.stages:
        raise CheckpointError(
            f"{folder}: {done} of the network's {network.stages} stages are trained; do `stemdl train` first, which "
            "goes on from there"
        )
    checkpoint.restore(network)
    threads = config.train.threads or allowed_cores()
    torch.set_num_threads(threads)
    return Predictor(config, network, threads=threads)


def _load(config: Config, part: Literal["train", "held_out"], most: int | None) -> Fields:
    return load_fields(
        reading_folder(config, part),
        stage_hash(config, "simulate"),
        detector=detector_model(config, part),
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
    """The stable keys of metrics.json: unseen and baselines.

    The physics that the network starts from is no rival but a part of it: it stands apart, as `physics_alone`.
    """
    compared = {
        name: {**_summary(figures), "share_of_fields_where_network_is_better": share_better(qualities, figures)}
        for name, figures in baselines.items()
    }
    return {
        "unseen": {"fields": len(fields), "materials": len(set(fields.formulas)), **_summary(qualities)},
        "baselines": {name: figures for name, figures in compared.items() if not is_own_physics(name)},
        "physics_alone": {name: figures for name, figures in compared.items() if is_own_physics(name)},
    }


def _write_files(
    config: Config,
    folder: Path,
    fields: Fields,
    prediction: Prediction,
    baselines: Pictures,
    qualities: list[FieldQuality],
) -> list[Path]:
    """One EMD file for each field: potential, spread (where there is one), truth, difference and the baselines."""
    folder.mkdir(parents=True, exist_ok=True)
    # The spread over one symmetry alone would be zero everywhere, which is no estimate.
    estimated = config.reconstruct.symmetry_average and len(symmetries(config)) > 1
    digest = stage_hash(config, "reconstruct")  # reads every CIF file: once, not for each field
    files = []
    for index, item in enumerate(fields.items):
        path = folder / f"field-{item:05d}.emd"
        maps = {
            "true_potential": fields.potential[index],
            "error": prediction.potential[index] - fields.potential[index],
            **{map_name(name): pictures[index] for name, pictures in baselines.items()},
        }
        write_emd(
            path,
            potential=prediction.potential[index],
            uncertainty=prediction.spread[index] if estimated else None,
            pixel_angstrom=config.target.pixel_angstrom,
            maps={name: EmdMap(picture.astype(np.float32), VOLT_ANGSTROM) for name, picture in maps.items()},
            metadata={
                **_metadata(config, fields, index, digest),
                "uncertainty_is": "standard deviation over the symmetries of the scan"
                if estimated
                else "not estimated",
                "quality": asdict(qualities[index]),
            },
        )
        files.append(path)
    return files


def _metadata(config: Config, fields: Fields, index: int, digest: str) -> dict[str, Any]:
    """What an EMD file says of a field and how it was recorded: all parameters of its own, and of the configuration
    what they do not say; without what is not known."""
    known = {
        "crystal": fields.crystals[index],
        "formula": fields.formulas[index],
        "zone_axis": fields.zone_axes[index],
        "item": int(fields.items[index]),
        "thickness_angstrom": float(fields.thickness_angstrom[index]),
        "energy_kev": config.microscope.energy_kev,
        "semiangle_mrad": config.microscope.semiangle_mrad,
        "defocus_angstrom": config.microscope.defocus_angstrom,
        "dose_e_per_a2": config.detector.dose_e_per_a2,
        "scan_step_angstrom": config.scan.step_angstrom,
        **fields.parameters_of(index),
        "error_is": "reconstruction minus truth",
        "config_hash": digest,
    }
    return {name: value for name, value in known.items() if value is not None}


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
            "sha256": sha256_file(files[index]),
            "crystal": fields.crystals[index],
            "formula": fields.formulas[index],
            "zone_axis": fields.zone_axes[index],
            "thickness_angstrom": float(fields.thickness_angstrom[index]),
            "parameters": fields.parameters_of(index),
            "quality": asdict(qualities[index]),
            "baselines": {name: asdict(figures[index]) for name, figures in baselines.items()},
        }
        for index, item in enumerate(fields.items)
    ]
