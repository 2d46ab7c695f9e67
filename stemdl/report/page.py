"""The report of a run: one HTML page that holds everything it shows and fetches nothing."""

from __future__ import annotations

import json
from collections.abc import Iterable
from html import escape
from importlib import resources
from pathlib import Path
from string import Template

from stemdl.atomic_files import replace_atomically
from stemdl.report import tables, words
from stemdl.report.data import ReportData, ShownField
from stemdl.report.field_panels import field_panels
from stemdl.report.run_panels import material_panels, time_panel, training_panels
from stemdl.report.style import Panel


def write_report(folder: Path, data: ReportData) -> Path:
    """Write `report/index.html` into the folder of a run and return its path. The same data give the same bytes.

    Raises:
        OSError: the folder is missing or cannot be written.
    """
    target = Path(folder) / "report"
    target.mkdir(exist_ok=True)
    path = target / "index.html"
    replace_atomically(path, render(data).encode())
    return path


def render(data: ReportData) -> str:
    """The whole page as text. Every text that comes from data is escaped."""
    package = resources.files("stemdl.report")
    return Template((package / "page.html").read_text("utf-8")).substitute(
        title=escape(f"{data.run_name} · stemdl report"),
        style=(package / "page.css").read_text("utf-8"),
        run_name=escape(data.run_name),
        headline=words.headline(data),
        tiles=words.tiles(data),
        comparison=tables.comparison(data.records),
        shown="".join(_field_section(shown, data) for shown in data.shown) or "<p>No field was drawn.</p>",
        resolution=_resolution(data),
        by_material=_panels(material_panels(data.records), "wide"),
        training=_panels([*training_panels(data.curves)], "curves") or "<p>No curve was recorded.</p>",
        time=_panels([time_panel(data.seconds)] if data.seconds else [], "wide") or "<p>No time was recorded.</p>",
        crystals=tables.crystals(data.crystals),
        all_fields=tables.all_fields(data),
        definitions=words.definitions(),
        versions=tables.pairs(data.versions, "program", "version"),
        config=escape(data.config_yaml),
        metrics=escape(json.dumps(data.metrics, indent=2, ensure_ascii=False)),
    )


def _resolution(data: ReportData) -> str:
    if data.target_blur_sigma_angstrom is None:
        return ""
    return f" The truth is blurred to a stated resolution, a Gaussian of σ {data.target_blur_sigma_angstrom:g} Å."


def _panels(panels: Iterable[Panel], kind: str) -> str:
    figures = "".join(_figure(panel) for panel in panels)
    return f'<div class="panels {kind}">{figures}</div>' if figures else ""


def _figure(panel: Panel) -> str:
    wide = ' class="span"' if panel.title == "Line profile" else ""
    note = f"<small>{escape(panel.note)}</small>" if panel.note else ""
    return f"<figure{wide}><figcaption>{escape(panel.title)}{note}</figcaption>{panel.svg}</figure>"


def _field_section(shown: ShownField, data: ReportData) -> str:
    record = shown.record
    facts = [words.rank_name(record, data.records)]
    if record.zone_axis is not None:
        facts.append(f"along [{' '.join(map(str, record.zone_axis))}]".replace("-", "\N{MINUS SIGN}"))
    if record.thickness_angstrom is not None:
        facts.append(f"{record.thickness_angstrom:.1f} Å thick")
    return (
        f'<article id="field-{record.field}"><h3>{words.field_name(record)}</h3>'
        f'<p class="facts">Field {record.field}, {escape(", ".join(facts))}. '
        f"<span>{words.figures_of(record)}</span></p>"
        f"{_panels(field_panels(shown), 'pictures')}</article>"
    )
