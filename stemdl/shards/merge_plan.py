"""What has to hold before shards of several folders go into one, and which folder goes where."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from stemdl.shards.h5_read import ShardFile
from stemdl.shards.manifest import ManifestEntry, read_manifest
from stemdl.shards.part import check_name, one_part
from stemdl.shards.schema import MANIFEST_NAME, SCHEMA_VERSION, ShardError

Layout = tuple[object, ...]


class Alike(NamedTuple):
    """What all shards of a merge have."""

    config_hash: str
    """Empty where there is no shard."""
    part: str
    """Empty where no sample says one."""
    layout: tuple[Layout, Path] | None


def pair_folders(destination: Path, sources: Sequence[Path]) -> list[tuple[Path, list[Path]]]:
    """Which folders go where: a source with a manifest into the destination itself; of any other source each folder one
    below that has one, such as `train` and `held_out`, into the one of the same name.

    Raises ShardError where a source has none, is the destination, or has the destination inside.
    """
    pairs: dict[Path, list[Path]] = {}
    for source in sources:
        if not source.is_dir():
            raise ShardError(f"{source}: {'a file, no folder' if source.exists() else 'no such folder'}")
        own = [source] if (source / MANIFEST_NAME).is_file() else []
        below = sorted(folder for folder in source.iterdir() if (folder / MANIFEST_NAME).is_file())
        if not own and not below:
            raise ShardError(f"{source}: no {MANIFEST_NAME} here or one folder below: no shard is sealed in it")
        for folder in own or below:
            target = destination if own else destination / folder.name
            if target.exists() and target.samefile(folder):
                raise ShardError(f"{folder}: is the destination itself; name other folders to merge into it")
            if folder.resolve() in target.resolve().parents:
                raise ShardError(f"{target}: lies inside the source {folder}; give a destination outside of it")
            pairs.setdefault(target, []).append(folder)
    return list(pairs.items())


def check_alike(destination: Path, plan: Sequence[tuple[Path, Sequence[ManifestEntry]]]) -> Alike:
    """The configuration, the part and the layout that all shards of the destination and of the sources have.

    Raises ShardError, naming both, where there are two, or shards of two parts, or a schema is unknown.
    """
    everything = [(destination, read_manifest(destination)), *plan]
    config_hash = one_configuration(everything)
    part = one_part(everything)
    check_name(destination, part)
    return Alike(config_hash, part, one_layout(everything))


def one_configuration(plan: Sequence[tuple[Path, Sequence[ManifestEntry]]]) -> str:
    """The hash that all shards have; empty where there is no shard."""
    found: dict[str, Path] = {}
    for folder, entries in plan:
        for entry in entries:
            if entry.schema != SCHEMA_VERSION:
                path = folder / entry.file
                raise ShardError(f"{path}: schema {entry.schema} is unknown; this version reads {SCHEMA_VERSION}")
            found.setdefault(entry.config_hash, folder / entry.file)
            if len(found) > 1:
                (one, path), (other, other_path) = found.items()
                raise ShardError(
                    f"{other_path}: config hash is {other}, but {path} has {one}; shards of two configurations do not "
                    "go into one folder"
                )
    return next(iter(found), "")


def one_layout(plan: Sequence[tuple[Path, Sequence[ManifestEntry]]]) -> tuple[Layout, Path] | None:
    """Axes and shapes of the first shard of each folder that can be opened, which must be the same everywhere."""
    first: tuple[Layout, Path] | None = None
    for folder, entries in plan:
        for entry in entries:
            try:
                shard = ShardFile(folder / entry.file)
            except ShardError:
                continue  # it is named when its turn comes
            shard.close()
            first = first or (layout_of(shard), shard.path)
            check_layout(shard, shard.path, first)
            break
    return first


def layout_of(shard: ShardFile) -> Layout:
    """Axes and shapes, which are the same for all samples of a set."""
    return shard.axes, shard.amplitude_shape, shard.potential_shape


def check_layout(shard: ShardFile, path: Path, layout: tuple[Layout, Path] | None) -> None:
    """Raise ShardError, naming both, unless the shard (called `path`) has the layout of the other; None allows any."""
    if layout is not None and layout_of(shard) != layout[0]:
        raise ShardError(f"{path}: axes and shapes are {layout_of(shard)}; those of {layout[1]} are {layout[0]}")
