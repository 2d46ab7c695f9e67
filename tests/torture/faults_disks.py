"""Disks that are full or read-only, by small file systems of their own in memory; nodes whose storage is wiped."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from stemdl.config import stage_hash
from stemdl.errors import UserError
from stemdl.shards.fields import load_fields
from stemdl.shards.source import reading_folder
from tests.torture.checks import check_complete, check_kept, check_said, check_sound, require, sealed
from tests.torture.faults_files import flip_bit, truncate
from tests.torture.scene import PARTS, Scene, Skipped, some, with_hook

_FULL = "No space left on device|MB free, allowed|room for"


@contextlib.contextmanager
def small_disk(point: Path, options: str) -> Iterator[Path]:
    """A file system of its own in memory. Raises Skipped, with the reason, where this user may not mount one."""
    point.mkdir(exist_ok=True)
    program = shutil.which("mount")
    if program is None:
        raise Skipped("there is no mount")
    words = [program, "-t", "tmpfs", "-o", options, "tmpfs", str(point)]
    made = subprocess.run(words, capture_output=True, text=True, check=False)
    if made.returncode != 0:
        raise Skipped(f"no file system can be mounted: {made.stderr.strip()}")
    try:
        yield point
    finally:
        subprocess.run(["umount", "-l", str(point)], check=True)


def remount(point: Path, options: str) -> None:
    """Change a small disk: its size, or that it is read-only."""
    subprocess.run(["mount", "-o", f"remount,{options}", str(point)], check=True)


def fill(folder: Path) -> Path:
    """Take all space that is left, as somebody else's file."""
    path = folder / "of-somebody-else"
    with path.open("wb", buffering=0) as stream, contextlib.suppress(OSError):
        while stream.write(bytes(4096)):
            pass
    return path


def full_run_folder(scene: Scene) -> None:
    """The disk of the run folder is too small, has too few files, or is filled by somebody else in between."""
    scene.without_results()
    how = some(scene.rng, ("too small", "too few files", "filled meanwhile"))
    size = int(scene.rng.integers(40, 800)) if how == "too small" else 8000
    files = int(scene.rng.integers(6, 22)) if how == "too few files" else 1000
    at = int(scene.rng.integers(30))
    with small_disk(scene.folder / "disk", f"size={size}k,nr_inodes={files}") as disk:
        scene.run = disk / "run"
        scene.settings.append(f"run.folder={scene.run}")
        made: list[int] = []

        def hook(part: str, item: int) -> None:
            made.append(item)
            if how == "filled meanwhile" and len(made) == at:
                fill(disk)

        with with_hook(hook):
            said = scene.simulate()
        scene.inject(
            f"run folder {how}: {size} kB, {files} files" + (f", at sample {at}" if how == "filled meanwhile" else "")
        )
        if said.code != 0:
            check_said(said, {2}, str(disk), _FULL)
        check_sound(*scene.part_folders)
        before = sealed(*scene.part_folders)
        (disk / "of-somebody-else").unlink(missing_ok=True)
        remount(disk, "size=8000k,nr_inodes=1000")
        check_said(scene.simulate(), {0})
        check_kept(before, *scene.part_folders)
        check_complete(scene.run, scene.reference.arrays)
    scene.survive()


def full_node(scene: Scene) -> None:
    """The burst buffer is too small from the start, or is filled by somebody else meanwhile."""
    scene.without_results()
    how = some(scene.rng, ("too small", "filled meanwhile", "filled meanwhile"))
    size = int(scene.rng.integers(100, 500)) if how == "too small" else 8000
    at = 1 + int(scene.rng.integers(28))
    with small_disk(scene.folder / "disk", f"size={size}k") as disk:
        scene.use_node(folder=disk)
        made: list[int] = []

        def hook(part: str, item: int) -> None:
            made.append(item)
            if how == "filled meanwhile" and len(made) == at:
                fill(disk)

        with with_hook(hook):
            said = scene.simulate()
        scene.inject(f"burst buffer {how}: {size} kB" + (f", at sample {at}" if how != "too small" else ""))
        if said.code != 0:
            check_said(said, {2}, str(disk), _FULL)
        node = [scene.node() / "shards" / part for part in PARTS] if how != "too small" else []
        check_sound(*scene.part_folders, *node)
        before = sealed(*scene.part_folders, *node)
        (disk / "of-somebody-else").unlink(missing_ok=True)
        remount(disk, "size=8000k")
        check_said(scene.simulate(), {0})
        check_kept(before, *scene.part_folders, *node, anywhere=True)
        check_complete(scene.run, scene.reference.arrays)
    scene.survive()


