"""`stemdl bench prism`: multislice against PRISM on scans of several sizes, and what the cost model makes of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from data_gen.engines import ImagingSetup
from data_gen.engines.cost_model import beam_count, chosen_algorithm, propagation_seconds
from data_gen.engines.torch_engine import TorchEngine
from data_gen.imaging import setup_for
from stemdl.bench.specimens import bench_specimens
from stemdl.config import Config
from stemdl.models.predictor import one_thread_per_operation
from stemdl.progress import Progress, SilentProgress

INTERPOLATIONS = (2, 3)


@dataclass(frozen=True)
class PrismCase:
    """One scan and one aperture. Times are the smallest of the repeats, in s of CPU time, without the potential."""

    scan_shape: tuple[int, int]
    semiangle_mrad: float
    beams: int
    multislice_s: float
    prism_s: float
    estimated_multislice_s: float
    estimated_prism_s: float
    chosen: str
    """By the cost model."""
    exact_relative_l2: float
    """Distance of PRISM's patterns from multislice's."""
    interpolated: dict[int, tuple[float, float]]
    """For each interpolation factor: time, and distance from multislice."""

    @property
    def loss(self) -> float:
        """How much longer what was chosen takes than the other, as a share of the quicker one; 0 where it is right."""
        took = self.multislice_s if self.chosen == "multislice" else self.prism_s
        return took / min(self.multislice_s, self.prism_s) - 1


@dataclass(frozen=True)
class PrismBench:
    """All cases of one specimen."""

    grid_pixels: int
    slices: int
    repeats: int
    cases: tuple[PrismCase, ...]

    def as_dict(self) -> dict[str, Any]:
        """JSON-able."""
        return {**asdict(self), "cases": [{**asdict(case), "loss": case.loss} for case in self.cases]}


def bench_prism(
    config: Config,
    *,
    scans: Sequence[int],
    semiangles_mrad: Sequence[float] = (),
    repeats: int = 2,
    progress: Progress | None = None,
) -> PrismBench:
    """The first training specimen with square scans of so many positions along a side over the configured field.

    semiangles_mrad: apertures; empty for the configured one.
    """
    progress = progress or SilentProgress()
    configured = setup_for(config, config.simulation)
    (specimen,) = bench_specimens(config, 1)
    field = max(config.scan.field_angstrom)
    apertures = semiangles_mrad or (configured.optics.semiangle_mrad,)
    engine = TorchEngine()
    cases = []
    with one_thread_per_operation(), torch.no_grad():
        slices, thickness = engine.slices(specimen, configured)
        progress.start("bench prism", len(scans) * len(apertures), "cases")
        for semiangle in apertures:
            for side in scans:
                setup = replace(
                    configured,
                    optics=replace(configured.optics, semiangle_mrad=semiangle),
                    scan_shape=(side, side),
                    scan_step_angstrom=field / side,
                    algorithm="auto",
                )
                cases.append(_case(lambda one: engine.patterns(slices, thickness, one), setup, len(slices), repeats))
                progress.advance(len(cases))
        progress.finish()
    return PrismBench(configured.grid.pixels, len(slices), repeats, tuple(cases))


def _case(
    patterns: Callable[[ImagingSetup], torch.Tensor], setup: ImagingSetup, slices: int, repeats: int
) -> PrismCase:
    def timed(one: ImagingSetup) -> tuple[float, torch.Tensor]:
        seconds = []
        for _ in range(repeats):
            start = time.process_time()
            found = patterns(one)
            seconds.append(time.process_time() - start)
        return min(seconds), found

    def distance(found: torch.Tensor) -> float:
        return float((found - expected).norm() / expected.norm())

    patterns(replace(setup, scan_shape=(1, 1), algorithm="multislice"))  # plans and buffers
    multislice_s, expected = timed(replace(setup, algorithm="multislice"))
    prism_s, exact = timed(replace(setup, algorithm="prism", prism_interpolation=1))
    interpolated = {}
    for factor in INTERPOLATIONS:
        if setup.grid.pixels % factor == 0:
            seconds, found = timed(replace(setup, algorithm="prism", prism_interpolation=factor))
            interpolated[factor] = seconds, distance(found)
    return PrismCase(
        scan_shape=setup.scan_shape,
        semiangle_mrad=setup.optics.semiangle_mrad,
        beams=beam_count(setup, 1),
        multislice_s=multislice_s,
        prism_s=prism_s,
        estimated_multislice_s=propagation_seconds(setup, slices, "multislice"),
        estimated_prism_s=propagation_seconds(setup, slices, "prism"),
        chosen=chosen_algorithm(setup, slices),
        exact_relative_l2=distance(exact),
        interpolated=interpolated,
    )


def format_prism_bench(bench: PrismBench) -> str:
    """The figures as a table for people."""
    factors = sorted({factor for case in bench.cases for factor in case.interpolated})
    lines = [
        f"grid {bench.grid_pixels} x {bench.grid_pixels}, {bench.slices} slices, 1 thread; s of CPU time (estimated)",
        f"{'mrad':>6}{'scan':>9}{'beams':>7}{'multislice':>18}{'PRISM, exact':>18}{'difference':>12}  {'chosen':<12}"
        + "".join(f"{f'PRISM, f = {factor}':>20}" for factor in factors),
    ]
    for case in bench.cases:
        times = (
            f"{measured:.2f} ({estimated:.2f})"
            for measured, estimated in (
                (case.multislice_s, case.estimated_multislice_s),
                (case.prism_s, case.estimated_prism_s),
            )
        )
        chosen = case.chosen if case.loss == 0 else f"{case.chosen} +{case.loss:.0%}"
        row = f"{case.semiangle_mrad:>6g}{'{} x {}'.format(*case.scan_shape):>9}{case.beams:>7}"
        row += "".join(f"{text:>18}" for text in times) + f"{case.exact_relative_l2:>12.1e}  {chosen:<12}"
        for factor in factors:
            seconds, error = case.interpolated[factor]
            row += f"{f'{seconds:.2f}, off by {error:.1%}':>20}"
        lines.append(row)
    return "\n".join(lines)
