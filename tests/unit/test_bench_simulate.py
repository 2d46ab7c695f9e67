"""The benchmarks of the engines: what they count, write and refuse. Nothing is said about how fast."""

from __future__ import annotations

import json
import os
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import pytest
import torch

from data_gen.engines import ImagingSetup
from data_gen.engines.torch_engine import TorchEngine
from data_gen.sample import make_sample
from data_gen.worklist import parts
from minimal_config import MINIMAL
from physics_cases import relative
from stemdl.bench.child import Child, Order, Task, peak_bytes
from stemdl.bench.figures import Accuracy, AllCores, SimulationBench, Spread
from stemdl.bench.memory import bench_memory, format_memory_bench
from stemdl.bench.prism import bench_prism, format_prism_bench
from stemdl.bench.recipe import measure_accuracy, measure_all_cores
from stemdl.bench.simulate import bench_simulate, format_bench
from stemdl.bench.specimens import bench_specimens
from stemdl.config import Config, load_config, save_config
from stemdl.errors import UserError


class StandIn(TorchEngine):
    """Takes abTEM's place, whose import costs seconds; a little off, so that the distance is not zero."""

    def __init__(self, projection: str = "finite") -> None:
        super().__init__()
        self.projection = projection

    def version(self) -> str:
        return f"stand-in, {self.projection}"

    def patterns(self, slices: torch.Tensor, slice_thickness_angstrom: float, setup: ImagingSetup) -> torch.Tensor:
        return super().patterns(slices, slice_thickness_angstrom, setup) * 1.25


class StandInChild:
    """Answers at once, as a process would that computes: patterns whose error falls with the grid."""

    answered: ClassVar[list[tuple[str, Task]]] = []

    def __init__(self, order: Order) -> None:
        self.order, self.waiting = order, list[Task]()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def ask(self, task: Task) -> None:
        self.waiting.append(task)

    def answer(self) -> dict[str, Any]:
        return self.measure(self.waiting.pop(0))

    def measure(self, task: Task) -> dict[str, Any]:
        type(self).answered.append((self.order.engine, task))
        if task.save is not None:
            error = {"torch": 0.1, "recipe": 0.2}[self.order.engine] / task.grid_factor**2
            np.save(task.save, np.full((2, 2, 4, 4), 1 + error, np.float32))
        times = {"wall_s": 0.5, "cpu_s": 0.4, "potential_s": 0.1}
        return {**times, "start_bytes": 2**28, "peak_bytes": 2**29, "version": "none"}


@pytest.fixture
def children(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Task]]:
    monkeypatch.setattr(StandInChild, "answered", [])
    for module in ("simulate", "recipe", "memory"):
        monkeypatch.setattr(f"stemdl.bench.{module}.Child", StandInChild)
    return StandInChild.answered


@pytest.fixture
def config(tmp_path: Path) -> Config:
    file = tmp_path / "config.yaml"
    file.write_text(MINIMAL, encoding="utf-8")
    return load_config(file, ["scan.positions=[2, 3]", "simulation.pixel_angstrom=0.5", "detector.pixels=[24, 20]"])


@pytest.fixture
def bench(config: Config, monkeypatch: pytest.MonkeyPatch, children: object) -> SimulationBench:
    monkeypatch.setattr("data_gen.engines.abtem_engine.AbtemEngine", StandIn)
    return bench_simulate(config, repeats=2, specimens=3)


def test_all_engines_do_the_same_work_on_one_thread(bench: SimulationBench) -> None:
    figures = bench.as_dict()
    assert (figures["grid_pixels"], figures["slices"], figures["probes"]) == (48, 10, 6)
    assert (figures["specimens"], figures["repeats"], figures["threads"]) == (3, 2, 1)
    ours = ("torch", "abtem", "abtem_infinite")
    assert set(figures["engines"]) == {*ours, "abtem_recipe", "abtem_recipe_as_accurate"}
    assert set(figures["torch_times_faster"]) == set(figures["engines"]) - {"torch"}
    assert "infinite" in figures["engines"]["abtem_infinite"]["version"]
    for name, engine in figures["engines"].items():
        seconds = engine["seconds_per_sample"]
        assert 0 < seconds["min"] <= seconds["median"] <= seconds["max"]
        assert engine["samples_per_s"] == pytest.approx(1 / seconds["median"])
        if name in ours:
            assert engine["potential_seconds_per_sample"]["max"] < seconds["max"]
    assert figures["all_cores"]["torch_samples_per_s"] > 0
    assert figures["same_slices_relative_l2"] == pytest.approx(0.2, rel=1e-4)  # the stand-in is 1.25 times brighter
    json.dumps(figures, allow_nan=False)


def test_the_parts_of_the_time_are_named(bench: SimulationBench) -> None:
    torch_figures = bench.as_dict()["engines"]["torch"]
    assert set(torch_figures["parts_seconds"]) == {"potential", "transmission", "fft", "rest"}
    assert torch_figures["parts_seconds"]["fft"] > 0
    assert torch_figures["fft_floor_seconds"] > 0
    table = format_bench(bench)
    for words in (
        "48 x 48, 10 slices, 6 probes",
        "abtem_infinite",
        "FFT floor, 114 full transforms",
        "2.0e-01",
        "1.5n",
    ):
        assert words in table


def test_specimens_are_those_of_the_training_set(config: Config) -> None:
    """The patterns of the benchmark's specimens are the patterns that the simulation stage writes."""
    from data_gen.imaging import setup_for

    (part, _), _ = parts(config)
    engine = TorchEngine()
    setup = setup_for(config, config.simulation)
    specimen = bench_specimens(config, 2)[1]
    patterns = engine.patterns(*engine.slices(specimen, setup), setup)
    written = torch.from_numpy(make_sample(config, part, 1, engine).amplitude.astype("f4")) ** 2
    assert relative(patterns, written) < 2e-3  # amplitudes are kept in half precision
    assert len(bench_specimens(config, 1000)) == config.simulation.samples


