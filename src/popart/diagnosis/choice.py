"""The choice of a rule and a step size β, by trying them on the stream."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from popart.diagnosis.measures import Floats, Measures, power_of_two, tenths
from popart.moments import Moments
from popart.percentiles import Percentiles

BETAS = (1e-4, 1e-3, 1e-2, 1e-1)
"""Step sizes that are tried, the smallest first."""

MOST_UPDATES = 1_000
"""Largest number of updates, roughly: in longer streams one update stands for several minibatches."""

MISFIT = 2.0
"""Factor by which normalised targets may be off: less than the steps in which learning rates are searched."""

NARROW = 0.1
"""Half the range of the middle 90 % of the targets, in standard deviations, below which it is too narrow."""


class Track(NamedTuple):
    """The normalisation after each update of a rule, and the number of targets in an update."""

    scale: Floats
    shift: Floats
    size: int

    def before(self, y: Floats) -> Floats:
        """Return each target normalised with the statistics before its own update; none without a spread."""
        update = np.arange(self.size, len(y)) // self.size - 1
        scale = self.scale[update]
        known = scale > 0
        return (y[self.size :][known] - self.shift[update][known]) / scale[known]

    def after(self, y: Floats) -> Floats:
        """Return each target as it is learned: normalised after its own update; 0 without a spread."""
        update = np.arange(len(y)) // self.size
        scale = self.scale[update]
        return np.where(scale > 0, (y - self.shift[update]) / np.where(scale > 0, scale, 1.0), 0.0)


class Choice(NamedTuple):
    """A rule with its step size, and the factor by which its normalised targets are off, for each β tried."""

    rule: Moments | Percentiles
    beta: float
    misfits: dict[float, float]
    updates: int


def follow(rule: Moments | Percentiles, y: Floats, batch: int) -> Track:
    """Return the track of a rule on a stream of minibatches, in at most about 1,000 updates."""
    together = max(1, math.ceil(len(y) / batch / MOST_UPDATES))
    assert isinstance(rule.beta, float)
    step: Any = replace(rule, beta=-math.expm1(together * math.log1p(-rule.beta)))
    size, unit = together * batch, power_of_two(y)
    state, found = step.init(), list[tuple[float, float]]()
    for start in range(0, len(y), size):
        state = step.update(state, y[start : start + size] / unit)
        affine = step.affine(state)
        found.append((float(affine.scale), float(affine.shift)))
    scale, shift = unit * np.array(found).T
    return Track(scale, shift, size)


def choose(measures: Measures, y: Floats, batch: int) -> Choice:
    """Return `Moments`, or `Percentiles` if outliers make the other targets alike, with a step size.

    The step size is the smallest with which the targets of each tenth of the stream, normalised before their
    own update, have a size of 1 up to a factor of 2 on average.
    """
    if 0 < measures.bulk < NARROW:
        return _smallest_beta(lambda beta: Percentiles(beta), _middle, y, batch)
    return _smallest_beta(lambda beta: Moments(beta), _rms, y, batch)


def _smallest_beta(
    rule: Callable[[float], Moments | Percentiles], size: Callable[[Floats], float], y: Floats, batch: int
) -> Choice:
    misfits = {beta: misfit(follow(rule(beta), y, batch).before(y), size) for beta in BETAS}
    allowed = max(MISFIT, 1.1 * min(misfits.values()))
    beta = next(beta for beta in BETAS if misfits[beta] <= allowed)
    return Choice(rule(beta), beta, misfits, math.ceil(len(y) / batch))


def misfit(z: Floats, size: Callable[[Floats], float]) -> float:
    """Return the factor by which the size of normalised targets is off from 1, as a mean over tenths."""
    if not z.size:
        return 1.0
    sizes = np.clip([size(part) for part in tenths(z)], 2.0**-10, 2.0**10)
    return float(2 ** np.mean(np.abs(np.log2(sizes))))


def _rms(z: Floats) -> float:
    return math.sqrt(float(np.mean(np.minimum(np.abs(z), 1e100) ** 2)))


def _middle(z: Floats) -> float:
    """Return the magnitude that 95 % of the targets do not exceed, which `Percentiles` maps to 1."""
    return float(np.quantile(np.abs(z), 0.95))
