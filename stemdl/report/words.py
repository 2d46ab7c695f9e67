"""The report in words and numbers: headline, comparison, definitions. Everything returned is safe HTML."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

import numpy as np

from stemdl.report.data import FieldRecord, ReportData
from stemdl.report.run_panels import spoken_time

NAMES = {
    "pearson_r": "Pearson\N{NO-BREAK SPACE}r",
    "nrmse": "NRMSE",
    "ssim": "SSIM",
    "frc_half_angstrom": "FRC resolution,\N{NO-BREAK SPACE}Å",
    "mean_inner_potential_error_v": "mean inner potential error,\N{NO-BREAK SPACE}V",
}
_DECIMALS = {"pearson_r": 3, "nrmse": 3, "ssim": 3, "frc_half_angstrom": 2, "mean_inner_potential_error_v": 2}

_DEFINITIONS = {
    "Pearson r": "Correlation of the reconstructed with the true potential over the pixels of a field. 1 is perfect, "
    "0 is no relation. It does not see a wrong scale or offset. A constant picture counts as 0.",
    "NRMSE": "Root of the mean squared error over the standard deviation of the true potential. 0 is perfect; 1 is "
    "what the truth's own mean would score. It sees scale and offset.",
    "SSIM": "Structural similarity (Wang et al. 2004): Gaussian window of σ 1.5 pixels, data range the truth's "
    "maximum less its minimum. 1 is perfect.",
    "FRC resolution": "Length at which the Fourier ring correlation of reconstruction and truth falls below 0.5 for "
    "good, after a soft edge over the outer eighth of every side. It cannot be finer than two pixels (Nyquist), "
    "which is given when the curve ends above 0.5, nor coarser than the field. Small is good.",
    "Mean inner potential error": "Mean of reconstruction minus truth over the thickness, in volts. 0 is perfect; "
    "crystals have mean inner potentials of about 5 to 30 V. Medians are over its magnitude.",
    "Better on both": "Share of the fields with a higher r and a lower NRMSE than the baseline, at once.",
    "Projected potential": "The electrostatic potential of the specimen integrated along the beam, in V·Å.",
}


def number(value: float, metric: str) -> str:
    """A figure as it is printed everywhere, with a real minus sign."""
    text = f"{value:.{_DECIMALS.get(metric, 3)}f}"
    if float(text) == 0:
        text = text.lstrip("-")
    return text.replace("-", "\N{MINUS SIGN}")


def percent(share: float) -> str:
    """A share in whole percent that never rounds up to all or down to none."""
    if 0.995 <= share < 1:
        return "more than 99 %"
    if 0 < share < 0.005:
        return "less than 1 %"
    return f"{100 * share:.0f} %"


def median_of(qualities: Sequence[Mapping[str, float]], metric: str) -> float | None:
    """Median over fields (of the magnitude, where the figure has a sign), or None unless every field has it."""
    if not all(metric in quality for quality in qualities):
        return None
    values = np.array([quality[metric] for quality in qualities])
    return float(np.median(np.abs(values) if metric == "mean_inner_potential_error_v" else values))


def share_better(records: Sequence[FieldRecord], baseline: str) -> float:
    """Share of fields better than the baseline in r and in NRMSE at once."""
    wins = [
        record.quality["pearson_r"] > record.baselines[baseline]["pearson_r"]
        and record.quality["nrmse"] < record.baselines[baseline]["nrmse"]
        for record in records
    ]
    return float(np.mean(wins))


def worst_field(records: Sequence[FieldRecord]) -> FieldRecord:
    """The field of the lowest r."""
    return min(records, key=lambda record: (record.quality["pearson_r"], record.field))


def field_name(record: FieldRecord) -> str:
    """Material and formula, as HTML."""
    if record.formula in record.material:
        return escape(record.material)
    return f"{escape(record.material)} ({escape(record.formula)})"


def headline(data: ReportData) -> str:
    """What the run achieved, in three sentences, the worst case among them."""
    records = data.records
    materials = len({record.formula for record in records})
    qualities = [record.quality for record in records]
    medians = {name: number(float(np.median([q[name] for q in qualities])), name) for name in ("pearson_r", "nrmse")}
    text = (
        f"On <strong>{_count(len(records), 'field')} of {_count(materials, 'material')}</strong> the network has never "
        f"seen: median Pearson r <strong>{medians['pearson_r']}</strong>, median NRMSE "
        f"<strong>{medians['nrmse']}</strong>."
    )
    if records[0].baselines:
        parts = [f"than {escape(name)} on {percent(share_better(records, name))}" for name in records[0].baselines]
        listed = parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
        text += f" It is better, in both figures at once, {listed} of the fields."
    worst = worst_field(records)
    name = field_name(worst)
    if any(shown.record.field == worst.field for shown in data.shown):
        name = f'<a href="#field-{worst.field}">{name}</a>'
    text += (
        f" The worst field is {name}, with r {number(worst.quality['pearson_r'], 'pearson_r')} and NRMSE "
        f"{number(worst.quality['nrmse'], 'nrmse')}."
    )
    return f'<p class="headline">{text}</p>'


def _count(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def tiles(data: ReportData) -> str:
    """The medians as large figures."""
    qualities = [record.quality for record in data.records]
    shown = []
    for metric, name in NAMES.items():
        value = median_of(qualities, metric)
        if value is not None:
            shown.append((number(value, metric), f"median {name}"))
    if data.seconds:
        shown.append((spoken_time(sum(data.seconds.values())), "all stages"))
    items = "".join(f"<div><dd>{escape(value)}</dd><dt>{escape(name)}</dt></div>" for value, name in shown)
    return f'<dl class="tiles">{items}</dl>'


def figures_of(record: FieldRecord) -> str:
    """The figures of one field in a line, with their units, as HTML."""
    named = {"frc_half_angstrom": ("FRC", " Å"), "mean_inner_potential_error_v": ("mean inner potential off by", " V")}
    parts = []
    for metric, name in NAMES.items():
        if metric in record.quality:
            before, unit = named.get(metric, (name, ""))
            parts.append(f"{before} {number(record.quality[metric], metric)}{unit}")
    return escape(" · ".join(parts))


def definitions() -> str:
    """What each figure means."""
    items = "".join(f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in _DEFINITIONS.items())
    return f'<dl class="definitions">{items}</dl>'


def rank_name(record: FieldRecord, records: Sequence[FieldRecord]) -> str:
    """Where a field stands among all by r: "worst of 96", "rank 12 of 96", "best of 96"."""
    ordered = sorted(records, key=lambda other: (-other.quality["pearson_r"], -other.field))
    rank = [other.field for other in ordered].index(record.field) + 1
    if rank == len(ordered) and rank > 1:
        return f"worst of {len(ordered)}"
    if rank == 1:
        return f"best of {len(ordered)}"
    return f"rank {rank} of {len(ordered)}"
