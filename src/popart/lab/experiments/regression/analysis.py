"""Figure 1a, the chosen step sizes beside the paper's, and findings, from the tables of a run."""

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise

from popart.lab.analysis import Page
from popart.lab.experiments.regression import drawing
from popart.lab.experiments.regression.best import Best, read_best
from popart.lab.experiments.regression.cells import Row, best_cell, numbers, paper_cell
from popart.lab.experiments.regression.config import SMOOTH
from popart.lab.experiments.regression.methods import METHODS, PAPER

FIGURE_1A = f"""Median over repetitions of the error on each sample before its update, as root mean square of
{SMOOTH} consecutive samples. Shaded: 10th to 90th percentile. Every 1000th target is 65,535, the others are
below 1024. Each method has its best learning rate α and step size β."""

RMSPROP = "As in Figure 1a, with RMSprop instead of SGD. Each method has its own best α and β."

CHOSEN = """The best cell of each grid, and the area under its curve per sample with a 95 % bootstrap interval
over repetitions. Excess: how much larger the area is with the paper's α and β. Apart: the larger of the
distances between the two in α and in β, in cells of half an order of magnitude."""

AREAS = """Area under the best curve of each method, with its bootstrap interval. The paper leaves open which
statistics are best. Percentiles and expectiles hold 90 % of the targets in [-1, 1]; extremes are those of the
latest 20 targets."""

GRIDS = """Area under the curve for each learning rate α and step size β. Circle: the best cell. Square: the
paper's cell. Cross: more than half of the repetitions diverged. Dot: some diverged."""

READINGS = """The paper does not say in which order median, root mean square and smoothing are taken. Each row
has the best cell for one order, and how much larger the area is in the paper's cell."""

GRID = (
    "Areas per sample for the three orders of median and smoothing, and the fraction of diverged repetitions."
)

ORDERS = {
    "rmse": "median over repetitions, then root mean square of 10 samples (the figure)",
    "mean_error": "median over repetitions, then mean of 10 samples",
    "run_rmse": "root mean square of 10 samples, then median over repetitions",
}


def analyse(page: Page) -> None:
    """Show figures and tables, the paper's first, and record findings."""
    cells = [numbers(row) for row in page.needed_table("grid")]
    best = read_best(page, cells)
    _show_curves(page, best)
    chosen = [_chosen(name, one, cells) for name, one in best.items()]
    page.show_table("chosen", "Chosen step sizes, beside the paper's", CHOSEN, chosen)
    if set(best) - set(PAPER):
        page.figure("areas", "Other optimizers and statistics", AREAS, drawing.areas(best))
    page.figure("grids", "Every cell of the grids", GRIDS, drawing.grids(cells, page.settings))
    readings = [row for name in PAPER if name in best for row in _readings(name, cells)]
    if readings:
        page.show_table("readings", "Order of median and smoothing", READINGS, readings)
    page.show_table("grid", "All cells", GRID)
    _find_step_sizes(page, best, cells)
    _find_order(page, best)
    _find_rmsprop(page, best)


def _show_curves(page: Page, best: Mapping[str, Best]) -> None:
    moments = {name: one for name, one in best.items() if METHODS[name].rule in (None, "moments")}
    sgd = {name: one for name, one in moments.items() if METHODS[name].optimizer == "sgd"}
    rmsprop = {name: one for name, one in moments.items() if name not in sgd}
    if sgd:
        page.figure("figure_1a", "Figure 1a", FIGURE_1A, drawing.learning_curves(sgd))
    if rmsprop:
        figure = drawing.learning_curves(rmsprop)
        page.figure("figure_1a_rmsprop", "Figure 1a with RMSprop", RMSPROP, figure)


def _chosen(name: str, best: Best, cells: Sequence[Row]) -> Row:
    low, high = best.interval
    row, paper = best.row, paper_cell(name, cells)
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
        "area there": f"{paper['rmse']:.1f}" if paper else "",
        "excess": f"{best.excess:+.1%}" if paper else "",
        "apart": _apart(row, paper) if paper else "",
    }


