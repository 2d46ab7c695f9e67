"""Run folders with small training sets, and what tests of training share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from field_cases import fields_of, small_config, write_fields
from stemdl.atomic_files import sha256_file
from stemdl.checkpoints import load_checkpoint
from stemdl.config import Config
from stemdl.progress import SilentProgress
from stemdl.train.loop import TrainSummary, checkpoint_folder, train


class Remembering(SilentProgress):
    """What a training said."""

    def __init__(self) -> None:
        self.stages: list[str] = []
        self.notes: list[str] = []
        self.done: list[int] = []
        self.open = 0

    def start(self, stage: str, total: int, unit: str) -> None:
        self.stages.append(stage)
        self.open += 1

    def advance(self, done: int, *, left_s: float | None = None, **figures: float) -> None:
        self.done.append(done)

    def note(self, text: str) -> None:
        self.notes.append(text)

    def finish(self) -> None:
        self.open -= 1


class Interrupted(BaseException):
    """The process ends here."""


def prepared(folder: Path, **changes: Any) -> Config:
    """A run folder with its training set sealed."""
    config = small_config(run__folder=folder, **changes)
    write_fields(config, fields_of(config))
    return config


def run(config: Config) -> TrainSummary:
    return train(config, progress=SilentProgress())


def bits(config: Config) -> str:
    """Hash of the weights of the latest checkpoint."""
    return sha256_file(load_checkpoint(checkpoint_folder(config)).folder / "weights.pt")
