"""Figures and findings of a training run, from its tables."""

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from popart.lab.analysis import Page
from popart.lab.envs.games import published
from popart.lab.figures import AGENT_COLOURS, INK, letter, styled, subplots

CAPTION = """Left: mean score of the last 100 episodes of training (line), and evaluations with 32 episodes
(dots). Middle: scale and shift of Pop-Art's normalisation. Right: gradient norms, median and the 5th to 95th
percentiles."""


def analyse(page: Page) -> None:
    rows, evaluations = page.needed_table("metrics"), page.table("evaluations")
    columns = {name: np.array([float(r[name] or "nan") for r in rows]) for name in rows[0]}
    scored = [(float(r["frames"]), float(r["score"])) for r in evaluations]
    page.figure("curves", "Learning curves", CAPTION, _figure(page.settings["agent"], columns, scored))
    page.show_table(
        "result", "Score", "Of this run, beside the published scores.", _result(page, columns, scored)
    )
    if evaluations:
        page.show_table("evaluations", "Evaluations", "Mean score of 32 episodes.")


def outcome(folder: Path) -> dict[str, str]:
    """Return the result of a run in one row, for a table of several."""
    page = Page(folder)
    last, evaluations = page.needed_table("metrics")[-1], page.table("evaluations")
    best = max((float(row["score"]) for row in evaluations), default=None)
    paper = published(page.settings["game"])
    theirs = (paper.random, paper.human, paper.double_dqn, paper.popart) if paper else (None,) * 4
    names = ("random", "human", "Double DQN*", "Pop-Art*")
    return {
        "run": folder.name,
        "frames": f"{int(last['frames']):,}",
        "score": f"{float(last['score_100']):,.1f}" if last["score_100"] else "",
        "best evaluation": "" if best is None else f"{best:,.1f}",
        **{name: "" if x is None else f"{x:,.1f}" for name, x in zip(names, theirs, strict=True)},
    }


def _result(
    page: Page, columns: dict[str, np.ndarray], evaluations: list[tuple[float, float]]
) -> list[dict[str, str]]:
    frames = columns["frames"][-1]
    scores = [(f"last 100 episodes of training, {frames:,.0f} frames", columns["score_100"][-1])]
    if evaluations:
        at, best = max(evaluations, key=lambda each: each[1])
        scores.append((f"best evaluation, {at:,.0f} frames", best))
    if paper := published(page.settings["game"]):
        scores += [("random play (paper)", paper.random), ("human (paper)", paper.human)]
        scores += [("Double DQN, 200M frames (paper)", paper.double_dqn)]
        scores += [("Double DQN with Pop-Art, 200M frames (paper)", paper.popart)]
    return [{"score of": who, "points": _points(score)} for who, score in scores]


def _points(score: float) -> str:
    return "no episode ended" if np.isnan(score) else f"{score:.1f}"


@styled
def _figure(agent: str, columns: dict[str, np.ndarray], evaluations: list[tuple[float, float]]) -> Figure:
    figure, (score, units, norms) = subplots(1, 3, height=2.2, sharex=True)
    frames, colour = columns["frames"], AGENT_COLOURS[agent]
    unit, name = (1e6, "million frames") if frames[-1] >= 1e6 else (1e3, "thousand frames")
    x = frames / unit

    def line(axes: Axes, column: str, **style: Any) -> None:
        y = columns[column]
        marker = "o" if np.isfinite(y).sum() == 1 else ""  # a line through a single point is invisible
        axes.plot(x, y, marker=marker, markersize=3, color=colour, **style)

    line(score, "score_100")
    for at, value in evaluations:
        score.plot(at / unit, value, "o", color=INK, markersize=3)
    score.set(ylabel="score (points)")
    line(units, "scale", label="scale σ")
    line(units, "shift", linestyle="--", fillstyle="none", label="shift μ")
    units.set(ylabel="units of reward")
    units.legend()
    low, high, edge = columns["gradient_norm_5"], columns["gradient_norm_95"], 2 * (len(x) == 1)
    norms.fill_between(x, low, high, color=colour, alpha=0.25, linewidth=edge)
    line(norms, "gradient_norm")
    norms.set(yscale="log", ylabel="gradient norm")
    for axes, heading in ((score, "Score"), (units, "Normalisation"), (norms, "Gradients")):
        axes.set(xlabel=name)
        axes.grid()
        letter(axes, heading)
    return figure
