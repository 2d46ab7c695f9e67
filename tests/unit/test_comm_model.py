"""The communication model: its network, its costs, and its counts, which must be those that the program counts."""

from __future__ import annotations

import json
import random
import statistics
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from comm_cases import item, on_ranks
from stemdl.bench.comm_control_counts import (
    ControlCounts,
    Negotiation,
    Replay,
    compare_counts,
    control_counts,
)
from stemdl.bench.comm_counts import count_steps, items_of
from stemdl.bench.comm_machines import FRONTIER, MACHINES, SUMMIT, Machine
from stemdl.bench.comm_model import MODES, RANKS, SOFTWARE, Mode, evaluate, slowest_gpu, sweep
from stemdl.bench.comm_network import BLOCKS, STEP_ON_GCD, STEP_ON_V100, Workload, fc_densenet_layers, workload_of
from stemdl.bench.comm_report import model_report, model_results, save_model_picture
from stemdl.bench.comm_sensitivity import Case, monte_carlo, sensitivity
from stemdl.comm.control import CountedControl
from stemdl.comm.counters import Counters
from stemdl.comm.negotiation import Cached, Coordinator, Negotiator, Planned
from stemdl.models.fc_densenet import FcDenseNet
from stemdl.report.data import ReportError

SMALL = workload_of("small", fc_densenet_layers(8, 3, positions=16, pixels=32), 1e9)
PAIRS = ((SUMMIT, STEP_ON_V100), (FRONTIER, STEP_ON_GCD))


@pytest.mark.parametrize(
    ("growth", "kernel", "positions", "pixels", "weights", "flop"),
    [
        (64, 3, 1024, 512, 6.0e6, 2.5e12),
        (128, 3, 1024, 512, 2.29e7, 8.0e12),
        (128, 5, 1024, 512, 6.0e7, 2.13e13),
        (256, 5, 1024, 512, 2.33e8, 7.5e13),
        (32, 3, 64, 256, 1.4e6, 1.0e11),
    ],
)
def test_layers_have_the_published_counts(
    growth: int, kernel: int, positions: int, pixels: int, weights: float, flop: float
) -> None:
    layers = fc_densenet_layers(growth, kernel, positions=positions, pixels=pixels)
    assert len(layers) == 26
    assert sum(layer.weights + layer.biases for layer in layers) == pytest.approx(weights, rel=0.02)
    assert sum(layer.flop for layer in layers) == pytest.approx(flop, rel=0.04)


def test_layers_are_those_of_the_network() -> None:
    network = FcDenseNet(positions=(4, 4), growth=8, kernel=3, blocks=BLOCKS, dropout=0.0)
    built = sorted(parameter.numel() for parameter in network.parameters())
    listed = [count for one in fc_densenet_layers(8, 3, positions=16) for count in (one.weights, one.biases)]
    assert sorted(listed) == built


def test_gradients_become_ready_from_the_last_layer_to_the_first() -> None:
    readiness = [one.ready for one in STEP_ON_V100.gradients]
    assert readiness == sorted(readiness)
    assert readiness[-1] == pytest.approx(1.0)
    assert (STEP_ON_V100.gradients[0].name, STEP_ON_V100.gradients[-1].name) == ("last", "first")
    assert STEP_ON_V100.tensors == 52


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("machine", "workload"), PAIRS)
def test_cost_of_a_step(machine: Machine, workload: Workload, mode: Mode) -> None:
    costs = sweep(machine, workload, RANKS, [mode])
    assert costs[0].efficiency == 1.0
    assert costs[0].step_s == workload.compute_s
    for cost in costs:
        assert 0 < cost.efficiency <= 1
        assert cost.step_s == pytest.approx(workload.compute_s + cost.variation_s + cost.exposed_s)
        assert cost.efficiency == pytest.approx(workload.compute_s / cost.step_s)
    efficiencies = [cost.efficiency for cost in costs]
    assert all(later <= earlier + 0.005 for earlier, later in pairwise(efficiencies))


def test_control_messages_by_mode() -> None:
    costs = {mode: evaluate(SUMMIT, STEP_ON_V100, mode, 6000) for mode in MODES}
    assert costs["planned"].rank0_bytes == costs["ddp"].rank0_bytes == 0
    assert costs["planned"].cycles == costs["planned"].control_s == 0
    assert costs["both"].rank0_bytes == 8 * costs["both"].cycles
    # Requests grow with ranks x tensors, the vector does not.
    twice = evaluate(SUMMIT, STEP_ON_V100, "none", 12_000)
    assert twice.rank0_bytes == pytest.approx(2 * costs["none"].rank0_bytes, rel=0.1)
    assert costs["none"].rank0_bytes > 6000 * 52 * 100
    assert costs["groups"].buffers == costs["both"].buffers == costs["planned"].buffers == 26
    assert costs["ddp"].buffers < 26


