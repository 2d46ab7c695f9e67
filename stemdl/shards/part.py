"""Of which part of a run shards are: "train" or "held_out". Both count their items from 0 under one configuration hash,
so nothing but this tells one from the other.

A shard says it in its attribute `part`, and its line in the manifest too. Those written before that have it in the
provenance of their samples alone, which is read then. Samples made for other purposes may say none.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from stemdl.shards.h5_read import ShardFile
from stemdl.shards.manifest import ManifestEntry, read_manifest
from stemdl.shards.schema import PARTS, ShardError


def part_of(folder: Path, entry: ManifestEntry) -> str | None:
    """What a shard says of its part, empty where it says none; None where it is not known, since it cannot be read."""
    if entry.part:
        return entry.part
    try:
        shard = ShardFile(folder / entry.file)
    except ShardError:
        return None  # damaged, which whoever reads it says
    shard.close()
    return shard.part


def require_part(folder: Path, part: str, entries: Iterable[ManifestEntry] | None = None) -> None:
    """Raise ShardError, naming the first, unless all shards that a folder's manifest names say that they are of `part`.

    Raises as `read_manifest` too, which is asked where no entries are given.
    """
    for entry in read_manifest(folder) if entries is None else entries:
        found = part_of(folder, entry)
        if found is None or found == part:
            continue
        said = f"is of the part {found!r}" if found else "does not say of which part it is"
        raise ShardError(
            f"{folder / entry.file}: {said}; {folder} needs shards of {part!r}: move the others out of it, "
            f"run `stemdl shards repair {folder}`, then `stemdl simulate`, which makes what is missing"
        )


def one_part(plan: Sequence[tuple[Path, Sequence[ManifestEntry]]]) -> str:
    """The part that all shards are of; empty where none says it. Raises ShardError, naming both, where there are two.

    Each item of the plan is a folder and its shards.
    """
    found: dict[str, Path] = {}
    for folder, entries in plan:
        for entry in entries:
            part = part_of(folder, entry)
            if part is None:
                continue
            found.setdefault(part, folder / entry.file)
            if len(found) > 1:
                (one, path), (other, other_path) = found.items()
                raise ShardError(
                    f"{other_path}: is of the part {_named(other)}, but {path} of {_named(one)}; "
                    + _apart(path, other_path)
                )
    return next(iter(found), "")


def check_name(folder: Path, part: str) -> None:
    """Raise ShardError where the folder's own name says another part: the stages look for a part under its name."""
    if folder.name in PARTS and part and folder.name != part:
        raise ShardError(f"{folder}: the shards to go there are of the part {part!r}, and not of {folder.name!r}")


def _apart(path: Path, other: Path) -> str:
    if path.parent == other.parent:
        return "one folder holds one part: move the shards of the other away"
    return f"{other.parent} and {path.parent} do not go into one folder"


def _named(part: str) -> str:
    return repr(part) if part else "none (its samples do not say)"
