"""How far the communication model's answer depends on each of its inputs, and on all of them together."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from stemdl.bench.comm_machines import Machine, Source
from stemdl.bench.comm_model import MODES, SOFTWARE, Mode, Software, evaluate
from stemdl.bench.comm_network import Workload

SPREADS: Mapping[str, float] = {"public": 1.2, "measured": 1.5, "assumed": 2.0}
"""Monte Carlo: an input is multiplied by up to this, or divided, evenly on a logarithmic scale."""
_LARGEST_SHARE = 0.95
_FIXED = ("gpus_per_node",)


@dataclass(frozen=True)
class Case:
    """What is evaluated: a network on a machine."""

    machine: Machine
    workload: Workload
    software: Software = SOFTWARE

    @property
    def name(self) -> str:
        """Machine and network."""
        return f"{self.machine.name}: {self.workload.name}"

    def inputs(self) -> dict[str, Source]:
        """All inputs with a source, by "owner.field"."""
        owners = {
            "machine": self.machine.sources,
            "workload": self.workload.sources,
            "software": self.software.sources,
        }
        return {f"{owner}.{name}": source for owner, found in owners.items() for name, source in found.items()}

    def value(self, name: str) -> float:
        """An input's value, in the unit that its name says."""
        owner, part = name.split(".")
        return float(getattr(getattr(self, owner), part))

    def scaled(self, name: str, factor: float) -> Case:
        """The same with one input multiplied; the backward pass stays a part of the step."""
        owner, part = name.split(".")
        value = self.value(name) * factor
        if part == "backward_share":
            value = min(_LARGEST_SHARE, value)
        changed = {part: value}
        match owner:
            case "machine":
                return replace(self, machine=replace(self.machine, **changed))  # type: ignore[arg-type]
            case "workload":
                return replace(self, workload=replace(self.workload, **changed))  # type: ignore[arg-type]
            case _:
                return replace(self, software=replace(self.software, **changed))  # type: ignore[arg-type]

    def efficiency(self, mode: Mode, ranks: int, *, variation: bool = True) -> float:
        """See `evaluate`."""
        return evaluate(self.machine, self.workload, mode, ranks, self.software, variation=variation).efficiency

    def varied(self) -> list[str]:
        """Inputs that the tables vary: all but counts of the hardware."""
        return [name for name in self.inputs() if name.split(".")[1] not in _FIXED]


@dataclass(frozen=True)
class SensitivityRow:
    """Efficiencies with one input divided and multiplied, by mode."""

    input: str
    value: float
    source: Source
    divided: Mapping[Mode, float]
    multiplied: Mapping[Mode, float]

    def span(self, mode: Mode) -> float:
        """How far apart the two are."""
        return abs(self.multiplied[mode] - self.divided[mode])


def sensitivity(case: Case, ranks: int, modes: Sequence[Mode] = MODES, factor: float = 2.0) -> list[SensitivityRow]:
    """Each input divided and multiplied by `factor`, the others as they are; largest effect first."""
    sources = case.inputs()
    rows = []
    for name in case.varied():
        low, high = case.scaled(name, 1 / factor), case.scaled(name, factor)
        rows.append(
            SensitivityRow(
                name,
                case.value(name),
                sources[name],
                {mode: low.efficiency(mode, ranks) for mode in modes},
                {mode: high.efficiency(mode, ranks) for mode in modes},
            )
        )
    return sorted(rows, key=lambda row: (-max(row.span(mode) for mode in modes), row.input))


@dataclass(frozen=True)
class Range:
    """Percentiles of an efficiency over the drawn inputs."""

    p5: float
    median: float
    p95: float


def monte_carlo(
    case: Case, ranks: int, modes: Sequence[Mode] = MODES, *, samples: int = 400, seed: int = 0
) -> dict[Mode, Range]:
    """All inputs at once, each drawn within the spread of its tag (`SPREADS`); the same for every mode of a sample."""
    rng = random.Random(seed)
    sources = case.inputs()
    found: dict[Mode, list[float]] = {mode: [] for mode in modes}
    for _ in range(samples):
        drawn = case
        for name in case.varied():
            drawn = drawn.scaled(name, SPREADS[sources[name].tag] ** rng.uniform(-1, 1))
        for mode in modes:
            found[mode].append(drawn.efficiency(mode, ranks))
    return {mode: _range(values) for mode, values in found.items()}


def _range(values: Sequence[float]) -> Range:
    ordered = sorted(values)

    def at(part: float) -> float:
        return ordered[round(part * (len(ordered) - 1))]

    return Range(at(0.05), at(0.5), at(0.95))
