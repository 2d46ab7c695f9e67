"""One fault's own place on the disk: crystals, configuration, results, and the program run in it in this process."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import logging
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.random import Generator

import data_gen.generate
from data_gen.sharing.crew import RankCrew, StopAsked
from data_gen.sharing.drive import Hub, Outcome
from stemdl import cli
from stemdl.config import Config, load_config, stage_hash
from stemdl.shards.manifest import read_manifest, take_out
from stemdl.shards.source import place_on_node
from tests.small_run import CONFIG, Arrays, content, write_crystals
from tests.torture import driver

PARTS = ("train", "held_out")
SIZE = ("simulation.samples=24", "held_out.samples=6", "simulation.samples_per_shard=3")
"""Ten shards of some 80 kB; a sample takes about 15 ms."""


class CampaignFailure(AssertionError):
    """Something that must hold does not: what was expected and what was found."""


class Skipped(Exception):
    """A kind of fault that cannot be injected on this machine; the text says why."""


@dataclass(frozen=True)
class Said:
    """How a command ended: its exit code and all that it wrote."""

    command: str
    code: int
    text: str


@dataclass(frozen=True)
class Reference:
    """The set that nobody disturbed: `folder` holds crystals, configuration and the complete run."""

    folder: Path
    arrays: Arrays
    digest: str


@dataclass
class Scene:
    """Where one case happens, and what it may use.

    folder: its own. rng: of the campaign's seed, the kind and the case. count: faults to inject.
    """

    folder: Path
    reference: Reference
    rng: Generator
    count: int
    warm: bool = False
    """Processes of this machine are forked from this one, in the place of starting anew and loading all libraries."""
    injected: list[str] = field(default_factory=list)
    """What was done so far, for the record."""
    survived: int = 0
    settings: list[str] = field(default_factory=list)
    """What every command is given beside the file, as key=value."""
    run: Path = Path()

    def __post_init__(self) -> None:
        self.run = self.folder / "run"

    @property
    def file(self) -> Path:
        """The configuration."""
        return self.folder / "config.yaml"

    @property
    def shards(self) -> Path:
        """Where both parts lie."""
        return self.run / "shards"

    @property
    def part_folders(self) -> list[Path]:
        """Folders of the two parts."""
        return [self.shards / part for part in PARTS]

    def inject(self, what: str) -> None:
        """Put a fault on record, just before or after it is done."""
        self.injected.append(what)
        print(f"fault: {what}", flush=True)

    def survive(self) -> None:
        """All that was injected so far has been survived, with every check."""
        self.survived = len(self.injected)

    def without_results(self) -> None:
        """Crystals and configuration alone."""
        self.folder.mkdir(parents=True, exist_ok=True)
        shutil.copytree(self.reference.folder / "cif", self.folder / "cif")
        shutil.copy(self.reference.folder / "config.yaml", self.file)

    def with_results(self) -> None:
        """A copy of the whole reference run."""
        self.without_results()
        shutil.copytree(self.reference.folder / "run", self.run)

    def with_some_results(self) -> None:
        """The same without some of its shards, as a run that was stopped leaves it."""
        self.with_results()
        for folder in self.part_folders:
            files = [entry.file for entry in read_manifest(folder)]
            gone = set(self.rng.permutation(files)[: max(1, len(files) // 2)].tolist())
            _, copy = take_out(folder, lambda entry, gone=gone: entry.file in gone)  # type: ignore[misc]
            assert copy is not None
            copy.unlink()
            for file in gone:
                (folder / file).unlink()

    def use_node(self, *, drain: bool = True, folder: Path | None = None) -> Path:
        """Have every command use a burst buffer, a folder of this scene's; returns that."""
        buffer = folder or self.folder / "buffer"
        buffer.mkdir(exist_ok=True)
        self.settings += [
            "burst_buffer.use=true", f"burst_buffer.folder={buffer}", "burst_buffer.reserve_gb=0",
            f"burst_buffer.drain={str(drain).lower()}",
        ]  # fmt: skip
        return buffer

    def node(self) -> Path:
        """This run's place on the burst buffer."""
        config = self.config()
        return place_on_node(config, stage_hash(config, "simulate"))

    def config(self) -> Config:
        """The configuration with all settings."""
        return load_config(self.file, [*SIZE, *self.settings])

    def arguments(self, verb: str, *more: str) -> list[str]:
        """The command line of a verb that takes the configuration."""
        sets = [part for text in (*SIZE, *self.settings) for part in ("--set", text)]
        return [verb, str(self.file), *sets, *more]

    def simulate(self, *more: str) -> Said:
        """`stemdl simulate` in this process."""
        return stemdl(*self.arguments("simulate", *more))

    def stage(self) -> Said:
        """`stemdl stage` in this process."""
        return stemdl(*self.arguments("stage"))

    def shards_verb(self, verb: str, *more: str) -> Said:
        """`stemdl shards verify | repair | list` of the run in this process."""
        return self.shards_verb_of(self.shards, verb, *more)

    def shards_verb_of(self, folder: Path, verb: str, *more: str) -> Said:
        """The same of another folder."""
        return stemdl("shards", verb, str(folder), *more)

    def choose_shard(self) -> Path:
        """One sealed shard of the run."""
        files = [folder / entry.file for folder in self.part_folders for entry in read_manifest(folder)]
        return files[int(self.rng.integers(len(files)))]

    def choose_manifest(self) -> Path:
        """The manifest of one part."""
        return self.part_folders[int(self.rng.integers(len(PARTS)))] / "manifest.jsonl"


