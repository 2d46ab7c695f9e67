"""The panels of a run: figures by material, training curves, time per stage."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from stemdl.report.data import FieldRecord, TrainingCurve
from stemdl.report.style import ACCENT, BASELINES, OURS, PALE, Panel, axes_at, blank, styled, to_svg

WIDTH = 500.0
MOST_MATERIALS = 60
_R_TICKS = (0.0, 0.5, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995, 0.998, 0.999)
_NRMSE_TICKS = (0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 1.5, 2.0, 5.0)
_SMALLEST_DEFECT = 1e-5  # 1 - r below which a point sits on the edge of the logarithmic axis


def material_panels(records: Sequence[FieldRecord]) -> Iterator[Panel]:
    """Pearson's r and NRMSE of every field by material, worst material first, baselines paler."""
    order = _materials_worst_first(records)
    note = ""
    if len(order) > MOST_MATERIALS:
        picked = np.unique(np.linspace(0, len(order) - 1, MOST_MATERIALS).round().astype(int))
        note = f" {MOST_MATERIALS} of {len(order)} materials, evenly by rank, the worst and the best among them."
        order = [order[i] for i in picked]
    yield _strip(
        records, order, "pearson_r", "Pearson r by material", "Pearson r (logarithmic in 1 - r)",
        lambda r: max(1 - r, _SMALLEST_DEFECT), _R_TICKS, "Further right is better." + note,
    )  # fmt: skip
    yield _strip(
        records, order, "nrmse", "NRMSE by material", "NRMSE (logarithmic)",
        lambda error: max(error, 1e-3), _NRMSE_TICKS, "Further right is better: errors fall to the right."
    )  # fmt: skip


def _materials_worst_first(records: Sequence[FieldRecord]) -> list[str]:
    medians = {
        formula: float(np.median([record.quality["pearson_r"] for record in records if record.formula == formula]))
        for formula in {record.formula for record in records}
    }
    return sorted(medians, key=lambda formula: (medians[formula], formula))


@styled
def _strip(
    records: Sequence[FieldRecord],
    order: Sequence[str],
    metric: str,
    title: str,
    label: str,
    place: Callable[[float], float],
    ticks: Sequence[float],
    note: str,
) -> Panel:
    height = 13.0 * len(order) + 8
    figure = blank(WIDTH, height + 84)
    axes = axes_at(figure, 92, 44, WIDTH - 112, height)  # the legend takes two lines above
    rows = {formula: index for index, formula in enumerate(order)}
    drawn = [record for record in records if record.formula in rows]
    y = [rows[record.formula] for record in drawn]
    placed = [place(quality[metric]) for record in drawn for quality in (record.quality, *record.baselines.values())]
    near, far = min(placed) / 1.25, 1.25 * max(placed)
    axes.set_xscale("log")
    axes.set_xlim(far, near)
    for index, name in enumerate(records[0].baselines):
        values = [place(record.baselines[name][metric]) for record in drawn]
        colour = BASELINES[index % len(BASELINES)]
        axes.scatter(values, y, s=14, marker="D", color=colour, alpha=PALE, linewidths=0, label=name)
    values = [place(record.quality[metric]) for record in drawn]
    axes.scatter(values, y, s=26, color=OURS, alpha=0.9, linewidths=0, label="network", zorder=3)
    axes.set_ylim(len(order) - 0.4, -0.6)
    axes.yaxis.set_major_locator(FixedLocator(range(len(order))))
    axes.set_yticklabels([formula if len(formula) <= 14 else formula[:13] + "…" for formula in order], parse_math=False)
    inside = [place(tick) for tick in ticks if near <= place(tick) <= far]
    axes.xaxis.set_major_locator(FixedLocator(inside if len(inside) > 1 else [max(placed), min(placed)]))
    axes.xaxis.set_minor_locator(NullLocator())
    if metric == "pearson_r":
        axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{1 - x:.4g}"))
    else:
        axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
    axes.set_xlabel(label)
    axes.tick_params(axis="y", length=0)
    axes.grid(True)
    axes.legend(loc="lower center", bbox_to_anchor=(0.42, 1.0), ncols=3, columnspacing=1.0, handletextpad=0.2)
    best, worst = order[-1], order[0]
    description = f"{title}: one dot a field, {len(order)} materials from {worst} (worst) to {best} (best)"
    return Panel(to_svg(figure, description, f"by-material-{metric.replace('_', '-')}"), title, note)


