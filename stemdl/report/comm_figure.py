"""One PNG of the communication model: efficiency, and time for agreeing, against the number of ranks."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from stemdl.atomic_files import replace_atomically
from stemdl.report.data import ReportError
from stemdl.report.style import ACCENT, BASELINES, OURS, styled

_TEXT = "#1b1d21"
_PALE = "#8a8f98"
_RANK_TICKS = (1, 10, 100, 1000, 10_000)
_MARGIN = 1.35
"""Free on the right of the last number of ranks, for ranges."""
# Curves lie on one another where nothing has to be waited for: wide and pale below, narrow and dashed above.
_LOOKS: dict[str, dict[str, Any]] = {
    "none": {"color": _TEXT, "lw": 2.6, "ls": "-"},
    "groups": {"color": BASELINES[3], "lw": 1.6, "ls": (0, (4, 3))},
    "cache": {"color": BASELINES[0], "lw": 4.5, "ls": "-", "alpha": 0.6},
    "both": {"color": OURS, "lw": 2.2, "ls": "-"},
    "planned": {"color": ACCENT, "lw": 1.6, "ls": (0, (5, 4))},
    "ddp": {"color": BASELINES[1], "lw": 1.4, "ls": (0, (1, 2))},
}
_LABELS = {
    "none": "none: requests to rank 0",
    "groups": "groups alone",
    "cache": "cache alone",
    "both": "cache and groups",
    "planned": "planned order",
    "ddp": "DDP's buckets",
}


@dataclass(frozen=True)
class Curve:
    """One mode; lists of equal length."""

    mode: str
    ranks: Sequence[int]
    efficiency: Sequence[float]
    control_s: Sequence[float]
    last_range: tuple[float, float] | None = None
    """Where the last efficiency may lie."""


@dataclass(frozen=True)
class MachinePanels:
    """A column of the picture."""

    machine: str
    workload: str
    compute_s: float
    """Of a step on one rank."""
    curves: Sequence[Curve]


@styled
def save_comm_picture(path: Path, columns: Sequence[MachinePanels]) -> None:
    """Write a PNG on white: a column for each machine, efficiency above, time for agreeing in a step below.

    Raises ReportError where the name does not end in .png or there is no column, OSError where it cannot be written.
    """
    if path.suffix.lower() != ".png":
        raise ReportError(f"{path}: a name that ends in .png is needed")
    if not columns:
        raise ReportError(f"{path}: nothing to draw")
    is_wide = len(columns) > 2
    figure = Figure(figsize=(0.4 + 5.2 * len(columns), 8.6), dpi=110, facecolor="white")
    grid = figure.add_gridspec(
        2, len(columns), left=0.06 if is_wide else 0.09, right=0.985, top=0.835 if is_wide else 0.805, bottom=0.07,
        hspace=0.2, wspace=0.16,
    )  # fmt: skip
    for number, column in enumerate(columns):
        above, below = figure.add_subplot(grid[0, number]), figure.add_subplot(grid[1, number])
        _draw_efficiency(above, column)
        _draw_control(below, column)
        if number == 0:
            above.set_ylabel("efficiency of weak scaling")
            below.set_ylabel("time for agreeing in a step, s")
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="upper center", ncols=6 if is_wide else 3, bbox_to_anchor=(0.5, 0.962))
    figure.text(
        0.5, 0.975, "Communication model: a training step with each way to exchange gradients (modelled, not measured)",
        color=_TEXT, fontsize=13, ha="center",
    )  # fmt: skip
    figure.text(0.01, 0.01, "bars: 5 to 95 % of drawn inputs", color=_PALE, fontsize=9)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", facecolor="white", metadata={"Software": None})
    replace_atomically(path, buffer.getvalue())


def _draw_efficiency(axes: Any, column: MachinePanels) -> None:
    for curve in column.curves:
        look = _LOOKS.get(curve.mode, {})
        axes.plot(curve.ranks, curve.efficiency, label=_LABELS.get(curve.mode, curve.mode), **look)
        if curve.last_range is not None:
            low, high = curve.last_range
            last, colour = curve.efficiency[-1], look.get("color", _TEXT)
            place = curve.ranks[-1] * _MARGIN**0.5
            axes.errorbar(
                place, last, [[max(0.0, last - low)], [max(0.0, high - last)]], color=colour, lw=1.3, capsize=3
            )
            axes.annotate(f"{last:.2f}", (place, last), (-9, -12), textcoords="offset points", ha="right", color=colour)
    axes.set_ylim(0, 1.04)
    axes.set_title(f"{column.machine}\n{_wrapped(column.workload)}", color=_TEXT, fontsize=11, parse_math=False)
    _rank_axis(axes, column)


def _draw_control(axes: Any, column: MachinePanels) -> None:
    drawn = False
    for curve in column.curves:
        points = [(ranks, value) for ranks, value in zip(curve.ranks, curve.control_s, strict=True) if value > 0]
        if points:
            drawn = True
            axes.plot(*zip(*points, strict=True), **_LOOKS.get(curve.mode, {}))
    if drawn:
        axes.set_yscale("log")
    axes.axhline(column.compute_s, color=_PALE, lw=1, ls="--")
    axes.text(1.15, column.compute_s * 0.82, "computation of a step", color=_PALE, fontsize=10, va="top")
    axes.set_xlabel("ranks, one for each GPU")
    _rank_axis(axes, column)


def _rank_axis(axes: Any, column: MachinePanels) -> None:
    most = max(max(curve.ranks) for curve in column.curves)
    axes.set_xscale("log")
    axes.set_xlim(1, most * _MARGIN)
    ticks = [tick for tick in _RANK_TICKS if tick < most / 4]
    axes.xaxis.set_major_locator(FixedLocator([*ticks, most]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.axvline(most, color=_PALE, lw=0.7, alpha=0.5)
    axes.grid(visible=True, axis="y")


def _wrapped(text: str, characters: int = 46) -> str:
    lines = [""]
    for word in text.split():
        if lines[-1] and len(lines[-1]) + 1 + len(word) > characters:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return "\n".join(lines)
