"""What a run looked like."""

import numpy as np
from matplotlib.figure import Figure

from popart.lab.figures import COLOURS, INK, letter, styled, subplots
from popart.lab.runs import Run
from popart.lab.train import Train
from popart.lab.train.metrics import NAME

CAPTION = """Left: mean score of the last 100 episodes while it learns, and evaluations (dots). Middle: the
scale and the shift of Pop-Art's normalisation. Right: norms of gradients, the median and nine in ten."""

COLOUR = {"unclipped": COLOURS["sgd"], "clipped": COLOURS["art"], "popart": COLOURS["popart"]}
"""The paper's, of Fig. 1b."""


def show(run: Run, settings: Train) -> None:
    rows, evaluations = run.read_table(NAME), run.read_table("evaluations")
    columns = {name: np.array([float(r[name] or "nan") for r in rows]) for name in rows[0]}
    scored = [(float(r["frames"]), float(r["score"])) for r in evaluations]
    run.show_figure("curves", "While it learned", CAPTION, _figure(settings, columns, scored))
    if evaluations:
        run.show_table("evaluations", "Evaluations", "Mean score of 32 episodes.")


@styled
def _figure(
    settings: Train, columns: dict[str, np.ndarray], evaluations: list[tuple[float, float]]
) -> Figure:
    figure, (score, units, norms) = subplots(1, 3, height=2.2, sharex=True)
    frames, colour = columns["frames"], COLOUR[settings.agent]
    unit, name = (1e6, "million frames") if frames[-1] >= 1e6 else (1e3, "thousand frames")
    x = frames / unit
    score.plot(x, columns["score_100"], color=colour)
    for at, value in evaluations:
        score.plot(at / unit, value, "o", color=INK, markersize=3)
    score.set(ylabel="score")
    units.plot(x, columns["scale"], color=colour, label="scale σ")
    units.plot(x, columns["shift"], color=colour, linestyle="--", label="shift μ")
    units.set(ylabel="units of reward")
    units.legend()
    norms.fill_between(
        x, columns["gradient_norm_5"], columns["gradient_norm_95"], color=colour, alpha=0.25, linewidth=0
    )
    norms.plot(x, columns["gradient_norm"], color=colour)
    norms.set(yscale="log", ylabel="norm of gradient")
    for axes, title in ((score, "Score"), (units, "Normalisation"), (norms, "Gradients")):
        axes.set(xlabel=name)
        axes.grid()
        letter(axes, title)
    return figure
