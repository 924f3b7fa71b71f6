"""Run the sweep over all methods and step sizes, and the learning curves of the best cells."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from popart.lab.budget import announce, check_memory
from popart.lab.experiments.regression.cells import Row, best_cell, numbers, paper_cell
from popart.lab.experiments.regression.config import SMOOTH, Regression
from popart.lab.experiments.regression.curves import curves, interval
from popart.lab.experiments.regression.methods import METHODS
from popart.lab.experiments.regression.sweep import Data, Setting, grid, learn, sweep
from popart.lab.machine import as_done, cores
from popart.lab.progress import progress
from popart.lab.runs import Run

BYTES_PER_ERROR = 24
"""Memory per sample and repetition: the error in two precisions, and a sorted copy."""

UPDATES_PER_SECOND = 3e6
"""Updates of a network per second and core, measured on two cores with the default settings."""


class Best(NamedTuple):
    """The best cell of a method: its curves, an interval of its area, and the median of the paper's cell.

    The latter is None if the paper's cell is the best one, or not in the grid.
    """

    curves: np.ndarray
    interval: tuple[float, float]
    paper_median: np.ndarray | None


def run(settings: Regression) -> Path:
    budget = _check_budget(settings)
    with Run("regression", "Binary regression (Section 3, Fig. 1a)", settings) as run:
        if not run.finished:
            announce(*budget)
            data = Data(settings.seed, settings.repetitions, settings.samples)
            cells = _cells(run, settings, data)
            _write_curves(run, _best(settings, cells, data))
            run.finish()
    return run.folder


def _check_budget(settings: Regression) -> tuple[float, float]:
    """Refuse settings that do not fit into memory; return seconds and bytes. A core has a row of the grid."""
    cells = sum(map(len, grid(settings)))
    bytes_each = BYTES_PER_ERROR * settings.samples * len(settings.alphas) * cores()
    check_memory("repetitions", settings.repetitions, bytes_each)
    updates = cells * settings.samples * settings.repetitions
    return updates / UPDATES_PER_SECOND / cores(), settings.repetitions * bytes_each


def _cells(run: Run, settings: Regression, data: Data) -> list[Row]:
    """Measure the whole grid; rows that an interrupted run has measured are read."""
    rows = grid(settings)
    order = {cell: i for i, cell in enumerate(cell for row in rows for cell in row)}
    done = {_setting(row): row for row in map(numbers, run.read_table("grid"))}
    todo = [row for row in rows if any(cell not in done for cell in row)]
    per_cell = settings.samples * settings.repetitions
    before = per_cell * (len(order) - sum(map(len, todo)))
    with progress("regression", per_cell * len(order), "updates", before) as advance:
        for measured in sweep(todo, data):
            done |= {_setting(row): row for row in measured}
            run.write_table("grid", sorted(done.values(), key=lambda row: order[_setting(row)]))
            advance(per_cell * len(measured), METHODS[measured[0]["method"]].label)
    return [done[cell] for cell in order]


def _best(settings: Regression, cells: Sequence[Row], data: Data) -> dict[str, Best]:
    """Run the best cell of each method once more for its curves: errors are the same to the bit."""

    def best(method: str) -> Best:
        row, paper = best_cell(method, cells), paper_cell(method, cells)
        errors = learn([_setting(row)], data)[:, 0]
        median = None
        if paper is not None and paper is not row:
            median = curves(learn([_setting(paper)], data)[:, 0])[1]
        return Best(curves(errors), interval(errors, settings.seed), median)

    found: dict[str, Best] = {}
    with progress("bootstrap", len(settings.methods), "methods") as advance:
        for method, one in as_done(best, settings.methods):
            found[method] = one
            advance(1, METHODS[method].label)
    return {method: found[method] for method in settings.methods}


def _write_curves(run: Run, best: dict[str, Best]) -> None:
    """Write the tables that the figures need beside the grid."""
    quantiles = ("p10", "median", "p90")
    run.write_table("curves", [row for m, one in best.items() for row in _curve(m, quantiles, one.curves)])
    paper = {method: one.paper_median for method, one in best.items() if one.paper_median is not None}
    if paper:
        rows = [row for m, median in paper.items() for row in _curve(m, ("median",), median[None])]
        run.write_table("paper_curves", rows)
    intervals = {method: one.interval for method, one in best.items()}
    run.write_table(
        "intervals", [{"method": m, "low": low, "high": high} for m, (low, high) in intervals.items()]
    )


def _curve(method: str, names: Sequence[str], values: np.ndarray) -> list[Row]:
    return [
        {"method": method, "sample": SMOOTH * (i + 1), **dict(zip(names, point, strict=True))}
        for i, point in enumerate(values.T.tolist())
    ]


def _setting(row: Row) -> Setting:
    return Setting(row["method"], row["alpha"], row["beta"])
