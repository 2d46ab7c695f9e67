"""A process of its own for what is measured: its threads, its settings and its memory, and nobody else's.

The parent asks for a specimen by its number, one line for each; the child answers with a line of JSON.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, NoReturn, Self

import numpy as np
import torch

from data_gen.engines import ImagingSetup
from stemdl.errors import UserError
from stemdl.launch import ONE_THREAD


@dataclass(frozen=True)
class Order:
    """What a child does: `engine` "torch" or "recipe" (abTEM's) with the specimens of a configuration file."""

    config: str
    engine: Literal["torch", "recipe"]
    specimens: int
    one_thread: bool = True


@dataclass(frozen=True)
class Task:
    """A specimen, by its number."""

    specimen: int
    grid_factor: float = 1.0
    """Grid so many times finer than the configuration's."""
    few: bool = False
    """Four positions in the middle in place of the whole scan."""
    save: str | None = None
    """File (.npy) to write the patterns to."""


class Child:
    """A running child. Raises UserError where it ends with an error or does not answer."""

    def __init__(self, order: Order) -> None:
        environment = {**os.environ, **ONE_THREAD} if order.one_thread else dict(os.environ)
        self._order = order
        # A file: a pipe that nobody reads would fill up.
        self._errors = tempfile.TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115  (closed in __exit__)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "stemdl.bench.child", json.dumps(asdict(order))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env=environment,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.communicate()
        self._errors.close()

    def ask(self, task: Task) -> None:
        """Have it simulate a specimen."""
        assert self._process.stdin is not None
        line = json.dumps(asdict(task))
        try:
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            self._failed()

    def answer(self) -> dict[str, Any]:
        """What it measured: wall_s, cpu_s, potential_s, start_bytes, peak_bytes, version."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._failed()
        answered: dict[str, Any] = json.loads(line)
        return answered

    def measure(self, task: Task) -> dict[str, Any]:
        """`ask` and `answer`."""
        self.ask(task)
        return self.answer()

    def _failed(self) -> NoReturn:
        self._process.wait()
        self._errors.seek(0)
        last = "\n".join(self._errors.read().splitlines()[-8:])
        raise UserError(f"bench: the process of {self._order.engine!r} ended with {self._process.returncode}:\n{last}")


def peak_bytes() -> int:
    """Largest resident memory of this process so far, in bytes."""
    status = Path("/proc/self/status")
    if status.is_file():  # ru_maxrss keeps what the parent had when it forked
        fields = dict(line.split(":", 1) for line in status.read_text(encoding="ascii").splitlines())
        return int(fields["VmHWM"].split()[0]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _work(order: Order) -> tuple[Callable[[Task], tuple[torch.Tensor, float]], str]:
    """What makes the patterns of a specimen, with the time of its potential in s, and its version."""
    from data_gen.imaging import setup_for
    from stemdl.bench.specimens import bench_specimens
    from stemdl.config import load_config
    from stemdl.physics.grid import Grid

    config = load_config(Path(order.config), [])
    configured = setup_for(config, config.simulation)
    specimens = bench_specimens(config, order.specimens)

    def setup_of(task: Task) -> ImagingSetup:
        pixels = round(configured.grid.pixels * task.grid_factor)
        scan = (2, 2) if task.few else configured.scan_shape
        return replace(configured, grid=Grid(pixels, configured.grid.box_angstrom), scan_shape=scan)

    if order.engine == "recipe":
        from data_gen.engines.abtem_recipe import AbtemRecipe

        recipe = AbtemRecipe(one_thread=order.one_thread)
        return lambda task: (recipe.patterns(specimens[task.specimen], setup_of(task)), 0.0), recipe.version()
    from data_gen.engines.torch_engine import TorchEngine

    engine = TorchEngine()

    def patterns(task: Task) -> tuple[torch.Tensor, float]:
        setup, start = setup_of(task), time.perf_counter()
        slices, thickness = engine.slices(specimens[task.specimen], setup)
        potential = time.perf_counter() - start
        return engine.patterns(slices, thickness, setup), potential

    return patterns, engine.version()


def _serve(order: Order) -> None:
    if order.one_thread:
        torch.set_num_threads(1)
    work, version = _work(order)
    start_bytes = peak_bytes()
    for line in sys.stdin:
        task = Task(**json.loads(line))
        wall, cpu = time.perf_counter(), time.process_time()
        patterns, potential = work(task)
        answer = {
            "wall_s": time.perf_counter() - wall,
            "cpu_s": time.process_time() - cpu,
            "potential_s": potential,
            "start_bytes": start_bytes,
            "peak_bytes": peak_bytes(),
            "version": version,
        }
        if task.save is not None:
            np.save(task.save, patterns.numpy(), allow_pickle=False)
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    _serve(Order(**json.loads(sys.argv[1])))
