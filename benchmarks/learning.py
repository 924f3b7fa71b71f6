"""Scores of runs of `popart train` on Atari while they learned: a figure, a panel for each game.

    python -m benchmarks.learning results/atari/* --path docs/learning.png

Lines: the mean of the last 100 episodes. Dots: the mean of an evaluation and its standard error, where
`popart evaluate` was run. Dotted lines: the paper's scores of random play and, where it was reached, of a
human tester. Pale: with convolutions in bfloat16.
"""

import argparse
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from popart.lab.envs.games import Score, scores
from popart.lab.figures import AGENT_COLOURS, INK, images, letter, styled, subplots
from popart.lab.files import read_table
from popart.lab.manifest import read_manifest

Kind = tuple[str, str]
"""The agent, and the type of its convolutions."""


def panel(axes: Axes, paper: Score, runs: dict[Kind, Path]) -> None:
    best = -np.inf
    for (agent, dtype), folder in runs.items():
        rows = read_table(folder / "metrics.csv")
        frames, score = (np.array([float(r[k] or "nan") for r in rows]) for k in ("frames", "score_100"))
        label, alpha = (agent, 1.0) if dtype == "float32" else (f"{agent}, {dtype}", 0.45)
        axes.plot(frames / 1e6, score, color=AGENT_COLOURS[agent], alpha=alpha, label=label)
        best = max(best, np.nanmax(score))
        for found in folder.glob("evaluation-*/summary.csv"):
            mine, evaluated = read_table(found)[0], int(found.parent.name.split("-")[2])
            mean, error = float(mine["score"]), float(mine["standard_error"] or "nan")
            axes.errorbar(
                evaluated / 1e6, mean, error, fmt="o", markersize=3, color=AGENT_COLOURS[agent], alpha=alpha
            )
    for name, score in (("random", paper.random), ("human", paper.human)):
        if score <= best:
            axes.axhline(score, color=INK, linestyle=":", linewidth=0.8)
            at = axes.get_yaxis_transform()
            axes.text(0.99, score, name, transform=at, fontsize=7, va="bottom", ha="right", color=INK)
    axes.set(xlabel="million frames", xlim=(0, None))
    axes.grid()
    letter(axes, paper.title)


@styled
def figure(games: dict[str, dict[Kind, Path]]) -> Figure:
    papers = {score.game: score for score in scores()}
    rows, columns = -(-len(games) // 2), min(2, len(games))
    drawn, grid = subplots(rows, columns, height=2.2 * rows, squeeze=False)
    every: list[Any] = list(grid.flat)
    for axes, (game, runs) in zip(every, games.items(), strict=False):
        panel(axes, papers[game], runs)
        if len(runs) > 1:
            axes.legend(loc="best")
    for axes in every[len(games) :]:
        axes.remove()
    for axes in grid[:, 0]:
        axes.set(ylabel="score")
    return drawn


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("runs", type=Path, nargs="+", help="folders of runs")
    parser.add_argument("--path", type=Path, default=Path("docs/learning.png"))
    options = parser.parse_args()
    games: dict[str, dict[Kind, Path]] = defaultdict(dict)
    for folder in options.runs:
        settings = read_manifest(folder)["settings"]
        game, kind = settings["game"], (settings["agent"], settings["dtype"])
        if kind in games[game]:
            parser.error(f"{folder} is a second run of {' in '.join(kind)} on {game}; give one of them")
        games[game][kind] = folder
    options.path.write_bytes(dict(images(figure(games)))["png"])
    print(options.path)


if __name__ == "__main__":
    main()
