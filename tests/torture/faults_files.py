"""Damage to what lies on the disk between two commands: shards, manifests, records, and files that nobody expects."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

from numpy.random import Generator

from stemdl.shards.manifest import read_manifest
from tests.torture.checks import (
    Sealed,
    check_complete,
    check_kept,
    check_read,
    check_said,
    check_tidy,
    require,
    sealed,
)
from tests.torture.scene import PARTS, Scene, some


def flip_bit(path: Path, rng: Generator, *, first: int = 0) -> str:
    """Flip one bit anywhere behind the first bytes; says where."""
    content = bytearray(path.read_bytes())
    place, bit = int(rng.integers(first, len(content))), int(rng.integers(8))
    content[place] ^= 1 << bit
    path.write_bytes(content)
    return f"bit {bit} of byte {place} of {len(content)} flipped"


def truncate(path: Path, rng: Generator) -> str:
    """Cut a file off somewhere; says where."""
    size = path.stat().st_size
    length = int(rng.integers(1, size))
    os.truncate(path, length)
    return f"cut off after {length} of {size} bytes"


def _survive(scene: Scene, before: Sealed, harmed: set[Path], *, seen_by_simulate: bool) -> None:
    """Nothing damaged is read, verify names it, and repair or the same command brings the set back."""
    for part, folder in zip(PARTS, scene.part_folders, strict=True):
        here = {path for path in harmed if path.parent == folder}
        check_read(
            folder, part, scene.reference.arrays, harmed=here, must_refuse=bool(here), digest=scene.reference.digest
        )
    names = [path.name for path in harmed]
    check_said(scene.shards_verb("verify"), {2}, *names)
    if scene.rng.random() < 0.5:  # the same command at once, which sees what costs no reading
        said = scene.simulate()
        check_said(said, {0, 2}, *(names if seen_by_simulate else ()))
        check_kept(before, *scene.part_folders, harmed=harmed)
    check_said(scene.shards_verb("repair"), {0})
    check_kept(before, *scene.part_folders, harmed=harmed)
    check_said(scene.simulate(), {0})
    check_kept(before, *scene.part_folders, harmed=harmed)
    check_said(scene.shards_verb("verify", "--deep"), {0})
    check_complete(scene.run, scene.reference.arrays)
    scene.survive()


def _harm_shard(scene: Scene) -> tuple[Path, Sealed]:
    scene.with_results()
    return scene.choose_shard(), sealed(*scene.part_folders)


def truncated_shard(scene: Scene) -> None:
    """A sealed shard that is shorter than it was."""
    path, before = _harm_shard(scene)
    scene.inject(f"{path.name} {truncate(path, scene.rng)}")
    _survive(scene, before, {path}, seen_by_simulate=True)


def flipped_shard(scene: Scene) -> None:
    """One bit of a sealed shard is another."""
    path, before = _harm_shard(scene)
    scene.inject(f"{path.name}: {flip_bit(path, scene.rng)}")
    _survive(scene, before, {path}, seen_by_simulate=False)


def removed_shard(scene: Scene) -> None:
    """A sealed shard is gone."""
    path, before = _harm_shard(scene)
    path.unlink()
    scene.inject(f"{path.name} removed")
    _survive(scene, before, {path}, seen_by_simulate=True)


def empty_shard(scene: Scene) -> None:
    """A sealed shard of no bytes."""
    path, before = _harm_shard(scene)
    os.truncate(path, 0)
    scene.inject(f"{path.name} emptied")
    _survive(scene, before, {path}, seen_by_simulate=True)


def exchanged_shard(scene: Scene) -> None:
    """Something else under a sealed shard's name: another shard, noise of its length, or a link."""
    path, before = _harm_shard(scene)
    how = some(scene.rng, ("another shard", "noise", "a link"))
    if how == "another shard":
        others = [path.parent / entry.file for entry in read_manifest(path.parent) if entry.file != path.name]
        shutil.copy(others[int(scene.rng.integers(len(others)))], path)
    elif how == "noise":
        path.write_bytes(scene.rng.bytes(path.stat().st_size))
    else:
        outside = scene.folder / path.name
        path.rename(outside)
        path.symlink_to(outside)
    scene.inject(f"{path.name} is now {how}")
    _survive(scene, before, {path}, seen_by_simulate=False)


