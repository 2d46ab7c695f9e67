"""Tables of the report: network against baselines, every field, crystals. Everything returned is safe HTML."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from stemdl.report.data import CrystalCounts, FieldRecord, ReportData
from stemdl.report.words import NAMES, median_of, number, percent, share_better


def comparison(records: Sequence[FieldRecord]) -> str:
    """Medians of the network and of each baseline, and the share of fields on which the network wins."""
    rows = [_comparison_row("network", [record.quality for record in records], "")]
    for name in records[0].baselines:
        qualities = [record.baselines[name] for record in records]
        rows.append(_comparison_row(name, qualities, percent(share_better(records, name))))
    heads = "".join(f'<th scope="col" class="n">{escape(name)}</th>' for name in NAMES.values())
    return (
        '<div class="scroll"><table><caption>Medians over all fields</caption>'
        f'<thead><tr><th scope="col">method</th>{heads}<th scope="col" class="n">network better on both</th></tr>'
        f"</thead><tbody>{''.join(rows)}</tbody></table></div>"
    )


def _comparison_row(name: str, qualities: Sequence[Mapping[str, float]], share: str) -> str:
    medians = {metric: median_of(qualities, metric) for metric in NAMES}
    cells = "".join(_number_cell(value, metric) for metric, value in medians.items())
    return f'<tr><th scope="row">{escape(name)}</th>{cells}<td class="n">{escape(share)}</td></tr>'


def _number_cell(value: float | None, metric: str) -> str:
    if value is None:
        return '<td class="n"></td>'
    return f'<td class="n" data-v="{value:.6g}">{number(value, metric)}</td>'


def all_fields(data: ReportData) -> str:
    """Every field in one table that sorts by any column."""
    shown = {field.record.field for field in data.shown}
    names = list(data.records[0].baselines)
    heads = [("field", True), ("material", False), ("formula", False), ("zone axis", False), ("thickness, Å", True)]
    heads += [(name, True) for name in NAMES.values()]
    heads += [(f"{name} {figure}", True) for name in names for figure in ("r", "NRMSE")]
    head = "".join(
        f'<th scope="col"{" class=n" if numeric else ""}><button type="button">{escape(name)}</button></th>'
        for name, numeric in heads
    )
    ordered = sorted(data.records, key=lambda record: record.quality["pearson_r"])
    body = "".join(_field_row(record, names, record.field in shown) for record in ordered)
    return (
        '<div class="scroll tall"><table class="sortable"><caption>Every held-out field, worst first; a heading sorts'
        f"</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _field_row(record: FieldRecord, baselines: Sequence[str], is_shown: bool) -> str:
    name = f'<a href="#field-{record.field}">{record.field}</a>' if is_shown else str(record.field)
    zone = "" if record.zone_axis is None else f"[{' '.join(map(str, record.zone_axis))}]"
    thickness = record.thickness_angstrom
    cells = [
        f'<td class="n" data-v="{record.field}">{name}</td>',
        *(
            f"<td>{escape(text)}</td>"
            for text in (record.material, record.formula, zone.replace("-", "\N{MINUS SIGN}"))
        ),
        '<td class="n"></td>' if thickness is None else f'<td class="n" data-v="{thickness:.6g}">{thickness:.1f}</td>',
        *(_number_cell(record.quality.get(metric), metric) for metric in NAMES),
    ]
    for baseline in baselines:
        cells += [_number_cell(record.baselines[baseline][metric], metric) for metric in ("pearson_r", "nrmse")]
    return f"<tr>{''.join(cells)}</tr>"


def crystals(counts: CrystalCounts) -> str:
    """How many materials were used, and which were refused and why."""
    text = (
        f"<p>{counts.train} materials to learn from, {counts.held_out} kept for the test alone, "
        f"{len(counts.refused)} refused.</p>"
    )
    if counts.refused:
        rows = "".join(
            f'<tr><th scope="row">{escape(name)}</th><td>{escape(reason)}</td></tr>'
            for name, reason in sorted(counts.refused.items())
        )
        text += (
            "<details><summary>Refused crystals and the reasons</summary><div class=scroll><table><thead><tr>"
            f'<th scope="col">crystal</th><th scope="col">reason</th></tr></thead><tbody>{rows}</tbody></table></div>'
            "</details>"
        )
    return text


def pairs(items: Mapping[str, str], first: str, second: str) -> str:
    """A table of two columns."""
    rows = "".join(
        f'<tr><th scope="row">{escape(name)}</th><td>{escape(value)}</td></tr>' for name, value in items.items()
    )
    return (
        f'<div class="scroll"><table><thead><tr><th scope="col">{escape(first)}</th><th scope="col">{escape(second)}'
        f"</th></tr></thead><tbody>{rows}</tbody></table></div>"
    )
