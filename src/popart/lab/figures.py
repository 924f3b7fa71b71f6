"""The style of all figures: colours, sizes, and PNG and SVG files that are the same in every run."""

import io
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from popart._style import ART, INK, POPART, SGD, STYLE, WIDTH

__all__ = [
    "AGENT_COLOURS",
    "ART",
    "COLOURS",
    "GREY",
    "INK",
    "POPART",
    "SGD",
    "STYLE",
    "WIDTH",
    "images",
    "letter",
    "styled",
    "subplots",
]

COLOURS = {"sgd": SGD, "art": ART, "popart": POPART}
"""The paper's colours: red, blue and green."""

AGENT_COLOURS = {"unclipped": SGD, "clipped": ART, "popart": POPART}
"""The colours of agents in Fig. 1b."""

GREY = "#707070"
"""The colour of elements in the background."""


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
