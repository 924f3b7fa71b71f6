"""Learning curves, areas and heat maps of the regression experiment."""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

from popart.lab.figures import COLOURS, INK, letter, styled, subplots
from popart.lab.regression import SMOOTH, Regression
from popart.lab.regression.methods import METHODS, PAPER

if TYPE_CHECKING:
    from popart.lab.regression.experiment import Best, Row


@styled
def learning_curves(shown: Mapping[str, "Best"]) -> Figure:
    """Fig. 1a: medians and 10 to 90 % bands, on a logarithmic scale."""
    figure, axes = subplots(height=3.1)
    points = next(iter(shown.values())).curves.shape[-1]
    samples = SMOOTH * (np.arange(points) + 0.5)
    for name, best in shown.items():
        low, median, high = best.curves
        colour = COLOURS[METHODS[name].family]
        axes.fill_between(samples, low, high, color=colour, alpha=0.2, linewidth=0)
        axes.plot(samples, median, color=colour, label=_legend(name, best.row))
        if best.papers is not None:
            label = f"{_legend(name, best.papers)}, as in the paper"
            axes.plot(
                samples, best.papers_curve, color=colour, linewidth=0.8, linestyle=(0, (3, 2)), label=label
            )
    axes.set(yscale="log", xlabel="samples", ylabel="RMSE (in units of the targets)")
    axes.set_xlim(0, SMOOTH * points)
    axes.grid(axis="y")
    figure.legend(loc="outside upper center", ncols=2)
    return figure


def _legend(name: str, row: "Row") -> str:
    beta = row["beta"]
    return f"{METHODS[name].label} (α = {_power(row['alpha'])}" + (f", β = {_power(beta)})" if beta else ")")


@styled
def areas(best: Mapping[str, "Best"]) -> Figure:
    """The best area of each method, with its interval."""
    figure, axes = subplots(height=0.25 * len(best) + 0.8)
    names = sorted(best, key=lambda name: -best[name].area)
    beside = {"xytext": (5, 0), "textcoords": "offset points", "va": "center", "fontsize": 8}
    for i, name in enumerate(names):
        one = best[name]
        if math.isinf(one.area):
            axes.annotate("diverged", (0, i), **beside)
            continue
        colour = COLOURS[METHODS[name].family]
        end = max(one.area, one.interval[1] if math.isfinite(one.interval[1]) else 0.0)
        axes.plot((one.interval[0], end), (i, i), color=colour, linewidth=3, alpha=0.4, solid_capstyle="butt")
        axes.plot(one.area, i, "o", color=colour, markersize=4)
        axes.annotate(f"{one.area:.0f}", (end, i), **beside)
    axes.set_yticks(range(len(names)), [_legend(name, best[name].row) for name in names])
    axes.set_xlabel("area under the best curve per sample (RMSE; less is better)")
    axes.set_xlim(left=0)
    axes.grid(axis="x")
    return figure


@styled
def grids(cells: Sequence["Row"], settings: Regression) -> Figure:
    """A heat map per method: alpha across, beta up."""
    names = settings.methods
    columns = min(3, len(names))
    rows = math.ceil(len(names) / columns)
    figure, panels = subplots(rows, columns, height=2.15 * rows + 0.7, squeeze=False)
    finite = [row["rmse"] for row in cells if math.isfinite(row["rmse"])]
    least = min(finite, default=1.0)
    norm = LogNorm(least, max(10 * least, 1e-300), clip=False)
    images = [
        _heat(axes, name, [row for row in cells if row["method"] == name], settings, norm)
        for axes, name in zip(panels.flat, names, strict=False)
    ]
    for axes in panels.flat[len(names) :]:
        axes.remove()
    bar = {"location": "bottom", "extend": "max", "shrink": 0.6, "aspect": 40, "format": "%.0f"}
    round_numbers = (digit * 10.0**power for power in range(-40, 40) for digit in (1, 2, 3, 5))
    ticks = [x for x in round_numbers if least <= x <= 10 * least]
    colours = figure.colorbar(
        images[0], ax=figure.axes, ticks=ticks, label="area under the curve per sample (RMSE)", **bar
    )
    colours.minorticks_off()
    return figure


def _heat(axes: Any, name: str, cells: Sequence["Row"], settings: Regression, norm: LogNorm) -> Any:
    betas = settings.betas if METHODS[name].rule else (None,)
    shape = len(betas), len(settings.alphas)
    area = np.array([row["rmse"] for row in cells]).reshape(shape)
    shown = np.where(np.isfinite(area), area, np.nan)
    edges = [np.arange(n + 1) - 0.5 for n in reversed(shape)]
    image = axes.pcolormesh(*edges, shown, norm=norm, cmap="viridis_r", rasterized=True)
    for (j, i), value in np.ndenumerate(area):
        if not np.isfinite(value):
            axes.plot(i, j, "x", color=INK, markersize=5, markeredgewidth=0.6)
        elif cells[j * shape[1] + i]["diverged"]:
            axes.plot(i, j, ".", color=INK, markersize=2)
    if np.isfinite(area).any():
        j, i = np.unravel_index(np.argmin(area), shape)
        axes.plot(i, j, "o", color="none", markeredgecolor=INK, markersize=6, markeredgewidth=1.5)
    if name in PAPER:
        at = _index(settings.alphas, PAPER[name][0]), _index(betas, PAPER[name][1])
        if None not in at:
            axes.plot(*at, "s", color="none", markeredgecolor="#ff2d95", markersize=9, markeredgewidth=1.2)
    letter(axes, METHODS[name].label.replace("start", "").strip())
    axes.set_xticks(*_ticks(settings.alphas))
    axes.set_yticks(*(_ticks(betas) if len(betas) > 1 else ([], [])))
    axes.set(xlabel="α", ylabel="β" if len(betas) > 1 else "", aspect="auto")
    return image


def _ticks(values: Sequence[Any]) -> tuple[list[int], list[str]]:
    every = max(1, len(values) // 5)
    at = list(range(0, len(values), every))
    return at, [_power(values[i]) for i in at]


def _index(values: Sequence[float | None], value: float | None) -> int | None:
    if value is None:
        return 0
    near = [i for i, v in enumerate(values) if v and math.isclose(v, value, rel_tol=1e-6)]
    return near[0] if near else None


def _power(x: float) -> str:
    exponent = round(2 * math.log10(x)) / 2
    if x == 1:
        return "1"
    return f"$10^{{{exponent:g}}}$" if math.isclose(10**exponent, x, rel_tol=1e-6) else f"{x:.3g}"
