"""The best cell of each method, read from the tables of a run."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from popart.lab.analysis import Page
from popart.lab.experiments.regression.cells import Row, best_cell, paper_cell


class Best(NamedTuple):
    """The best cell of a method with its curves, and the paper's cell if that is another one of the grid."""

    row: Row
    samples: np.ndarray
    curves: np.ndarray
    """10th percentile, median and 90th percentile of the error, (3, points)."""

    interval: tuple[float, float]
    """Bootstrap interval of the area."""

    paper: Row | None
    paper_median: np.ndarray | None

    @property
    def area(self) -> float:
        return self.row["rmse"]

    @property
    def excess(self) -> float:
        """Excess of the area of the paper's cell, as a fraction of the best area."""
        return self.paper["rmse"] / self.area - 1 if self.paper and math.isfinite(self.area) else 0.0


def read_best(page: Page, cells: Sequence[Row]) -> dict[str, Best]:
    """Read the best cell of each method of the run."""
    curves, paper = page.needed_table("curves"), page.table("paper_curves")
    intervals = {
        row["method"]: (float(row["low"]), float(row["high"])) for row in page.needed_table("intervals")
    }

    def best(method: str) -> Best:
        row, other = best_cell(method, cells), paper_cell(method, cells)
        samples, *quantiles = _columns(curves, method, ("sample", "p10", "median", "p90"))
        medians = _columns(paper, method, ("median",))[0]
        found = Best(row, samples, np.stack(quantiles), intervals[method], None, None)
        return found if other is None or other is row else found._replace(paper=other, paper_median=medians)

    return {method: best(method) for method in page.settings["methods"]}


def _columns(rows: Sequence[dict[str, str]], method: str, names: Sequence[str]) -> list[np.ndarray]:
    mine = [row for row in rows if row["method"] == method]
    return [np.array([float(row[name]) for row in mine]) for name in names]
