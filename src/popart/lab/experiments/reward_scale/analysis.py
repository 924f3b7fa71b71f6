"""Returns against the scale of rewards, from the table of returns."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

from popart.lab.analysis import Page
from popart.lab.experiments.reward_scale.config import AGENTS, GAMES
from popart.lab.figures import AGENT_COLOURS, letter, styled, subplots

FIGURE = """Mean return of the episodes in the last fifth of training, in the game's own units, when the
agent's rewards are multiplied by the scale. Lines: means over seeds. Dots: single agents. All agents have the
same network, optimizer and learning rate."""

TABLE = "The mean return of each agent in the last fifth of its training, in the game's own units."

Returns = Mapping[tuple[str, str], np.ndarray]
"""For each game and agent, (scales, seeds)."""


def analyse(page: Page) -> None:
    returns = _returns(page)
    page.figure("scale", "Return against the scale of rewards", FIGURE, _figure(page.settings, returns))
    page.show_table("returns", "All agents", TABLE)
    if "popart" in page.settings["agents"]:
        for game in page.settings["games"]:
            _find(page, game, {agent: returns[game, agent].mean(1) for agent in page.settings["agents"]})


def _returns(page: Page) -> Returns:
    rows, scales = page.needed_table("returns"), page.settings["scales"]
    cases = [(game, agent) for game in page.settings["games"] for agent in page.settings["agents"]]

    def at(case: tuple[str, str], scale: float) -> list[float]:
        mine = (row for row in rows if (row["game"], row["agent"]) == case)
        return [float(row["return"]) for row in mine if float(row["scale"]) == scale]

    return {case: np.array([at(case, scale) for scale in scales]) for case in cases}


def _find(page: Page, game: str, means: dict[str, np.ndarray]) -> None:
    popart = means.pop("popart")
    best = max((m.max() for m in means.values()), default=popart.max())
    others = "; ".join(f"{AGENTS[agent]} {m.min():.3g} to {m.max():.3g}" for agent, m in means.items())
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
        for agent in settings["agents"]:
            found, colour = returns[game, agent], AGENT_COLOURS[agent]
            axes.plot(settings["scales"], found, ".", color=colour, alpha=0.35, markersize=4)
            label = AGENTS[agent] if game == games[0] else None
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
