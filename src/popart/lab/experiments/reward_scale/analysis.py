"""Returns against the scale of rewards, from the table of returns."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

from popart.lab.analysis import Page
from popart.lab.experiments.reward_scale.config import AGENTS, GAMES, METHODS, RATE, RATES
from popart.lab.figures import AGENT_COLOURS, ART, INK, POPART, letter, styled, subplots
from popart.lab.intervals import Interval, iqm, over_seeds

FIGURE = """Mean return of the episodes in the last fifth of training, in the game's own units, when the
agent's rewards are multiplied by the scale. Lines: means over seeds. Dots: single agents. All agents have the
same network, optimizer and learning rate."""

METHODS_FIGURE = """Return of the episodes in the last fifth of training, in the game's own units, when the
agent's rewards are multiplied by the scale: interquartile mean over random seeds with a 95 % bootstrap
interval. Black: learning rate 0.001. Blue, dashed: the learning rate that is best for the method at a scale
of 1, if that is another one. Green line: Pop-Art at 0.001."""

ONE_SCALE = """Return of the episodes in the last fifth of training, in the game's own units: interquartile
mean over random seeds with a 95 % bootstrap interval. Black: learning rate 0.001. Blue: the best of three
learning rates for the method."""

TABLE = "The mean return of each agent in the last fifth of its training, in the game's own units."

SUMMARY = """Interquartile mean over random seeds of the return at each scale of rewards, with its 95 %
bootstrap interval. A method has a second row if its best learning rate at a scale of 1 is not 0.001."""

Returns = Mapping[tuple[str, str, float], np.ndarray]
"""For each game, method and learning rate with which all scales were run, (scales, seeds)."""


def analyse(page: Page) -> None:
    returns, methods = _returns(page), _methods(page.settings)
    if set(methods) <= set(AGENTS):
        page.figure("scale", "Return against the scale of rewards", FIGURE, _figure(page.settings, returns))
    else:
        for game in page.settings["games"]:
            heading = f"Return against the scale of rewards: {GAMES[game].label}"
            one = len(page.settings["scales"]) == 1
            caption, draw = (ONE_SCALE, _one_scale_figure) if one else (METHODS_FIGURE, _methods_figure)
            page.figure(f"scale-{game}", heading, caption, draw(page.settings, game, returns))
        page.show_table("summary", "All methods", SUMMARY, _summary(page.settings, returns))
    page.show_table("returns", "All agents", TABLE)
    if "popart" in methods:
        for game in page.settings["games"]:
            _find(page, game, {method: returns[game, method, RATE].mean(1) for method in methods})


def estimate(returns: np.ndarray) -> Interval:
    """Return the interquartile mean over seeds, with its bootstrap interval."""
    return over_seeds(iqm, [returns])


def _methods(settings: Mapping[str, Any]) -> Sequence[str]:
    """Return the methods of a run; earlier releases called them agents."""
    return settings["methods"] if "methods" in settings else settings["agents"]


def _returns(page: Page) -> Returns:
    scales: Sequence[float] = page.settings["scales"]
    found: dict[tuple[str, str, float, float], list[float]] = {}
    for row in page.needed_table("returns"):
        case = row["game"], row.get("method") or row["agent"], float(row.get("rate", RATE))
        found.setdefault((*case, float(row["scale"])), []).append(float(row["return"]))
    cases = [
        (game, method, rate)
        for game in page.settings["games"]
        for method in _methods(page.settings)
        for rate in RATES
        if all((game, method, rate, scale) in found for scale in scales)
    ]
    return {case: np.array([found[*case, scale] for scale in scales]) for case in cases}


def _summary(settings: Mapping[str, Any], returns: Returns) -> list[dict[str, Any]]:
    return [
        {"game": GAMES[game].label, "method": METHODS[method], "learning rate": rate}
        | {f"{scale:g}": estimate(x).text(".3g") for scale, x in zip(settings["scales"], found, strict=True)}
        for (game, method, rate), found in returns.items()
    ]


def _find(page: Page, game: str, means: dict[str, np.ndarray]) -> None:
    popart = means.pop("popart")
    best = max((m.max() for m in means.values()), default=popart.max())
    others = "; ".join(f"{METHODS[method]} {m.min():.3g} to {m.max():.3g}" for method, m in means.items())
    page.find(
        f"With Pop-Art the scale of rewards does not matter in {GAMES[game].label}",
        paper="updates do not depend on the scale of targets",
        here=f"returns of {popart.min():.3g} to {popart.max():.3g} over all scales"
        + (f"; {others}" if others else ""),
        agrees=popart.max() - popart.min() <= 0.25 * max(abs(popart.mean()), abs(best)),
    )


@styled
def _figure(settings: Mapping[str, Any], returns: Returns) -> Figure:
    games: Sequence[str] = settings["games"]
    columns = min(2, len(games))
    lines = -(-len(games) // columns)
    figure, panels = subplots(lines, columns, height=2.1 * lines + 0.4, squeeze=False)
    for axes, game in zip(panels.flat, games, strict=False):
        for method in _methods(settings):
            found, colour = returns[game, method, RATE], AGENT_COLOURS[method]
            axes.plot(settings["scales"], found, ".", color=colour, alpha=0.35, markersize=4)
            label = METHODS[method] if game == games[0] else None
            axes.plot(settings["scales"], found.mean(1), color=colour, label=label, linewidth=1.6)
        axes.set(xscale="log", xlabel="scale of rewards", ylabel="return")
        axes.xaxis.set_major_locator(LogLocator(10, numticks=9))
        axes.minorticks_off()
        axes.grid()
        letter(axes, GAMES[game].label)
    for axes in panels.flat[len(games) :]:
        axes.remove()
    figure.legend(loc="outside upper center", ncols=3)
    return figure


@styled
def _methods_figure(settings: Mapping[str, Any], game: str, returns: Returns) -> Figure:
    """Draw one small panel per method."""
    methods, scales = _methods(settings), settings["scales"]
    columns = min(5, len(methods))
    lines = -(-len(methods) // columns)
    figure, panels = subplots(
        lines, columns, height=1.45 * lines + 0.3, squeeze=False, sharex=True, sharey=True
    )
    for axes, method in zip(panels.flat, methods, strict=False):
        if (game, "popart", RATE) in returns:
            pop = [estimate(x).value for x in returns[game, "popart", RATE]]
            axes.plot(scales, pop, color=POPART, linewidth=1.0, alpha=0.8)
        for rate, colour, dash in ((RATE, INK, "-"), *((r, ART, "--") for r in RATES if r != RATE)):
            if (game, method, rate) in returns:
                _curve(axes, scales, returns[game, method, rate], colour, dash)
        axes.set(xscale="log")
        axes.xaxis.set_major_locator(LogLocator(1e8, numticks=3))
        axes.minorticks_off()
        axes.grid()
        axes.set_title(METHODS[method], loc="left", fontsize=7)
    for axes in panels.flat[len(methods) :]:
        axes.remove()
    for axes in panels.flat[len(methods) - columns : len(methods)]:
        axes.tick_params(labelbottom=True)
    figure.supxlabel("scale of rewards", fontsize=9)
    figure.supylabel("return", fontsize=9)
    return figure


@styled
def _one_scale_figure(settings: Mapping[str, Any], game: str, returns: Returns) -> Figure:
    """Draw one row per method."""
    methods = _methods(settings)
    figure, axes = subplots(height=0.2 * len(methods) + 0.7)
    for place, method in enumerate(methods):
        tried = {rate: estimate(returns[game, method, rate][0]) for rate in _rates(game, method, returns)}
        best = max(tried, key=lambda rate: tried[rate].value)
        for rate in dict.fromkeys((RATE, best)):
            mean, low, high = tried[rate]
            colour, at = (INK, place - 0.12) if rate == RATE else (ART, place + 0.12)
            axes.plot((low, high), (at, at), color=colour, linewidth=2.5, alpha=0.35)
            axes.plot(mean, at, "o", color=colour, markersize=4)
    axes.set(yticks=range(len(methods)), yticklabels=[METHODS[m] for m in methods], xlabel="return")
    axes.invert_yaxis()
    axes.grid(axis="x")
    return figure


def _rates(game: str, method: str, returns: Returns) -> list[float]:
    return [rate for rate in RATES if (game, method, rate) in returns]


def _curve(axes: Axes, scales: Sequence[float], found: np.ndarray, colour: str, dash: str) -> None:
    means, lows, highs = np.array([estimate(x) for x in found]).T
    axes.fill_between(scales, lows, highs, color=colour, alpha=0.15, linewidth=0)
    axes.plot(scales, means, dash, color=colour, marker=".", markersize=4)