def garbage_shard(scene: Scene) -> None:
    """A file with a shard's name that no manifest names: noise, nothing, half a shard, or the copy of one."""
    model, before = _harm_shard(scene)
    how = some(scene.rng, ("noise", "nothing", "half a shard", "the copy of a shard", "a changed shard"))
    path = model.parent / f"shard-{int(scene.rng.integers(4)):05d}-{int(scene.rng.integers(20, 99)):05d}.h5"
    if how == "noise":
        path.write_bytes(scene.rng.bytes(int(scene.rng.integers(1, 9000))))
    elif how == "nothing":
        path.touch()
    else:
        shutil.copy(model, path)
        if how == "half a shard":
            truncate(path, scene.rng)
        elif how == "a changed shard":
            flip_bit(path, scene.rng)
    scene.inject(f"{path.name}: {how}, in no manifest")
    check_said(scene.shards_verb("verify"), {0}, path.name)
    for part, folder in zip(PARTS, scene.part_folders, strict=True):
        check_read(folder, part, scene.reference.arrays, harmed=(), must_refuse=False, digest=scene.reference.digest)
    said = scene.simulate() if scene.rng.random() < 0.5 else scene.shards_verb("repair")
    check_said(said, {0}, path.name)
    check_said(scene.simulate(), {0})
    require(not path.exists(), f"{path}: still there")
    check_kept(before, *scene.part_folders)
    check_complete(scene.run, scene.reference.arrays)
    scene.survive()


def _survive_manifest(scene: Scene, before: Sealed, manifest: Path, *, noticed: bool) -> None:
    """A damaged manifest is named by all who read it; every shard beside it is whole, and is kept."""
    part = manifest.parent.name
    arrays, digest = scene.reference.arrays, scene.reference.digest
    check_read(manifest.parent, part, arrays, harmed={manifest}, must_refuse=noticed, digest=digest)
    if noticed:
        check_said(scene.shards_verb("verify"), {2}, "manifest.jsonl|shard-")
    if scene.rng.random() < 0.5:
        said = scene.simulate()
        check_said(said, {0, 2}, *(("manifest.jsonl|shard-",) if said.code == 2 else ()))
    check_said(scene.shards_verb("repair"), {0})
    check_said(scene.simulate(), {0})
    check_kept(before, *scene.part_folders)
    check_said(scene.shards_verb("verify", "--deep"), {0})
    check_complete(scene.run, arrays)
    scene.survive()


def torn_manifest(scene: Scene) -> None:
    """The last line of a manifest is cut off, half of one follows it, or a line in the middle is cut."""
    scene.with_results()
    manifest, before = scene.choose_manifest(), sealed(*scene.part_folders)
    lines = manifest.read_bytes().splitlines(keepends=True)
    how = some(scene.rng, ("its last line cut off", "half a line more", "a line in the middle cut"))
    if how == "its last line cut off":
        lines[-1] = lines[-1][: int(scene.rng.integers(1, len(lines[-1])))]
    elif how == "half a line more":
        lines.append(lines[-1][: int(scene.rng.integers(1, len(lines[-1]) - 1))])
    else:
        row = int(scene.rng.integers(len(lines) - 1))
        lines[row] = lines[row][: int(scene.rng.integers(1, len(lines[row]) - 1))] + b"\n"
    manifest.write_bytes(b"".join(lines))
    scene.inject(f"{manifest.parent.name}/manifest.jsonl: {how}")
    _survive_manifest(scene, before, manifest, noticed=how.endswith("middle cut"))


def flipped_manifest(scene: Scene) -> None:
    """One bit of a manifest is another."""
    scene.with_results()
    manifest, before = scene.choose_manifest(), sealed(*scene.part_folders)
    size = manifest.stat().st_size
    what = flip_bit(manifest, scene.rng)
    last = f"byte {size - 1} of" in what  # the last newline: a torn line, as a kill leaves it
    scene.inject(f"{manifest.parent.name}/manifest.jsonl: {what}")
    _survive_manifest(scene, before, manifest, noticed=not last)