def test_buffers_of_a_cycle_are_joined_up_to_the_threshold() -> None:
    apart = replace(SOFTWARE, fusion_bytes=0.0)
    joined = replace(SOFTWARE, fusion_bytes=1e12, cycle_s=10.0)
    assert evaluate(SUMMIT, SMALL, "cache", 100, apart).buffers == SMALL.tensors
    assert evaluate(SUMMIT, SMALL, "cache", 100, joined).buffers == 1


def test_exchange_hides_behind_the_backward_pass() -> None:
    slow = replace(STEP_ON_V100, compute_s=100.0)
    cost = evaluate(SUMMIT, slow, "planned", 27_600, variation=False)
    last = SUMMIT.reduction_s(sum(slow.gradients[-1].elements) * slow.wire_bytes, 27_600)
    assert cost.exposed_s == pytest.approx(last)
    quick = replace(STEP_ON_V100, compute_s=1e-6)
    cost = evaluate(SUMMIT, quick, "planned", 27_600, variation=False)
    assert cost.exposed_s == pytest.approx(cost.wire_s, rel=1e-3)


def test_efficiency_on_the_whole_of_summit() -> None:
    """What docs/communication-model.md says of the result; no input is made for it."""
    both, none = (evaluate(SUMMIT, STEP_ON_V100, mode, 27_600) for mode in ("both", "none"))
    assert 0.90 <= both.efficiency <= 0.96
    assert none.efficiency < 0.6 * both.efficiency
    equal = evaluate(SUMMIT, STEP_ON_V100, "both", 27_600, variation=False)
    assert equal.efficiency > 0.99, "with both, all that is left is that GPUs differ"
    unconverted = replace(SUMMIT, coordinator_slowdown=1.0)
    assert evaluate(unconverted, STEP_ON_V100, "none", 27_600).efficiency == pytest.approx(0.53, abs=0.02)


def test_time_for_a_request_grows_with_the_cycle() -> None:
    costs = [SOFTWARE.request_s(count) for count in (1, 8000, 27_600, 60_000, 358_800, 1_435_200, 1e8)]
    assert costs == sorted(costs)
    assert costs[0] == costs[1] == pytest.approx(0.43e-6)
    assert costs[2] == pytest.approx(0.53e-6)
    assert costs[-1] == costs[-2] == pytest.approx(1.48e-6)


@pytest.mark.parametrize("machine", MACHINES)
def test_time_of_a_reduction(machine: Machine) -> None:
    assert machine.reduction_s(1e6, 1) == 0
    for ranks in (2, machine.gpus_per_node, 10 * machine.gpus_per_node, 27_600):
        times = [machine.reduction_s(size, ranks) for size in (8, 1e5, 1e7, 1e9)]
        assert times == sorted(times)
    few, many = (machine.reduction_s(1e9, ranks) for ranks in (100, 27_600))
    assert many < 2 * few, "a tree: latency grows with the logarithm"
    assert machine.reduction_s(1e9, 27_600) > 2 * 1e9 * (1 - 1e-3) / machine.network_bytes_per_s


def test_slowest_of_many_gpus() -> None:
    assert slowest_gpu(1, 0.1) == slowest_gpu(1000, 0.0) == 1.0
    rng = random.Random(1)
    drawn = statistics.mean(max(rng.gauss(1.0, 0.02) for _ in range(50)) for _ in range(2000))
    assert slowest_gpu(50, 0.02) == pytest.approx(drawn, abs=1e-3)


def test_every_input_has_a_source_and_is_varied() -> None:
    case = Case(SUMMIT, STEP_ON_V100)
    for machine in MACHINES:
        named = {"name", "algorithms", "sources"}
        assert set(machine.sources) == set(machine.__dataclass_fields__) - named
    rows = sensitivity(case, 27_600, ["none", "both"])
    assert {row.input for row in rows} == set(case.varied())
    assert {row.source.tag for row in rows} == {"public", "measured", "assumed"}
    by_input = {row.input: row for row in rows}
    slower = by_input["machine.coordinator_slowdown"]
    assert (
        slower.multiplied["none"] < evaluate(SUMMIT, STEP_ON_V100, "none", 27_600).efficiency < slower.divided["none"]
    )
    assert slower.span("both") == 0
    assert case.scaled("workload.backward_share", 2).workload.backward_share < 1


