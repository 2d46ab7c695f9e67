"""The report of a run: `write_report` makes one HTML page of a `ReportData`, `save_result_picture` one PNG."""

from __future__ import annotations

from stemdl.report.data import (
    CrystalCounts,
    FieldRecord,
    ReportData,
    ReportError,
    ShownField,
    TrainingCurve,
)
from stemdl.report.page import render, write_report
from stemdl.report.picture import save_result_picture

__all__ = [
    "CrystalCounts",
    "FieldRecord",
    "ReportData",
    "ReportError",
    "ShownField",
    "TrainingCurve",
    "render",
    "save_result_picture",
    "write_report",
]
