"""What a campaign found, as a table for people and as Markdown for the documentation."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from dataclasses import dataclass

from tests.torture.campaign import Result


@dataclass
class Row:
    """One kind of fault."""

    name: str
    injected: int = 0
    survived: int = 0
    seconds: float = 0.0
    skipped: str = ""


def rows_of(results: Sequence[Result]) -> list[Row]:
    """One row for each kind, in the order of their numbers."""
    rows: dict[str, Row] = {}
    for result in sorted(results, key=lambda one: one.case.first):
        row = rows.setdefault(result.case.kind.name, Row(result.case.kind.name))
        row.injected += len(result.injected)
        row.survived += min(result.survived, len(result.injected)) if not result.skipped else 0
        row.seconds += result.seconds
        row.skipped = row.skipped or result.skipped
    return list(rows.values())


def as_table(results: Sequence[Result], seconds: float) -> str:
    """Plain text."""
    lines = [f"\n{'kind of fault':<38} {'injected':>8} {'survived':>8} {'s':>7}"]
    rows = rows_of(results)
    for row in rows:
        note = f"  skipped: {row.skipped}" if row.skipped else ""
        lines.append(f"{row.name:<38} {row.injected:>8} {row.survived:>8} {row.seconds:>7.1f}{note}")
    injected, survived = sum(row.injected for row in rows), sum(row.survived for row in rows)
    lines.append(f"{'all':<38} {injected:>8} {survived:>8} {seconds:>7.1f}")
    return "\n".join(lines)


def as_markdown(results: Sequence[Result], seconds: float, command: str, date: str) -> str:
    """The table with the command that makes it, the date and the machine."""
    rows = rows_of(results)
    injected, survived = sum(row.injected for row in rows), sum(row.survived for row in rows)
    lines = [
        f"`{command}`, {date}, {platform.machine()}, Python {platform.python_version()}: "
        f"{injected} faults injected, {survived} survived, {seconds / 60:.1f} min.",
        "",
        "| kind of fault | injected | survived | s |",
        "|---|---:|---:|---:|",
    ]
    for row in rows:
        name = f"{row.name} (skipped: {row.skipped})" if row.skipped else row.name
        lines.append(f"| {name} | {row.injected} | {row.survived} | {row.seconds:.0f} |")
    lines.append(f"| **all** | **{injected}** | **{survived}** | **{seconds:.0f}** |")
    return "\n".join(lines) + "\n"