def training_panels(curves: Sequence[TrainingCurve]) -> Iterator[Panel]:
    """Loss, validation r and learning rate over all stages in one line."""
    if not curves:
        return
    starts = np.concatenate([[0.0], np.cumsum([_last_step(curve) for curve in curves])])
    note = "Errors of contrast, mean and root (docs/physics.md); validation on materials kept aside."
    yield _curve_panel(curves, starts, "Loss", "loss", _draw_loss, note)
    if any(curve.validation_r.size for curve in curves):
        note = "Median over the validation fields."
        yield _curve_panel(curves, starts, "Validation r", "median Pearson r", _draw_r, note)
    yield _curve_panel(curves, starts, "Learning rate", "learning rate", _draw_lr, "Linear warm-up, cosine to zero.")


def _last_step(curve: TrainingCurve) -> float:
    return float(max([0.0, *map(float, curve.steps), *map(float, curve.validation_steps)]))


def _draw_loss(axes: Any, curve: TrainingCurve, start: float, first: bool) -> None:
    axes.plot(start + curve.steps, curve.train_loss, color=ACCENT, lw=1.2, label="training" if first else None)
    label = "validation" if first else None
    marks = {"marker": "o", "ms": 3.5}
    axes.plot(start + curve.validation_steps, curve.validation_loss, color=OURS, lw=1.4, label=label, **marks)
    axes.set_yscale("log")
    for formatter in (axes.yaxis.set_major_formatter, axes.yaxis.set_minor_formatter):
        formatter(FuncFormatter(lambda loss, _: f"{loss:.2g}" if f"{loss:e}"[0] in "125" else ""))


def _draw_r(axes: Any, curve: TrainingCurve, start: float, first: bool) -> None:
    axes.plot(start + curve.validation_steps, curve.validation_r, color=OURS, lw=1.4, marker="o", ms=3.5)


def _draw_lr(axes: Any, curve: TrainingCurve, start: float, first: bool) -> None:
    axes.plot(start + curve.steps, curve.lr, color=ACCENT, lw=1.4)


@styled
def _curve_panel(
    curves: Sequence[TrainingCurve],
    starts: Any,
    title: str,
    label: str,
    draw: Callable[[Any, TrainingCurve, float, bool], None],
    note: str,
) -> Panel:
    width, height = 330.0, 190.0
    figure = blank(width, height + 66)
    axes = axes_at(figure, 58, 24, width - 72, height)
    for index, (curve, start) in enumerate(zip(curves, starts, strict=False)):
        draw(axes, curve, float(start), index == 0)
        if len(curves) > 1:
            axes.axvline(start, color="grey", lw=0.6, ls=":")
            axes.text(
                start,
                1.02,
                f" {curve.name}",
                transform=axes.get_xaxis_transform(),
                fontsize=10,
                va="bottom",
                parse_math=False,
            )
    axes.set_xlabel("step")
    axes.set_ylabel(label)
    axes.grid(True)
    if axes.get_legend_handles_labels()[1]:
        axes.legend(loc="upper right")
    description = f"{title} over {int(starts[-1])} steps of {len(curves)} training stages"
    return Panel(to_svg(figure, description, f"curve-{title.lower().replace(' ', '-')}"), title, note)


@styled
def time_panel(seconds: Mapping[str, float]) -> Panel:
    """Wall time of each stage as bars."""
    height = 26.0 * len(seconds) + 8
    figure = blank(WIDTH, height + 42)
    axes = axes_at(figure, 104, 6, WIDTH - 184, height)
    names = list(seconds)
    axes.barh(range(len(names)), list(seconds.values()), color=ACCENT, height=0.62)
    total = sum(seconds.values())
    for index, value in enumerate(seconds.values()):
        label = f"{spoken_time(value)} ({value / total:.0%})" if total else spoken_time(value)
        axes.annotate(label, (value, index), (5, 0), textcoords="offset points", va="center", fontsize=10)
    axes.yaxis.set_major_locator(FixedLocator(range(len(names))))
    axes.set_yticklabels(names, parse_math=False)
    axes.invert_yaxis()
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel("seconds")
    described = ", ".join(f"{name} {spoken_time(value)}" for name, value in seconds.items())
    return Panel(to_svg(figure, f"Time per stage: {described}", "time"), "Wall time", f"{spoken_time(total)} in all.")


def spoken_time(seconds: float) -> str:
    """A duration as people say it: "2 h 5 min", "9 min 31 s", "4.2 s"."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
