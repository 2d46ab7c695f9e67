"""`stemdl bench simulate`: both engines on the same specimens in one run, and where our time goes."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import torch

from data_gen.engines import Engine, ImagingSetup
from data_gen.engines.fftw import BandLimitedMultislice
from data_gen.engines.torch_engine import TorchEngine
from data_gen.imaging import setup_for
from data_gen.sample import draw_specimen
from data_gen.specimen import Specimen, displaced
from data_gen.worklist import parts
from stemdl.config import Config
from stemdl.models.predictor import one_thread_per_operation
from stemdl.physics.multislice import transmission
from stemdl.progress import Progress, SilentProgress

FFT_CHUNK = 16
"""Waves per call of the FFT floor: the quickest of 1 to 64 for torch.fft on 96² points."""


@dataclass(frozen=True)
class Spread:
    """Median, smallest and largest of repeated measurements."""

    median: float
    min: float
    max: float

    @classmethod
    def of(cls, values: list[float]) -> Spread:
        """The spread of at least one value."""
        return cls(median(values), min(values), max(values))

    def as_dict(self) -> dict[str, float]:
        """JSON-able."""
        return {"median": self.median, "min": self.min, "max": self.max}


@dataclass(frozen=True)
class EngineFigures:
    """One engine: times per sample (one field of one specimen, potential included)."""

    version: str
    seconds: Spread
    cpu_seconds: Spread
    potential_seconds: Spread

    @property
    def samples_per_s(self) -> float:
        """Samples per second of wall time on one thread."""
        return 1 / self.seconds.median

    def as_dict(self) -> dict[str, Any]:
        """JSON-able."""
        return {
            "version": self.version,
            "samples_per_s": self.samples_per_s,
            "seconds_per_sample": self.seconds.as_dict(),
            "cpu_seconds_per_sample": self.cpu_seconds.as_dict(),
            "potential_seconds_per_sample": self.potential_seconds.as_dict(),
        }


@dataclass(frozen=True)
class TorchParts:
    """Where the torch engine's time goes, medians in seconds per sample; and two floors of it."""

    potential_s: float
    transmission_s: float
    fft_s: float
    """The Fourier transforms that the engine does (the band inside the anti-alias aperture), alone."""
    rest_s: float
    fft_floor_s: float
    """The (2 slices - 1) x probes full transforms that a multislice needs, done by torch.fft and nothing else."""


@dataclass(frozen=True)
class SimulationBench:
    """Figures of one run of the benchmark. Engines: torch, abtem (finite projection), abtem_infinite."""

    grid_pixels: int
    slices: int
    probes: int
    specimens: int
    repeats: int
    engines: dict[str, EngineFigures]
    torch_parts: TorchParts
    speed_ratio: dict[str, Spread]
    """For each other engine: how many times faster torch is, specimen by specimen."""
    cpu_ratio: dict[str, Spread]
    same_slices_relative_l2: float
    """Largest relative distance of the patterns of torch and abTEM, both given torch's slices."""

    def as_dict(self) -> dict[str, Any]:
        """JSON-able; keys do not change."""
        engines = {name: figures.as_dict() for name, figures in self.engines.items()}
        parts_ = self.torch_parts
        engines["torch"] |= {
            "parts_seconds": {
                "potential": parts_.potential_s,
                "transmission": parts_.transmission_s,
                "fft": parts_.fft_s,
                "rest": parts_.rest_s,
            },
            "fft_floor_seconds": parts_.fft_floor_s,
            "over_fft_floor": engines["torch"]["seconds_per_sample"]["median"] / parts_.fft_floor_s,
        }
        return {
            "grid_pixels": self.grid_pixels,
            "slices": self.slices,
            "probes": self.probes,
            "specimens": self.specimens,
            "repeats": self.repeats,
            "threads": 1,
            "engines": engines,
            "torch_times_faster": {name: spread.as_dict() for name, spread in self.speed_ratio.items()},
            "torch_times_faster_cpu_time": {name: spread.as_dict() for name, spread in self.cpu_ratio.items()},
            "same_slices_relative_l2": self.same_slices_relative_l2,
        }


@dataclass
class _Times:
    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    potential: list[float] = field(default_factory=list)


def bench_simulate(
    config: Config, *, repeats: int = 5, specimens: int = 6, progress: Progress | None = None
) -> SimulationBench:
    """Time both engines on the first training specimens of a configuration, on one thread.

    Every specimen goes through all engines one after the other, `repeats` times after a first round that is dropped
    (abTEM tabulates each element once). One sample is one displaced configuration. The machine's other work disturbs
    all engines alike; CPU time is given beside wall time for the same reason.
    Raises ValueError where `repeats` or `specimens` is below 1.
    """
    if repeats < 1 or specimens < 1:
        raise ValueError(f"repeats {repeats} and specimens {specimens} must be at least 1")
    from data_gen.engines.abtem_engine import AbtemEngine  # seconds of import

    progress = progress or SilentProgress()
    engines: dict[str, Engine] = {
        "torch": TorchEngine(),
        "abtem": AbtemEngine(),
        "abtem_infinite": AbtemEngine("infinite"),
    }
    setup = setup_for(config, config.simulation)
    chosen = _specimens(config, specimens)
    times = {name: _Times() for name in engines}
    parts_: list[TorchParts] = []
    with one_thread_per_operation():
        progress.start("bench simulate", (repeats + 1) * len(chosen), "specimens")
        for turn in range(repeats + 1):
            for number, specimen in enumerate(chosen):
                for name, engine in engines.items():
                    measured = _time_sample(engine, specimen, setup)
                    if turn:
                        _append(times[name], measured)
                if turn:
                    parts_.append(_parts(engines["torch"], specimen, setup, times["torch"]))
                progress.advance(turn * len(chosen) + number + 1)
        progress.finish()
        distance = max(_distance(engines["torch"], engines["abtem"], specimen, setup) for specimen in chosen)
        slices = engines["torch"].slices(chosen[0], setup)[0].shape[0]
    return SimulationBench(
        grid_pixels=setup.grid.pixels,
        slices=slices,
        probes=setup.scan_shape[0] * setup.scan_shape[1],
        specimens=len(chosen),
        repeats=repeats,
        engines={name: _figures(engine.version(), times[name]) for name, engine in engines.items()},
        torch_parts=_median_parts(parts_),
        speed_ratio=_ratios(times, lambda figures: figures.wall),
        cpu_ratio=_ratios(times, lambda figures: figures.cpu),
        same_slices_relative_l2=distance,
    )


