"""Figure and table of an evaluation, from its table of episodes."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from popart.lab.analysis import Page
from popart.lab.envs.games import Score, published
from popart.lab.figures import AGENT_COLOURS, ART, INK, POPART, styled, subplots

FIGURE = """Dots: single episodes, spread at random from left to right. Thick line: their mean. Dashed lines:
scores that the paper gives for random play, a human tester, Double DQN and Double DQN with Pop-Art, the last
two after 200 million frames."""


REWARDS = """How often each reward was received in these episodes, and the points that it made. A reward is
the sum over the frames of an agent step, four on Atari."""


def analyse(page: Page) -> None:
    scores = [float(row["score"]) for row in page.needed_table("episodes")]
    game, agent, frames = _about(page)
    paper, rewards = published(game), page.table("rewards")
    error = standard_error(scores, ddof=0 if _of_first_release(page) else 1)
    summary = _summary(agent, frames, scores, error, paper)
    if rewards:
        large = float(page.settings["large_rewards"])
        shares = [f"{large_share(rewards, large):.1%}", *(None for _ in summary[1:])]
        name = f"points from rewards of {large:g} and more"
        summary = [row | {name: share} for row, share in zip(summary, shares, strict=True)]
    page.show_table("summary", "Score", "Of this agent, beside the published scores.", summary)
    page.figure("scores", "Episodes", FIGURE, _figure(AGENT_COLOURS[agent], scores, paper))
    if rewards:
        page.show_table("rewards", "Rewards", REWARDS)
    page.show_table("episodes", "Episodes", "The score of each episode.")


def large_share(rewards: Sequence[Mapping[str, str]], large: float) -> float:
    """Return the part of all points won that came from large rewards; lost points count in neither."""
    won = [(float(r["reward"]), float(r["reward"]) * int(r["times"])) for r in rewards]
    points = sum(x for _, x in won if x > 0)
    return sum(x for reward, x in won if reward >= large) / points if points else 0.0


def standard_error(scores: Sequence[float], ddof: int = 1) -> float | None:
    """Return the standard error of the mean score; a single episode has none."""
    return float(np.std(scores, ddof=ddof) / np.sqrt(len(scores))) if len(scores) > 1 else None


def _of_first_release(page: Page) -> bool:
    return "game" not in page.settings


def _about(page: Page) -> tuple[str, str, int]:
    """Return game, agent and frames. In the first release the run and the folder name have them."""
    if not _of_first_release(page):
        return page.settings["game"], page.settings["agent"], page.settings["frames"]
    trained = Page(page.folder.parent).settings
    return trained["game"], trained["agent"], int(page.folder.name.split("-")[2])


def _summary(
    agent: str, frames: int, found: list[float], error: float | None, paper: Score | None
) -> list[dict[str, Any]]:
    episodes = "1 episode" if len(found) == 1 else f"{len(found)} episodes"
    rows: list[tuple[str, float, float | None]] = [
        (f"{agent}, {frames:,} frames, {episodes}", float(np.mean(found)), error)
    ]
    if paper:
        rows += [
            ("random (paper)", paper.random, None),
            ("human (paper)", paper.human, None),
            ("Double DQN (paper)", paper.double_dqn, None),
            ("Double DQN with Pop-Art (paper)", paper.popart, None),
        ]
    return [
        {
            "who": who,
            "score": f"{score:.1f}",
            "standard_error": None if error is None else f"{error:.1f}",
            "normalized": f"{100 * paper.normalized(score):.1f}" if paper else None,
        }
        for who, score, error in rows
    ]


@styled
def _figure(colour: str, found: list[float], paper: Score | None) -> Figure:
    figure, axes = subplots(height=2.4)
    spread = np.random.default_rng(0).uniform(-0.3, 0.3, len(found))
    axes.plot(spread, found, ".", color=colour, alpha=0.5, markersize=5)
    axes.hlines(np.mean(found), -0.4, 0.4, color=colour, linewidth=2.5)
    if paper:
        lines = (
            ("random", paper.random, INK),
            ("human", paper.human, INK),
            ("Double DQN", paper.double_dqn, ART),
            ("with Pop-Art", paper.popart, POPART),
        )
        for at, (name, score, theirs) in enumerate(lines):
            axes.axhline(score, color=theirs, linestyle="--", linewidth=0.8)
            axes.annotate(name, (0.55 + 0.25 * at, score), color=theirs, fontsize=8, va="bottom")
    axes.set(xlim=(-0.5, 1.6), ylabel="score (points)", xticks=[])
    return figure