def lost_manifest(scene: Scene) -> None:
    """A manifest is gone, empty, or has lost or doubled a line."""
    scene.with_results()
    manifest, before = scene.choose_manifest(), sealed(*scene.part_folders)
    lines = manifest.read_bytes().splitlines(keepends=True)
    how = some(scene.rng, ("removed", "emptied", "one line lost", "one line doubled"))
    row = int(scene.rng.integers(len(lines)))
    if how == "removed":
        manifest.unlink()
    elif how == "emptied":
        os.truncate(manifest, 0)
    elif how == "one line lost":
        manifest.write_bytes(b"".join(lines[:row] + lines[row + 1 :]))
    else:
        manifest.write_bytes(b"".join([*lines, lines[row]]))
    scene.inject(f"{manifest.parent.name}/manifest.jsonl {how}")
    if how in ("removed", "emptied"):
        check_read(
            manifest.parent, manifest.parent.name, scene.reference.arrays,
            harmed={manifest}, must_refuse=True, digest=scene.reference.digest,
        )  # fmt: skip
    if scene.rng.random() < 0.5:
        check_said(scene.simulate(), {0, 2})
    check_said(scene.shards_verb("repair"), {0})
    check_said(scene.simulate(), {0})
    check_kept(before, *scene.part_folders)
    check_complete(scene.run, scene.reference.arrays)
    scene.survive()


def left_over_files(scene: Scene) -> None:
    """What dead writers, merges and drains leave: unfinished files and locks."""
    scene.with_some_results()
    before = sealed(*scene.part_folders)
    folder = scene.part_folders[int(scene.rng.integers(len(PARTS)))]
    rank, number = int(scene.rng.integers(5)), int(scene.rng.integers(20))
    names = (
        f".tmp-{rank:05d}-{number:05d}-elsewhere-{number}.h5", f".tmp-{rank:05d}-drain-elsewhere-7.h5",
        f".tmp-{rank:05d}-part-elsewhere-7.h5", ".tmp-manifest.jsonl-elsewhere-9", f".lock-{rank:05d}", ".lock-merge",
    )  # fmt: skip
    chosen = [name for name in names if scene.rng.random() < 0.5] or [names[0]]
    for name in chosen:
        (folder / name).write_bytes(scene.rng.bytes(int(scene.rng.integers(0, 5000))))
    scene.inject(f"{folder.name}: left over: {', '.join(chosen)}")
    check_said(scene.shards_verb("verify"), {0}, *map(_as_pattern, chosen))
    if scene.rng.random() < 0.5:
        check_said(scene.simulate(), {0})
    check_said(scene.shards_verb("repair"), {0})
    check_tidy(*scene.part_folders)
    check_said(scene.simulate(), {0})
    check_kept(before, *scene.part_folders)
    check_complete(scene.run, scene.reference.arrays)
    scene.survive()


def _as_pattern(name: str) -> str:
    return name.replace(".", r"\.")


def damaged_record(scene: Scene) -> None:
    """One of the small files beside the shards is torn or changed: it is named, or made anew, and costs no sample."""
    scene.with_some_results()
    before = sealed(*scene.part_folders)
    records = ("shards/failed.json", "shards/refused.json", "stages.json", "versions.json", "log", "config.yaml")
    name = some(scene.rng, records)
    path = scene.run / name if name != "log" else sorted((scene.run / "log").glob("simulate-rank-*.jsonl"))[0]
    if not path.is_file():
        path.write_text(json.dumps({"config_hash": scene.reference.digest, "failed": []}), encoding="utf-8")
    what = truncate(path, scene.rng) if scene.rng.random() < 0.5 else flip_bit(path, scene.rng)
    scene.inject(f"{path.relative_to(scene.run)}: {what}")
    said = scene.simulate()
    check_said(said, {0, 2}, *((_as_pattern(path.name),) if said.code == 2 else ()))
    if said.code == 2:
        if path.name == "config.yaml":
            shutil.copy(scene.reference.folder / "run" / "config.yaml", path)
        else:
            path.unlink()
    check_said(scene.simulate(), {0})
    check_kept(before, *scene.part_folders)
    check_complete(scene.run, scene.reference.arrays)
    scene.survive()
