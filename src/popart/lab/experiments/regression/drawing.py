"""Learning curves, areas and heat maps of the regression experiment."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

from popart.lab.experiments.regression.best import Best
from popart.lab.experiments.regression.cells import Row
from popart.lab.experiments.regression.config import SMOOTH
from popart.lab.experiments.regression.methods import METHODS, PAPER
from popart.lab.figures import COLOURS, INK, letter, styled, subplots


@styled
def learning_curves(shown: Mapping[str, Best]) -> Figure:
    """Draw Fig. 1a: medians with 10 to 90 % bands, on a logarithmic scale."""
    figure, axes = subplots(height=3.1)
    for name, best in shown.items():
        samples, (low, median, high) = best.samples - SMOOTH / 2, best.curves
        colour = COLOURS[METHODS[name].family]
        axes.fill_between(samples, low, high, color=colour, alpha=0.2, linewidth=0)
        axes.plot(samples, median, color=colour, label=_legend(name, best.row))
        if best.paper is not None and best.paper_median is not None:
            style = {"color": colour, "linewidth": 0.8, "linestyle": (0, (3, 2))}
            label = f"{_legend(name, best.paper)}, as in the paper"
            axes.plot(samples, best.paper_median, label=label, **style)
    finite = any(np.isfinite(best.curves[1]).any() for best in shown.values())
    if not finite:
        axes.annotate("every cell diverged", (0.5, 0.5), xycoords="axes fraction", ha="center")
    axes.set(yscale="log" if finite else "linear", xlabel="samples", ylabel="RMSE (in units of the targets)")
    axes.set_xlim(0, next(iter(shown.values())).samples[-1])
    axes.grid(axis="y")
    figure.legend(loc="outside upper center", ncols=2)
    return figure


def _legend(name: str, row: Row) -> str:
    beta = row["beta"]
    return f"{METHODS[name].label} (α = {_power(row['alpha'])}" + (f", β = {_power(beta)})" if beta else ")")


@styled
def areas(best: Mapping[str, Best]) -> Figure:
    """Draw the best area of each method, with its interval."""
    figure, axes = subplots(height=0.25 * len(best) + 0.8)
    names = sorted(best, key=lambda name: -best[name].area)
    for y, name in enumerate(names):
        _area(axes, y, best[name], COLOURS[METHODS[name].family])
    axes.set_yticks(range(len(names)), [_legend(name, best[name].row) for name in names])
    axes.set_xlabel("area under the best curve per sample (RMSE; smaller is better)")
    axes.set_xlim(left=0)
    axes.grid(axis="x")
    return figure


def _area(axes: Any, y: int, best: Best, colour: str) -> None:
    beside = {"xytext": (5, 0), "textcoords": "offset points", "va": "center", "fontsize": 8}
    if math.isinf(best.area):
        axes.annotate("diverged", (0, y), **beside)
        return
    low, high = best.interval
    end = max(best.area, high if math.isfinite(high) else 0.0)
    axes.plot((low, end), (y, y), color=colour, linewidth=3, alpha=0.4, solid_capstyle="butt")
    axes.plot(best.area, y, "o", color=colour, markersize=4)
    axes.annotate(f"{best.area:.0f}", (end, y), **beside)


@styled
def grids(cells: Sequence[Row], settings: Mapping[str, Any]) -> Figure:
    """Draw a heat map per method: alpha across, beta up."""
    names = settings["methods"]
    columns = min(3, len(names))
    rows = math.ceil(len(names) / columns)
    figure, panels = subplots(rows, columns, height=2.15 * rows + 0.7, squeeze=False)
    least = min((row["rmse"] for row in cells if math.isfinite(row["rmse"])), default=1.0)
    norm = LogNorm(least, max(10 * least, 1e-300), clip=False)
    images = [
        _heat(axes, name, [row for row in cells if row["method"] == name], settings, norm)
        for axes, name in zip(panels.flat, names, strict=False)
    ]
    for axes in panels.flat[len(names) :]:
        axes.remove()
    _colour_bar(figure, images[0], least)
    return figure


def _colour_bar(figure: Figure, image: Any, least: float) -> None:
    style = {"location": "bottom", "extend": "max", "shrink": 0.6, "aspect": 40, "format": "%.0f"}
    round_numbers = (digit * 10.0**power for power in range(-40, 40) for digit in (1, 2, 3, 5))
    ticks = [x for x in round_numbers if least <= x <= 10 * least]
    label = "area under the curve per sample (RMSE)"
    figure.colorbar(image, ax=figure.axes, ticks=ticks, label=label, **style).minorticks_off()


def _heat(axes: Any, name: str, cells: Sequence[Row], settings: Mapping[str, Any], norm: LogNorm) -> Any:
    alphas, betas = settings["alphas"], settings["betas"] if METHODS[name].rule else (None,)
    shape = len(betas), len(alphas)
    area = np.array([row["rmse"] for row in cells]).reshape(shape)
    shown = np.where(np.isfinite(area), area, np.nan)
    edges = [np.arange(n + 1) - 0.5 for n in reversed(shape)]
    image = axes.pcolormesh(*edges, shown, norm=norm, cmap="viridis_r", rasterized=True)
    _mark_diverged(axes, area, cells)
    if np.isfinite(area).any():
        j, i = np.unravel_index(np.argmin(area), shape)
        axes.plot(i, j, "o", color="none", markeredgecolor=INK, markersize=6, markeredgewidth=1.5)
    if name in PAPER:
        at = _index(alphas, PAPER[name][0]), _index(betas, PAPER[name][1])
        if None not in at:
            axes.plot(*at, "s", color="none", markeredgecolor="#ff2d95", markersize=9, markeredgewidth=1.2)
    letter(axes, METHODS[name].label.replace("start", "").strip())
    axes.set_xticks(*_ticks(alphas))
    axes.set_yticks(*(_ticks(betas) if len(betas) > 1 else ([], [])))
    axes.set(xlabel="α", ylabel="β" if len(betas) > 1 else "", aspect="auto")
    return image


def _mark_diverged(axes: Any, area: np.ndarray, cells: Sequence[Row]) -> None:
    for (j, i), value in np.ndenumerate(area):
        if not np.isfinite(value):
            axes.plot(i, j, "x", color=INK, markersize=5, markeredgewidth=0.6)
        elif cells[j * area.shape[1] + i]["diverged"]:
            axes.plot(i, j, ".", color=INK, markersize=2)


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