class _Alone:
    """A team of one rank, for makers that work in this very process."""

    rank = local_rank = 0
    size = local_size = 1

    def __init__(self) -> None:
        self.lost: set[int] = set()

    def send(self, rank: int, message: object) -> None:
        """There is nobody."""

    def receive(self) -> None:
        """Nobody says anything."""

    def alive_every_s(self) -> float:
        """See `Team`."""
        return 2.0

    def abandon(self, reason: str, code: int) -> None:
        """See `Team`."""
        raise CampaignFailure(f"abandoned: {reason}")


@dataclass(frozen=True)
class InlineCrew:
    """In the place of `LocalCrew`: the one maker is this process, which costs no start."""

    size: int

    def work(self, config: Config, config_hash: str, tasks: int, drive: Callable[[Hub, StopAsked], Outcome]) -> Outcome:
        """See `Crew`."""
        team: Any = _Alone()
        return RankCrew(team).work(config, config_hash, tasks, drive)


@contextlib.contextmanager
def inline() -> Iterator[None]:
    """Inside, `stemdl simulate` makes its samples in this process."""
    before = vars(data_gen.generate)["LocalCrew"]
    vars(data_gen.generate)["LocalCrew"] = InlineCrew
    try:
        yield
    finally:
        vars(data_gen.generate)["LocalCrew"] = before


def stemdl(*arguments: str) -> Said:
    """The program in this process, from its command line to its exit code, with all that a user would see."""
    output = io.StringIO()
    handler = logging.StreamHandler(output)  # warnings go to stderr where nobody has configured logging
    handler.setLevel(logging.WARNING)
    logging.getLogger().addHandler(handler)
    try:
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output), inline():
            code = cli.main(list(arguments))
    finally:
        logging.getLogger().removeHandler(handler)
    said = Said(f"stemdl {' '.join(arguments)}", code, output.getvalue())
    print(f"$ {said.command}\n{said.text}-> {code}", flush=True)
    return said


def make_reference(folder: Path) -> Reference:
    """Simulate the set once, in this process, undisturbed."""
    write_crystals(folder / "cif")
    (folder / "config.yaml").write_text(CONFIG, encoding="utf-8")
    nobody = Reference(folder, {}, "")
    scene = Scene(folder, nobody, np.random.default_rng(0), 0)
    said = scene.simulate()
    if said.code != 0:
        raise CampaignFailure(f"the undisturbed run ended with code {said.code}:\n{said.text}")
    arrays = content(scene.run)
    if len(arrays) != 30:
        raise CampaignFailure(f"the undisturbed run has {len(arrays)} samples, not 30")
    return dataclasses.replace(nobody, arrays=arrays, digest=stage_hash(scene.config(), "simulate"))


def environment(**more: str) -> dict[str, str]:
    """For processes that a case starts."""
    root = Path(__file__).resolve().parents[2]
    return {**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1", **more}


def with_hook(hook: Callable[[str, int], None]) -> contextlib.AbstractContextManager[None]:
    """Inside, `hook(part, item)` is called in this process before every sample."""
    return driver.hooked(hook)


def some(rng: Generator, choices: Sequence[str]) -> str:
    """One of them."""
    return choices[int(rng.integers(len(choices)))]
