"""Interquartile means of returns over random seeds, with bootstrap intervals (Agarwal et al., 2021)."""

from typing import NamedTuple

import numpy as np

RESAMPLES = 2000


class Estimate(NamedTuple):
    """An interquartile mean, and the ends of its 95 % bootstrap interval."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.mean:.3g} ({self.low:.3g} to {self.high:.3g})"


def interquartile_mean(x: np.ndarray) -> np.ndarray:
    """Return the mean of the middle half of the values, over the last axis."""
    cut = x.shape[-1] // 4
    return np.sort(x, -1)[..., cut : x.shape[-1] - cut].mean(-1)


def estimate(returns: np.ndarray) -> Estimate:
    """Return the interquartile mean over seeds, with the percentiles of resampled ones."""
    returns = np.asarray(returns, float)
    drawn = np.random.default_rng(0).choice(returns, (RESAMPLES, len(returns)))
    low, high = np.percentile(interquartile_mean(drawn), (2.5, 97.5))
    return Estimate(float(interquartile_mean(returns)), float(low), float(high))
