"""The panels of one field: what went in, the truth, what came out, and where they differ."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from numpy.typing import NDArray

from stemdl.report.data import ShownField
from stemdl.report.style import (
    BASELINES,
    DIFFERENCE_MAP,
    OURS,
    PATTERN_MAP,
    POTENTIAL_MAP,
    TRUTH,
    Panel,
    axes_at,
    blank,
    round_length,
    styled,
    thinned,
    to_svg,
)

SIDE = 216.0  # points of a picture's width
LONGEST_SIDE_PIXELS = 160  # of a potential on the page
LONGEST_PATTERN_PIXELS = 64
DIFFERENCE_SHARE = 0.25  # of the shared scale that the difference's scale spans to either side


def field_panels(shown: ShownField) -> Iterator[Panel]:
    """Every panel of a field, in the order of the page."""
    yield _mean_pattern(shown)
    yield _pattern_grid(shown)
    low, high = shared_scale(shown)
    difference = shown.prediction - shown.truth
    reach = DIFFERENCE_SHARE * (high - low)
    beyond = float(np.mean(np.abs(difference) > reach))
    over = f"; {beyond:.1%} of the pixels are beyond" if beyond else ""
    yield _picture(shown, "truth", "Truth", shown.truth, (low, high), POTENTIAL_MAP, "The potential that made them.")
    yield _picture(
        shown,
        "reconstruction",
        "Reconstruction",
        shown.prediction,
        (low, high),
        POTENTIAL_MAP,
        "What the network answers, on the truth's scale.",
    )
    note = f"Reconstruction minus truth; full colour at {DIFFERENCE_SHARE:.0%} of the shared scale{over}."
    yield _picture(shown, "difference", "Difference", difference, (-reach, reach), DIFFERENCE_MAP, note)
    yield _profile(shown)
    for name, picture in shown.baselines.items():
        note = "A baseline, on the truth's scale."
        yield _picture(shown, f"baseline {name}", _sentence(name), picture, (low, high), POTENTIAL_MAP, note)
    if shown.uncertainty is not None:
        top = float(shown.uncertainty.max()) or 1.0
        note = "Standard deviation that goes with the reconstruction; its own scale."
        yield _picture(shown, "uncertainty", "Uncertainty", shown.uncertainty, (0, top), "cividis", note)


def shared_scale(shown: ShownField) -> tuple[float, float]:
    """Lowest and highest value in V·Å of the one scale of truth, reconstruction and baselines: those of the truth."""
    return min(0.0, float(shown.truth.min())), float(shown.truth.max())


def _sentence(name: str) -> str:
    return name[:1].upper() + name[1:]


def _identity(shown: ShownField, what: str) -> str:
    return f"f{shown.record.field}-" + "".join(c if c.isascii() and c.isalnum() else "-" for c in what)


@styled
def _picture(
    shown: ShownField,
    what: str,
    title: str,
    picture: NDArray[Any],
    limits: tuple[float, float],
    colours: str,
    note: str,
) -> Panel:
    rows, columns = picture.shape
    height = SIDE * rows / columns
    figure = blank(SIDE + 24, height + 46)
    axes = axes_at(figure, 12, 4, SIDE, height)
    extent = (0.0, columns * shown.pixel_angstrom, rows * shown.pixel_angstrom, 0.0)
    image = axes.imshow(
        thinned(picture, LONGEST_SIDE_PIXELS), cmap=colours, vmin=limits[0], vmax=limits[1], extent=extent
    )
    axes.set_axis_off()
    add_scale_bar(axes, extent[1], extent[2])
    _colour_bar(figure, image, 12, height + 12, "V·Å")
    span = f"projected potential from {picture.min():.0f} to {picture.max():.0f} V·Å"
    description = f"{title} of field {shown.record.field}, {shown.record.material}: {span}"
    return Panel(to_svg(figure, description, _identity(shown, what)), title, note)


def add_scale_bar(axes: Any, width_angstrom: float, height_angstrom: float) -> None:
    """A bar of a round length in Å in the lower left corner, readable on light and dark."""
    length = round_length(width_angstrom / 3)
    left, bottom = 0.05 * width_angstrom, 0.95 * height_angstrom
    bar, text = 0.018 * height_angstrom, 0.075 * height_angstrom
    axes.add_patch(
        _rectangle((left - 0.02 * width_angstrom, bottom - bar - text - 0.035 * height_angstrom),
                   length + 0.04 * width_angstrom, bar + text + 0.055 * height_angstrom, "black", 0.5)
    )  # fmt: skip
    axes.add_patch(_rectangle((left, bottom - bar), length, bar, "white", 1.0))
    label = f"{length:g} Å"
    axes.text(left + length / 2, bottom - bar - 0.015 * height_angstrom, label, color="white", ha="center", va="bottom")


def _rectangle(corner: tuple[float, float], width: float, height: float, colour: str, alpha: float) -> Any:
    return Rectangle(corner, width, height, facecolor=colour, alpha=alpha, edgecolor="none", linewidth=0)


def _colour_bar(figure: Figure, image: Any, left: float, top: float, unit: str) -> None:
    axes = axes_at(figure, left, top, SIDE - 30, 8)
    bar = figure.colorbar(image, cax=axes, orientation="horizontal")
    bar.outline.set_linewidth(0.5)
    bar.ax.locator_params(nbins=5)
    axes.text(1.03, 0.5, unit, transform=axes.transAxes, va="center", ha="left", fontsize=10)


@styled
def _mean_pattern(shown: ShownField) -> Panel:
    """Square root of the mean intensity, with both units of the detector's axes."""
    mean = np.sqrt((np.asarray(shown.amplitude, dtype=np.float64) ** 2).mean(axis=(0, 1)))
    rows, columns = mean.shape
    mrad_per_inverse_angstrom = 1e3 * shown.wavelength_angstrom
    extent = detector_extent(rows, columns, shown.dk_per_angstrom * mrad_per_inverse_angstrom)
    side = SIDE - 44
    height = side * rows / columns
    figure = blank(SIDE + 24, height + 106)
    axes = axes_at(figure, 46, 34, side, height)
    image = axes.imshow(thinned(mean, 2 * LONGEST_PATTERN_PIXELS), cmap=PATTERN_MAP, vmin=0, extent=extent)
    for spine in axes.spines.values():
        spine.set_visible(True)
    axes.set_xlabel("mrad", labelpad=1)
    axes.set_ylabel("mrad", labelpad=0)
    per_angstrom = axes.secondary_xaxis(
        "top", functions=(lambda mrad: mrad / mrad_per_inverse_angstrom, lambda k: k * mrad_per_inverse_angstrom)
    )
    per_angstrom.set_xlabel("1/Å", labelpad=3)
    bar_axes = axes_at(figure, 46, height + 74, side, 8)
    bar = figure.colorbar(image, cax=bar_axes, orientation="horizontal")
    bar.outline.set_linewidth(0.5)
    bar.ax.locator_params(nbins=4)
    count = shown.amplitude.shape[0] * shown.amplitude.shape[1]
    description = f"Mean diffraction pattern of field {shown.record.field}, {shown.record.material}"
    note = f"√(mean intensity) of {count} patterns, as a fraction of the beam."
    return Panel(to_svg(figure, description, _identity(shown, "mean")), "Mean pattern", note)


