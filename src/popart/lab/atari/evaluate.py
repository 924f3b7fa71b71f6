"""`popart evaluate`: the paper's protocol."""

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from popart.lab.atari import Evaluate
from popart.lab.atari.environment import EPISODE
from popart.lab.atari.games import Score, scores
from popart.lab.figures import ART, INK, POPART, styled, subplots
from popart.lab.machine import use_device
from popart.lab.progress import progress
from popart.lab.runs import Run, command_line
from popart.lab.train.curves import COLOUR
from popart.lab.train.loading import Trained, load
from popart.lab.train.playing import Player, first_episodes, make, seed
from popart.lab.train.training import title

GROUP = 10
"""Environments that play on until the last of them is done: one episode may take a hundred times as long."""

FIGURE = """Dots: single episodes, spread at random from left to right; the thick line is their mean. Dashed:
what the paper gives for random play, a human tester, Double DQN and Double DQN with Pop-Art, the latter two
after 200 million frames."""


def run(settings: Evaluate) -> Path:
    use_device(settings.device)
    trained = load(settings.run_folder, settings.which)
    game = trained.settings.game
    heading = f"{title(trained.settings)}, evaluated after {trained.frames:,} frames"
    protocol = f"{settings.episodes}-{settings.epsilon:g}-{settings.seed}"
    out = settings.run_folder / f"evaluation-{trained.which}-{trained.frames}-{protocol}"
    command = command_line("evaluate", settings)
    with Run(
        "evaluate", heading, settings.at(out), ("run_folder", "which", "threads", "device"), command
    ) as run:
        if not run.finished:
            found, wraps = _play(settings, trained)
            if wraps:
                print(f"{wraps} times a score wrapped around; train with --undo-wraps to count on")
            rows = [{"episode": i, "score": score} for i, score in enumerate(found)]
            paper = next((s for s in scores() if s.game == game), None)
            summary = _summary(trained.settings.agent, trained.frames, found, paper)
            run.show_table("summary", "Score", "Of this agent, beside the paper's.", summary)
            run.show_figure(
                "scores", "Episodes", FIGURE, _figure(COLOUR[trained.settings.agent], found, paper)
            )
            run.show_table("episodes", "Episodes", "The score of each.", rows)
            run.finish()
        for row in run.read_table("summary"):
            normalized = f" ({row['normalized']} % of human)" if row["normalized"] else ""
            print(f"{row['who']}: {row['score']}{normalized}")
    return run.folder


def _play(settings: Evaluate, trained: Trained) -> tuple[list[float], int]:
    """Scores of episodes, and how often one wrapped around."""
    number, policy, players = settings.episodes, None, list[Player]()
    size, options = (GROUP, {"episode": EPISODE}) if trained.settings.is_atari else (number, {})
    with progress("starting", number, "environments") as advance:
        for i, first in enumerate(range(0, number, size)):
            several = min(size, number - first)
            games = make(trained.settings, several, settings.threads, training=False, **options)
            network = games.network(trained.settings.dtype)
            policy = policy or trained.policy(network)  # at once, before a run that goes on replaces it
            players.append(Player(network, games, policy, settings.epsilon, seed(settings.seed, i)))
            advance(several)
    with progress("evaluate", settings.episodes, "episodes") as advance:
        found = first_episodes(players, advance) or []
    for player in players:
        player.environments.close()
    return found, sum(player.environments.wraps for player in players)


def _summary(agent: str, frames: int, found: list[float], paper: Score | None) -> list[dict[str, Any]]:
    error = np.std(found) / np.sqrt(len(found))
    mine = [(f"{agent}, {frames:,} frames, {len(found)} episodes", float(np.mean(found)), float(error))]
    if paper is None:
        return [_row(who, score, error, None) for who, score, error in mine]
    theirs = [
        ("random (paper)", paper.random, None),
        ("human (paper)", paper.human, None),
        ("Double DQN (paper)", paper.double_dqn, None),
        ("Double DQN with Pop-Art (paper)", paper.popart, None),
    ]
    return [_row(who, score, error, paper.normalized(score)) for who, score, error in (*mine, *theirs)]


def _row(who: str, score: float, error: float | None, normalized: float | None) -> dict[str, Any]:
    return {
        "who": who,
        "score": f"{score:.1f}",
        "standard_error": None if error is None else f"{error:.1f}",
        "normalized": None if normalized is None else f"{100 * normalized:.1f}",
    }


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
    axes.set(xlim=(-0.5, 1.6), ylabel="score", xticks=[])
    return figure
