"""Figures of a report: Fig. 2 from our own runs, and its agreement with the paper's."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from popart.lab.campaign.report.scores import Difference, Scores
from popart.lab.envs.games import title
from popart.lab.figures import AGENT_COLOURS, ART, INK, POPART, letter, styled, subplots
from popart.lab.intervals import over_runs

NAMED = 12
"""Largest number of games that the figure of agreement names."""

LINEAR = 10
"""Percent up to which the axes of differences are linear."""


@styled
def figure_2(differences: Sequence[Difference], heading: str) -> Figure:
    """Draw the differences of normalised scores, with the paper's as dots."""
    figure, axes = subplots(height=3.8)
    here, places = [100 * each.here.value for each in differences], range(len(differences))
    axes.bar(places, here, color=[POPART if d >= 0 else ART for d in here], width=0.8)
    for at, each in zip(places, differences, strict=True):
        if each.here.known:
            axes.plot([at, at], [100 * each.here.low, 100 * each.here.high], color=INK, linewidth=0.8)
    theirs = [100 * each.paper for each in differences]
    axes.plot(places, theirs, "o", color=INK, markersize=3, fillstyle="none", label="paper, 200M frames")
    axes.axhline(0, color=INK, linewidth=0.7)
    _percent_axis(axes, "y")
    size = 6 if len(differences) > 25 else 8
    axes.set_xticks(places, [each.score.title for each in differences], rotation=90, fontsize=size)
    axes.set(xlim=(-0.8, len(differences) - 0.2), ylabel="difference of\nnormalised scores")
    axes.tick_params(axis="x", length=0)
    axes.grid(axis="y")
    axes.legend(loc="lower right")
    letter(axes, heading)
    return figure


@styled
def agreement(differences: Sequence[Difference], heading: str) -> Figure:
    """Draw our differences against the paper's; games in the shaded quarters have the same sign."""
    figure, axes = subplots(height=3.6)
    x, y = ([100 * value for value in each] for each in _pairs(differences))
    axes.axhline(0, color=INK, linewidth=0.7)
    axes.axvline(0, color=INK, linewidth=0.7)
    colours = [POPART if (a >= 0) == (b >= 0) else ART for a, b in zip(x, y, strict=True)]
    axes.scatter(x, y, c=colours, s=18, zorder=3)
    if len(differences) <= NAMED:
        for each, a, b in zip(differences, x, y, strict=True):
            axes.annotate(each.score.title, (a, b), xytext=(4, 3), textcoords="offset points", fontsize=7)
    _percent_axis(axes, "x")
    _percent_axis(axes, "y")
    axes.set(xlabel="the paper's difference of normalised scores", ylabel="ours")
    axes.grid()
    for name, colour, right in (("same sign", POPART, 0.86), ("other sign", ART, 1.0)):
        axes.text(right, 1.03, name, color=colour, ha="right", transform=axes.transAxes)
    letter(axes, heading)
    return figure


def _pairs(differences: Sequence[Difference]) -> tuple[list[float], list[float]]:
    return [each.paper for each in differences], [each.here.value for each in differences]


def _percent_axis(axes: Any, which: str) -> None:
    """Make an axis linear near 0 and logarithmic beyond, as in the paper, with room around the values."""
    axis = getattr(axes, f"{which}axis")
    low, high = getattr(axes, f"get_{which}lim")()
    getattr(axes, f"set_{which}scale")("symlog", linthresh=LINEAR, linscale=0.8)
    ticks = [s * 10.0**k for k in range(1, 6) for s in (-1, 1)]
    shown = [0.0, *(t for t in sorted(ticks) if abs(t) <= LINEAR or 3 * low <= t <= 3 * high)]
    axis.set_ticks(shown, [f"{t:+,.0f} %" if t else "0" for t in shown])
    axis.minorticks_off()
    getattr(axes, f"set_{which}lim")(min(1.5 * low, -LINEAR), max(1.5 * high, LINEAR))


@styled
def figure_scores(scores: Scores) -> Figure:
    """Draw the score of each run in each game, and means with intervals over seeds."""
    columns = min(4, len(scores.games))
    rows = -(-len(scores.games) // columns)
    figure, panels = subplots(rows, columns, height=0.4 + 1.7 * rows, squeeze=False)
    for axes, game in zip(panels.flat, scores.games, strict=False):
        for at, agent in enumerate(scores.agents):
            if scores.has(game, agent):
                _dots(axes, at, AGENT_COLOURS[agent], scores.runs(game, agent))
        axes.set_xticks(range(len(scores.agents)), scores.agents)
        axes.set(xlim=(-0.6, len(scores.agents) - 0.4))
        axes.grid(axis="y")
        letter(axes, title(game))
    for axes in panels.flat[len(scores.games) :]:
        axes.set_visible(False)
    for axes in panels[:, 0]:
        axes.set_ylabel("score (points)")
    return figure


def _dots(axes: Any, at: int, colour: str, runs: np.ndarray) -> None:
    mean = over_runs(runs)
    spread = 0.2 * np.linspace(-1, 1, len(runs)) if len(runs) > 1 else np.zeros(1)
    axes.plot(at + spread, runs, ".", color=colour, alpha=0.5, markersize=5)
    axes.plot(at, mean.value, "o", color=colour, markersize=5)
    if mean.known:
        axes.plot([at, at], [mean.low, mean.high], color=colour, linewidth=1.5)
