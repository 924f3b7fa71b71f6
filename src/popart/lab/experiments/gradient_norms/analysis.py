"""Figure 1b: norms of gradients with and without clipping and with Pop-Art, from the table of norms."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure

from popart.lab.analysis import Page
from popart.lab.figures import AGENT_COLOURS, letter, styled, subplots

TITLES = {"unclipped": "Unclipped", "clipped": "Clipped", "popart": "Pop-Art"}
PAPER = {"unclipped": "more than 6", "clipped": "almost 4", "popart": "less than 2"}
"""Orders of magnitude that 95 % of the medians span in the paper."""

POINTS = 20
"""Points of the shaded areas."""

FIGURE = """Norms of the gradients of Double DQN during training, as in Fig. 1b. Dashed: one game each, as the
median over the updates between two rows of the metrics. Shaded: 50, 90 and 95 % of the games. Gradients are
of the mean loss over a batch; the original DQN takes the sum, which is 32 times as large."""

TABLE = "Median norm over all updates, and the orders of magnitude that 95 % of the games span."


class Line(NamedTuple):
    """Updates so far, and the median norm since the row before."""

    updates: np.ndarray
    norm: np.ndarray


Lines = Mapping[tuple[str, str], Line]
"""For each game and agent."""


def analyse(page: Page) -> None:
    games, agents = page.settings["games"], page.settings["agents"]
    rows = page.needed_table("gradients")
    lines = {(game, agent): _line(rows, game, agent) for game in games for agent in agents}
    medians = {agent: [float(np.median(lines[game, agent].norm)) for game in games] for agent in agents}
    page.figure("figure_1b", "Figure 1b", FIGURE, _figure(games, lines, medians))
    page.show_table("norms", "Medians", TABLE, _rows(games, medians))
    if set(agents) == set(PAPER) and len(games) > 1:
        _find(page, {agent: spread(norms) for agent, norms in medians.items()})


def _line(rows: Sequence[Mapping[str, str]], game: str, agent: str) -> Line:
    mine = [row for row in rows if (row["game"], row["agent"]) == (game, agent)]
    return Line(*(np.array([float(row[name]) for row in mine]) for name in ("updates", "gradient_norm")))


def spread(norms: Sequence[float]) -> float:
    """Return the orders of magnitude that 95 % of the norms span."""
    low, high = np.quantile(np.log10(norms), (0.025, 0.975))
    return float(high - low)


def _rows(games: Sequence[str], medians: Mapping[str, Sequence[float]]) -> list[dict[str, Any]]:
    norms = {agent: dict(zip(games, some, strict=True)) for agent, some in medians.items()}
    spreads = {agent: f"{spread(some):.2f}" for agent, some in medians.items()}
    return [
        *({"game": game, **{agent: f"{norms[agent][game]:.3g}" for agent in norms}} for game in games),
        {"game": "orders of magnitude", **spreads},
        {"game": "orders of magnitude (paper, 57 games)", **{agent: PAPER[agent] for agent in norms}},
    ]


def _find(page: Page, orders: Mapping[str, float]) -> None:
    page.find(
        "Norms of gradients differ least between games with Pop-Art, and most without clipping",
        paper=f"{PAPER['popart']} orders of magnitude with Pop-Art, {PAPER['clipped']} with clipping, "
        f"{PAPER['unclipped']} with neither (95 % of 57 games)",
        here=f"{orders['popart']:.1f} with Pop-Art, {orders['clipped']:.1f} with clipping, "
        f"{orders['unclipped']:.1f} with neither (95 % of {len(page.settings['games'])} games)",
        agrees=orders["popart"] <= orders["clipped"] <= orders["unclipped"] and orders["popart"] < 2,
    )


@styled
def _figure(games: Sequence[str], lines: Lines, medians: Mapping[str, Sequence[float]]) -> Figure:
    figure, panels = subplots(1, len(medians), height=2.5, sharey=True, squeeze=False)
    for axes, (agent, norms) in zip(panels.flat, medians.items(), strict=True):
        _panel(axes, AGENT_COLOURS[agent], [lines[game, agent] for game in games])
        letter(axes, f"{TITLES[agent]}: {spread(norms):.1f} orders")
    panels.flat[0].set(ylabel="norm of gradient")
    return figure


def _panel(axes: Any, colour: str, lines: Sequence[Line]) -> None:
    first, last = max(x.updates[0] for x in lines), min(x.updates[-1] for x in lines)
    at = np.linspace(first, last, POINTS)
    norms = np.array([np.interp(at, x.updates, np.log10(x.norm)) for x in lines])
    for part, shade in ((0.95, 0.12), (0.9, 0.15), (0.5, 0.25)):
        low, high = np.quantile(norms, ((1 - part) / 2, (1 + part) / 2), axis=0)
        axes.fill_between(at, 10**low, 10**high, color=colour, alpha=shade, linewidth=0)
    for line in lines:
        axes.plot(line.updates, line.norm, "--", color=colour, alpha=0.6, linewidth=0.7)
    axes.set(yscale="log", xlabel="updates")
    axes.grid()
