"""`stemdl bench memory`: the largest memory of a simulating process, against the number of waves it holds at once."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from data_gen.imaging import setup_for
from data_gen.potential import slice_count
from stemdl.bench.child import Child, Order, Task
from stemdl.config import Config, save_config
from stemdl.progress import Progress, SilentProgress


@dataclass(frozen=True)
class ChunkFigures:
    """One value of simulation.probe_chunk."""

    probe_chunk: int
    start_bytes: int
    """Program, libraries and atoms, before the first pattern."""
    peak_bytes: int
    seconds: float

    @property
    def added_bytes(self) -> int:
        """What the simulation adds."""
        return self.peak_bytes - self.start_bytes


@dataclass(frozen=True)
class MemoryBench:
    """Figures of the first specimen of a configuration; bytes_of_the_patterns is the result itself."""

    grid_pixels: int
    slices: int
    probes: int
    bytes_of_the_patterns: int
    bytes_of_the_slices: int
    """Potentials and transmission functions."""
    chunks: tuple[ChunkFigures, ...]

    def as_dict(self) -> dict[str, Any]:
        """JSON-able."""
        return {**asdict(self), "chunks": [{**asdict(one), "added_bytes": one.added_bytes} for one in self.chunks]}


def bench_memory(
    config: Config, *, chunks: Sequence[int], repeats: int = 3, progress: Progress | None = None
) -> MemoryBench:
    """Simulate the first training specimen in a process of its own for each number of waves, on one thread."""
    progress = progress or SilentProgress()
    progress.start("bench memory", len(chunks), "processes")
    found = []
    with tempfile.TemporaryDirectory(prefix="stemdl-bench-") as name:
        file = Path(name) / "config.yaml"
        for number, chunk in enumerate(chunks):
            simulation = config.simulation.model_copy(update={"probe_chunk": chunk})
            save_config(config.model_copy(update={"simulation": simulation}), file)
            with Child(Order(str(file), "torch", 1)) as child:
                answers = [child.measure(Task(0)) for _ in range(repeats + 1)]
            seconds = median(answer["wall_s"] for answer in answers[1:])
            found.append(ChunkFigures(chunk, answers[-1]["start_bytes"], answers[-1]["peak_bytes"], seconds))
            progress.advance(number + 1)
        progress.finish()
    setup = setup_for(config, config.simulation)
    slices = slice_count(config.specimen.thickness_angstrom[1], setup.slice_angstrom)
    rows, columns = setup.detector_pixels
    return MemoryBench(
        grid_pixels=setup.grid.pixels,
        slices=slices,
        probes=setup.probes,
        bytes_of_the_patterns=4 * setup.probes * rows * columns,
        bytes_of_the_slices=(4 + 8) * slices * setup.grid.pixels**2,
        chunks=tuple(found),
    )


def format_memory_bench(bench: MemoryBench) -> str:
    """The figures as a table for people."""
    lines = [
        f"grid {bench.grid_pixels} x {bench.grid_pixels}, {bench.slices} slices, {bench.probes} probes, 1 thread;"
        f" patterns {bench.bytes_of_the_patterns / 2**20:.0f} MiB,"
        f" potentials and transmission functions {bench.bytes_of_the_slices / 2**20:.0f} MiB",
        f"{'probe_chunk':>12}{'before MiB':>12}{'peak MiB':>10}{'added MiB':>11}{'s per sample':>14}",
    ]
    lines += [
        f"{one.probe_chunk:>12}{one.start_bytes / 2**20:>12.0f}{one.peak_bytes / 2**20:>10.0f}"
        f"{one.added_bytes / 2**20:>11.0f}{one.seconds:>14.2f}"
        for one in bench.chunks
    ]
    return "\n".join(lines)
