"""`popart norms`: Fig. 1b, the norms of gradients with and without clipping, and with Pop-Art."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
from matplotlib.figure import Figure

from popart.lab.atari import ROWS, Norms
from popart.lab.dqn.learner import AgentName
from popart.lab.figures import letter, styled, subplots
from popart.lab.machine import use_device
from popart.lab.runs import Run, read_table
from popart.lab.train import Train
from popart.lab.train.curves import COLOUR
from popart.lab.train.metrics import NAME

TITLES = {"unclipped": "Unclipped", "clipped": "Clipped", "popart": "Pop-Art"}
PAPER = {"unclipped": "more than 6", "clipped": "almost 4", "popart": "less than 2"}
"""Orders of magnitude over which 95 % of the medians range."""

FIGURE = """Norms of gradients of Double DQN while it learns, as in Fig. 1b. Each dashed line is one game: the
median over the updates of a stretch of time. Shaded: 50, 90 and 95 % of games. The mean over a batch is
differentiated; a sum, as in the original DQN, would be 32 times as large."""

TABLE = "The median over all updates, and orders of magnitude between games (95 % of them)."


class Line(NamedTuple):
    """Of one game and agent: updates, and the median norm up to them."""

    updates: np.ndarray
    norm: np.ndarray

    @property
    def median(self) -> float:
        return float(np.median(self.norm))


def run(settings: Norms) -> Path:
    use_device(settings.device)
    with Run("norms", "Norms of gradients on Atari (Fig. 1b)", settings, ("device",)) as run:
        if not run.finished:
            cases = [(game, agent) for game in settings.games for agent in settings.agents]
            lines = {case: _line(train(settings, *case)) for case in cases}
            run.show_figure("figure_1b", "Figure 1b", FIGURE, _figure(settings, lines))
            run.show_table("norms", "Medians", TABLE, _rows(settings, lines))
            _find(run, settings, lines)
            run.finish()
    return run.folder


def train(settings: Norms, game: str, agent: str) -> Path:
    """A short run of one agent on one game, all with the same step size."""
    learning = settings.frames - 4 * settings.warm_up
    return Train(
        game,
        cast("AgentName", agent),
        settings.frames,
        settings.seed,
        settings.num_envs,
        replay=max(settings.frames // 4, 6 * settings.num_envs),
        warm_up=settings.warm_up,
        exploration=learning // 4,
        copy_every=settings.copy_every,
        step_size=1e-4,
        evaluate_every=0,
        log_every=learning // ROWS,
        save_replay=False,
        device=settings.device,
        out=settings.out / f"{game}-{agent}",
    ).run()


def _line(folder: Path) -> Line:
    rows = [row for row in read_table(folder / f"{NAME}.csv") if row["gradient_norm"]]
    return Line(*(np.array([float(row[name]) for row in rows]) for name in ("updates", "gradient_norm")))


def spread(norms: np.ndarray) -> float:
    """Orders of magnitude over which 95 % of them range."""
    low, high = np.quantile(np.log10(norms), (0.025, 0.975))
    return float(high - low)


def _medians(settings: Norms, lines: Mapping[tuple[str, str], Line], agent: str) -> np.ndarray:
    return np.array([lines[game, agent].median for game in settings.games])


def _rows(settings: Norms, lines: Mapping[tuple[str, str], Line]) -> list[dict[str, Any]]:
    rows = [
        {"game": game, **{agent: f"{lines[game, agent].median:.3g}" for agent in settings.agents}}
        for game in settings.games
    ]
    spreads = {agent: f"{spread(_medians(settings, lines, agent)):.2f}" for agent in settings.agents}
    paper = {agent: PAPER[agent] for agent in settings.agents}
    return [
        *rows,
        {"game": "orders of magnitude", **spreads},
        {"game": "orders of magnitude (paper, 57 games)", **paper},
    ]


def _find(run: Run, settings: Norms, lines: Mapping[tuple[str, str], Line]) -> None:
    if set(settings.agents) != set(PAPER) or len(settings.games) < 2:
        return
    orders = {agent: spread(_medians(settings, lines, agent)) for agent in PAPER}
    narrow = orders["popart"] <= orders["clipped"] <= orders["unclipped"]
    run.find(
        "Norms of gradients differ least between games with Pop-Art, most without clipping",
        paper=f"{PAPER['popart']} orders of magnitude, {PAPER['clipped']} with clipping, "
        f"{PAPER['unclipped']} with neither (95 % of 57 games)",
        here=f"{orders['popart']:.1f}, {orders['clipped']:.1f} with clipping, {orders['unclipped']:.1f} with "
        f"neither (95 % of {len(settings.games)} games)",
        agrees=bool(narrow and orders["popart"] < 2),
    )


@styled
def _figure(settings: Norms, lines: Mapping[tuple[str, str], Line]) -> Figure:
    figure, panels = subplots(1, len(settings.agents), height=2.5, sharey=True, squeeze=False)
    for axes, agent in zip(panels.flat, settings.agents, strict=True):
        mine = [lines[game, agent] for game in settings.games]
        at = np.linspace(max(x.updates[0] for x in mine), min(x.updates[-1] for x in mine), ROWS)
        norms = np.array([np.interp(at, x.updates, np.log10(x.norm)) for x in mine])
        for part, shade in ((0.95, 0.12), (0.9, 0.15), (0.5, 0.25)):
            low, high = np.quantile(norms, ((1 - part) / 2, (1 + part) / 2), axis=0)
            axes.fill_between(at, 10**low, 10**high, color=COLOUR[agent], alpha=shade, linewidth=0)
        for line in mine:
            axes.plot(line.updates, line.norm, "--", color=COLOUR[agent], alpha=0.6, linewidth=0.7)
        axes.set(yscale="log", xlabel="updates")
        axes.grid()
        letter(axes, f"{TITLES[agent]}: {spread(_medians(settings, lines, agent)):.1f} orders")
    panels.flat[0].set(ylabel="norm of gradient")
    return figure
