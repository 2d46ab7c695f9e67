"""Stand-ins for the stages of a run: they leave files and remember their calls, in milliseconds."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from stemdl.config import Config, stage_hash
from stemdl.progress import Progress
from stemdl.time_limit import TimeLimit

METRICS = {
    "unseen": {"fields": 96, "pearson_r": {"median": 0.98}, "nrmse": {"median": 0.25}, "ssim": {}, "frc": {}},
    "baselines": {"back_projection": {"pearson_r": {"median": 0.92}, "nrmse": {"median": 0.5}}},
}


@dataclass
class FakeStages:
    """What the stand-ins did, and what they are to do."""

    done: list[str] = field(default_factory=list)
    fail_in: str = ""
    error: BaseException = field(default_factory=lambda: RuntimeError("a stage broke"))
    missing_fields: int = 0
    refused: list[tuple[str, str]] = field(default_factory=list)
    findings: list[Any] = field(default_factory=list)
    requeue: bool = False
    crew: Any = None
    limit: TimeLimit | None = None

    def stage(self, name: str, config: Config, output: str) -> bool:
        """Do a stage unless its file says it is complete for this configuration; returns whether it was."""
        path = config.run.folder / output
        digest = stage_hash(config, name)
        if path.is_file() and path.read_text() == digest:
            return True
        self.done.append(name)
        if self.fail_in == name:
            raise self.error
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(digest)
        return False

    def simulate(self, config: Config, *, progress: Progress, crew: Any = None, limit: TimeLimit | None = None) -> Any:
        self.crew, self.limit = crew, limit
        skipped = self.stage("simulate", config, "shards/manifest.jsonl")
        return types.SimpleNamespace(
            train_samples=config.simulation.samples - self.missing_fields,
            held_out_samples=config.held_out.samples,
            refused=self.refused,
            seconds=0.0,
            skipped=skipped,
            requeue=self.requeue,
        )

    def train(self, config: Config, *, progress: Progress, ranks: object = None) -> Any:
        progress.start("train", config.train.steps, "steps")
        skipped = self.stage("train", config, "checkpoints/latest")
        progress.advance(config.train.steps, loss=0.1)
        folder = config.run.folder / "checkpoints" / "step-0000900"
        return types.SimpleNamespace(seconds=0.0, skipped=skipped, checkpoint=folder)

    def reconstruct_held_out(self, config: Config, *, progress: Progress) -> Any:
        skipped = self.stage("reconstruct", config, "reconstructions/hash")
        return types.SimpleNamespace(metrics=METRICS, fields=config.held_out.samples, seconds=0.0, skipped=skipped)

    def write_report(self, folder: Path, data: Config) -> Path:
        self.done.append("report")
        path = folder / "report" / "index.html"
        path.parent.mkdir(exist_ok=True)
        path.write_text("<html></html>\n")
        return path


def install(monkeypatch: pytest.MonkeyPatch) -> FakeStages:
    """Put the stand-ins where the pipeline imports the stages from."""
    fakes = FakeStages()

    def preflight(config: Config, ranks: int) -> list[Any]:
        return fakes.findings

    def collect(config: Config) -> Config:
        return config

    def format_findings(findings: list[Any]) -> str:
        return "\n".join(f"{finding.severity} {finding.check}" for finding in findings)

    functions: dict[str, list[Callable[..., Any]]] = {
        "data_gen.generate": [fakes.simulate],
        "stemdl.train.loop": [fakes.train],
        "stemdl.reconstruct.held_out": [fakes.reconstruct_held_out],
        "stemdl.report": [fakes.write_report],
        "stemdl.report_data": [collect],
        "stemdl.preflight": [preflight, format_findings],
    }
    for module_name, members in functions.items():
        module = types.ModuleType(module_name)
        for member in members:
            setattr(module, member.__name__, member)
        monkeypatch.setitem(sys.modules, module_name, module)
    return fakes
