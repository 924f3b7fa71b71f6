"""What all figures have in common: colours, sizes and how they are written."""

import io
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

SGD, ART, POPART = "#d62728", "#1f5fd0", "#228b22"
COLOURS = {"sgd": SGD, "art": ART, "popart": POPART}
"""The paper's: red, blue and green."""

INK = "#1c1c1c"
"""Axes and text. The report lets this one follow the page."""

WIDTH = 6.75
"""Inches across both columns of a paper."""

STYLE: dict[str, Any] = {
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.labelsize": 9,
    "legend.fontsize": 8,
    "legend.frameon": False,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.7,
    "lines.linewidth": 1.2,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "grid.alpha": 0.25,
    "grid.linewidth": 0.5,
    "grid.color": "#888888",
    "figure.dpi": 200,
    "svg.hashsalt": "popart",
}


styled = mpl.rc_context(STYLE)  # pyright: ignore[reportArgumentType]
"""Decorates what draws a figure."""


def subplots(rows: int = 1, columns: int = 1, height: float = 2.6, **options: Any) -> tuple[Figure, Any]:
    """A figure across the page, and its axes."""
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    return figure, figure.subplots(rows, columns, **options)


def letter(axes: Axes, text: str) -> None:
    """A title on the left, in bold."""
    axes.set_title(text, loc="left", fontweight="bold")


@styled
def images(figure: Figure) -> list[tuple[str, bytes]]:
    """The figure as PNG and as SVG, the same bytes for the same figure."""
    return [("png", _saved(figure, "png")), ("svg", _saved(figure, "svg", transparent=True))]


def _saved(figure: Figure, suffix: str, **options: Any) -> bytes:
    file = io.BytesIO()
    metadata = {"Software": None} if suffix == "png" else {"Date": None}
    figure.savefig(file, format=suffix, metadata=metadata, **options)
    return file.getvalue()
