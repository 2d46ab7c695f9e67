"""kill -9 just before, or in the middle of, one of the calls that safety hangs on, in every command that writes."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from stemdl.shards.manifest import read_manifest, take_out
from tests.torture.checks import check_complete, check_kept, check_said, check_sound, check_tidy, require, sealed
from tests.torture.faults_files import flip_bit, truncate
from tests.torture.scene import PARTS, Said, Scene, stemdl
from tests.torture.steps import count_steps, kill_at_step

Folders = Callable[[], Sequence[Path]]


def _campaign(
    scene: Scene,
    prepare: Callable[[], None],
    work: Callable[[], Said],
    folders: Folders,
    finish: Callable[[], None],
    *,
    anywhere: bool = False,
    harmed: Callable[[], Collection[Path]] = tuple,
) -> None:
    """Kill the work until enough is injected: sometimes again in the same folder, sometimes in a new one.

    prepare: makes what there is before. folders: where shards are. finish: the same command again and what must hold
    at the end. anywhere: shards may get from one folder to another. harmed: files that are damaged beforehand.
    """
    prepare()
    steps = count_steps(scene, work)
    require(steps > 5, "the hooks no longer reach the calls that the work makes")
    while len(scene.injected) < scene.count:
        _clear(scene)
        prepare()
        left = steps
        while len(scene.injected) < scene.count:
            before = sealed(*folders())
            step, torn = 1 + int(scene.rng.integers(left)), float(scene.rng.random())
            if not kill_at_step(scene, work, step, torn):
                break
            scene.inject(f"killed at step {step} of about {left}")
            check_sound(*folders(), harmed=harmed())
            check_kept(before, *folders(), anywhere=anywhere)
            left = max(steps // 3, left - step)
            if scene.rng.random() < 0.4:
                break
        before = sealed(*folders())
        finish()
        check_kept(before, *folders(), anywhere=anywhere)
        check_said(scene.shards_verb("repair"), {0})
        check_tidy(*scene.part_folders)
        check_complete(scene.run, scene.reference.arrays)
    scene.survive()


def _clear(scene: Scene) -> None:
    shutil.rmtree(scene.folder)
    scene.folder.mkdir()
    scene.settings.clear()


def killed_simulate(scene: Scene) -> None:
    """`stemdl simulate` into the run folder."""

    def finish() -> None:
        check_said(scene.simulate(), {0})

    _campaign(scene, scene.without_results, scene.simulate, lambda: scene.part_folders, finish)


def killed_drain(scene: Scene) -> None:
    """`stemdl simulate` onto a node, from which a thread copies to the run folder; and what is left there later."""

    def prepare() -> None:
        scene.without_results()
        scene.use_node()

    def folders() -> list[Path]:
        return [*scene.part_folders, *(scene.node() / "shards" / part for part in PARTS)]

    def finish() -> None:
        check_said(scene.simulate(), {0})

    _campaign(scene, prepare, scene.simulate, folders, finish, anywhere=True)


def killed_stage(scene: Scene) -> None:
    """`stemdl stage` to a node."""

    def prepare() -> None:
        scene.with_results()
        scene.use_node()

    def staged() -> list[Path]:
        return [scene.node() / "staged" / part / "whole" for part in PARTS]

    def finish() -> None:
        check_said(scene.stage(), {0}, "staged|shards")
        check_complete(scene.run, scene.reference.arrays, folders=staged())

    _campaign(scene, prepare, scene.stage, lambda: [*scene.part_folders, *staged()], finish)


def killed_merge(scene: Scene) -> None:
    """`stemdl shards merge` of two nodes' folders, which overlap, as links or as copies."""
    copies = ["--copy"] if scene.rng.random() < 0.5 else []
    nodes = [scene.folder / "node-a", scene.folder / "node-b"]

    def prepare() -> None:
        scene.without_results()
        shutil.copytree(scene.reference.folder / "run" / "shards", nodes[0])
        shutil.copytree(nodes[0], nodes[1])
        for part in PARTS:
            files = [entry.file for entry in read_manifest(nodes[0] / part)]
            middle = len(files) // 2
            _keep(nodes[0] / part, set(files[: middle + 1]))
            _keep(nodes[1] / part, set(files[middle:]))

    def work() -> Said:
        return stemdl("shards", "merge", str(scene.shards), *map(str, nodes), *copies)

    def finish() -> None:
        check_said(work(), {0}, "merged")

    def folders() -> list[Path]:
        return [folder for folder in scene.part_folders if folder.is_dir()]

    _campaign(scene, prepare, work, folders, finish)


def _keep(folder: Path, files: set[str]) -> None:
    gone, copy = take_out(folder, lambda entry: entry.file not in files)
    if copy is not None:
        copy.unlink()
    for entry in gone:
        (folder / entry.file).unlink()


def killed_repair(scene: Scene) -> None:
    """`stemdl shards repair` of a set with damaged shards, a torn manifest and what dead writers leave."""
    harmed: list[Path] = []

    def prepare() -> None:
        scene.with_results()
        folder = scene.shards / "train"
        lines = (folder / "manifest.jsonl").read_bytes().splitlines(keepends=True)
        first, second = (folder / read_manifest(folder)[number].file for number in (0, 3))
        flip_bit(first, scene.rng)
        truncate(second, scene.rng)
        (folder / "manifest.jsonl").write_bytes(b"".join([*lines[:5], *lines[6:], lines[5][:40]]))
        (folder / ".tmp-00002-00000-elsewhere-7.h5").write_bytes(b"half a shard")
        (folder / ".lock-00002").touch()
        harmed[:] = [first, second]

    def work() -> Said:
        return scene.shards_verb("repair")

    def finish() -> None:
        check_said(work(), {0})
        check_said(scene.simulate(), {0})

    _campaign(scene, prepare, work, lambda: scene.part_folders, finish, harmed=lambda: harmed)
