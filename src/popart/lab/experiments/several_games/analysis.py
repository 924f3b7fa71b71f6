"""Returns of one network on several games, from the table of returns."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from popart.lab.analysis import Page
from popart.lab.envs.games import GAMES
from popart.lab.experiments.several_games.config import LABELS
from popart.lab.figures import AGENT_COLOURS, INK, styled, subplots
from popart.lab.intervals import Interval, iqm, over_seeds

FIGURE = """Return of one network that learns all games at the same time, in each game's own units, when its
rewards are multiplied by the number above the panel: interquartile mean over random seeds with a 95 %
bootstrap interval. Grey band: a network per game, with Pop-Art and as many updates of that game. Dotted line:
random play. Last panel: mean over games of normalised returns, 0 for random play and 1 for a network per
game."""

TABLE = """The mean return of each network at the end of training: five evaluations of eight episodes in the
last fifth, with 5 % random actions, in the game's own units."""

SUMMARY = """Interquartile mean over random seeds of the return in each game, in its own units, with a 95 %
bootstrap interval."""

NORMALISED = """Interquartile mean over random seeds of the normalised return: 0 is random play and 1 a
network per game, both as interquartile means over seeds, without an uncertainty of their own. The mean over
games is taken of each network, before the interquartile mean over seeds. A game that is not learned alone has
no normalised return."""

MEAN = "mean"

Returns = Mapping[str, np.ndarray]
"""For each method and reference, (games, seeds)."""


def analyse(page: Page) -> None:
    games, returns = page.settings["games"], _returns(page)
    normalised = normalise(returns)
    page.figure(
        "tasks", "Several games with one network", FIGURE, _figure(page.settings, returns, normalised)
    )
    page.show_table(
        "summary", "Return of each game", SUMMARY, [_row(games, name, x) for name, x in returns.items()]
    )
    rows = [_row(games, name, x, {MEAN: over_games(x)}) for name, x in normalised.items()]
    page.show_table("normalised", "Normalised returns", NORMALISED, rows)
    page.show_table("returns", "All networks", TABLE)
    _find(page, normalised)


def estimate(returns: np.ndarray) -> Interval:
    """Return the interquartile mean over seeds, with its bootstrap interval."""
    return over_seeds(iqm, [returns])


def normalise(returns: Returns) -> dict[str, np.ndarray]:
    """Return (returns - random) / (alone - random); NaN for a game that is not learned alone."""
    random, alone = (np.array([iqm([x]) for x in returns[name]])[:, None] for name in ("random", "alone"))
    span = np.where(alone > random, alone - random, np.nan)
    return {name: (x - random) / span for name, x in returns.items() if name != "random"}


def over_games(normalised: np.ndarray) -> Interval:
    """Return the mean over games that are learned alone, as the interquartile mean over seeds."""
    learned = normalised[~np.isnan(normalised).any(1)]
    return estimate(learned.mean(0)) if len(learned) else Interval(np.nan)


def _returns(page: Page) -> Returns:
    games: Sequence[str] = page.settings["games"]
    found: dict[tuple[str, str], list[float]] = {}
    for row in page.needed_table("returns"):
        found.setdefault((row["method"], row["game"]), []).append(float(row["return"]))
    names = [*page.settings["methods"], "alone", "random"]
    return {name: np.array([found[name, game] for game in games]) for name in names}


def _row(
    games: Sequence[str], name: str, returns: np.ndarray, more: Mapping[str, Interval] | None = None
) -> dict[str, str]:
    cells = {GAMES[game].label: estimate(x) for game, x in zip(games, returns, strict=True)}
    return {"method": LABELS[name]} | {
        column: x.text(".3g") if np.isfinite(x.value) else ""
        for column, x in (cells | dict(more or {})).items()
    }


def _find(page: Page, normalised: Mapping[str, np.ndarray]) -> None:
    if not {"popart", "one_statistic", "clipped"} <= set(normalised):
        return
    found = {name: over_games(normalised[name]) for name in ("popart", "one_statistic", "clipped")}
    mine, one, clipped = found.values()
    if not mine.known:  # one random seed cannot tell methods apart
        return
    page.find(
        "Statistics per game serve games of different size better than one statistic, and than clipping",
        paper="one agent learns 57 Atari games, or 30 levels of DeepMind Lab, better with Pop-Art per game "
        "than with clipping (arXiv 1809.04474)",
        here=f"normalised return with a statistic per game {mine.text('.2f')}, with one statistic "
        f"{one.text('.2f')}, with clipping {clipped.text('.2f')}",
        agrees=mine.low > max(one.high, clipped.high),
    )


@styled
def _figure(settings: Mapping[str, Any], returns: Returns, normalised: Returns) -> Figure:
    games, methods = settings["games"], settings["methods"]
    figure, panels = subplots(
        1, len(games) + 1, height=0.22 * len(methods) + 1.05, sharey=True, squeeze=False
    )
    for k, (axes, game) in enumerate(zip(panels[0], games, strict=False)):
        _panel(axes, [estimate(returns[name][k]) for name in methods], methods)
        alone, random = (estimate(returns[name][k]) for name in ("alone", "random"))
        _references(axes, alone, random.value)
        _title(axes, f"{GAMES[game].label.removesuffix(' (MinAtar)')}\n× {settings['scales'][k]:g}")
        axes.set_xlabel("return")
    last = panels[0][-1]
    _panel(last, [over_games(normalised[name]) for name in methods], methods)
    _references(last, over_games(normalised["alone"]), 0.0)
    _title(last, "Mean over games\nnormalised")
    last.set_xlabel("normalised")
    panels[0][0].set(yticks=range(len(methods)), yticklabels=[LABELS[name] for name in methods])
    panels[0][0].invert_yaxis()
    return figure


def _title(axes: Axes, text: str) -> None:
    axes.set_title(text, loc="left", fontweight="bold", fontsize=7)


def _panel(axes: Axes, found: Sequence[Interval], methods: Sequence[str]) -> None:
    for place, (name, (mean, low, high)) in enumerate(zip(methods, found, strict=True)):
        colour = AGENT_COLOURS.get(name, INK)
        axes.plot((low, high), (place, place), color=colour, linewidth=2.5, alpha=0.35)
        axes.plot(mean, place, "o", color=colour, markersize=4)
    axes.grid(axis="x")


def _references(axes: Axes, alone: Interval, random: float) -> None:
    if alone.known:
        axes.axvspan(alone.low, alone.high, color="#888888", alpha=0.25, linewidth=0)
    axes.axvline(alone.value, color="#888888", linewidth=1.0)
    axes.axvline(random, color="#888888", linewidth=1.0, linestyle=":")
