"""The style of all figures: colours, sizes, and PNG and SVG files that are the same in every run."""

import io
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

SGD, ART, POPART = "#d62728", "#1f5fd0", "#228b22"
COLOURS = {"sgd": SGD, "art": ART, "popart": POPART}
"""The paper's colours: red, blue and green."""

AGENT_COLOURS = {"unclipped": SGD, "clipped": ART, "popart": POPART}
"""The colours of agents in Fig. 1b."""

INK = "#1c1c1c"
"""Colour of axes and text. The report replaces it by the colour of the page's text."""

WIDTH = 6.75
"""Width of a figure across both columns of a paper, in inches."""

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
"""Decorator of functions that draw a figure."""


def subplots(rows: int = 1, columns: int = 1, height: float = 2.6, **options: Any) -> tuple[Figure, Any]:
    """Return a figure as wide as the page, and its axes."""
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    return figure, figure.subplots(rows, columns, **options)


def letter(axes: Axes, text: str) -> None:
    """Give axes a title, in bold on the left."""
    axes.set_title(text, loc="left", fontweight="bold")


@styled
def images(figure: Figure) -> list[tuple[str, bytes]]:
    """Return the figure as PNG and as SVG, with the same bytes for the same figure."""
    return [("png", _saved(figure, "png")), ("svg", _saved(figure, "svg", transparent=True))]


def _saved(figure: Figure, suffix: str, **options: Any) -> bytes:
    file = io.BytesIO()
    metadata = {"Software": None} if suffix == "png" else {"Date": None}
    figure.savefig(file, format=suffix, metadata=metadata, **options)
    return file.getvalue()