def _readings(name: str, cells: Sequence[Row]) -> list[Row]:
    rows = []
    paper = paper_cell(name, cells)
    for measure, order in ORDERS.items():
        one = best_cell(name, cells, measure)
        found = {"method": METHODS[name].label, "order": order}
        found |= {"alpha": power(one["alpha"]), "beta": power(one["beta"]), "area": f"{one[measure]:.1f}"}
        rows.append(
            found | {"the paper's cell": f"{paper[measure] / one[measure] - 1:+.1%}" if paper else ""}
        )
    return rows


def _find_step_sizes(page: Page, best: Mapping[str, Best], cells: Sequence[Row]) -> None:
    for name in PAPER:
        if name in best and paper_cell(name, cells):
            one = best[name]
            worse = f"; the paper's pair has an area {one.excess:.1%} larger" if one.excess else ""
            page.find(
                f"Best learning rate and step size of {METHODS[name].label}",
                paper=_pair(*PAPER[name]),
                here=_pair(one.row["alpha"], one.row["beta"]) + worse,
                agrees=not one.excess,
            )
    if {"art", "popart"} <= set(best):
        art, popart = (best[name].row["beta"] for name in ("art", "popart"))
        page.find(
            "Pop-Art works best with a larger step size β of the statistics than Art",
            paper=f"β {power(PAPER['popart'][1])} and {power(PAPER['art'][1])}",
            here=f"β {power(popart)} and {power(art)}",
            agrees=popart > art,
        )


def _find_order(page: Page, best: Mapping[str, Best]) -> None:
    for suffix, optimizer in (("", "SGD"), ("-rmsprop", "RMSprop")):
        ones = [best[name + suffix] for name in ("popart", "art", "sgd") if name + suffix in best]
        if len(ones) == 3:
            areas = (f"{one.area:.0f} ({one.interval[0]:.0f} to {one.interval[1]:.0f})" for one in ones)
            page.find(
                f"With {optimizer}, Pop-Art learns better than Art, and Art better than no normalisation",
                paper="yes" if optimizer == "SGD" else "not shown; “very similar to SGD”",
                here=f"areas {', '.join(areas)}",
                agrees=all(a.interval[1] < b.interval[0] for a, b in pairwise(ones)),
            )


def _find_rmsprop(page: Page, best: Mapping[str, Best]) -> None:
    if set(PAPER) | {f"{name}-rmsprop" for name in PAPER} <= set(best):
        pairs = [(METHODS[name].label, best[name].area, best[f"{name}-rmsprop"].area) for name in PAPER]
        areas = (f"{rmsprop:.0f} with RMSprop, {sgd:.0f} with SGD ({label})" for label, sgd, rmsprop in pairs)
        page.find(
            "Results with RMSprop are similar to those with SGD",
            paper="“very similar”; not shown",
            here=f"areas {'; '.join(areas)}",
            agrees=all(abs(rmsprop / sgd - 1) < 0.1 for _, sgd, rmsprop in pairs),
        )


def _apart(one: Row, other: Row) -> str:
    steps = (abs(2 * math.log10(one[k] / other[k])) for k in ("alpha", "beta") if one[k])
    return f"{max(steps):.0f}"


def power(x: float | None) -> str:
    """Write a step size as the paper does: as a power of ten, if the exponent is a multiple of 1/2."""
    if x is None:
        return ""
    exponent = 2 * math.log10(x)
    if not math.isclose(exponent, round(exponent), abs_tol=1e-6):
        return f"{x:.4g}"
    return f"10^{round(exponent) / 2:g}" if round(exponent) else "1"


def _pair(alpha: float, beta: float | None) -> str:
    return f"α {power(alpha)}" + (f", β {power(beta)}" if beta else "")