def test_torch_keeps_its_threads(config: Config, monkeypatch: pytest.MonkeyPatch, children: object) -> None:
    monkeypatch.setattr("data_gen.engines.abtem_engine.AbtemEngine", StandIn)
    before = torch.get_num_threads()
    bench_simulate(config, repeats=1, specimens=1)
    assert torch.get_num_threads() == before


def test_no_repeats_are_refused(config: Config) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        bench_simulate(config, repeats=0)


def test_spread() -> None:
    assert Spread.of([3.0, 1.0, 2.0, 10.0]) == Spread(2.5, 1.0, 10.0)


def test_the_recipe_is_as_accurate_as_ours_on_a_finer_grid(tmp_path: Path, children: list[tuple[str, Task]]) -> None:
    """The stand-in's errors are 0.1 for ours and 0.2 / factor² for the recipe: equal at √2; 132 is no good size."""
    accuracy = measure_accuracy(Order("none", "recipe", 3), 96, 3, tmp_path)
    assert accuracy.reference_pixels == 4 * 96
    assert accuracy.torch == pytest.approx(0.1 * 15 / 16, rel=0.02)
    assert accuracy.equal_at == 140 / 96
    assert list(accuracy.recipe) == [size / 96 for size in (96, 108, 120, 140, 144, 168, 192)]
    assert all(task.few for _, task in children)
    assert measure_accuracy(Order("none", "recipe", 1), 256, 1, tmp_path).reference_pixels == 512


def test_the_finest_grid_stands_in_where_none_is_as_accurate() -> None:
    assert Accuracy(384, 0.01, {1.0: 0.1, 2.0: 0.02}).equal_at == 2.0
    assert Accuracy(384, 0.01, {1.0: 0.1, 1.5: 0.009, 2.0: 0.02}).equal_at == 1.5


def test_all_cores_have_samples_of_their_own(monkeypatch: pytest.MonkeyPatch, children: list[tuple[str, Task]]) -> None:
    times = iter([0.0, 1.0, 10.0, 14.0] * 3)  # our round takes 1 s, the recipe's 4 s
    monkeypatch.setattr("stemdl.bench.recipe.time", types.SimpleNamespace(perf_counter=lambda: next(times)))
    cores = measure_all_cores(Order("none", "recipe", 2), 2, 2, 3)
    assert cores == AllCores(3, torch_samples_per_s=6.0, recipe_samples_per_s=0.5)
    assert [engine for engine, _ in children].count("torch") == 3 * 2 * 3  # processes, specimens, rounds
    assert [engine for engine, _ in children].count("recipe") == 2 * 3


def test_memory_is_given_for_each_number_of_waves(config: Config, children: list[tuple[str, Task]]) -> None:
    bench = bench_memory(config, chunks=(1, 4), repeats=2)
    figures = bench.as_dict()
    assert [one["probe_chunk"] for one in figures["chunks"]] == [1, 4]
    assert figures["chunks"][0]["added_bytes"] == 2**28
    assert figures["bytes_of_the_patterns"] == 4 * 6 * 24 * 20
    assert len(children) == 2 * 3
    assert "256" in format_memory_bench(bench)
    json.dumps(figures, allow_nan=False)


def test_prism_is_compared_with_multislice(config: Config) -> None:
    bench = bench_prism(config, scans=(1, 3), semiangles_mrad=(5.0, 20.0), repeats=1)
    assert [(case.semiangle_mrad, case.scan_shape) for case in bench.cases] == [
        (5.0, (1, 1)), (5.0, (3, 3)), (20.0, (1, 1)), (20.0, (3, 3)),
    ]  # fmt: skip
    for case in bench.cases:
        assert case.exact_relative_l2 < 1e-5
        assert 0 < case.interpolated[2][1] < 1
        assert case.loss >= 0
        assert case.chosen == "multislice"
    assert bench.cases[0].beams < bench.cases[2].beams
    assert "PRISM, f = 2" in format_prism_bench(bench)
    json.dumps(bench.as_dict(), allow_nan=False)


@pytest.fixture
def order(config: Config, tmp_path: Path) -> Callable[[], Order]:
    def saved() -> Order:
        save_config(config, tmp_path / "saved.yaml")
        return Order(str(tmp_path / "saved.yaml"), "torch", 2)

    return saved


def test_a_child_makes_the_patterns_of_the_training_set(
    config: Config, order: Callable[[], Order], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from data_gen.imaging import setup_for

    monkeypatch.setenv(
        "PYTHONPATH", os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])
    )
    engine, setup = TorchEngine(), setup_for(config, config.simulation)
    expected = engine.patterns(*engine.slices(bench_specimens(config, 2)[1], setup), setup)
    with Child(order()) as child:
        answer = child.measure(Task(1, save=str(tmp_path / "patterns.npy")))
        assert relative(torch.from_numpy(np.load(tmp_path / "patterns.npy")), expected) < 1e-6
        assert 0 < answer["potential_s"] < answer["wall_s"]
        assert 50e6 < answer["start_bytes"] <= answer["peak_bytes"] < 5e9
        child.ask(Task(99))
        with pytest.raises(UserError, match=r"the process of 'torch' ended with 1:(?s:.*)IndexError"):
            child.answer()


def test_the_memory_of_this_process_is_known() -> None:
    assert 20e6 < peak_bytes() < 1e12
