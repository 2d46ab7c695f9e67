"""`stemdl bench comm`: the communication model's figures as JSON, as a table and as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from stemdl.bench.comm_machines import FRONTIER, SUMMIT
from stemdl.bench.comm_model import MODES, RANKS, Mode, StepCost, sweep
from stemdl.bench.comm_network import LOGGED_STEP_ON_V100, STEP_ON_GCD, STEP_ON_V100
from stemdl.bench.comm_sensitivity import SPREADS, Case, Range, SensitivityRow, monte_carlo, sensitivity
from stemdl.report.comm_figure import Curve, MachinePanels, save_comm_picture

CASES = (Case(SUMMIT, STEP_ON_V100), Case(FRONTIER, STEP_ON_GCD), Case(SUMMIT, LOGGED_STEP_ON_V100))
FACTOR = 2.0
_SHOWN_RANKS = (6, 192, 1536, 6000, 12_000, 27_600)
_SHOWN_INPUTS = 8
_WITH_RANGE = ("none", "both")


@dataclass(frozen=True)
class CaseResult:
    """One network on one machine."""

    case: Case
    costs: tuple[StepCost, ...]
    equal_gpus: tuple[StepCost, ...]
    """The same with all GPUs as fast as the median one."""
    sensitivity: tuple[SensitivityRow, ...]
    ranges: dict[Mode, Range]

    def cost(self, mode: Mode, ranks: int, *, variation: bool = True) -> StepCost:
        """One of them."""
        costs = self.costs if variation else self.equal_gpus
        return next(cost for cost in costs if cost.mode == mode and cost.ranks == ranks)


def model_results(
    cases: Sequence[Case] = CASES, ranks: Sequence[int] = RANKS, *, samples: int = 400
) -> list[CaseResult]:
    """Evaluate all; the sensitivity and the ranges are those at the largest number of ranks."""
    most = max(ranks)
    return [
        CaseResult(
            case,
            tuple(sweep(case.machine, case.workload, ranks, software=case.software)),
            tuple(sweep(case.machine, case.workload, ranks, software=case.software, variation=False)),
            tuple(sensitivity(case, most, factor=FACTOR)),
            monte_carlo(case, most, samples=samples),
        )
        for case in cases
    ]


def model_report(
    cases: Sequence[Case] = CASES, ranks: Sequence[int] = RANKS, *, samples: int = 400
) -> tuple[dict[str, Any], str]:
    """For --json (keys do not change) and for the terminal. samples: of the Monte Carlo ranges."""
    results = model_results(cases, ranks, samples=samples)
    return report_dict(results), report_text(results)


def report_dict(results: Sequence[CaseResult]) -> dict[str, Any]:
    """JSON-able."""
    return {
        "cases": [_case_dict(result) for result in results],
        "sensitivity_factor": FACTOR,
        "monte_carlo_factors": dict(SPREADS),
    }


def _case_dict(result: CaseResult) -> dict[str, Any]:
    case = result.case
    sources = case.inputs()
    return {
        "machine": case.machine.name,
        "workload": case.workload.name,
        "gradients": case.workload.tensors,
        "weights": case.workload.elements,
        "compute_s": case.workload.compute_s,
        "inputs": [
            {"input": name, "value": case.value(name), "tag": source.tag, "source": source.text}
            for name, source in sources.items()
        ],
        "modes": [
            {**asdict(cost), "efficiency_equal_gpus": equal.efficiency}
            for cost, equal in zip(result.costs, result.equal_gpus, strict=True)
        ],
        "sensitivity": [
            {
                "input": row.input,
                "value": row.value,
                "tag": row.source.tag,
                "divided": dict(row.divided),
                "multiplied": dict(row.multiplied),
            }
            for row in result.sensitivity
        ],
        "monte_carlo": {mode: asdict(found) for mode, found in result.ranges.items()},
    }


def report_text(results: Sequence[CaseResult]) -> str:
    """Tables for people."""
    lines = [
        "Modelled, not measured: α-β-γ costs from public figures, our measurements and stated assumptions",
        "(docs/communication-model.md). Efficiency: time of a step on one rank over that on so many.",
    ]
    for result in results:
        lines += ["", *_efficiency_lines(result), "", *_sensitivity_lines(result)]
    return "\n".join(lines)


def _efficiency_lines(result: CaseResult) -> list[str]:
    present = sorted({cost.ranks for cost in result.costs})
    shown = [count for count in present if count in _SHOWN_RANKS] or present[-1:]
    most, workload = present[-1], result.case.workload
    size = f"{workload.tensors} gradients, {workload.elements / 1e6:.0f} million weights"
    lines = [
        f"{result.case.name}",
        f"{size}; {workload.compute_s:.3g} s for a step on one rank",
        f"{'mode':<9}" + "".join(f"{count:>8}" for count in shown) + "  ranks",
    ]
    lines += [
        f"{mode:<9}" + "".join(f"{result.cost(mode, count).efficiency:>8.3f}" for count in shown) for mode in MODES
    ]
    lines.append(
        f"{most} ranks   {'step s':>8}{'GPUs s':>8}{'exposed':>9}{'control':>9}{'wire s':>8}{'cycles':>8}{'buffers':>9}"
        f"{'rank 0 bytes':>14}{'equal GPUs':>12}{'Monte Carlo 5, 50, 95 %':>26}"
    )
    for mode in MODES:
        cost, found = result.cost(mode, most), result.ranges[mode]
        equal = result.cost(mode, most, variation=False).efficiency
        lines.append(
            f"{mode:<13}{cost.step_s:>8.3f}{cost.variation_s:>8.3f}{cost.exposed_s:>9.4f}{cost.control_s:>9.4f}"
            f"{cost.wire_s:>8.3f}{cost.cycles:>8}{cost.buffers:>9}{cost.rank0_bytes:>14.0f}{equal:>12.3f}"
            f"{f'{found.p5:.2f}, {found.median:.2f}, {found.p95:.2f}':>26}"
        )
    return lines


def _sensitivity_lines(result: CaseResult) -> list[str]:
    shown: tuple[Mode, ...] = ("none", "cache", "both", "planned")
    title = f"efficiency with an input /{FACTOR:g} .. x{FACTOR:g}"
    lines = [f"{title:<38}{'tag':<10}" + "".join(f"{mode:>16}" for mode in shown)]
    lines += [
        f"{row.input:<38}{row.source.tag:<10}"
        + "".join(f"{f'{row.divided[mode]:.3f} .. {row.multiplied[mode]:.3f}':>16}" for mode in shown)
        for row in result.sensitivity[:_SHOWN_INPUTS]
    ]
    rest = result.sensitivity[_SHOWN_INPUTS:]
    if rest:
        most = max(row.span(mode) for row in rest for mode in MODES)
        lines.append(f"{len(rest)} other inputs: at most {most:.3f} apart")
    return lines


def save_model_picture(path: Path, results: Sequence[CaseResult]) -> None:
    """Efficiency and time for agreeing against the number of ranks, a column for each case, as PNG.

    Raises ReportError where the name does not end in .png, OSError where it cannot be written.
    """
    panels = []
    for result in results:
        curves = []
        for mode in MODES:
            costs = [cost for cost in result.costs if cost.mode == mode]
            found = result.ranges[mode]
            curves.append(
                Curve(
                    mode,
                    [cost.ranks for cost in costs],
                    [cost.efficiency for cost in costs],
                    [cost.control_s for cost in costs],
                    (found.p5, found.p95) if mode in _WITH_RANGE else None,
                )
            )
        case = result.case
        panels.append(MachinePanels(case.machine.name, case.workload.name, case.workload.compute_s, curves))
    save_comm_picture(path, panels)
