"""The benchmark of the engines: what it counts, what it writes, what it refuses. Nothing is said about how fast."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from data_gen.engines import ImagingSetup
from data_gen.engines.torch_engine import TorchEngine
from data_gen.sample import make_sample
from data_gen.worklist import parts
from minimal_config import MINIMAL
from physics_cases import relative
from stemdl.bench.simulate import SimulationBench, Spread, _specimens, bench_simulate, format_bench
from stemdl.config import Config, load_config


class StandIn(TorchEngine):
    """Takes abTEM's place, whose import costs seconds; a little off, so that the distance is not zero."""

    def __init__(self, projection: str = "finite") -> None:
        super().__init__()
        self.projection = projection

    def version(self) -> str:
        return f"stand-in, {self.projection}"

    def patterns(self, slices: torch.Tensor, slice_thickness_angstrom: float, setup: ImagingSetup) -> torch.Tensor:
        return super().patterns(slices, slice_thickness_angstrom, setup) * 1.25


@pytest.fixture
def config(tmp_path: Path) -> Config:
    file = tmp_path / "config.yaml"
    file.write_text(MINIMAL, encoding="utf-8")
    return load_config(file, ["scan.positions=[2, 3]", "simulation.pixel_angstrom=0.5", "detector.pixels=[24, 20]"])


@pytest.fixture
def bench(config: Config, monkeypatch: pytest.MonkeyPatch) -> SimulationBench:
    monkeypatch.setattr("data_gen.engines.abtem_engine.AbtemEngine", StandIn)
    return bench_simulate(config, repeats=2, specimens=3)


def test_all_engines_do_the_same_work_on_one_thread(bench: SimulationBench) -> None:
    figures = bench.as_dict()
    assert (figures["grid_pixels"], figures["slices"], figures["probes"]) == (48, 10, 6)
    assert (figures["specimens"], figures["repeats"], figures["threads"]) == (3, 2, 1)
    assert set(figures["engines"]) == {"torch", "abtem", "abtem_infinite"}
    assert "infinite" in figures["engines"]["abtem_infinite"]["version"]
    for engine in figures["engines"].values():
        seconds = engine["seconds_per_sample"]
        assert 0 < seconds["min"] <= seconds["median"] <= seconds["max"]
        assert engine["samples_per_s"] == pytest.approx(1 / seconds["median"])
        assert engine["potential_seconds_per_sample"]["max"] < seconds["max"]
    assert figures["same_slices_relative_l2"] == pytest.approx(0.2, rel=1e-4)  # the stand-in is 1.25 times brighter
    json.dumps(figures, allow_nan=False)


def test_the_parts_of_the_time_are_named(bench: SimulationBench) -> None:
    torch_figures = bench.as_dict()["engines"]["torch"]
    assert set(torch_figures["parts_seconds"]) == {"potential", "transmission", "fft", "rest"}
    assert torch_figures["parts_seconds"]["fft"] > 0
    assert torch_figures["fft_floor_seconds"] > 0
    table = format_bench(bench)
    for words in ("48 x 48, 10 slices, 6 probes", "abtem_infinite", "FFT floor, 114 full transforms", "2.0e-01"):
        assert words in table


def test_specimens_are_those_of_the_training_set(config: Config) -> None:
    """The patterns of the benchmark's specimens are the patterns that the simulation stage writes."""
    from data_gen.imaging import setup_for

    (part, _), _ = parts(config)
    engine = TorchEngine()
    setup = setup_for(config, config.simulation)
    specimen = _specimens(config, 2)[1]
    patterns = engine.patterns(*engine.slices(specimen, setup), setup)
    written = torch.from_numpy(make_sample(config, part, 1, engine).amplitude.astype("f4")) ** 2
    assert relative(patterns, written) < 2e-3  # amplitudes are kept in half precision
    assert len(_specimens(config, 1000)) == config.simulation.samples


def test_torch_keeps_its_threads(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("data_gen.engines.abtem_engine.AbtemEngine", StandIn)
    before = torch.get_num_threads()
    bench_simulate(config, repeats=1, specimens=1)
    assert torch.get_num_threads() == before


def test_no_repeats_are_refused(config: Config) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        bench_simulate(config, repeats=0)


def test_spread() -> None:
    assert Spread.of([3.0, 1.0, 2.0, 10.0]) == Spread(2.5, 1.0, 10.0)
