"""`popart paper`: Fig. 2 and the headline figures, from the raw scores of the appendix."""

import statistics
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.figure import Figure

from popart.lab.atari import Paper
from popart.lab.atari.games import Score, scores
from popart.lab.figures import ART, INK, POPART, styled, subplots
from popart.lab.runs import Run

PINBALL = "video_pinball"

CAPTION = """Normalised score of Double DQN with Pop-Art on true rewards, minus that of Double DQN on
clipped rewards: 100 % is the distance between random play and a human tester. Linear between -10 % and 10
%, logarithmic beyond."""


class Headline(NamedTuple):
    """Pop-Art beside clipped Double DQN: on how many games at least as good, and differences of scores."""

    games: int
    at_least_as_good: int
    median: float
    mean: float


def headline(games: list[Score]) -> Headline:
    differences = [score.difference for score in games]
    good = sum(d >= 0 for d in differences)
    return Headline(len(games), good, statistics.median(differences), statistics.fmean(differences))


def run(settings: Paper) -> Path:
    with Run("paper", "The paper's Atari scores (Table 1, Fig. 2)", settings) as run:
        if not run.finished:
            games = sorted(scores(), key=lambda score: score.difference)
            run.show_figure(
                "figure_2",
                "Figure 2",
                CAPTION,
                _figure(games),
            )
            _find(run, games)
            run.show_table(
                "scores",
                "Raw and normalised scores",
                "As in the paper's appendix; the last three columns are computed from the others.",
                [_row(score) for score in reversed(games)],
            )
            run.finish()
    return run.folder


def _find(run: Run, games: list[Score]) -> None:
    here = headline(games)
    run.find(
        "Games on which Pop-Art is at least as good",
        paper="32 of 57",
        here=f"{here.at_least_as_good} of {here.games}",
        agrees=(here.at_least_as_good, here.games) == (32, 57),
    )
    run.find(
        "Median difference of normalised scores",
        paper="+0.4 %",
        here=f"{here.median:+.2%}",
        agrees=round(100 * here.median, 1) == 0.4,
    )
    pinball = next(score for score in games if score.game == PINBALL)
    others = headline([score._replace(random=0.0) if score is pinball else score for score in games])
    run.find(
        "Mean difference of normalised scores",
        paper="+34 %",
        here=f"{here.mean:+.0%}. Human and random scores on Video Pinball differ by only "
        f"{pinball.human - pinball.random:,.0f} points, so that its difference of {pinball.difference:+,.0%} "
        f"takes {-pinball.difference / here.games:.0%} off the mean. With a random score of 0 there, the "
        f"mean is {others.mean:+.1%}: probably what the text reports",
        agrees=round(here.mean, 2) == 0.34,
    )


def _row(score: Score) -> dict[str, Any]:
    return {
        "game": score.title,
        "random": f"{score.random:.1f}",
        "human": f"{score.human:.1f}",
        "Double DQN": f"{score.double_dqn:.1f}",
        "with Pop-Art": f"{score.popart:.1f}",
        "Double DQN, normalised": f"{score.normalized(score.double_dqn):.1%}",
        "with Pop-Art, normalised": f"{score.normalized(score.popart):.1%}",
        "difference": f"{score.difference:+.1%}",
    }


@styled
def _figure(games: list[Score]) -> Figure:
    figure, axes = subplots(height=3.6)
    differences = [100 * score.difference for score in games]
    axes.bar(
        range(len(games)), differences, color=[POPART if d >= 0 else ART for d in differences], width=0.8
    )
    axes.axhline(0, color=INK, linewidth=0.7)
    axes.set_yscale("symlog", linthresh=10, linscale=0.6)
    ticks = [-10000, -1000, -100, -10, 0, 10, 100, 1000]
    axes.set_yticks(ticks, [f"{t:+,} %" if t else "0" for t in ticks])
    axes.set_xticks(range(len(games)), [score.title for score in games], rotation=90, fontsize=6)
    axes.set(xlim=(-0.8, len(games) - 0.2), ylabel="difference of normalised scores")
    axes.tick_params(axis="x", length=0)
    axes.grid(axis="y")
    axes.text(0.99, 0.03, "Pop-Art is better", color=POPART, ha="right", transform=axes.transAxes)
    axes.text(0.01, 0.95, "clipped rewards are better", color=ART, va="top", transform=axes.transAxes)
    return figure
