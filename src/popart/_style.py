"""The style of figures: the paper's colours, and settings for matplotlib, which is not imported here."""

from typing import Any

SGD, ART, POPART = "#d62728", "#1f5fd0", "#228b22"
"""The paper's colours: red, blue and green."""

INK = "#1c1c1c"
"""Colour of axes and text. The laboratory's report replaces it by the colour of the page's text."""

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
