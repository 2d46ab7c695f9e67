"""One PNG of one simulated sample: its patterns, its potential, its numbers."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from numpy.typing import NDArray

from stemdl.atomic_files import replace_atomically
from stemdl.physics.constants import wavelength_angstrom
from stemdl.report.data import ReportError
from stemdl.report.field_panels import add_scale_bar, chosen_positions, detector_extent
from stemdl.report.style import PATTERN_MAP, POTENTIAL_MAP, styled
from stemdl.shards.cbed_layout import CbedSample
from stemdl.shards.schema import Sample, ShardAxes

DECADES = 5
"""Range of the logarithmic scale below the brightest pixel."""

_TEXT = "#1b1d21"


@styled
def save_sample_picture(path: Path, sample: Sample, axes: ShardAxes, text: str) -> None:
    """Write a PNG on white: mean pattern and single patterns on one logarithmic scale each, the potential, and `text`.

    Raises ReportError where the name does not end in .png, OSError where it cannot be written.
    """
    _check_name(path)
    figure = Figure(figsize=(14, 9.2), dpi=110, facecolor="white")
    pattern, potential = figure.add_axes((0.05, 0.53, 0.24, 0.38)), figure.add_axes((0.35, 0.53, 0.24, 0.38))
    intensity = sample.amplitude.astype(np.float64) ** 2
    mean = intensity.mean(axis=(0, 1))
    _draw_pattern(figure, pattern, mean, axes.dk_per_angstrom, sample.parameters.get("energy_kev"))
    pattern.set_title(f"mean of {sample.amplitude.shape[0]} x {sample.amplitude.shape[1]} patterns", color=_TEXT)
    _draw_potential(figure, potential, sample.potential, axes.potential_pixel_angstrom)
    _draw_positions(figure, intensity)
    short = _cut(text, lines=56, characters=74)
    figure.text(0.635, 0.94, short, color=_TEXT, fontsize=8, family="monospace", va="top", parse_math=False)
    title = f"item {sample.item}: {sample.provenance['crystal']}"
    figure.text(0.02, 0.965, title, color=_TEXT, fontsize=14, parse_math=False)
    _save(figure, path)


@styled
def save_cbed_picture(path: Path, sample: CbedSample, title: str, text: str) -> None:
    """Write a PNG on white: the three patterns of a sample of the CBED database on one logarithmic scale, and `text`.

    Raises as `save_sample_picture`.
    """
    _check_name(path)
    figure = Figure(figsize=(14, 7.2), dpi=110, facecolor="white")
    norm, bottom = _log_scale(sample.cbed_stack)
    image: Any = None
    for number, stack in enumerate(sample.cbed_stack):
        axes = figure.add_axes((0.02 + 0.325 * number, 0.35, 0.31, 0.56))
        image = axes.imshow(np.maximum(stack, bottom), cmap=PATTERN_MAP, norm=norm)
        axes.set_axis_off()
        if sample.z_dirs is not None:
            direction = " ".join(f"{component:.4g}" for component in sample.z_dirs[number])
            axes.set_title(f"beam along [{direction}]", color=_TEXT, parse_math=False)
    bar = figure.colorbar(image, cax=figure.add_axes((0.67, 0.24, 0.3, 0.02)), orientation="horizontal")
    bar.set_label("fraction of the beam in a pixel", color=_TEXT)
    figure.text(0.02, 0.955, title, color=_TEXT, fontsize=14, parse_math=False)
    short = _cut(text, lines=16, characters=116)
    figure.text(0.02, 0.31, short, color=_TEXT, fontsize=9, family="monospace", va="top", parse_math=False)
    _save(figure, path)


def _check_name(path: Path) -> None:
    if path.suffix.lower() != ".png":
        raise ReportError(f"{path}: a name that ends in .png is needed")


def _save(figure: Figure, path: Path) -> None:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", facecolor="white", metadata={"Software": None})
    replace_atomically(path, buffer.getvalue())


def _log_scale(values: NDArray[Any]) -> tuple[LogNorm, float]:
    """The scale and its lower end, to which darker pixels are raised: a logarithm has no zero."""
    top = float(values.max()) or 1.0
    bottom = top * 10.0**-DECADES
    return LogNorm(bottom, top), bottom


def _draw_pattern(figure: Figure, axes: Any, mean: NDArray[np.float64], dk: float, energy_kev: float | None) -> None:
    """With axes in mrad where the energy is known, in 1/Å where not."""
    step, unit = (dk, "1/Å") if energy_kev is None else (dk * 1e3 * wavelength_angstrom(energy_kev), "mrad")
    norm, bottom = _log_scale(mean)
    image = axes.imshow(
        np.maximum(mean, bottom),
        cmap=PATTERN_MAP,
        norm=norm,
        extent=detector_extent(mean.shape[0], mean.shape[1], step),
    )
    axes.set_xlabel(unit)
    axes.set_ylabel(unit)
    bar = figure.colorbar(image, ax=axes, fraction=0.046, pad=0.03)
    bar.set_label("fraction of the beam in a pixel")


def _draw_potential(figure: Figure, axes: Any, potential: NDArray[np.float32], pixel_angstrom: float) -> None:
    rows, columns = potential.shape
    extent = (0.0, columns * pixel_angstrom, rows * pixel_angstrom, 0.0)
    low = min(0.0, float(potential.min()))
    image = axes.imshow(potential, cmap=POTENTIAL_MAP, vmin=low, extent=extent)
    add_scale_bar(axes, extent[1], extent[2])
    axes.set_axis_off()
    axes.set_title("projected potential", color=_TEXT)
    bar = figure.colorbar(image, ax=axes, fraction=0.046, pad=0.03)
    bar.set_label("V·Å")


def _draw_positions(figure: Figure, intensity: NDArray[np.float64]) -> None:
    """Patterns at the first, middle and last row and column, in two lines of the figure's lower half."""
    places = [(y, x) for y in chosen_positions(intensity.shape[0]) for x in chosen_positions(intensity.shape[1])]
    norm, bottom = _log_scale(np.stack([intensity[place] for place in places]))
    columns = 5
    for number, (y, x) in enumerate(places):
        place = (0.03 + 0.112 * (number % columns), 0.25 - 0.225 * (number // columns), 0.105, 0.185)
        axes = figure.add_axes(place)
        axes.imshow(np.maximum(intensity[y, x], bottom), cmap=PATTERN_MAP, norm=norm)
        axes.set_axis_off()
        axes.set_title(f"row {y}, column {x}", color=_TEXT, fontsize=9)


def _cut(text: str, *, lines: int, characters: int) -> str:
    """What there is room for."""
    found = [line if len(line) <= characters else f"{line[: characters - 3]}..." for line in text.splitlines()]
    more: Sequence[str] = [f"... {len(found) - lines} more lines"] if len(found) > lines else []
    return "\n".join([*found[:lines], *more])