def _specimens(config: Config, count: int) -> list[Specimen]:
    """The first `count` displaced specimens of the training set, as the simulation stage makes them."""
    (part, _), _ = parts(config)
    sigma = config.specimen.displacement_sigma_angstrom
    chosen = []
    for item in range(min(count, part.samples)):
        at_rest, _ = draw_specimen(config, part, item)
        chosen.append(displaced(at_rest, sigma, (config.run.seed, int(part.phonon_purpose), item, 0)))
    return chosen


def _time_sample(engine: Engine, specimen: Specimen, setup: ImagingSetup) -> tuple[float, float, float]:
    """Wall, CPU and potential's wall time in s of one sample."""
    wall, cpu = time.perf_counter(), time.process_time()
    slices, thickness = engine.slices(specimen, setup)
    potential = time.perf_counter() - wall
    engine.patterns(slices, thickness, setup)
    return time.perf_counter() - wall, time.process_time() - cpu, potential


def _append(times: _Times, measured: tuple[float, float, float]) -> None:
    for values, value in zip((times.wall, times.cpu, times.potential), measured, strict=True):
        values.append(value)


def _seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def _parts(engine: Engine, specimen: Specimen, setup: ImagingSetup, times: _Times) -> TorchParts:
    """The pieces of the sample that was timed last, each done alone."""
    slices, _ = engine.slices(specimen, setup)
    probes = setup.scan_shape[0] * setup.scan_shape[1]
    multislice = BandLimitedMultislice(setup.grid.pixels)
    waves = torch.ones(min(FFT_CHUNK, probes), setup.grid.pixels, setup.grid.pixels, dtype=torch.complex64)

    def floor() -> None:
        for _ in range(round((2 * len(slices) - 1) * probes / len(waves))):
            torch.fft.fft2(waves)

    multislice.transforms_alone(1, 1)
    transmission_s = _seconds(lambda: transmission(setup.optics, setup.grid, slices))
    fft_s = _seconds(lambda: multislice.transforms_alone(len(slices), probes))
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


def _figures(version: str, times: _Times) -> EngineFigures:
    return EngineFigures(version, Spread.of(times.wall), Spread.of(times.cpu), Spread.of(times.potential))


def _ratios(times: dict[str, _Times], clock: Callable[[_Times], list[float]]) -> dict[str, Spread]:
    ours = clock(times["torch"])
    return {
        name: Spread.of([other / own for other, own in zip(clock(figures), ours, strict=True)])
        for name, figures in times.items()
        if name != "torch"
    }


def format_bench(bench: SimulationBench) -> str:
    """The figures as a table for people, times in ms."""
    lines = [
        f"grid {bench.grid_pixels} x {bench.grid_pixels}, {bench.slices} slices, {bench.probes} probes, 1 thread; "
        f"{bench.specimens} specimens, {bench.repeats} times each",
        f"{'engine':<16}{'samples/s':>10}{'ms median':>11}{'min':>8}{'max':>8}{'CPU ms':>9}{'potential':>11}"
        f"{'torch is faster by':>20}{'(CPU)':>8}",
    ]
    for name, figures in bench.engines.items():
        wall = figures.seconds
        row = f"{name:<16}{figures.samples_per_s:>10.2f}{wall.median * 1e3:>11.1f}{wall.min * 1e3:>8.1f}"
        row += f"{wall.max * 1e3:>8.1f}{figures.cpu_seconds.median * 1e3:>9.1f}"
        row += f"{figures.potential_seconds.median * 1e3:>11.1f}"
        if name in bench.speed_ratio:
            row += f"{bench.speed_ratio[name].median:>19.1f}x{bench.cpu_ratio[name].median:>7.1f}x"
        lines.append(row)
    parts_, total = bench.torch_parts, bench.engines["torch"].seconds.median
    named = {
        "potential": parts_.potential_s,
        "transmission": parts_.transmission_s,
        "transforms": parts_.fft_s,
        "rest": parts_.rest_s,
    }
    lines.append("torch: " + ", ".join(f"{name} {value * 1e3:.1f} ms" for name, value in named.items()))
    lines.append(
        f"FFT floor, {(2 * bench.slices - 1) * bench.probes} full transforms by torch.fft alone: "
        f"{parts_.fft_floor_s * 1e3:.1f} ms; torch takes {total / parts_.fft_floor_s:.2f} of it "
        f"({total / parts_.fft_s:.2f} of the transforms it does, which leave out what the aperture cuts)"
    )
    lines.append(f"patterns from the same slices: relative L2 distance at most {bench.same_slices_relative_l2:.1e}")
    return "\n".join(lines)
