"""What a check of a configuration found, and how it is shown."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

Severity = Literal["ok", "warning", "error"]
_ORDER: tuple[Severity, ...] = ("ok", "warning", "error")


@dataclass(frozen=True)
class Finding:
    """The outcome of one check.

    `found` says what the configuration gives, with numbers and units; `right` what would be right (empty where all is
    well); `key` the key to change. An error cannot run at all, or gives wrong physics; a warning can be meant. `excess`
    says how far beyond its limit a value is, relative to the limit (below 0: within), to find the worst of several
    settings.
    """

    severity: Severity
    check: str
    found: str
    right: str
    key: str
    excess: float = field(default=0.0, compare=False, repr=False)

    @property
    def rank(self) -> int:
        """0 for ok, 1 for a warning, 2 for an error."""
        return _ORDER.index(self.severity)


def judge(bad: bool, severity: Severity, check: str, found: str, right: str, key: str, excess: float = 0.0) -> Finding:
    """The finding of a check that is either well or not: `severity` and `right` count only where it is not."""
    if not bad:
        return Finding("ok", check, found, "", key, excess)
    return Finding(severity, check, found, right, key, excess)


def format_findings(findings: Sequence[Finding], width: int = 110) -> str:
    """Findings as aligned text, the worst last, where a screen ends: a row each, and what to do below the bad ones."""
    ordered = sorted(findings, key=lambda finding: finding.rank)
    margin = 9 + max([len(finding.check) for finding in findings], default=0) + 2
    rows = [row for finding in ordered for row in _rows(finding, margin, max(width, margin + 40))]
    counts = {severity: sum(f.severity == severity for f in findings) for severity in _ORDER}
    bad = f"{_counted(counts['warning'], 'warning')}, {_counted(counts['error'], 'error')}"
    return "\n".join([*rows, f"{_counted(len(findings), 'check')}: {counts['ok']} ok, {bad}"])


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def _rows(finding: Finding, margin: int, width: int) -> list[str]:
    head = f"{finding.severity:<8} {finding.check}".ljust(margin)
    text = finding.found if finding.severity == "ok" else f"found {finding.found}"
    rows = textwrap.wrap(text, width - margin, break_long_words=False, break_on_hyphens=False) or [""]
    if finding.severity != "ok":
        rows += textwrap.wrap(f"right {finding.right}", width - margin, break_long_words=False, break_on_hyphens=False)
        rows.append(f"key   {finding.key}")
    return [head + rows[0], *(" " * margin + row for row in rows[1:])]
