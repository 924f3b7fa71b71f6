"""Methods side by side: their returns in each game, and normalised returns over all games.

A normalised return of 0 is random play. 1 is the highest interquartile mean that any of the methods has in
the game, each with its best learning rate, with rewards as they are at a scale of 1.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LinearSegmentedColormap, Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

from popart.lab.analysis import Page
from popart.lab.envs.games import GAMES
from popart.lab.experiments.reward_scale.config import METHODS, RATE, best_rate
from popart.lab.figures import ART, INK, POPART, styled, subplots
from popart.lab.intervals import Interval, iqm, over_seeds

BY_GAME = """Return of the episodes in the last fifth of training, in the game's own units, when the agent's
rewards are multiplied by the scale: interquartile mean over random seeds with a 95 % bootstrap interval.
Black: learning rate 0.001. Blue, dashed: the learning rate that is best for the method at a scale of 1, if
that is another one. Green line: Pop-Art at 0.001."""

NORMALIZED = """Normalised return: 0 is random play, 1 the best method at a scale of 1. {} Interquartile mean
over all random seeds of all games, with a 95 % bootstrap interval."""

TUNED = """Each method has the learning rate that is best for it in each game and case at a scale of 1."""

UNTUNED = """All methods have the same learning rate, 0.001, which is too small for some; --tuned gives each
method the best of several."""

SHORT = "Training was shorter than needed in {}: methods that learn slowly look worse than they are."

SUMMARY = """Interquartile mean over random seeds of the return, in the game's own units, with its 95 %
bootstrap interval. A method has a second row if its best learning rate at a scale of 1 is not 0.001."""

Cell = tuple[str, str, str]
"""A game, a case (how its rewards change) and a method."""


@dataclass(frozen=True)
class Comparison:
    """The returns of a run."""

    games: Sequence[str]
    cases: Sequence[str]
    methods: Sequence[str]
    scales: Sequence[float]

    returns: Mapping[tuple[Cell, float], np.ndarray]
    """(scales, seeds) for each learning rate with which a cell was run."""

    chosen: Mapping[Cell, float]
    """The best learning rate of a cell at a scale of 1."""

    random: Mapping[str, float]
    """The return of random play in each game."""

    def best(self, cell: Cell) -> np.ndarray:
        """Return the returns of a cell with the learning rate that was chosen."""
        return self.returns[cell, self.chosen[cell]]

    def normalized(self, method: str, case: str, place: int) -> list[np.ndarray]:
        """Return normalised returns, (seeds,) for each game."""
        found = []
        for game in self.games:
            low, high = self.random[game], self.highest(game)
            found.append((self.best((game, case, method))[place] - low) / (high - low))
        return found

    def interval(self, method: str, case: str, place: int) -> Interval:
        """Return the interquartile mean of normalised returns over all seeds of all games."""
        return self._intervals[method, case, place]

    @cached_property
    def _intervals(self) -> dict[tuple[str, str, int], Interval]:
        keys = product(self.methods, self.cases, range(len(self.scales)))
        return {key: over_seeds(iqm, self.normalized(*key)) for key in keys}

    def highest(self, game: str) -> float:
        place = self.scales.index(1.0)
        tried = (self.best((game, "steady", method))[place] for method in self.methods)
        return max(estimate(x).value for x in tried)

    @property
    def can_normalize(self) -> bool:
        return "steady" in self.cases and 1.0 in self.scales and set(self.games) <= self.random.keys()


def read(page: Page) -> Comparison:
    """Read a run; earlier releases called methods agents, and had one case and one learning rate."""
    settings = page.settings
    methods: Sequence[str] = settings["methods"] if "methods" in settings else settings["agents"]
    cases: Sequence[str] = settings.get("cases") or ["steady"]
    scales: Sequence[float] = settings["scales"]
    found: dict[tuple[Cell, float], dict[float, list[float]]] = {}
    for row in page.needed_table("returns"):
        cell = row["game"], row.get("case", "steady"), row.get("method") or row["agent"]
        rates = found.setdefault((cell, float(row.get("rate", RATE))), {scale: [] for scale in scales})
        rates[float(row["scale"])].append(float(row["return"]))
    tried: dict[Cell, list[dict[str, str]]] = {}
    for row in page.table("tuning"):
        tried.setdefault((row["game"], row["case"], row["method"]), []).append(row)
    random: dict[str, list[float]] = {}
    for row in page.table("random"):
        random.setdefault(row["game"], []).append(float(row["return"]))
    return Comparison(
        settings["games"],
        cases,
        methods,
        scales,
        {key: np.array(list(rows.values())) for key, rows in found.items()},
        {cell: best_rate(tried[cell]) if cell in tried else RATE for cell, _ in found},
        {game: float(np.mean(returns)) for game, returns in random.items()},
    )


def estimate(returns: np.ndarray) -> Interval:
    """Return the interquartile mean over seeds, with its bootstrap interval."""
    return over_seeds(iqm, [returns])


def show(page: Page, comparison: Comparison) -> None:
    """Draw all methods, and write tables of them."""
    if comparison.can_normalize:
        caption = about_normalized(page)
        heading, draw = "Normalised return", _cases_figure
        if len(comparison.scales) > 1:
            heading = "Normalised return against the scale of rewards"
            draw = _grid_figure if len(comparison.cases) > 1 else _all_games_figure
        page.figure("normalised", f"{heading}, all games", caption, draw(comparison))
        page.show_table("normalised", "All games", caption, _normalized_table(comparison))
    if len(comparison.scales) > 1:
        for game in comparison.games:
            heading = f"Return against the scale of rewards: {GAMES[game].label}"
            page.figure(f"scale-{game}", heading, BY_GAME, _game_figure(comparison, game))
    page.show_table("summary", "All methods", SUMMARY, _summary(comparison))


def about_normalized(page: Page) -> str:
    """Return the caption of normalised returns, with what the settings of the run do to them."""
    rates = TUNED if page.settings.get("tuned") else UNTUNED
    return NORMALIZED.format(f"{rates} {short(page)}".strip())


def short(page: Page) -> str:
    """Say in which games training had fewer steps than an agent needs; nothing if there is none."""
    steps = page.settings.get("steps")
    few = [GAMES[game] for game in page.settings["games"] if steps and steps < GAMES[game].steps]
    games = ", ".join(f"{game.label} ({steps:,} of {game.steps:,} steps)" for game in few)
    return SHORT.format(games) if few else ""


def _normalized_table(comparison: Comparison) -> list[dict[str, Any]]:
    """Return a row per method with a column per scale, or per case if there is one scale."""
    cases, scales = comparison.cases, comparison.scales

    def cell(method: str, case: str, place: int) -> str:
        return comparison.interval(method, case, place).text(".2f")

    if len(scales) == 1:
        return [
            {"method": METHODS[method]} | {case: cell(method, case, 0) for case in cases}
            for method in comparison.methods
        ]
    return [
        {"method": METHODS[method]}
        | ({"rewards": case} if len(cases) > 1 else {})
        | {f"{scale:g}": cell(method, case, place) for place, scale in enumerate(scales)}
        for case in cases
        for method in comparison.methods
    ]


def _summary(comparison: Comparison) -> list[dict[str, Any]]:
    return [
        {"game": GAMES[game].label, "case": case, "method": METHODS[method], "learning rate": rate}
        | {f"{scale:g}": estimate(x).text(".3g") for scale, x in zip(comparison.scales, found, strict=True)}
        for ((game, case, method), rate), found in comparison.returns.items()
    ]


@styled
def _game_figure(comparison: Comparison, game: str) -> Figure:
    """Draw one small panel per method, for one game."""

    def draw(axes: Axes, method: str) -> None:
        cell = game, comparison.cases[0], method
        rates = dict.fromkeys((RATE, comparison.chosen[cell]))
        for rate, (colour, dash) in zip(rates, ((INK, "-"), (ART, "--")), strict=False):
            _curve(
                axes, comparison.scales, [estimate(x) for x in comparison.returns[cell, rate]], colour, dash
            )

    cell = game, comparison.cases[0], "popart"
    pop = comparison.returns.get((cell, RATE))
    green = None if pop is None else [estimate(x).value for x in pop]
    return _panels(comparison, draw, green, "return")


@styled
def _all_games_figure(comparison: Comparison) -> Figure:
    """Draw one small panel per method, for all games together."""
    found = {
        method: [
            comparison.interval(method, comparison.cases[0], place) for place in range(len(comparison.scales))
        ]
        for method in comparison.methods
    }
    green = [x.value for x in found["popart"]] if "popart" in found else None
    return _panels(
        comparison,
        lambda axes, method: _curve(axes, comparison.scales, found[method], INK, "-"),
        green,
        "normalised return",
    )


def _panels(comparison: Comparison, draw: Any, green: Sequence[float] | None, label: str) -> Figure:
    methods = comparison.methods
    columns = min(5, len(methods))
    lines = -(-len(methods) // columns)
    figure, panels = subplots(
        lines, columns, height=1.45 * lines + 0.3, squeeze=False, sharex=True, sharey=True
    )
    for axes, method in zip(panels.flat, methods, strict=False):
        if green:
            axes.plot(comparison.scales, green, color=POPART, linewidth=1.0, alpha=0.8)
        draw(axes, method)
        axes.set(xscale="log")
        axes.xaxis.set_major_locator(LogLocator(1e8, numticks=3))
        axes.minorticks_off()
        axes.grid()
        axes.set_title(METHODS[method], loc="left", fontsize=6.3)
    for axes in panels.flat[len(methods) :]:
        axes.remove()
    for axes in panels.flat[len(methods) - columns : len(methods)]:
        axes.tick_params(labelbottom=True)
    figure.supxlabel("scale of rewards", fontsize=9)
    figure.supylabel(label, fontsize=9)
    return figure


def _curve(axes: Axes, scales: Sequence[float], found: Sequence[Interval], colour: str, dash: str) -> None:
    means, lows, highs = np.array(found).T
    axes.fill_between(scales, lows, highs, color=colour, alpha=0.15, linewidth=0)
    axes.plot(scales, means, dash, color=colour, marker=".", markersize=4)


@styled
def _cases_figure(comparison: Comparison) -> Figure:
    """Draw one row per method, and one panel per case."""
    methods, cases = comparison.methods, comparison.cases
    figure, panels = subplots(
        1, len(cases), height=0.19 * len(methods) + 0.9, squeeze=False, sharex=True, sharey=True
    )
    for axes, case in zip(panels[0], cases, strict=True):
        for row, method in enumerate(methods):
            mean, low, high = comparison.interval(method, case, 0)
            colour = POPART if method == "popart" else INK
            axes.plot((low, high), (row, row), color=colour, linewidth=2.5, alpha=0.35)
            axes.plot(mean, row, "o", color=colour, markersize=3.5)
        axes.grid(axis="x")
        axes.set_title(case, loc="left", fontsize=8)
    panels[0, 0].set(yticks=range(len(methods)), yticklabels=[METHODS[method] for method in methods])
    panels[0, 0].invert_yaxis()
    figure.supxlabel("normalised return", fontsize=9)
    return figure


@styled
def _grid_figure(comparison: Comparison) -> Figure:
    """Draw one row per method, one panel per case and one column per scale: returns as shades of green."""
    methods, cases, scales = comparison.methods, comparison.cases, comparison.scales
    figure, panels = subplots(1, len(cases), height=0.19 * len(methods) + 1.2, squeeze=False, sharey=True)
    shades = LinearSegmentedColormap.from_list("returns", ("#ffffff", POPART, "#0b3d0b"))
    for axes, case in zip(panels[0], cases, strict=True):
        values = [[comparison.interval(m, case, i).value for i in range(len(scales))] for m in methods]
        axes.imshow(values, cmap=shades, vmin=0, vmax=1, aspect="auto")
        axes.set_title(case, loc="left", fontsize=8)
        axes.set_xticks(range(0, len(scales), 2), [_power(scale) for scale in scales[::2]])
        for (row, column), value in np.ndenumerate(np.array(values)):
            ink = "white" if value > 0.45 else INK
            axes.text(column, row, f"{value:z.1f}", ha="center", va="center", fontsize=5, color=ink)
    panels[0, 0].set_yticks(range(len(methods)), [METHODS[method] for method in methods], fontsize=7)
    figure.supxlabel("scale of rewards", fontsize=9)
    colours = ScalarMappable(Normalize(0, 1), shades)
    figure.colorbar(colours, ax=list(panels[0]), label="normalised return", aspect=30, pad=0.01)
    return figure


def _power(scale: float) -> str:
    """Return the scale as a power of ten, such as 10⁻⁸, or as it is if it is none."""
    exponent = np.log10(scale)
    return f"$10^{{{exponent:.0f}}}$" if exponent == round(exponent) and exponent else f"{scale:g}"
