"""Figure 2 and the headline numbers of the paper, from its own table of raw scores."""

import statistics
from collections.abc import Sequence
from typing import NamedTuple

from matplotlib.figure import Figure

from popart.lab.analysis import Page
from popart.lab.envs.games import Score
from popart.lab.figures import ART, INK, POPART, letter, styled, subplots

PINBALL = "Video Pinball"

FIGURE = """The paper's own numbers, redrawn from the table in its appendix; no agent was trained here.
Normalised score of Double DQN with Pop-Art on unclipped rewards, minus that of Double DQN on clipped rewards,
after 200 million frames. 100 % is the difference between a human tester and random play. The axis is linear
between -10 % and 10 %, and logarithmic beyond."""

TABLE = """The paper's own numbers, from its appendix; no agent was trained here. The last three columns are
computed from the others."""


class Headline(NamedTuple):
    """Pop-Art compared with clipped Double DQN: games at least as good, and differences of scores."""

    games: int
    at_least_as_good: int
    median: float
    mean: float


def headline(games: Sequence[Score]) -> Headline:
    """Compute the headline numbers of the paper."""
    differences = [score.difference for score in games]
    good = sum(d >= 0 for d in differences)
    return Headline(len(games), good, statistics.median(differences), statistics.fmean(differences))


def analyse(page: Page) -> None:
    games = [_score(row) for row in reversed(page.needed_table("scores"))]
    page.figure("figure_2", "Figure 2 of the paper, redrawn", FIGURE, _figure(games))
    _find(page, games)
    page.show_table("scores", "The paper's raw and normalised scores", TABLE)


def _score(row: dict[str, str]) -> Score:
    raw = (float(row[name]) for name in ("random", "human", "Double DQN", "with Pop-Art"))
    return Score(row["game"], row["game"], *raw)


def _find(page: Page, games: Sequence[Score]) -> None:
    here = headline(games)
    page.find(
        "Number of games on which Pop-Art is at least as good as clipping, recomputed from the paper's table",
        paper="32 of 57",
        here=f"{here.at_least_as_good} of {here.games}",
        agrees=(here.at_least_as_good, here.games) == (32, 57),
    )
    page.find(
        "Median difference of normalised scores, recomputed from the paper's table",
        paper="+0.4 %",
        here=f"{here.median:+.2%}",
        agrees=round(100 * here.median, 1) == 0.4,
    )
    pinball = next(score for score in games if score.title == PINBALL)
    others = headline([score._replace(random=0.0) if score is pinball else score for score in games])
    page.find(
        "Mean difference of normalised scores, recomputed from the paper's table",
        paper="+34 %",
        here=f"{here.mean:+.0%}. On {PINBALL} the human and random scores differ by only "
        f"{pinball.human - pinball.random:,.0f} points, so that its difference of {pinball.difference:+,.0%} "
        f"lowers the mean by {-pinball.difference / here.games:.0%}. With a random score of 0 in this game "
        f"the mean is {others.mean:+.1%}, which is probably what the paper reports",
        agrees=round(here.mean, 2) == 0.34,
    )


@styled
def _figure(games: Sequence[Score]) -> Figure:
    figure, axes = subplots(height=3.6)
    differences = [100 * score.difference for score in games]
    colours = [POPART if d >= 0 else ART for d in differences]
    axes.bar(range(len(games)), differences, color=colours, width=0.8)
    axes.axhline(0, color=INK, linewidth=0.7)
    axes.set_yscale("symlog", linthresh=10, linscale=0.6)
    ticks = [-10000, -1000, -100, -10, 0, 10, 100, 1000]
    axes.set_yticks(ticks, [f"{t:+,} %" if t else "0" for t in ticks])
    axes.set_xticks(range(len(games)), [score.title for score in games], rotation=90, fontsize=6)
    axes.set(xlim=(-0.8, len(games) - 0.2), ylabel="difference of normalised scores")
    axes.tick_params(axis="x", length=0)
    axes.grid(axis="y")
    letter(axes, "The paper's own numbers, redrawn")
    axes.text(0.99, 0.03, "Pop-Art is better", color=POPART, ha="right", transform=axes.transAxes)
    axes.text(0.01, 0.95, "clipped rewards are better", color=ART, va="top", transform=axes.transAxes)
    return figure
