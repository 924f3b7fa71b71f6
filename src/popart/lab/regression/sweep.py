"""Every setting of every method, on all cores, one row of the grid after the other."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from popart.lab.machine import as_done
from popart.lab.regression import Regression
from popart.lab.regression.curves import measures
from popart.lab.regression.learner import errors
from popart.lab.regression.methods import METHODS
from popart.lab.regression.task import stack

BLOCK = 144
"""Runs per call on a CPU. Their networks fit its second-level cache; vectors divide it; and it is no power of
two, with which all weights of a run would compete for the same lines of the cache."""


class Setting(NamedTuple):
    """A cell of the grid. Without normalisation there is no beta."""

    method: str
    alpha: float
    beta: float | None


class Data:
    """The streams and initial networks that all settings share: differences are not those of luck."""

    def __init__(self, seed: int, repetitions: int, samples: int) -> None:
        self.repetitions = repetitions
        self.n, self.layers = stack(seed, range(repetitions), samples)


def grid(settings: Regression) -> list[list[Setting]]:
    """All cells, in rows of one method and one beta."""
    return [
        [Setting(method, alpha, beta) for alpha in settings.alphas]
        for method in settings.methods
        for beta in (settings.betas if METHODS[method].rule else (None,))
    ]


def learn(row: Sequence[Setting], data: Data) -> np.ndarray:
    """The errors of cells of one method, (samples, cells, repetitions); infinite if no number."""
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
    """What came out of each row of cells, as it is done."""

    def measured(row: Sequence[Setting]) -> list[dict[str, Any]]:
        e = learn(row, data)
        return [{**cell._asdict(), **measures(e[:, i])} for i, cell in enumerate(row)]

    return (found for _, found in as_done(measured, rows))
