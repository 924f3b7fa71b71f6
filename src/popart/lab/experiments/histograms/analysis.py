"""Figure 3 and findings about bounds and variances, from the tables of a run."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from popart.lab.analysis import Page
from popart.lab.figures import INK, POPART, SGD, letter, styled, subplots

TARGETS, MAGENTA = "#1f5fd0", "#b300b3"
Curves = tuple[tuple[float, float, str], ...]
LEFT: Curves = ((0.1, 1.0, POPART), (0.5, 1.0, SGD))
MIDDLE: Curves = ((0.1, 1.0, POPART), (0.1, 1 / 3, SGD))

FIGURE = """Left: normal targets with mean 1 and standard deviation 2 (blue), and normalised with step sizes
β = 0.1 (green) and β = 0.5 (red). A large β limits the targets to [-1, 1] but changes the shape of their
distribution. Middle: the same with β = 0.1 and s = 1/3 (red), where the distribution stays normal. Right: the
variance of normalised targets for each bound, when the bound is set by β (magenta) or by s with β = 0.01
(black). Dotted: theory."""

TABLE = """Largest: the largest absolute value of a normalised target. Expected: the variance in theory, for
small and for large β."""

Row = dict[str, Any]


def analyse(page: Page) -> None:
    variances, examples, densities = (
        list(map(_numbers, page.needed_table(name))) for name in ("variances", "examples", "densities")
    )
    page.figure("figure_3", "Figure 3", FIGURE, _figure(densities, variances))
    page.show_table("variances", "Variances and bounds", TABLE)
    _find(page, variances, {(row["beta"], row["s"]): row["variance"] for row in examples})


def _numbers(row: dict[str, str]) -> Row:
    return {k: v if k == "changed" else float(v) if v else None for k, v in row.items()}


def _find(page: Page, rows: Sequence[Row], examples: dict[tuple[float, float], float]) -> None:
    worst = max(row["largest"] / row["bound"] for row in rows)
    page.find(
        "No normalised target exceeds the bound s√((1 - β)/β)",
        paper="none, whatever the targets",
        here=f"the largest is {worst:.6f} times its bound, up to rounding",
        agrees=worst <= 1 + 1e-4,  # float32 has Y - μ to 1e-7 of Y, and it is a hundredth of Y for β = 0.99
    )
    half, tenth = examples[0.5, 1.0], examples[0.1, 1.0]
    page.find(
        "With a large β the variance is far below the desired 1",
        paper="far below one",
        here=f"{half:.2f} with β = 0.5, {tenth:.2f} with β = 0.1",
        agrees=half < 0.7,
    )
    ratios = [row["variance"] / row["s"] ** 2 for row in rows if row["changed"] == "s"]
    page.find(
        "With β = 0.01 the variance is set by s",
        paper="“approximately s”; a standard deviation of s is a variance of s²",
        here=f"{min(ratios):.3f} s²; (1 - 2 β) s² = 0.98 s² in theory",
        agrees=all(0.9 < ratio < 1.05 for ratio in ratios),
    )


@styled
def _figure(densities: Sequence[Row], variances: Sequence[Row]) -> Figure:
    figure, (left, middle, right) = subplots(1, 3, height=2.5)
    for axes, curves, title in ((left, LEFT, "Limited by β"), (middle, MIDDLE, "Limited by s")):
        _histogram(axes, densities, None, None, TARGETS, "targets")
        for beta, s, colour in curves:
            label = f"β = {beta:g}" + ("" if s == 1 else ", s = 1/3")
            _histogram(axes, densities, beta, s, colour, label)
        axes.set(xlabel="(normalised) target", ylabel="density", xlim=(-6, 8), ylim=(0, 1.8))
        letter(axes, title)
        axes.legend(loc="upper right", handlelength=1)
    _variances(right, variances)
    return figure


def _histogram(
    axes: Any, densities: Sequence[Row], beta: float | None, s: float | None, colour: str, label: str
) -> None:
    rows = [row for row in densities if (row["beta"], row["s"]) == (beta, s)]
    edges = [row["from"] for row in rows] + [rows[-1]["to"]]
    heights = [row["density"] for row in rows]
    axes.stairs(heights, edges, fill=True, color=colour, alpha=0.35, label=label)
    axes.stairs(heights, edges, color=colour, linewidth=0.8)


def _variances(axes: Any, rows: Sequence[Row]) -> None:
    for changed, colour, label in (("beta", MAGENTA, "by β, s = 1"), ("s", INK, "by s, β = 0.01")):
        some = [row for row in rows if row["changed"] == changed]
        bounds = [row["bound"] for row in some]
        axes.plot(bounds, [row["variance"] for row in some], color=colour, label=label)
        expected = [np.nan if row["expected"] is None else row["expected"] for row in some]
        axes.plot(bounds, expected, ":", color=colour, linewidth=2.5, alpha=0.4)
    axes.set(xscale="log", yscale="log", xlabel="bound s√((1 − β)/β)", ylabel="variance", ylim=(5e-5, 3))
    axes.grid()
    letter(axes, "Variance")
    axes.legend(loc="lower right", title="bound set")
