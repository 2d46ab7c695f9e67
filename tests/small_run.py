"""Runs small enough for tests: crystals in CIF files, configuration, shards, checkpoint; and processes with a bound.

The set is made without the library of crystals and without a pre-flight, so that a process starts quickly.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from data_gen.engines import engine_by_name
from data_gen.sample import axes_of, make_sample
from data_gen.worklist import parts
from stemdl.checkpoints import save_checkpoint
from stemdl.config import Config, load_config, stage_hash
from stemdl.models.registry import build_network
from stemdl.shards import ShardSet, ShardWriter

ROOT = Path(__file__).resolve().parents[1]

FCC = ((0.0, 0.0, 0.0), (0.5, 0.5, 0.0), (0.5, 0.0, 0.5), (0.0, 0.5, 0.5))
BCC = ((0.0, 0.0, 0.0), (0.5, 0.5, 0.5))
Atom = tuple[str, float, float, float]

CONFIG = """\
run:
  folder: run
  seed: 7
crystals:
  library: false
  cif_folders: [cif]
  held_out_fraction: 0.4
specimen:
  box_angstrom: 12.0
  thickness_angstrom: [4.0, 8.0]
  zone_axes: [[0, 0, 1], [1, 1, 0]]
microscope:
  energy_kev: 100.0
  semiangle_mrad: 20.0
scan:
  positions: [3, 3]
  step_angstrom: 2.0
detector:
  pixels: [20, 20]
  dk_per_angstrom: 0.08333333333333333
simulation:
  pixel_angstrom: 0.25
  slice_angstrom: 2.0
  samples: 9
  samples_per_shard: 2
  workers: 2
held_out:
  samples: 5
  pixel_angstrom: 0.25
  slice_angstrom: 1.0
target:
  pixel_angstrom: 0.5
  blur_sigma_angstrom: 0.35
network:
  name: scanfield
  features: 8
  hidden: 16
  trunk: 8
  trunk_blocks: 1
  pattern_pixels: 10
  stages: 2
  back_projection: {pixel_angstrom: 0.5, slices: 1, steps: 2}
train:
  steps: 2
  batch: 4
  threads: 1
report:
  fields_shown: 3
"""


def write_cif(folder: Path, name: str, cell_angstrom: Sequence[float], atoms: Sequence[Atom]) -> None:
    """An orthogonal crystal without symmetry as NAME.cif, "cif:NAME" among the crystals."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = ["data_x", *(f"_cell_length_{axis} {length}" for axis, length in zip("abc", cell_angstrom, strict=True))]
    lines += [f"_cell_angle_{angle} 90" for angle in ("alpha", "beta", "gamma")]
    lines += ["loop_", *(f"_atom_site_{tag}" for tag in ("type_symbol", "fract_x", "fract_y", "fract_z"))]
    lines += [" ".join(str(value) for value in atom) for atom in atoms]
    (folder / f"{name}.cif").write_text("\n".join(lines) + "\n", encoding="utf-8")


def write_crystals(folder: Path) -> None:
    """Five crystals of four materials: iron twice."""
    write_cif(folder, "cu", [3.61] * 3, [("Cu", *site) for site in FCC])
    write_cif(folder, "al", [4.05] * 3, [("Al", *site) for site in FCC])
    write_cif(folder, "fe-fcc", [3.57] * 3, [("Fe", *site) for site in FCC])
    write_cif(folder, "fe-bcc", [2.87] * 3, [("Fe", *site) for site in BCC])
    write_cif(folder, "cscl", [4.12] * 3, [("Cs", *BCC[0]), ("Cl", *BCC[1])])


def small_config(folder: Path, *overrides: str) -> Config:
    """The configuration above with its crystals in a folder of the test; the run goes to `folder / "run"`."""
    if not (folder / "cif").exists():
        write_crystals(folder / "cif")
    file = folder / "config.yaml"
    file.write_text(CONFIG, encoding="utf-8")
    return load_config(file, list(overrides))


