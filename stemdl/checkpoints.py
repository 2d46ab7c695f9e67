"""Checkpoints: a new folder for each save, renamed into place when whole; then the small file `latest`."""

from __future__ import annotations

import io
import json
import logging
import re
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from pickle import UnpicklingError  # torch's word for content that it refuses to execute
from typing import Any

import torch
from torch import nn

from stemdl.atomic_files import TEMPORARY_PREFIX, fsync_folder, replace_atomically, sha256_file, temporary_name
from stemdl.errors import UserError

_log = logging.getLogger(__name__)

FORMAT = 1

_NAME = re.compile(r"step-\d{7,15}(\.\d{1,9})?")
_NOTES: Mapping[str, type] = {
    "format": int, "step": int, "weights_sha256": str, "config_hash": str, "stages_done": int, "history": list,
}  # fmt: skip
_OF_THE_TRAINER = ("config_hash", "stages_done", "history")


class CheckpointError(UserError):
    """A checkpoint is missing, damaged, of another network or cannot be written; names the file and the reason."""


@dataclass(frozen=True)
class Checkpoint:
    """What a checkpoint holds."""

    folder: Path
    weights: dict[str, torch.Tensor]
    """The network's state, averaged weights and scale included."""
    meta: dict[str, Any]
    """config_hash, step, stages_done, history and whatever else the trainer noted; plain JSON."""

    def restore(self, network: nn.Module) -> None:
        """Give a network these weights. Raises CheckpointError where they are those of another network."""
        try:
            network.load_state_dict(self.weights)
        except RuntimeError as error:
            reason = " ".join(str(error).split())[:500]
            raise CheckpointError(f"{self.folder}: its weights do not fit the network: {reason}") from error


def save_checkpoint(
    folder: Path, step: int, weights: Mapping[str, torch.Tensor], meta: Mapping[str, Any], config_text: str
) -> Path:
    """Write `step-NNNNNNN/` into the folder of checkpoints and make it the latest. Returns its path.

    Killed at any moment, either the old latest checkpoint or the new one stands, each whole. Another checkpoint of the
    same step is therefore never written over: the new one is `step-NNNNNNN.1`. At the end the old one is removed if it
    is whole and of the same configuration, renamed to `step-NNNNNNN.damaged-1` if it is damaged, and kept otherwise.
    One process at a time saves into a folder; meta has at least config_hash, stages_done and history. Raises
    CheckpointError where the folder cannot be written.
    """
    assert set(_OF_THE_TRAINER) <= set(meta), meta.keys()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _remove(path for path in folder.glob(f"{TEMPORARY_PREFIX}step-*"))  # of processes that were killed in mid-save
        same_step = [path for path in _by_age(folder) if _step_and_number(path)[0] == step]
        final = _free_name(folder, step)
        draft = folder / temporary_name(final.name)
        _write_draft(draft, step, weights, meta, config_text)
        draft.rename(final)
        fsync_folder(folder)
        replace_atomically(folder / "latest", f"{final.name}\n".encode())
    except OSError as error:
        reason = error.strerror or str(error)
        raise CheckpointError(
            f"{folder}: the checkpoint of step {step} could not be written: {reason}; the latest one is as it was"
        ) from error
    _clear_up(same_step, str(meta["config_hash"]))
    return final


def load_checkpoint(path: Path) -> Checkpoint:
    """Read a checkpoint: a `step-NNNNNNN` folder, or a folder of checkpoints (then its latest).

    Nothing in the file is executed (`weights_only`). Raises CheckpointError where a file is missing or damaged.
    """
    folder = find_checkpoint(path)
    meta = read_meta(folder)
    return Checkpoint(folder, _read_weights(folder / "weights.pt", meta["weights_sha256"]), meta)


def recover_checkpoint(folder: Path, config_hash: str) -> tuple[Checkpoint | None, list[str]]:
    """The checkpoint of a configuration to go on from, and in words what was wrong with those before it.

    It is the latest one or, where that is missing, damaged or of another configuration, the newest whole one of this
    configuration; `latest` then names it. None where there is nothing to go on from. Damaged ones are left as they are.
    Raises CheckpointError where damaged ones are all there is.
    """
    pointer, latest, problems = folder / "latest", None, []
    newest_first = _by_age(folder)
    if pointer.is_file():
        try:
            latest = find_checkpoint(folder)
        except CheckpointError as error:
            problems.append(str(error))
    elif newest_first:
        problems.append(f"{pointer} is missing")
    damaged = False
    for path in ([latest] if latest else []) + [path for path in newest_first if path != latest]:
        try:
            meta = read_meta(path)
            if meta["config_hash"] != config_hash:
                continue
            found = Checkpoint(path, _read_weights(path / "weights.pt", meta["weights_sha256"]), meta)
        except CheckpointError as error:
            problems.append(str(error))
            # Where the latest one is whole and of another configuration, old damage is no reason to stop.
            damaged = damaged or latest is None or path == latest
            continue
        if path != latest:
            _point_to(pointer, path)
        return found, problems
    if damaged or (pointer.is_file() and latest is None):
        raise CheckpointError("; ".join(problems))
    return None, problems


