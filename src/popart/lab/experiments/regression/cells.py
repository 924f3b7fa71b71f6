"""Cells of the grid: a method, its learning rate and step size, and the measured areas."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from popart.lab.experiments.regression.methods import PAPER

Row = Mapping[str, Any]
"""A row of grid.csv with numbers: method, alpha, beta (None without normalisation), and the measures."""


def numbers(row: Mapping[str, str]) -> Row:
    """Convert a row of the table to numbers, exactly as they were before they were written."""
    return {k: v if k == "method" else float(v) if v else None for k, v in row.items()}


def best_cell(method: str, cells: Sequence[Row], measure: str = "rmse") -> Row:
    """Return the cell of a method with the smallest area."""
    return min((row for row in cells if row["method"] == method), key=lambda row: row[measure])


def paper_cell(method: str, cells: Sequence[Row]) -> Row | None:
    """Return the cell that the paper reports for a method, if it reports one and the grid has it."""
    if method not in PAPER:
        return None
    alpha, beta = PAPER[method]
    for row in cells:
        same_beta = beta is None or math.isclose(row["beta"] or 0, beta, rel_tol=1e-6)
        if row["method"] == method and math.isclose(row["alpha"], alpha, rel_tol=1e-6) and same_beta:
            return row
    return None
