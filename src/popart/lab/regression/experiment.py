"""`popart regression`: the sweep, and the best settings."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from popart.lab.machine import as_done
from popart.lab.progress import progress
from popart.lab.regression import SMOOTH, Regression
from popart.lab.regression.curves import curves, interval
from popart.lab.regression.methods import METHODS, PAPER
from popart.lab.regression.sweep import Data, Setting, grid, learn, sweep
from popart.lab.runs import Run

Row = Mapping[str, Any]
"""A cell of the grid: method, alpha, beta, and what was measured of it."""


class Best(NamedTuple):
    """The best cell of a method, its curves, and an interval of its area.

    And the paper's cell with its median curve, if the grid has it and it is another one.
    """

    row: Row
    curves: np.ndarray
    interval: tuple[float, float]
    papers: Row | None = None
    papers_curve: np.ndarray | None = None

    @property
    def area(self) -> float:
        return self.row["rmse"]

    @property
    def excess(self) -> float:
        """How much larger the area is with the paper's step sizes."""
        return self.papers["rmse"] / self.area - 1 if self.papers and math.isfinite(self.area) else 0.0


def run(settings: Regression) -> Path:
    from popart.lab.regression.results import tell

    with Run("regression", "Binary regression (Section 3, Fig. 1a)", settings) as run:
        if not run.finished:
            data = Data(settings.seed, settings.repetitions, settings.samples)
            cells = _cells(run, settings, data)
            best = _best(settings, cells, data)
            run.write_table("curves", [row for name, one in best.items() for row in _curve(name, one)])
            tell(run, settings, cells, best)
            run.finish()
    return run.folder


def _cells(run: Run, settings: Regression, data: Data) -> list[Row]:
    """The whole grid, of which what was measured before is read."""
    rows = grid(settings)
    order = {cell: i for i, cell in enumerate(cell for row in rows for cell in row)}
    done = {_setting(row): row for row in map(_numbers, run.read_table("grid"))}
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
    """The best cell of each method, run once more for its curves: they are the same to the bit."""

    def best(name: str) -> Best:
        row = min((row for row in cells if row["method"] == name), key=lambda row: row["rmse"])
        errors = learn([_setting(row)], data)[:, 0]
        one = Best(row, curves(errors), interval(errors, settings.seed))
        papers = papers_cell(name, cells)
        if papers is None or papers is row:
            return one
        return one._replace(papers=papers, papers_curve=curves(learn([_setting(papers)], data)[:, 0])[1])

    found: dict[str, Best] = {}
    with progress("bootstrap", len(settings.methods), "methods") as advance:
        for name, one in as_done(best, settings.methods):
            found[name] = one
            advance(1, METHODS[name].label)
    return {name: found[name] for name in settings.methods}


def papers_cell(name: str, cells: Sequence[Row]) -> Row | None:
    """The cell that the paper reports for a method, if it does and the grid has it."""
    if name not in PAPER:
        return None
    alpha, beta = PAPER[name]
    for row in cells:
        same_beta = beta is None or math.isclose(row["beta"] or 0, beta, rel_tol=1e-6)
        if row["method"] == name and math.isclose(row["alpha"], alpha, rel_tol=1e-6) and same_beta:
            return row
    return None


def _curve(name: str, best: Best) -> list[Row]:
    return [
        {"method": name, "sample": SMOOTH * (i + 1), "p10": low, "median": median, "p90": high}
        for i, (low, median, high) in enumerate(best.curves.T.tolist())
    ]


def _setting(row: Row) -> Setting:
    return Setting(row["method"], row["alpha"], row["beta"])


def _numbers(row: Mapping[str, str]) -> Row:
    """A row of the grid as it was before it was written."""
    return {k: v if k == "method" else float(v) if v else None for k, v in row.items()}