def find_checkpoint(path: Path) -> Path:
    """The checkpoint that a path means: the latest where it is a folder of them, otherwise the path itself.

    Raises CheckpointError where `latest` holds anything but a name of this folder.
    """
    pointer = path / "latest"
    if not pointer.is_file():
        return path
    name = _read_text(pointer).strip()
    if not _NAME.fullmatch(name):
        raise CheckpointError(f"{pointer}: {name[:80]!r} is no name of a checkpoint, such as step-0000100")
    return path / name


def read_meta(folder: Path) -> dict[str, Any]:
    """What the trainer noted in a checkpoint, without its weights. Raises CheckpointError where it is damaged."""
    path = folder / "meta.json"
    try:
        meta = json.loads(_read_text(path))
    except json.JSONDecodeError as error:
        raise CheckpointError(f"{path}: damaged: {error}") from error
    if not isinstance(meta, dict):
        raise CheckpointError(f"{path}: damaged: {type(meta).__name__} where a JSON object is needed")
    if meta.get("format") != FORMAT:
        raise CheckpointError(f"{folder}: format {meta.get('format')!r}; this program reads {FORMAT}")
    wrong = [key for key, kind in _NOTES.items() if type(meta.get(key)) is not kind]
    if wrong:
        raise CheckpointError(f"{path}: damaged: {', '.join(wrong)} missing or of a wrong type")
    return meta


def _write_draft(
    draft: Path, step: int, weights: Mapping[str, torch.Tensor], meta: Mapping[str, Any], config_text: str
) -> None:
    draft.mkdir()
    buffer = io.BytesIO()
    torch.save({name: tensor.detach().cpu() for name, tensor in weights.items()}, buffer)
    replace_atomically(draft / "weights.pt", buffer.getvalue())
    described = {**meta, "format": FORMAT, "step": step, "weights_sha256": sha256_file(draft / "weights.pt")}
    replace_atomically(draft / "meta.json", json.dumps(described, indent=1).encode())
    replace_atomically(draft / "config.yaml", config_text.encode())


def _free_name(folder: Path, step: int) -> Path:
    final, number = folder / f"step-{step:07d}", 0
    while final.exists():
        number += 1
        final = folder / f"step-{step:07d}.{number}"
    return final


def _by_age(folder: Path) -> list[Path]:
    """The checkpoints of a folder, damaged ones too, newest first: those of most steps."""
    paths = [path for path in folder.glob("step-*") if _NAME.fullmatch(path.name) and path.is_dir()]
    return sorted(paths, key=_step_and_number, reverse=True)


def _step_and_number(path: Path) -> tuple[int, int]:
    step, _, number = path.name.removeprefix("step-").partition(".")
    return int(step), int(number or 0)


def _point_to(pointer: Path, checkpoint: Path) -> None:
    try:
        replace_atomically(pointer, f"{checkpoint.name}\n".encode())
    except OSError as error:
        raise CheckpointError(f"{pointer}: cannot be written: {error.strerror or error}") from error


def _clear_up(same_step: Iterable[Path], config_hash: str) -> None:
    """Remove what a new checkpoint replaces; put aside what is damaged; keep what is of another configuration."""
    for path in same_step:
        try:
            meta = read_meta(path)
            if meta["config_hash"] != config_hash:
                continue
            _read_weights(path / "weights.pt", meta["weights_sha256"])
        except CheckpointError as error:
            _put_aside(path, error)
        else:
            # Under a temporary name: one that a kill leaves half removed is no damaged checkpoint, and goes next time.
            unnamed = path.with_name(temporary_name(path.name))
            if _renamed(path, unnamed):
                _remove([unnamed])


def _put_aside(path: Path, problem: CheckpointError) -> None:
    number = 1
    while (aside := path.with_name(f"{path.name}.damaged-{number}")).exists():
        number += 1
    if _renamed(path, aside):
        _log.warning("%s; kept as %s", problem, aside.name)


def _renamed(path: Path, name: Path) -> bool:
    try:
        path.rename(name)
    except OSError as error:
        _log.warning("%s: in nobody's way, and could not be renamed: %s", path, error)
        return False
    return True


def _remove(folders: Iterable[Path]) -> None:
    """Remove what nobody refers to any more; what cannot be removed is in nobody's way."""
    for path in folders:
        try:
            shutil.rmtree(path)
        except OSError as error:
            _log.warning("%s: no longer needed, and could not be removed: %s", path, error)


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{path}: damaged: {error}") from error
    except OSError as error:
        raise _unreadable(path, error) from error


def _read_weights(path: Path, sha256: str) -> dict[str, torch.Tensor]:
    try:
        digest = sha256_file(path)
        if digest != sha256:
            raise CheckpointError(f"{path}: damaged: its sha256 is {digest}, {sha256} when it was saved")
        weights = torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise _unreadable(path, error) from error
    # All that torch raises on a file that is no dictionary of tensors, or would have something executed.
    except (UnpicklingError, RuntimeError, EOFError, ValueError, TypeError, LookupError, AttributeError) as error:
        reason = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
        raise CheckpointError(f"{path}: no weights, and nothing of it was executed: {reason}") from error
    if not isinstance(weights, dict) or not all(isinstance(tensor, torch.Tensor) for tensor in weights.values()):
        raise CheckpointError(f"{path}: damaged: {type(weights).__name__} where tensors by name are needed")
    return weights


def _unreadable(path: Path, error: OSError) -> CheckpointError:
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return CheckpointError(f"{path.parent}: no checkpoint here: {path.name} is missing")
    return CheckpointError(f"{path}: cannot be read: {error.strerror or error}")
