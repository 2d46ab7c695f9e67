"""One PNG of a few fields for a README or a talk."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from stemdl.atomic_files import replace_atomically
from stemdl.report.data import ReportError, ShownField
from stemdl.report.field_panels import DIFFERENCE_SHARE, add_scale_bar, shared_scale
from stemdl.report.style import DIFFERENCE_MAP, PATTERN_MAP, POTENTIAL_MAP, styled

MOST_FIELDS = 6
_ROWS = ("mean pattern", "truth", "reconstruction", "difference")
_TEXT = "#1b1d21"


@styled
def save_result_picture(path: Path, shown_fields: Sequence[ShownField]) -> None:
    """Write a PNG on white: a column for each field; rows: mean pattern, truth, reconstruction, difference.

    Truth and reconstruction of a field share one scale in V·Å, printed below; the difference spans a quarter of it
    either way.

    Raises:
        ReportError: no fields, or more than six.
        OSError: the folder is missing or cannot be written.
    """
    count = len(shown_fields)
    if not 1 <= count <= MOST_FIELDS:
        raise ReportError(f"{count} fields for one picture; 1 to {MOST_FIELDS} can be read")
    figure = Figure(figsize=(0.45 + 2.0 * count, 8.75), dpi=150, facecolor="white")
    grid = figure.add_gridspec(
        4, count, left=0.4 / (0.45 + 2.0 * count), right=0.99, top=0.945, bottom=0.03, wspace=0.06, hspace=0.06
    )
    for column, shown in enumerate(shown_fields):
        axes = [figure.add_subplot(grid[row, column]) for row in range(4)]
        _draw_column(axes, shown)
        if column == 0:
            for axis, name in zip(axes, _ROWS, strict=True):
                axis.text(-0.05, 0.5, name, transform=axis.transAxes, rotation=90, va="center", ha="right", color=_TEXT)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", facecolor="white", metadata={"Software": None})
    replace_atomically(Path(path), buffer.getvalue())


def _draw_column(axes: Sequence[Any], shown: ShownField) -> None:
    low, high = shared_scale(shown)
    reach = DIFFERENCE_SHARE * (high - low)
    pattern = np.sqrt((np.asarray(shown.amplitude, dtype=np.float64) ** 2).mean(axis=(0, 1)))
    axes[0].imshow(pattern, cmap=PATTERN_MAP, vmin=0)
    rows, columns = shown.truth.shape
    extent = (0.0, columns * shown.pixel_angstrom, rows * shown.pixel_angstrom, 0.0)
    for axis, image, colours, limits in (
        (axes[1], shown.truth, POTENTIAL_MAP, (low, high)),
        (axes[2], shown.prediction, POTENTIAL_MAP, (low, high)),
        (axes[3], shown.prediction - shown.truth, DIFFERENCE_MAP, (-reach, reach)),
    ):
        axis.imshow(image, cmap=colours, vmin=limits[0], vmax=limits[1], extent=extent)
    add_scale_bar(axes[1], extent[1], extent[2])
    for axis in axes:
        axis.set_axis_off()
    record = shown.record
    title = f"{record.formula}\nr {record.quality['pearson_r']:.3f}, NRMSE {record.quality['nrmse']:.2f}"
    axes[0].set_title(title, color=_TEXT, fontsize=11, parse_math=False)
    label = f"{low:.0f} to {high:.0f} V·Å, difference ±{reach:.0f}"
    axes[3].text(0.5, -0.03, label, transform=axes[3].transAxes, ha="center", va="top", color=_TEXT, fontsize=8)
