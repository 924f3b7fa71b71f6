"""What the regression experiment tells: figures, tables, and findings beside the paper's."""

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise

from popart.lab.regression import SMOOTH, Regression, figure
from popart.lab.regression.experiment import Best, Row, papers_cell
from popart.lab.regression.methods import METHODS, PAPER
from popart.lab.runs import Run

FIGURE_1A = f"""Median over repetitions of the error on each sample before learning from it, as root mean
square of each {SMOOTH} consecutive samples; shaded are the 10th to 90th percentiles. Every 1000th target is
65,535, the others are below 1024. Each method has its best step sizes."""

RMSPROP = "As above, with RMSprop instead of SGD, each with its own best step sizes."

CHOSEN = """The best cell of each grid, the area under its curve per sample with a 95 % bootstrap interval
over repetitions, and how much worse the paper's cell is. Apart: the largest distance between the two in
alpha or beta, in cells of half an order of magnitude."""

AREAS = """The area under the best curve of each method, with its bootstrap interval. The paper left open
which normalisation is best. Percentiles and expectiles are to hold 90 % of the targets in [-1, 1]; extremes
are those of the latest 20 targets."""

GRIDS = """The area under the curve for each pair of step sizes. Circle: the best cell; square: the paper's.
Crossed out: more than half of the runs diverged; a dot: some did."""

READINGS = """The paper does not say in which order median, root mean square and smoothing are taken. The
best cell in each order, and how much worse the paper's cell is in it."""

GRID = "Areas per sample in the three orders, and the part of the runs that diverged."

ORDERS = {
    "rmse": "median over repetitions, then root mean square of 10 samples (the figure)",
    "mean_error": "median over repetitions, then mean of 10 samples",
    "run_rmse": "root mean square of 10 samples, then median over repetitions",
}


def tell(run: Run, settings: Regression, cells: Sequence[Row], best: Mapping[str, Best]) -> None:
    """Show figures and tables, the paper's first, and record findings."""
    moments = {name: one for name, one in best.items() if METHODS[name].rule in (None, "moments")}
    plain = {name: one for name, one in moments.items() if METHODS[name].optimizer == "sgd"}
    rmsprop = {name: one for name, one in moments.items() if name not in plain}
    if plain:
        run.show_figure("figure_1a", "Figure 1a", FIGURE_1A, figure.learning_curves(plain))
    if rmsprop:
        curves = figure.learning_curves(rmsprop)
        run.show_figure("figure_1a_rmsprop", "The same with RMSprop", RMSPROP, curves)
    chosen = [_chosen(name, one, cells) for name, one in best.items()]
    run.show_table("chosen", "Chosen step sizes, beside the paper's", CHOSEN, chosen)
    if set(best) - set(PAPER):
        run.show_figure("areas", "Other optimizers, starts and rules", AREAS, figure.areas(best))
    run.show_figure("grids", "Every cell of the grids", GRIDS, figure.grids(cells, settings))
    readings = [row for name in PAPER if name in best for row in _readings(name, cells)]
    if readings:
        run.show_table("readings", "How the curve is smoothed", READINGS, readings)
    run.show_table("grid", "All cells", GRID)
    _find_step_sizes(run, best, cells)
    _find_order(run, best)


def _chosen(name: str, best: Best, cells: Sequence[Row]) -> Row:
    low, high = best.interval
    row, papers = best.row, papers_cell(name, cells)
    alpha, beta = PAPER.get(name, (None, None))
    return {
        "method": METHODS[name].label,
        "alpha": power(row["alpha"]),
        "beta": power(row["beta"]),
        "area": f"{best.area:.1f}",
        "interval": f"{low:.1f} to {high:.1f}",
        "diverged": f"{row['diverged']:.0%}",
        "paper's alpha": power(alpha),
        "paper's beta": power(beta),
        "area there": f"{papers['rmse']:.1f}" if papers else "",
        "excess": f"{best.excess:+.1%}" if papers else "",
        "apart": _apart(row, papers) if papers else "",
    }


def _readings(name: str, cells: Sequence[Row]) -> list[Row]:
    rows = []
    papers = papers_cell(name, cells)
    for key, order in ORDERS.items():
        one = min((row for row in cells if row["method"] == name), key=lambda row: row[key])
        found = {"method": METHODS[name].label, "order": order}
        found |= {"alpha": power(one["alpha"]), "beta": power(one["beta"]), "area": f"{one[key]:.1f}"}
        rows.append(found | {"the paper's cell": f"{papers[key] / one[key] - 1:+.1%}" if papers else ""})
    return rows


def _find_step_sizes(run: Run, best: Mapping[str, Best], cells: Sequence[Row]) -> None:
    for name in PAPER:
        if name in best and papers_cell(name, cells):
            one = best[name]
            worse = f"; the paper's are {one.excess:.1%} worse" if one.excess else ""
            run.find(
                f"The best step sizes of {METHODS[name].label}",
                paper=_pair(*PAPER[name]),
                here=_pair(one.row["alpha"], one.row["beta"]) + worse,
                agrees=not one.excess,
            )
    if {"art", "popart"} <= set(best):
        art, popart = (best[name].row["beta"] for name in ("art", "popart"))
        run.find(
            "Pop-Art can follow the statistics faster than Art",
            paper=f"beta {power(PAPER['popart'][1])} against {power(PAPER['art'][1])}",
            here=f"beta {power(popart)} against {power(art)}",
            agrees=popart > art,
        )


def _find_order(run: Run, best: Mapping[str, Best]) -> None:
    for suffix, optimizer in (("", "SGD"), ("-rmsprop", "RMSprop")):
        ones = [best[name + suffix] for name in ("popart", "art", "sgd") if name + suffix in best]
        if len(ones) == 3:
            areas = (f"{one.area:.0f} ({one.interval[0]:.0f} to {one.interval[1]:.0f})" for one in ones)
            run.find(
                f"With {optimizer}, Pop-Art learns better than Art, and Art better than no normalisation",
                paper="yes" if optimizer == "SGD" else "not shown; “very similar to SGD”",
                here=f"areas {', '.join(areas)}",
                agrees=all(a.interval[1] < b.interval[0] for a, b in pairwise(ones)),
            )
    if set(PAPER) | {f"{name}-rmsprop" for name in PAPER} <= set(best):
        both = [(METHODS[name].label, best[name].area, best[f"{name}-rmsprop"].area) for name in PAPER]
        run.find(
            "RMSprop does much as SGD does",
            paper="“very similar”; not shown",
            here="areas "
            + ", ".join(f"{two:.0f} instead of {one:.0f} ({label})" for label, one, two in both),
            agrees=all(abs(two / one - 1) < 0.1 for _, one, two in both),
        )


def _apart(one: Row, other: Row) -> str:
    steps = (abs(2 * math.log10(one[k] / other[k])) for k in ("alpha", "beta") if one[k])
    return f"{max(steps):.0f}"


def power(x: float | None) -> str:
    """A step size as the paper writes it, if it is a power of the root of ten."""
    if x is None:
        return ""
    exponent = 2 * math.log10(x)
    if not math.isclose(exponent, round(exponent), abs_tol=1e-6):
        return f"{x:.4g}"
    return f"10^{round(exponent) / 2:g}" if round(exponent) else "1"


def _pair(alpha: float, beta: float | None) -> str:
    return f"alpha {power(alpha)}" + (f", beta {power(beta)}" if beta else "")
