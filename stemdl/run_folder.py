"""The folder of a run: one writer at a time, results of one configuration, a record of what each stage took.

A folder that holds results of another configuration is never mixed and never deleted: the run is refused, or
(`fresh`) the results that no longer hold are moved into `old-1`, `old-2`, ... inside the folder, and those that
still hold are kept.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stemdl.atomic_files import replace_atomically
from stemdl.config import Config, stage_hash
from stemdl.config.errors import ConfigError
from stemdl.config.loader import load_config, save_config
from stemdl.errors import UserError

STAGES = ("simulate", "train", "reconstruct", "report")

OUTPUTS: Mapping[str, tuple[str, ...]] = {
    "simulate": ("shards",),
    "train": ("checkpoints",),
    "reconstruct": ("reconstructions", "metrics.json"),
    "report": ("report",),
}
"""What each stage leaves in the folder."""

# What a file system answers that has no locks (Lustre without "flock", NFS without its lock daemon).
_NO_LOCKS_HERE = frozenset({errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP})


class RunFolderError(UserError):
    """The folder of the run cannot be used as it is."""


@dataclass(frozen=True)
class Difference:
    """One key that is not what the folder's results were made with; `stages` are those that it changes."""

    key: str
    before: str
    now: str
    stages: tuple[str, ...]