def make_shards(config: Config) -> None:
    """Both parts, made in this process."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    engine = engine_by_name(config.simulation.engine)
    digest = stage_hash(config, "simulate")
    for part in parts(config)[0]:
        folder = config.run.folder / "shards" / part.name
        with ShardWriter(folder, rank=0, axes=axes_of(config), config_hash=digest, samples_per_shard=4) as writer:
            for item in range(part.samples):
                writer.add(make_sample(config, part, item, engine))
    torch.set_num_threads(threads)


def save_untrained(config: Config, *, stages_done: int = 2, config_hash: str | None = None, seed: int = 1) -> Path:
    """A checkpoint of random weights, as a training would leave it."""
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(seed)
        network = build_network(config)
        for weight in network.parameters():  # fresh ones answer with the physics alone
            weight.add_(torch.randn_like(weight), alpha=0.02)
    network.scale_v_angstrom.fill_(30.0)
    record = {"steps": [1, 2], "train_loss": [0.5, 0.4], "lr": [1e-3, 1e-4]}
    record |= {"validation_steps": [2], "validation_loss": [0.45], "validation_r": [0.3]}
    meta: dict[str, Any] = {
        "config_hash": stage_hash(config, "train") if config_hash is None else config_hash,
        "stages_done": stages_done,
        "history": [{"stage": stage, **record} for stage in range(stages_done)],
    }
    return save_checkpoint(config.run.folder / "checkpoints", 4, network.state_dict(), meta, "")


class Recorder:
    """Progress that remembers what it was told."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.done: list[int] = []
        self.started: list[tuple[str, int, str]] = []

    def start(self, stage: str, total: int, unit: str) -> None:
        """Remember the stage."""
        self.started.append((stage, total, unit))

    def advance(self, done: int, *, left_s: float | None = None, **figures: float) -> None:
        """Remember the count."""
        self.done.append(done)

    def note(self, text: str) -> None:
        """Remember the line."""
        self.notes.append(text)

    def finish(self) -> None:
        """Nothing to end."""


Arrays = dict[tuple[str, int], tuple[bytes, bytes, str, str]]


def content(folder: Path) -> Arrays:
    """Bits of every sample below a run folder, by part and item: amplitude, potential, parameters, provenance."""
    result: Arrays = {}
    for part in ("train", "held_out"):
        with ShardSet(folder / "shards" / part, verify="hash") as shards:
            assert not shards.duplicates
            for index, item in enumerate(shards.items):
                sample = shards.item(index)
                assert np.isfinite(sample.potential).all()
                result[part, item] = (
                    sample.amplitude.tobytes(),
                    sample.potential.tobytes(),
                    json.dumps(sample.parameters, sort_keys=True),
                    json.dumps(sample.provenance, sort_keys=True),
                )
    return result


class Process:
    """A Python process in a session of its own whose output goes to a list, line by line; killed when time is up."""

    def __init__(self, arguments: Sequence[str | Path], *, timeout_s: float = 120.0, **environment: str) -> None:
        self.lines: list[str] = []
        self._news = threading.Condition()
        self.popen = subprocess.Popen(
            [sys.executable, "-u", *map(str, arguments)],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self._deadline = time.monotonic() + timeout_s
        self._timeout_s = timeout_s
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.popen.stdout is not None
        for line in self.popen.stdout:
            with self._news:
                self.lines.append(line.rstrip("\n"))
                self._news.notify_all()
        with self._news:
            self.lines.append("<end of output>")
            self._news.notify_all()

    @property
    def log(self) -> str:
        """All output so far."""
        return "\n".join(self.lines)

    def wait_for(self, said: Callable[[str], bool]) -> None:
        """Wait for a line; fails the test when the process ends without it, or time is up."""
        seen = 0
        with self._news:
            while True:
                if any(said(line) for line in self.lines[seen:]):
                    return
                seen = len(self.lines)
                if "<end of output>" in self.lines or not self._news.wait(self._deadline - time.monotonic()):
                    self._fail("the line that was waited for never came")

    def wait_until(self, true: Callable[[], bool]) -> None:
        """Wait for something that the process does; fails the test when it ends without, or time is up."""
        while not true():
            if self.popen.poll() is not None and not true():
                self._fail("it ended before what was waited for")
            if time.monotonic() > self._deadline:
                self._fail("what was waited for never came")
            time.sleep(0.02)

    def signal_group(self, number: signal.Signals) -> None:
        """Send a signal to the process and all of its children, as a terminal does with Ctrl-C."""
        os.killpg(self.popen.pid, number)

    def kill_alone(self) -> None:
        """kill -9 of the process, not of its children."""
        self.popen.kill()

    def close(self) -> None:
        """Let go of the output of a process that has ended."""
        self._reader.join(10.0)
        if self.popen.stdout is not None:
            self.popen.stdout.close()

    def end(self) -> int:
        """Wait for the end of the process and of all who hold its output; returns the exit code."""
        try:
            code = self.popen.wait(max(0.1, self._deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            self._fail(f"not done after {self._timeout_s:g} s")
        self._reader.join(max(0.1, self._deadline - time.monotonic()))
        if self._reader.is_alive():
            self._fail("its children are still alive")
        assert self.popen.stdout is not None
        self.popen.stdout.close()
        return code

    def _fail(self, why: str) -> None:
        with contextlib.suppress(ProcessLookupError):  # all of them may have ended in the meantime
            os.killpg(self.popen.pid, signal.SIGKILL)
        pytest.fail(f"{why}; its output was:\n{self.log}")
