"""`stemdl bench simulate`: our engine and abTEM on the same specimens in one run, and where our time goes."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import torch

from data_gen.engines import Engine, ImagingSetup
from data_gen.engines.fftw import BandLimitedMultislice
from data_gen.engines.propagation import FftwPropagation
from data_gen.engines.torch_engine import TorchEngine
from data_gen.imaging import setup_for
from data_gen.specimen import Specimen
from stemdl.bench.child import Child, Order, Task
from stemdl.bench.figures import EngineFigures, SimulationBench, Spread, TorchParts
from stemdl.bench.figures import format_bench as format_bench
from stemdl.bench.recipe import measure_accuracy, measure_all_cores
from stemdl.bench.specimens import bench_specimens
from stemdl.config import Config, save_config
from stemdl.launch import allowed_cores
from stemdl.models.predictor import one_thread_per_operation
from stemdl.progress import Progress, SilentProgress

FFT_CHUNK = 16
"""Waves per call of the FFT floor: the quickest of 1 to 64 for torch.fft on 96² points."""
_ACCURACY_SPECIMENS = 6


@dataclass
class _Times:
    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    potential: list[float] = field(default_factory=list)

    def add(self, wall: float, cpu: float, potential: float) -> None:
        """One more measurement."""
        self.wall.append(wall)
        self.cpu.append(cpu)
        self.potential.append(potential)


def bench_simulate(
    config: Config, *, repeats: int = 5, specimens: int = 6, progress: Progress | None = None
) -> SimulationBench:
    """Time all engines on the first training specimens of a configuration, on one thread, then on all cores.

    Every specimen goes through all engines one after the other, `repeats` times after a first round that is dropped
    (abTEM tabulates each element once). One sample is one displaced configuration. The machine's other work disturbs
    all engines alike; CPU time is given beside wall time for the same reason. abTEM's recipe runs in processes of its
    own, with its own settings.
    Raises ValueError where `repeats` or `specimens` is below 1, UserError where a process fails.
    """
    if repeats < 1 or specimens < 1:
        raise ValueError(f"repeats {repeats} and specimens {specimens} must be at least 1")
    setup = setup_for(config, config.simulation)
    chosen = bench_specimens(config, specimens)
    progress = progress or SilentProgress()
    with tempfile.TemporaryDirectory(prefix="stemdl-bench-") as name, one_thread_per_operation(), ExitStack() as stack:
        folder = Path(name)
        save_config(config, folder / "config.yaml")
        order = Order(str(folder / "config.yaml"), "recipe", len(chosen))
        progress.start("bench simulate", (repeats + 1) * len(chosen), "specimens")
        accuracy = measure_accuracy(order, setup.grid.pixels, min(_ACCURACY_SPECIMENS, len(chosen)), folder)
        factors = {"abtem_recipe": 1.0, "abtem_recipe_as_accurate": accuracy.equal_at}
        children = {name: (stack.enter_context(Child(order)), factor) for name, factor in factors.items()}
        engines = _engines()
        times, parts_, versions = _measure(engines, children, chosen, setup, repeats, progress)
        progress.finish()
        distance = max(_distance(engines["torch"], engines["abtem"], specimen, setup) for specimen in chosen)
        slices = engines["torch"].slices(chosen[0], setup)[0].shape[0]
        all_cores = measure_all_cores(order, len(chosen), repeats, allowed_cores())
    return SimulationBench(
        grid_pixels=setup.grid.pixels,
        slices=slices,
        probes=setup.probes,
        specimens=len(chosen),
        repeats=repeats,
        engines={name: _figures(versions[name], times[name], name in engines) for name in times},
        torch_parts=_median_parts(parts_),
        speed_ratio=_ratios(times, lambda figures: figures.wall),
        cpu_ratio=_ratios(times, lambda figures: figures.cpu),
        same_slices_relative_l2=distance,
        accuracy=accuracy,
        all_cores=all_cores,
    )


def _engines() -> dict[str, Engine]:
    from data_gen.engines.abtem_engine import AbtemEngine  # seconds of import

    return {"torch": TorchEngine(), "abtem": AbtemEngine(), "abtem_infinite": AbtemEngine("infinite")}


def _measure(
    engines: dict[str, Engine],
    children: dict[str, tuple[Child, float]],
    specimens: list[Specimen],
    setup: ImagingSetup,
    repeats: int,
    progress: Progress,
) -> tuple[dict[str, _Times], list[TorchParts], dict[str, str]]:
    """Times of every engine, parts of torch's, and versions."""
    times = {name: _Times() for name in (*engines, *children)}
    versions = {name: engine.version() for name, engine in engines.items()}
    parts_: list[TorchParts] = []
    for turn in range(repeats + 1):
        for number, specimen in enumerate(specimens):
            for name, engine in engines.items():
                measured = _time_sample(engine, specimen, setup)
                if turn:
                    times[name].add(*measured)
            for name, (child, factor) in children.items():
                answer = child.measure(Task(number, factor))
                versions[name] = answer["version"]
                if turn:
                    times[name].add(answer["wall_s"], answer["cpu_s"], answer["potential_s"])
            if turn:
                parts_.append(_parts(engines["torch"], specimen, setup, times["torch"]))
            progress.advance(turn * len(specimens) + number + 1)
    return times, parts_, versions