def detector_extent(rows: int, columns: int, step: float) -> tuple[float, float, float, float]:
    """Edges (left, right, bottom, top) of a detector, rows downward, whose pixel (n // 2, n // 2) sees the beam."""
    left, top = ((-(count // 2) - 0.5) * step for count in (columns, rows))
    return left, left + columns * step, top + rows * step, top


def chosen_positions(count: int) -> list[int]:
    """Up to three positions along a scan axis: first, middle, last."""
    return sorted({0, count // 2, count - 1})


@styled
def _pattern_grid(shown: ShownField) -> Panel:
    rows, columns = (chosen_positions(count) for count in shown.amplitude.shape[:2])
    tiles = [[thinned(shown.amplitude[y, x], LONGEST_PATTERN_PIXELS) for x in columns] for y in rows]
    top = max(float(tile.max()) for line in tiles for tile in line)
    gap = 5.0
    width = (SIDE - gap * (len(columns) - 1)) / len(columns)
    height = width * tiles[0][0].shape[0] / tiles[0][0].shape[1]
    total = height * len(rows) + gap * (len(rows) - 1)
    figure = blank(SIDE + 24, total + 46)
    image: Any = None
    for row, line in enumerate(tiles):
        for column, tile in enumerate(line):
            axes = axes_at(figure, 12 + column * (width + gap), 4 + row * (height + gap), width, height)
            image = axes.imshow(tile, cmap=PATTERN_MAP, vmin=0, vmax=top)
            axes.set_axis_off()
    _colour_bar(figure, image, 12, total + 12, "√I")
    where = f"rows {', '.join(map(str, rows))} and columns {', '.join(map(str, columns))}"
    description = f"Diffraction patterns of field {shown.record.field}, {shown.record.material}, at {where} of the scan"
    positions = f"{shown.amplitude.shape[0]} × {shown.amplitude.shape[1]}"
    note = f"At {where} of {positions} probe positions; amplitude, one scale."
    return Panel(to_svg(figure, description, _identity(shown, "patterns")), "Single patterns", note)


@styled
def _profile(shown: ShownField) -> Panel:
    """Along x through the strongest column of the truth."""
    row = int(np.unravel_index(int(shown.truth.argmax()), shown.truth.shape)[0])
    x = (np.arange(shown.truth.shape[1]) + 0.5) * shown.pixel_angstrom
    figure = blank(2 * SIDE + 64, SIDE + 66)
    axes = axes_at(figure, 50, 32, 2 * SIDE, SIDE - 20)  # the legend takes two lines above
    for index, (name, picture) in enumerate(shown.baselines.items()):
        axes.plot(x, picture[row], color=BASELINES[index % len(BASELINES)], lw=1.1, label=name)
    if shown.uncertainty is not None:
        low, high = (shown.prediction[row] + sign * shown.uncertainty[row] for sign in (-1, 1))
        axes.fill_between(x, low, high, color=OURS, alpha=0.2, lw=0)
    axes.plot(x, shown.truth[row], color=TRUTH, lw=1.6, label="truth")
    axes.plot(x, shown.prediction[row], color=OURS, lw=1.6, ls=(0, (5, 1.6)), label="reconstruction")
    axes.set_xlim(0, shown.truth.shape[1] * shown.pixel_angstrom)
    axes.set_xlabel("x in Å")
    axes.set_ylabel("projected potential in V·Å")
    axes.grid(True)
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 0.98), ncols=3, columnspacing=1.2)
    description = f"Line profile of field {shown.record.field}, {shown.record.material}, through its strongest column"
    note = f"Along x at y = {(row + 0.5) * shown.pixel_angstrom:.2f} Å, through the strongest column of the truth."
    return Panel(to_svg(figure, description, _identity(shown, "profile")), "Line profile", note)
