"""What `stemdl bench simulate` measures, as figures for --json and as a table for people."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import Any


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
    potential_seconds: Spread | None
    """None where the potential is not a step of its own."""

    @property
    def samples_per_s(self) -> float:
        """Samples per second of wall time on one thread."""
        return 1 / self.seconds.median

    def as_dict(self) -> dict[str, Any]:
        """JSON-able."""
        figures = {
            "version": self.version,
            "samples_per_s": self.samples_per_s,
            "seconds_per_sample": self.seconds.as_dict(),
            "cpu_seconds_per_sample": self.cpu_seconds.as_dict(),
        }
        if self.potential_seconds is not None:
            figures["potential_seconds_per_sample"] = self.potential_seconds.as_dict()
        return figures


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
class Accuracy:
    """How far patterns are from those of a grid so fine that it no longer matters (relative L2, median over the
    specimens): ours, and abTEM's recipe on grids so many times finer than ours."""

    reference_pixels: int
    torch: float
    recipe: dict[float, float]

    @property
    def equal_at(self) -> float:
        """The coarsest grid (times ours) that makes the recipe as accurate as ours; the finest tried if none does."""
        enough = [factor for factor, error in sorted(self.recipe.items()) if error <= self.torch]
        return enough[0] if enough else max(self.recipe)

    def as_dict(self) -> dict[str, Any]:
        """JSON-able."""
        return {
            "reference_pixels": self.reference_pixels,
            "torch": self.torch,
            "abtem_recipe": {f"{factor:g}": error for factor, error in self.recipe.items()},
            "abtem_recipe_as_accurate_at": self.equal_at,
        }


@dataclass(frozen=True)
class AllCores:
    """Samples per second with all cores that the process may use."""

    cores: int
    torch_samples_per_s: float
    """As many processes of one thread as there are cores, each with samples of its own, as `stemdl simulate` does."""
    recipe_samples_per_s: float
    """abTEM's recipe as it comes, in one process with the threads that dask takes."""

    def as_dict(self) -> dict[str, Any]:
        """JSON-able."""
        return {
            "cores": self.cores,
            "torch_samples_per_s": self.torch_samples_per_s,
            "abtem_recipe_samples_per_s": self.recipe_samples_per_s,
            "torch_times_faster": self.torch_samples_per_s / self.recipe_samples_per_s,
        }


@dataclass(frozen=True)
class SimulationBench:
    """Figures of one run. Engines: torch, abtem (finite projection), abtem_infinite, and abTEM by its documentation's
    recipe on our grid (abtem_recipe) and on the one that makes it as accurate as ours (abtem_recipe_as_accurate)."""

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
    accuracy: Accuracy
    all_cores: AllCores

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
            "relative_l2_from_converged": self.accuracy.as_dict(),
            "all_cores": self.all_cores.as_dict(),
        }


def format_bench(bench: SimulationBench) -> str:
    """The figures as a table for people, times in ms."""
    lines = [
        f"grid {bench.grid_pixels} x {bench.grid_pixels}, {bench.slices} slices, {bench.probes} probes, 1 thread; "
        f"{bench.specimens} specimens, {bench.repeats} times each",
        f"{'engine':<26}{'samples/s':>10}{'ms median':>11}{'min':>8}{'max':>8}{'CPU ms':>9}{'potential':>11}"
        f"{'torch is faster by':>20}{'(CPU)':>8}",
    ]
    for name, figures in bench.engines.items():
        wall, potential = figures.seconds, figures.potential_seconds
        row = f"{name:<26}{figures.samples_per_s:>10.2f}{wall.median * 1e3:>11.1f}{wall.min * 1e3:>8.1f}"
        row += f"{wall.max * 1e3:>8.1f}{figures.cpu_seconds.median * 1e3:>9.1f}"
        row += f"{'' if potential is None else format(potential.median * 1e3, '.1f'):>11}"
        if name in bench.speed_ratio:
            row += f"{bench.speed_ratio[name].median:>19.1f}x{bench.cpu_ratio[name].median:>7.1f}x"
        lines.append(row)
    return "\n".join([*lines, *_parts_lines(bench), *_comparison_lines(bench)])


def _parts_lines(bench: SimulationBench) -> list[str]:
    parts_, total = bench.torch_parts, bench.engines["torch"].seconds.median
    named = {
        "potential": parts_.potential_s,
        "transmission": parts_.transmission_s,
        "transforms": parts_.fft_s,
        "rest": parts_.rest_s,
    }
    multislice = total - parts_.potential_s
    return [
        "torch: "
        + ", ".join(f"{name} {value * 1e3:.1f} ms" for name, value in named.items())
        + f"; the potential costs {parts_.potential_s / multislice:.1%} of the multislice",
        f"FFT floor, {(2 * bench.slices - 1) * bench.probes} full transforms by torch.fft alone: "
        f"{parts_.fft_floor_s * 1e3:.1f} ms; torch takes {total / parts_.fft_floor_s:.2f} of it "
        f"({total / parts_.fft_s:.2f} of the transforms it does, which leave out what the aperture cuts)",
    ]


def _comparison_lines(bench: SimulationBench) -> list[str]:
    accuracy, cores = bench.accuracy, bench.all_cores
    recipe = ", ".join(f"{error:.1%} on {factor:g}n" for factor, error in accuracy.recipe.items())
    faster = cores.torch_samples_per_s / cores.recipe_samples_per_s
    return [
        f"patterns from the same slices: relative L2 distance at most {bench.same_slices_relative_l2:.1e}",
        f"distance from patterns on {accuracy.reference_pixels} pixels (converged): torch {accuracy.torch:.1%} on n ="
        f" {bench.grid_pixels}; abTEM's recipe {recipe}",
        f"all {cores.cores} cores: torch {cores.torch_samples_per_s:.2f} samples/s (a process for each),"
        f" abTEM's recipe as it comes {cores.recipe_samples_per_s:.2f} (its own threads): {faster:.1f} times faster",
    ]