def _time_sample(engine: Engine, specimen: Specimen, setup: ImagingSetup) -> tuple[float, float, float]:
    """Wall, CPU and potential's wall time in s of one sample."""
    wall, cpu = time.perf_counter(), time.process_time()
    slices, thickness = engine.slices(specimen, setup)
    potential = time.perf_counter() - wall
    engine.patterns(slices, thickness, setup)
    return time.perf_counter() - wall, time.process_time() - cpu, potential


def _seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def _parts(engine: Engine, specimen: Specimen, setup: ImagingSetup, times: _Times) -> TorchParts:
    """The pieces of the sample that was timed last, each done alone."""
    slices, thickness = engine.slices(specimen, setup)
    multislice = BandLimitedMultislice(setup.grid.pixels)
    waves = torch.ones(min(FFT_CHUNK, setup.probes), setup.grid.pixels, setup.grid.pixels, dtype=torch.complex64)

    def floor() -> None:
        for _ in range(round((2 * len(slices) - 1) * setup.probes / len(waves))):
            torch.fft.fft2(waves)

    multislice.transforms_alone(1, 1)
    transmission_s = _seconds(lambda: FftwPropagation(slices, thickness, setup))
    fft_s = _seconds(lambda: multislice.transforms_alone(len(slices), setup.probes))
    rest_s = times.wall[-1] - times.potential[-1] - transmission_s - fft_s
    return TorchParts(times.potential[-1], transmission_s, fft_s, rest_s, _seconds(floor))


def _median_parts(parts_: list[TorchParts]) -> TorchParts:
    def of(name: str) -> float:
        return float(median(getattr(part, name) for part in parts_))

    return TorchParts(of("potential_s"), of("transmission_s"), of("fft_s"), of("rest_s"), of("fft_floor_s"))


def _distance(ours: Engine, reference: Engine, specimen: Specimen, setup: ImagingSetup) -> float:
    slices, thickness = ours.slices(specimen, setup)
    one, other = ours.patterns(slices, thickness, setup), reference.patterns(slices, thickness, setup)
    return float((one - other).norm() / other.norm())


def _figures(version: str, times: _Times, has_potential: bool) -> EngineFigures:
    potential = Spread.of(times.potential) if has_potential else None
    return EngineFigures(version, Spread.of(times.wall), Spread.of(times.cpu), potential)


def _ratios(times: dict[str, _Times], clock: Callable[[_Times], list[float]]) -> dict[str, Spread]:
    ours = clock(times["torch"])
    return {
        name: Spread.of([other / own for other, own in zip(clock(figures), ours, strict=True)])
        for name, figures in times.items()
        if name != "torch"
    }
