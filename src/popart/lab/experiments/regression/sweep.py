"""The sweep over the grid, one row after the other, on all cores."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from popart.lab.experiments.regression.config import Regression
from popart.lab.experiments.regression.curves import measures
from popart.lab.experiments.regression.learner import errors
from popart.lab.experiments.regression.methods import METHODS
from popart.lab.experiments.regression.task import stack
from popart.lab.machine import as_done

BLOCK = 144
"""Networks per call on a CPU. They fit its second-level cache, and the number is a multiple of the vector
length but not a power of two, with which the weights of a network would compete for the same cache lines."""


class Setting(NamedTuple):
    """Method, learning rate and step size of a cell; beta is None without normalisation."""

    method: str
    alpha: float
    beta: float | None


class Data:
    """The data and initial weights, the same for all cells, so that differences are not due to chance."""

    def __init__(self, seed: int, repetitions: int, samples: int) -> None:
        self.repetitions = repetitions
        self.n, self.layers = stack(seed, range(repetitions), samples)


def grid(settings: Regression) -> list[list[Setting]]:
    """Return all cells, in rows of one method and one beta."""
    return [
        [Setting(method, alpha, beta) for alpha in settings.alphas]
        for method in settings.methods
        for beta in (settings.betas if METHODS[method].rule else (None,))
    ]


def learn(row: Sequence[Setting], data: Data) -> np.ndarray:
    """Return the errors of cells of one method, (samples, cells, repetitions); infinite instead of NaN."""
    method = METHODS[row[0].method]
    alpha = np.repeat(np.array([cell.alpha for cell in row], np.float32), data.repetitions)
    beta = np.repeat(np.array([cell.beta or 1.0 for cell in row], np.float32), data.repetitions)
    repetition = np.tile(np.arange(data.repetitions), len(row))
    size = BLOCK if jax.default_backend() == "cpu" else len(alpha)
    parts = []
    for start in range(0, len(alpha), size):
        runs = np.arange(start, start + size) % len(alpha)
        r = repetition[runs]
        layers = jax.tree.map(lambda x, r=r: x[..., r], data.layers)
        parts.append(np.asarray(errors(method, layers, alpha[runs], beta[runs], data.n[:, r])))
    e = np.concatenate(parts, 1)[:, : len(alpha)]
    return np.where(np.isfinite(e), e, np.inf).reshape(len(e), len(row), data.repetitions)


def sweep(rows: Sequence[Sequence[Setting]], data: Data) -> Iterator[list[dict[str, Any]]]:
    """Measure rows of cells, and yield each row when it is done."""

    def measured(row: Sequence[Setting]) -> list[dict[str, Any]]:
        e = learn(row, data)
        return [{**cell._asdict(), **measures(e[:, i])} for i, cell in enumerate(row)]

    return (found for _, found in as_done(measured, rows))
