"""Returns against the scale of rewards, from the table of returns."""

from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

from popart.lab.analysis import Page
from popart.lab.envs.games import GAMES
from popart.lab.experiments.reward_scale import guide
from popart.lab.experiments.reward_scale.comparison import Comparison, read, short, show
from popart.lab.experiments.reward_scale.config import AGENTS, METHODS, RATE
from popart.lab.figures import AGENT_COLOURS, letter, styled, subplots

FIGURE = """Mean return of the episodes in the last fifth of training, in the game's own units, when the
agent's rewards are multiplied by the scale. Lines: means over seeds. Dots: single agents. All agents have the
same network, optimizer and learning rate."""

TABLE = "The mean return of each agent in the last fifth of its training, in the game's own units."


def analyse(page: Page) -> None:
    found = read(page)
    if set(found.methods) <= set(AGENTS) and list(found.cases) == ["steady"]:
        page.figure("scale", "Return against the scale of rewards", FIGURE, _figure(found))
    else:
        guide.show(page, found)
        show(page, found)
    page.show_table("returns", "All agents", TABLE)
    if "popart" in found.methods and "steady" in found.cases and len(found.scales) > 1:
        for game in found.games:
            _find(page, found, game)


def _find(page: Page, found: Comparison, game: str) -> None:
    """Compare returns over all scales with what Pop-Art learned, at least a fifth of what the best did."""
    means = {method: found.returns[(game, "steady", method), RATE].mean(1) for method in found.methods}
    lowest, best = min(m.min() for m in means.values()), max(m.max() for m in means.values())
    low = found.random.get(game, lowest)  # earlier releases did not play at random
    popart = means.pop("popart")
    others = "; ".join(f"{METHODS[method]} {m.min():.3g} to {m.max():.3g}" for method, m in means.items())
    learned, spread = popart.min() - low, popart.max() - popart.min()
    page.find(
        f"With Pop-Art the scale of rewards does not matter in {GAMES[game].label}",
        paper="updates do not depend on the scale of targets",
        here=f"returns of {popart.min():.3g} to {popart.max():.3g} over all scales"
        + (f"; {others}" if others else "")
        + (f". {note}" if (note := short(page)) else ""),
        agrees=learned >= 0.2 * (best - low) > 0 and spread <= 0.25 * (popart.max() - low),
    )


@styled
def _figure(found: Comparison) -> Figure:
    games = found.games
    columns = min(2, len(games))
    lines = -(-len(games) // columns)
    figure, panels = subplots(lines, columns, height=2.1 * lines + 0.4, squeeze=False)
    for axes, game in zip(panels.flat, games, strict=False):
        for method in found.methods:
            returns, colour = found.returns[(game, "steady", method), RATE], AGENT_COLOURS[method]
            axes.plot(found.scales, returns, ".", color=colour, alpha=0.35, markersize=4)
            label = METHODS[method] if game == games[0] else None
            axes.plot(found.scales, returns.mean(1), color=colour, label=label, linewidth=1.6)
        axes.set(xscale="log", xlabel="scale of rewards", ylabel="return")
        axes.xaxis.set_major_locator(LogLocator(10, numticks=9))
        axes.minorticks_off()
        axes.grid()
        letter(axes, GAMES[game].label)
    for axes in panels.flat[len(games) :]:
        axes.remove()
    figure.legend(loc="outside upper center", ncols=3)
    return figure
