"""Checkpoints: a new folder for each save, renamed into place when whole; then the small file `latest`."""

from __future__ import annotations

import io
import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from stemdl.atomic_files import fsync_folder, replace_atomically, sha256_file
from stemdl.errors import UserError

FORMAT = 1


class CheckpointError(UserError):
    """A checkpoint is missing, damaged or of another configuration; names the file and the reason."""


@dataclass(frozen=True)
class Checkpoint:
    """What a checkpoint holds."""

    folder: Path
    weights: dict[str, torch.Tensor]
    """The network's state, averaged weights and scale included."""
    meta: dict[str, Any]
    """config_hash, step, stages_done, history and whatever else the trainer noted; plain JSON."""


def save_checkpoint(
    folder: Path, step: int, weights: Mapping[str, torch.Tensor], meta: Mapping[str, Any], config_text: str
) -> Path:
    """Write `step-NNNNNNN/` into the folder of checkpoints and make it the latest. Returns its path.

    Killed at any moment, either the old latest checkpoint or the new one stands, each whole.
    """
    folder.mkdir(parents=True, exist_ok=True)
    final = folder / f"step-{step:07d}"
    draft = folder / f".tmp-{os.getpid()}-{final.name}"
    shutil.rmtree(draft, ignore_errors=True)  # of an earlier process that was killed in mid-save
    draft.mkdir()
    buffer = io.BytesIO()
    torch.save({name: tensor.detach().cpu() for name, tensor in weights.items()}, buffer)
    replace_atomically(draft / "weights.pt", buffer.getvalue())
    described = {"format": FORMAT, "step": step, "weights_sha256": sha256_file(draft / "weights.pt"), **meta}
    replace_atomically(draft / "meta.json", json.dumps(described, indent=1).encode())
    replace_atomically(draft / "config.yaml", config_text.encode())
    if final.exists():
        shutil.rmtree(final)
    draft.rename(final)
    fsync_folder(folder)
    replace_atomically(folder / "latest", f"{final.name}\n".encode())
    return final


def load_checkpoint(path: Path) -> Checkpoint:
    """Read a checkpoint: a `step-NNNNNNN` folder, or a folder of checkpoints (then its latest).

    Nothing in the file is executed (`weights_only`). Raises CheckpointError where a file is missing or damaged.
    """
    folder = path
    if (path / "latest").is_file():
        name = (path / "latest").read_text(encoding="utf-8").strip()
        if "/" in name or not name.startswith("step-"):
            raise CheckpointError(f"{path / 'latest'}: {name!r} is no name of a checkpoint")
        folder = path / name
    try:
        meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
        if meta.get("format") != FORMAT:
            raise CheckpointError(f"{folder}: format {meta.get('format')!r}; this program reads {FORMAT}")
        digest = sha256_file(folder / "weights.pt")
        if digest != meta["weights_sha256"]:
            raise CheckpointError(f"{folder / 'weights.pt'}: damaged: sha256 {digest} where meta.json says otherwise")
        weights = torch.load(folder / "weights.pt", map_location="cpu", weights_only=True)
    except FileNotFoundError as error:
        raise CheckpointError(f"{folder}: no checkpoint here: {error.filename} is missing") from error
    except (json.JSONDecodeError, KeyError) as error:
        raise CheckpointError(f"{folder / 'meta.json'}: damaged: {error}") from error
    return Checkpoint(folder, weights, meta)