def test_monte_carlo_draws_the_same_from_the_same_seed() -> None:
    case = Case(SUMMIT, STEP_ON_V100)
    found = monte_carlo(case, 27_600, ["none", "planned"], samples=40)
    assert found == monte_carlo(case, 27_600, ["none", "planned"], samples=40)
    for one in found.values():
        assert 0 < one.p5 <= one.median <= one.p95 <= 1


@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.parametrize(
    ("mode", "groups"), [("coordinator", 36), ("coordinator", 6), ("cached", 36), ("cached", 6), ("planned", 6)]
)
def test_counts_are_those_of_the_program(mode: Negotiation, groups: int, ranks: int) -> None:
    items, steps = items_of(36, groups), 3
    counted = on_ranks(ranks, lambda control, counters: count_steps(mode, control, counters, items, steps))[0]
    assert not isinstance(counted, Exception)
    (compared,) = compare_counts([counted])
    assert compared.predicted == compared.counted
    assert compared.predicted.messages == counted.messages_per_step * steps
    assert compared.predicted.rank0_bytes == round(counted.bytes_per_step * steps)


@pytest.mark.parametrize("mode", ["coordinator", "cached", "planned"])
def test_replay_counts_every_step_from_the_first(mode: Negotiation) -> None:
    """The cache fills, a plan is made and compared: all messages, step by step, on three ranks."""
    items, ranks, steps = [item(number) for number in range(70)], 3, 9
    arrivals = [[items[:30]] * ranks, [items[30:], items[30:40], items[30:]], [[], items[40:], []]]

    def work(control: CountedControl, counters: Counters) -> list[ControlCounts]:
        negotiator: Negotiator = Coordinator(control)
        if mode != "coordinator":
            negotiator = Cached(control) if mode == "cached" else Planned(control, after_steps=2, check_steps=3)
        totals = []
        for _ in range(steps):
            waiting = {}
            for new in arrivals:
                waiting.update({one.name: one for one in new[control.rank]})
                names = negotiator.planned(list(waiting.values()))
                for name in negotiator.cycle(list(waiting.values())) if names is None else names:
                    del waiting[name]
            assert not waiting
            negotiator.step_done()
            totals.append(ControlCounts(counters.control_messages, counters.control_bytes))
        return totals

    counted = on_ranks(ranks, work)[0]
    replay, total, expected = Replay(mode, ranks, after_steps=2, check_steps=3), ControlCounts(), []
    for _ in range(steps):
        total += replay.step(arrivals)
        expected.append(total)
    assert counted == expected


@pytest.mark.parametrize(("groups", "vector_bytes"), [(1, 8), (61, 8), (62, 16), (125, 16), (126, 24)])
def test_counts_of_a_cycle(groups: int, vector_bytes: int) -> None:
    items = [item(number) for number in range(groups)]
    assert control_counts("cached", 5, items) == control_counts("cached", 50, items) == ControlCounts(1, vector_bytes)
    for mode in ("planned", "per_tensor", "ddp"):
        assert control_counts(mode, 50, items) == ControlCounts()
    few, many = (control_counts("coordinator", ranks, items).rank0_bytes for ranks in (2, 11))
    assert many == 10 * few
    assert few == Replay("coordinator", 2).step([[items, items]]).rank0_bytes


def test_report(tmp_path: Path) -> None:
    cases, ranks = [Case(SUMMIT, STEP_ON_V100), Case(FRONTIER, STEP_ON_GCD)], (1, 6, 192, 27_600)
    found, text = model_report(cases, ranks, samples=5)
    assert json.loads(json.dumps(found)) == found
    assert [case["machine"] for case in found["cases"]] == ["Summit", "Frontier"]
    first = found["cases"][0]
    assert len(first["modes"]) == len(MODES) * len(ranks)
    assert {"mode", "ranks", "step_s", "efficiency", "exposed_s", "control_s", "rank0_bytes"} <= set(first["modes"][0])
    assert all(one["tag"] in ("public", "measured", "assumed") and one["source"] for one in first["inputs"])
    assert set(first["monte_carlo"]) == set(MODES)
    assert "Modelled, not measured" in text
    assert all(mode in text for mode in MODES)
    results = model_results(cases, ranks, samples=5)
    save_model_picture(tmp_path / "model.png", results)
    assert (tmp_path / "model.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(ReportError, match=r"\.png"):
        save_model_picture(tmp_path / "model.pdf", results)
    with pytest.raises(ReportError, match="nothing to draw"):
        save_model_picture(tmp_path / "model.png", [])
