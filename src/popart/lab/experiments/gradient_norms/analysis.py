"""Figure 1b: norms of gradients with and without clipping and with Pop-Art, from the table of norms."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure

from popart.lab.analysis import Page
from popart.lab.envs.games import is_atari
from popart.lab.figures import AGENT_COLOURS, GREY, INK, letter, styled, subplots
from popart.lab.intervals import FEW, Interval, over_games

TITLES = {"unclipped": "Unclipped", "clipped": "Clipped", "popart": "Pop-Art"}
PAPER = {"unclipped": "more than 6", "clipped": "almost 4", "popart": "less than 2"}
"""Orders of magnitude that 95 % of the medians span in the paper."""

PAPER_RANGE = 1.0, 20.0
"""Between these are 95 % of the medians with Pop-Art in the paper, roughly."""

BATCH = 32
"""Transitions of an update. The original DQN sums their gradients, and our metrics are of the mean."""

POINTS = 20
"""Points of the shaded areas."""

FIGURE = """Norms of the gradients of Double DQN during training, as in Fig. 1b: of the sum over a batch of
32, as in the paper (the metrics of a run have the mean). Dashed: one game each, as the median over the
updates between two rows of the metrics. Shaded: 50, 90 and 95 % of the games. Dotted: 1 and 20, between
which the paper has 95 % of the games with Pop-Art. Titles: orders of magnitude that 95 % of the games span,
with 95 % bootstrap intervals over games. With a few games the interval is too narrow: it cannot show games
that are not there."""

TABLE = """Median norm of the summed gradient over all updates, and the orders of magnitude that 95 % of the
games span, with 95 % bootstrap intervals over games."""


class Line(NamedTuple):
    """Updates so far, and the median norm of the summed gradient since the row before."""

    updates: np.ndarray
    norm: np.ndarray


Lines = Mapping[tuple[str, str], Line]
"""For each game and agent."""


def analyse(page: Page) -> None:
    games, agents = page.settings["games"], page.settings["agents"]
    rows = page.needed_table("gradients")
    show(page, games, agents, {(game, agent): _line(rows, game, agent) for game in games for agent in agents})


def show(
    page: Page, games: Sequence[str], agents: Sequence[str], lines: Lines, scoreless: Collection[str] = ()
) -> None:
    """Show figure, table and findings of agents that all have the same games.

    Games in which an agent has no gradients most of the time, because it gets no rewards, are left out: 0 has
    no order of magnitude. In a scoreless game no agent met a reward, and its
    gradients are those of initial weights that decay; findings count it, and the table has both.
    """
    still = [game for game in games if any(np.median(lines[game, agent].norm) == 0 for agent in agents)]
    games = [game for game in games if game not in still]
    if not games:
        return
    caption = FIGURE + (
        f" Left out, because gradients are 0 in half of the rows: {', '.join(still)}." * bool(still)
    )
    scored = [game for game in games if game not in scoreless]
    if len(scored) < len(games):
        grey = ", ".join(game for game in games if game in scoreless)
        caption += f" Grey: games in which every score of every agent is 0: {grey}."
    medians = {agent: _medians(games, agent, lines) for agent in agents}
    spreads = {agent: over_games(spread, norms) for agent, norms in medians.items()}
    page.figure("figure_1b", "Figure 1b", caption, _figure(games, lines, spreads, scoreless))
    rows = _rows(games, medians, spreads)
    if 0 < len(scored) < len(games):
        without = {agent: over_games(spread, _medians(scored, agent, lines)) for agent in agents}
        rows.insert(-1, _orders(f"orders of magnitude, {len(scored)} games with scores", without))
    page.show_table("norms", "Norms of gradients", TABLE, rows)
    if comparable(games):
        _find(page, len(games), medians, spreads)


def _medians(games: Sequence[str], agent: str, lines: Lines) -> list[float]:
    return [float(np.median(lines[game, agent].norm)) for game in games]


def comparable(games: Sequence[str]) -> bool:
    """Return whether there are enough games of the paper to compare ranges with it."""
    return len(games) >= FEW and all(map(is_atari, games))


def _line(rows: Sequence[Mapping[str, str]], game: str, agent: str) -> Line:
    mine = [row for row in rows if (row["game"], row["agent"]) == (game, agent)]
    updates, norm = (np.array([float(row[name]) for row in mine]) for name in ("updates", "gradient_norm"))
    return Line(updates, BATCH * norm)


def spread(norms: Sequence[float] | np.ndarray) -> np.ndarray:
    """Return the orders of magnitude that 95 % of the norms span, along the last axis."""
    low, high = np.quantile(np.log10(norms), (0.025, 0.975), axis=-1)
    return high - low


def _rows(
    games: Sequence[str], medians: Mapping[str, Sequence[float]], spreads: Mapping[str, Interval]
) -> list[dict[str, Any]]:
    norms = {agent: dict(zip(games, some, strict=True)) for agent, some in medians.items()}
    return [
        *({"game": game, **{agent: f"{norms[agent][game]:.3g}" for agent in norms}} for game in games),
        _orders("orders of magnitude", spreads),
        {"game": "orders of magnitude (paper, 57 games)", **{agent: PAPER[agent] for agent in norms}},
    ]


def _orders(name: str, spreads: Mapping[str, Interval]) -> dict[str, Any]:
    return {"game": name, **{agent: x.text(".2f") for agent, x in spreads.items()}}


def _find(
    page: Page, games: int, medians: Mapping[str, Sequence[float]], spreads: Mapping[str, Interval]
) -> None:
    names = {"popart": "with Pop-Art", "clipped": "with clipping", "unclipped": "with neither"}
    for less, more in (("popart", "clipped"), ("clipped", "unclipped")):
        if less in spreads and more in spreads:
            both = {agent: names[agent] for agent in (less, more)}
            here = ", ".join(f"{spreads[agent].text()} {name}" for agent, name in both.items())
            page.find(
                f"Norms of gradients span fewer orders of magnitude {names[less]} than {names[more]}",
                paper=", ".join(f"{PAPER[agent]} {name}" for agent, name in both.items())
                + " (95 % of 57 games)",
                here=f"{here} (95 % of {games} games, with bootstrap intervals over games)",
                agrees=spreads[less].high < spreads[more].low,
            )
    if "popart" in medians:
        low, high = np.quantile(medians["popart"], (0.025, 0.975))
        page.find(
            "With Pop-Art, norms of gradients are between 1 and 20 (within a factor of 2)",
            paper="roughly between 1 and 20 (95 % of 57 games)",
            here=f"between {low:.3g} and {high:.3g} (95 % of {games} games)",
            agrees=low >= PAPER_RANGE[0] / 2 and high <= PAPER_RANGE[1] * 2,
        )


@styled
def _figure(
    games: Sequence[str], lines: Lines, spreads: Mapping[str, Interval], scoreless: Collection[str]
) -> Figure:
    figure, panels = subplots(1, len(spreads), height=2.7, sharey=True, squeeze=False)
    for axes, (agent, orders) in zip(panels.flat, spreads.items(), strict=True):
        colours = [GREY if game in scoreless else AGENT_COLOURS[agent] for game in games]
        _panel(axes, AGENT_COLOURS[agent], [lines[game, agent] for game in games], colours)
        span = f"{orders.text()} orders" if len(games) > 1 else "one game"
        letter(axes, f"{TITLES[agent]}\n{span}")
    panels.flat[0].set(ylabel="norm of summed gradient")
    return figure


def _panel(axes: Any, colour: str, lines: Sequence[Line], colours: Sequence[str]) -> None:
    first, last = max(x.updates[0] for x in lines), min(x.updates[-1] for x in lines)
    unit, name = (1, "updates") if last < 10_000 else (1000, "thousand updates")
    lines = [Line(x.updates[x.norm > 0] / unit, x.norm[x.norm > 0]) for x in lines]
    at = np.linspace(first, last, POINTS) / unit
    norms = np.array([np.interp(at, x.updates, np.log10(x.norm)) for x in lines])
    for part, shade in ((0.95, 0.12), (0.9, 0.15), (0.5, 0.25)):
        low, high = np.quantile(norms, ((1 - part) / 2, (1 + part) / 2), axis=0)
        axes.fill_between(at, 10**low, 10**high, color=colour, alpha=shade, linewidth=0)
    for line, own in zip(lines, colours, strict=True):
        axes.plot(line.updates, line.norm, "--", color=own, alpha=0.6, linewidth=0.7)
    for norm in PAPER_RANGE:
        axes.axhline(norm, color=INK, linestyle=":", linewidth=0.8)
    axes.set(yscale="log", xlabel=name)
    axes.grid()
