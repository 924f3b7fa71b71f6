"""Errors against time: one panel per stream, and the legend in a panel of its own."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from popart.lab.experiments.streams.config import CAP, METHODS, STREAMS
from popart.lab.figures import COLOURS, letter, styled, subplots

OTHERS = ("#8c564b", "#e377c2", "#ff7f0e", "#9467bd", "#17becf", "#7f7f7f", "#bcbd22")
DASHES = ("-", (0, (5, 1.5)), (0, (1, 1)), (0, (4, 1, 1, 1)))

Rows = Sequence[Mapping[str, str]]


@styled
def curves(streams: Sequence[str], methods: Sequence[str], rows: Rows) -> Figure:
    """Draw the error of each method against time, for each stream."""
    columns, lines = 2, -(-(len(streams) + 1) // 2)
    figure, panels = subplots(lines, columns, height=1.75 * lines + 0.2, squeeze=False)
    for axes, stream in zip(panels.flat, streams, strict=False):
        for method in methods:
            _curve(axes, method, [r for r in rows if (r["stream"], r["method"]) == (stream, method)])
        _finish(axes)
        letter(axes, STREAMS[stream])
    for axes in panels[:, 0]:
        axes.set_ylabel("relative error")
    for axes in panels.flat[max(0, len(streams) - columns) : len(streams)]:
        axes.set_xlabel("samples")
    legend, *rest = panels.flat[len(streams) :]
    legend.axis("off")
    handles = panels.flat[0].get_lines()
    legend.legend(handles, [METHODS[m] for m in methods], loc="center", handlelength=3.2)
    for axes in rest:
        axes.remove()
    return figure


def _finish(axes: Axes) -> None:
    """Give axes a logarithmic scale with few, plain numbers."""
    axes.set(yscale="log")
    low, high = axes.get_ylim()
    axes.set_ylim(low, min(CAP * 0.99, high))
    axes.set_xlim(left=0)
    axes.yaxis.set_major_locator(LogLocator(10, (1, 2, 5) if high / low < 200 else (1,)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,.0f}"))
    axes.grid(axis="y")


def _curve(axes: Axes, method: str, rows: Rows) -> None:
    """Draw a line, and a band for the paper's methods; the first window is not counted."""
    columns = ([float(row[name]) for row in rows[1:]] for name in ("sample", "error", "low", "high"))
    samples, error, low, high = map(np.array, columns)
    colour, dash, width = _style(method)
    if method in COLOURS:
        axes.fill_between(samples, low, high, color=colour, alpha=0.15, linewidth=0)
    axes.plot(samples, error, color=colour, linestyle=dash, linewidth=width)


def _style(method: str) -> tuple[str, Any, float]:
    """Return colour, dashes and width: the paper's methods have its colours, and so have their variants."""
    if method in COLOURS:
        return COLOURS[method], "-", 1.4
    family = method.split("_")[0]
    if family in COLOURS:
        return COLOURS[family], DASHES[1], 1.2
    place = [m for m in METHODS if m.split("_")[0] not in COLOURS].index(method)
    return OTHERS[place % len(OTHERS)], DASHES[place % len(DASHES)], 1.0