def full_behind_a_node(scene: Scene) -> None:
    """Samples are made on a node, and the run folder that they are drained to is full."""
    scene.without_results()
    size = int(scene.rng.integers(60, 700))
    with small_disk(scene.folder / "disk", f"size={size}k") as disk:
        scene.run = disk / "run"
        scene.settings.append(f"run.folder={scene.run}")
        scene.use_node()
        said = scene.simulate()
        scene.inject(f"run folder of {size} kB behind a burst buffer")
        if said.code != 0:
            check_said(said, {2}, str(disk), _FULL)
        node = [scene.node() / "shards" / part for part in PARTS]
        check_sound(*scene.part_folders, *node)
        before = sealed(*scene.part_folders, *node)
        remount(disk, "size=8000k")
        check_said(scene.simulate(), {0})
        check_kept(before, *scene.part_folders, *node, anywhere=True)
        check_complete(scene.run, scene.reference.arrays)
    scene.survive()


def read_only(scene: Scene) -> None:
    """The run folder, or the burst buffer, cannot be written any more."""
    where = some(scene.rng, ("run folder, in part", "run folder, complete", "run folder, empty", "burst buffer"))
    (scene.with_some_results if where.endswith("part") else scene.without_results)()
    with small_disk(scene.folder / "disk", "size=16000k") as disk:
        if where == "burst buffer":
            scene.use_node(folder=disk)
        else:
            if scene.run.exists():
                shutil.move(scene.run, disk / "run")
            elif where.endswith("complete"):
                shutil.copytree(scene.reference.folder / "run", disk / "run")
            scene.run = disk / "run"
            scene.settings.append(f"run.folder={scene.run}")
        before = sealed(*scene.part_folders)
        remount(disk, "ro")
        scene.inject(f"read-only: {where}")
        check_said(scene.simulate(), {2}, str(disk), "[Rr]ead-only|not writable")
        if before:
            check_said(scene.shards_verb("verify"), {0})  # reading is all that this needs
            check_said(scene.shards_verb("list"), {0})
            check_said(scene.shards_verb("repair"), {0, 2})
        remount(disk, "rw")
        check_said(scene.simulate(), {0})
        check_kept(before, *scene.part_folders)
        check_complete(scene.run, scene.reference.arrays)
    scene.survive()


def wiped_node(scene: Scene) -> None:
    """Node-local storage is empty again, as it is in the next job: before training, and before a second simulation."""
    scene.without_results()
    drain = bool(scene.rng.random() < 0.5)
    buffer = scene.use_node(drain=drain)
    check_said(scene.simulate(), {0})
    if drain:
        check_said(scene.stage(), {0})
    before = sealed(*scene.part_folders)
    config = scene.config()
    for part in PARTS:
        reading_folder(config, part)
    shutil.rmtree(buffer)
    buffer.mkdir()
    scene.inject("burst buffer wiped, its shards " + ("drained before" if drain else "nowhere else"))
    for part in PARTS:
        _must_refuse(scene, part, str(buffer))
    check_said(scene.simulate(), {0})
    if drain:
        check_said(scene.stage(), {0})
        check_complete(scene.run, scene.reference.arrays)
    check_kept(before, *scene.part_folders)
    check_complete(scene.run, scene.reference.arrays, folders=[reading_folder(config, part) for part in PARTS])
    scene.survive()


def staged_copy_damaged(scene: Scene) -> None:
    """What was staged to a node is damaged there."""
    scene.with_results()
    scene.use_node()
    check_said(scene.stage(), {0})
    part = some(scene.rng, PARTS)
    folder = scene.node() / "staged" / part / "whole"
    before = sealed(*scene.part_folders)
    files = sorted(folder.glob("shard-*.h5"))
    path = files[int(scene.rng.integers(len(files)))]
    how = some(scene.rng, ("flipped", "flipped", "cut", "removed", "emptied", "manifest flipped", "manifest removed"))
    if how == "flipped":
        what = flip_bit(path, scene.rng)
    elif how == "cut":
        what = truncate(path, scene.rng)
    elif how == "removed":
        path.unlink()
        what = how
    elif how == "emptied":
        os.truncate(path, 0)
        what = how
    elif how == "manifest flipped":
        path = folder / "manifest.jsonl"
        what = flip_bit(path, scene.rng)
    else:
        path = folder / "manifest.jsonl"
        path.unlink()
        what = how
    scene.inject(f"staged {path.name}: {what}")
    refusal = _must_refuse(scene, part, path.name, str(folder))
    if "stemdl shards repair" in refusal:  # what it says is what helps
        check_said(scene.shards_verb_of(folder, "repair"), {0})
    check_said(scene.stage(), {0})
    staged = [reading_folder(scene.config(), one) for one in PARTS]
    check_complete(scene.run, scene.reference.arrays, folders=staged)
    check_kept(before, *scene.part_folders)
    scene.survive()


def _must_refuse(scene: Scene, part: str, *names: str) -> str:
    """Load a part as training does: refused, with one of the names; returns the refusal."""
    config = scene.config()
    try:
        load_fields(reading_folder(config, part), stage_hash(config, "simulate"))
    except UserError as error:
        require(any(name in str(error) for name in names), f"refused without naming {names}: {error}")
        return str(error)
    require(False, f"{part}: loaded, though {names} is damaged or gone")
    raise AssertionError