@contextmanager
def locked(folder: Path) -> Iterator[bool]:
    """Hold the run folder alone; gives False where the file system has no locks (then nothing protects it).

    The lock ends with its process, also by kill -9.

    Raises
    ------
    RunFolderError
        Another process holds it, or it is not writable.
    """
    path = folder / ".lock"
    try:
        stream = path.open("a+", encoding="utf-8")
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise
        raise RunFolderError(f"{folder} is not writable ({error.strerror}); choose another: run.folder") from error
    with stream:
        try:
            fcntl.flock(stream.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in _NO_LOCKS_HERE:
                yield False
                return
            if error.errno not in (errno.EAGAIN, errno.EACCES):
                raise
            stream.seek(0)
            holder = stream.read(200).strip() or "another process"
            raise RunFolderError(
                f"{folder}: {holder} is at work in this run folder; wait for it, end it, "
                "or give this run a folder of its own: --set run.folder=PATH"
            ) from error
        stream.truncate(0)
        stream.write(f"process {os.getpid()} on {socket.gethostname()}")
        stream.flush()
        yield True


def prepare(config: Config, *, fresh: bool) -> Path | None:
    """Make the folder ready for this configuration and save `config.yaml` in it.

    Returns the folder that results of another configuration were moved to, if any (`fresh` alone does that).

    Raises
    ------
    RunFolderError
        It holds results of another configuration (the keys are named), or of one that cannot be read; or a file has
        the name of a folder of results.
    """
    folder = config.run.folder
    for name in (name for names in OUTPUTS.values() for name in names if not name.endswith(".json")):
        if (folder / name).exists() and not (folder / name).is_dir():
            raise RunFolderError(f"{folder / name}: a file, where the run keeps a folder of results; move it away")
    moved = None
    stale = _stale_outputs(folder, config, fresh=fresh)
    if stale:
        moved = _set_aside(folder, stale)
    if not _is_saved(config, folder / "config.yaml"):
        save_config(config, folder / "config.yaml")
    return moved


def _is_saved(config: Config, path: Path) -> bool:
    """Say whether the file gives this configuration already: it may be the user's own, with comments."""
    try:
        return path.is_file() and load_config(path) == config
    except ConfigError:
        return False


def differences(before: Config, now: Config) -> list[Difference]:
    """Return the keys that differ and change a result; the folder's place and the number of processes do not."""
    old, new = _flatten(before.model_dump(mode="json")), _flatten(now.model_dump(mode="json"))
    found = []
    for key in sorted(old.keys() | new.keys()):
        if old.get(key) != new.get(key):
            stages = _stages_changed(key, before, now)
            if stages:
                found.append(Difference(key, _shown(old, key), _shown(new, key), stages))
    return found


def read_records(folder: Path) -> dict[str, dict[str, Any]]:
    """Return what `record_stage` kept, by stage: `config_hash`, `seconds`, `complete`; nothing if it is damaged."""
    path = folder / "stages.json"
    if not path.is_file():
        return {}
    try:
        records = json.loads(path.read_bytes())
    except ValueError:  # also bytes that are not UTF-8
        return {}
    return {stage: records[stage] for stage in STAGES if stage in records} if _are_records(records) else {}


def set_damaged_records_aside(folder: Path) -> Path | None:
    """Rename a damaged `stages.json`, so that a new record begins; return where it is now, None if it is whole."""
    path = folder / "stages.json"
    if not path.is_file() or read_records(folder):
        return None
    return path.replace(path.with_name("stages-damaged.json"))


def _are_records(records: Any) -> bool:
    return isinstance(records, dict) and all(
        isinstance(record, dict)
        and isinstance(record.get("config_hash"), str)
        and isinstance(record.get("seconds"), (int, float))
        and isinstance(record.get("complete"), bool)
        for record in records.values()
    )


def is_complete(config: Config, stage: str) -> bool:
    """Say whether the record holds a complete result of this stage for this configuration."""
    record = read_records(config.run.folder).get(stage, {})
    return bool(record.get("complete")) and record.get("config_hash") == stage_hash(config, stage)


def record_stage(config: Config, stage: str, *, seconds: float, complete: bool) -> dict[str, dict[str, Any]]:
    """Put the time of one attempt at a stage into the folder's record; return all records.

    Attempts at the same result add up until it is complete, so that an interrupted and resumed stage counts in full.
    A stage that was skipped took 0 s and keeps the time it has.
    """
    folder = config.run.folder
    records = read_records(folder)
    digest = stage_hash(config, stage)
    before = records.get(stage, {})
    if before.get("config_hash") == digest and (seconds == 0 or not before.get("complete")):
        seconds += before.get("seconds", 0.0)
    records[stage] = {"config_hash": digest, "seconds": round(seconds, 3), "complete": complete}
    write_json(folder / "stages.json", records)
    return records


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write JSON whole or not at all. Raises ValueError for NaN and infinity, which JSON does not know."""
    replace_atomically(path, (json.dumps(content, indent=2, allow_nan=False) + "\n").encode())


def _stale_outputs(folder: Path, config: Config, *, fresh: bool) -> list[str]:
    """Outputs in the folder that do not belong to this configuration; raises unless `fresh` allows to move them."""
    present = {stage: [name for name in OUTPUTS[stage] if (folder / name).exists()] for stage in STAGES}
    if not any(present.values()):
        return []
    saved = folder / "config.yaml"
    try:
        if not saved.is_file():
            raise RunFolderError(f"{folder}: holds results, but no config.yaml that says of what")
        before = load_config(saved)
        changed = differences(before, config) or _changed_files(before, folder)
    except (ConfigError, RunFolderError) as error:
        if fresh:
            return [name for names in present.values() for name in names]
        raise RunFolderError(
            f"{error}\nThe results in this folder cannot be used.\n{_offers(folder, STAGES)}"
        ) from error
    stages = [stage for stage in STAGES if any(stage in one.stages for one in changed) and present[stage]]
    if not stages or stages == ["report"]:
        return []  # a page is drawn again from the results in seconds: nothing to protect
    if not fresh:
        lines = [f"{folder}: holds results of another configuration, that of its config.yaml:"]
        lines += [f"    {one.key}: {one.before} there, {one.now} now" for one in changed]
        raise RunFolderError("\n".join([*lines, _offers(folder, stages)]))
    return [name for stage in stages for name in present[stage]]


def _changed_files(before: Config, folder: Path) -> list[Difference]:
    """The CIF files, where the results were made with other ones of the same configuration."""
    made_with, now = read_records(folder).get("simulate", {}).get("config_hash"), stage_hash(before, "simulate")
    if not before.crystals.cif_folders or made_with in (None, now) or _sealed_with(folder) == {now}:
        return []
    return [Difference("crystals.cif_folders", "CIF files as they were", "files that have changed since", STAGES)]


def _sealed_with(folder: Path) -> set[str]:
    """Configurations of the shards: they know better than a damaged record what they were made with."""
    from stemdl.shards.manifest import scan_manifest

    parts = sorted(path for path in (folder / "shards").glob("*") if path.is_dir())
    return {entry.config_hash for part in parts for entry in scan_manifest(part).entries}


def _offers(folder: Path, stages: Sequence[str]) -> str:
    kept = [stage for stage in STAGES if stage not in stages and STAGES.index(stage) < STAGES.index(stages[0])]
    keeps = f", and keeps those of: {', '.join(kept)}" if kept else ""
    return (
        f"To redo: {', '.join(stages)}. Either\n"
        f"    --set run.folder={folder}-2    keeps both, in another folder, or\n"
        f"    --fresh    moves the results of these stages into {folder}/old-N{keeps}"
    )


def _set_aside(folder: Path, names: Sequence[str]) -> Path:
    number = 1
    while (folder / f"old-{number}").exists():
        number += 1
    target = folder / f"old-{number}"
    target.mkdir()
    for name in [*names, "config.yaml", "stages.json", "versions.json", "log"]:
        if not (folder / name).exists():
            continue
        if name in ("stages.json", "config.yaml"):  # the stages that are kept go on with these
            replace_atomically(target / name, (folder / name).read_bytes())
        else:
            (folder / name).rename(target / name)
    return target


def _stages_changed(key: str, before: Config, now: Config) -> tuple[str, ...]:
    """Stages whose result the key decides; whether it decides any is asked of the hash that the stages compare."""
    section, _, rest = key.partition(".")
    if section == "run":
        return STAGES if key == "run.seed" else ()
    old, new = getattr(before, section), getattr(now, section)
    if type(old) is type(new):
        name = rest.partition(".")[0]
        new = old.model_copy(update={name: getattr(new, name)})
    one_changed = before.model_copy(update={section: new})
    return tuple(stage for stage in STAGES if stage_hash(before, stage) != stage_hash(one_changed, stage))


def _flatten(data: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(data, dict):
        return {prefix: data}
    flat: dict[str, Any] = {}
    for key, value in data.items():
        flat.update(_flatten(value, f"{prefix}.{key}" if prefix else str(key)))
    return flat


def _shown(flat: Mapping[str, Any], key: str) -> str:
    return json.dumps(flat[key]) if key in flat else "absent"
