"""The look of the figures, and how a figure becomes an inline picture of the page."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from html import escape
from typing import Any, ParamSpec, TypeVar

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

# Text and axes are drawn in this colour, which the page replaces by that of its own text: light and dark.
INK = "#0a0b0c"
POTENTIAL_MAP = "inferno"
DIFFERENCE_MAP = "RdBu_r"
PATTERN_MAP = "viridis"
# Okabe and Ito's palette: told apart with every common colour blindness.
OURS = "#d55e00"
TRUTH = INK
BASELINES = ("#56b4e9", "#009e73", "#cc79a7", "#e69f00")
ACCENT = "#0072b2"
PALE = 0.45

_STYLE: Any = {
    "svg.fonttype": "none",
    "font.family": ["sans-serif"],
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 11,
    "axes.labelsize": 11,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.labelsize": 10,
    "ytick.labelsize": 10,
    "axes.linewidth": 0.7,
    "xtick.major.width": 0.7,
    "ytick.major.width": 0.7,
    "axes.facecolor": "none",
    "figure.facecolor": "none",
    "savefig.facecolor": "none",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.unicode_minus": True,
    "image.interpolation": "none",
    "legend.frameon": False,
    "legend.fontsize": 10,
    "grid.linewidth": 0.5,
    "grid.alpha": 0.25,
    "grid.color": INK,
}

P = ParamSpec("P")
R = TypeVar("R")


def styled(draw: Callable[P, R]) -> Callable[P, R]:
    """Run a drawing function under our style, and leave matplotlib's settings as they were."""

    @wraps(draw)
    def inner(*args: P.args, **kwargs: P.kwargs) -> R:
        with mpl.rc_context(_STYLE):
            return draw(*args, **kwargs)

    return inner


@dataclass(frozen=True)
class Panel:
    """A finished picture of the page."""

    svg: str
    """Inline SVG."""
    title: str
    """Short title above it, plain text."""
    note: str = ""
    """Smaller line below it, plain text."""


def blank(width: float, height: float) -> Figure:
    """A figure whose units on the page are points: one point is one CSS pixel at full size."""
    return Figure(figsize=(width / 72, height / 72), dpi=72)


def axes_at(figure: Figure, left: float, top: float, width: float, height: float) -> Any:
    """Axes at a place given in points from the upper left corner."""
    total_width, total_height = figure.get_size_inches() * 72
    box = (left / total_width, 1 - (top + height) / total_height, width / total_width, height / total_height)
    return figure.add_axes(box)


def to_svg(figure: Figure, description: str, identity: str) -> str:
    """Inline SVG without outside references; text and lines in the page's own colour.

    Args:
        description: what the picture shows, for those who do not see it.
        identity: unique on the page (letters, digits, hyphens); keeps the ids of two pictures apart.
    """
    buffer = io.StringIO()
    # Without a date and with a fixed salt the same data give the same bytes.
    with mpl.rc_context({"svg.hashsalt": identity}):
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :].strip()
    svg = re.sub(r"<metadata>.*?</metadata>|<style[^>]*>.*?</style>", "", svg, flags=re.DOTALL)
    # After plain names only, so that text in a label is never touched.
    svg = re.sub(r'(<[a-zA-Z][^<>]*?\sid=")([^"]+)"', rf'\1{identity}-\2"', svg)
    svg = re.sub(r'((?:xlink:)?href="#|url\(#)', rf"\g<1>{identity}-", svg)
    svg = svg.replace(INK, "currentColor").replace("xlink:href", "href")
    svg = svg.replace("'DejaVu Sans', sans-serif", "system-ui, 'DejaVu Sans', sans-serif")
    width, height = (round(float(size * 72)) for size in figure.get_size_inches())
    start = svg.index(">") + 1
    label = escape(description, quote=True)
    head = f'<svg viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" aria-label="{label}">'
    return head + re.sub(r"\n\s*", "\n", svg[start:])


def thinned(image: NDArray[Any], longest_side: int) -> NDArray[np.float64]:
    """The picture (y, x) averaged over whole blocks until its sides are at most so long: keeps the page small."""
    block = min(-(-max(image.shape) // longest_side), *image.shape)
    rows, columns = (side // block * block for side in image.shape)
    values = np.asarray(image, dtype=np.float64)[:rows, :columns]
    result: NDArray[np.float64] = values.reshape(rows // block, block, columns // block, block).mean(axis=(1, 3))
    return result


def round_length(longest: float) -> float:
    """The largest of 1, 2, 5 times a power of ten that is not longer."""
    power = 10.0 ** np.floor(np.log10(longest))
    return float(max(step * power for step in (1, 2, 5) if step * power <= longest * (1 + 1e-9)))
