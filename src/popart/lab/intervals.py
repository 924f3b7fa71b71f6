"""Statistics over runs and games, and their bootstrap intervals, with the definitions of rliable.

Agarwal, Schwarzer, Castro, Courville and Bellemare, *Deep reinforcement learning at the edge of the
statistical precipice* (2021): intervals over seeds are percentiles of a stratified bootstrap, in which the
runs of each game are resampled by themselves; the interquartile mean is over all runs of all games.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from scipy import stats

LEVEL = 0.95
REPETITIONS = 10_000
FEW = 5
"""Smallest number of games for a comparison with the paper, and for an interval of a rank correlation."""


class Interval(NamedTuple):
    """A value and its 95 % interval; the ends are NaN where no interval can be computed."""

    value: float
    low: float = math.nan
    high: float = math.nan

    @property
    def known(self) -> bool:
        return not math.isnan(self.low)

    def text(self, form: str = ".1f", unit: str = "") -> str:
        """Return "3.0 (2.5 to 3.5)", or "3.0" without an interval."""
        value, low, high = (f"{x:{form}}{unit}" for x in self)
        return f"{value} ({low} to {high})" if self.known else value

    def percent(self, form: str = ".0f") -> str:
        """Return the same in percent."""
        return Interval(*(100 * x for x in self)).text(form, " %")


Statistic = Callable[[Sequence[np.ndarray]], np.ndarray]
"""A function of the scores of each game, (..., runs), that returns one number for each leading index."""


def median(scores: Sequence[np.ndarray]) -> np.ndarray:
    """Return the median over games of the mean over runs."""
    return np.median(_means(scores), -1)


def mean(scores: Sequence[np.ndarray]) -> np.ndarray:
    """Return the mean over games of the mean over runs."""
    return np.mean(_means(scores), -1)


def iqm(scores: Sequence[np.ndarray]) -> np.ndarray:
    """Return the interquartile mean over all runs of all games: the mean of the middle half of them."""
    ordered = np.sort(np.concatenate(scores, -1), -1)
    cut = ordered.shape[-1] // 4
    return ordered[..., cut : ordered.shape[-1] - cut].mean(-1)


AGGREGATES: dict[str, Statistic] = {"median": median, "interquartile mean": iqm, "mean": mean}


def _means(scores: Sequence[np.ndarray]) -> np.ndarray:
    return np.stack([runs.mean(-1) for runs in scores], -1)


def resample(rng: np.random.Generator, scores: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Draw as many runs of each game as it has, with replacement: `(REPETITIONS, runs)` for each game."""
    return [runs[rng.integers(0, len(runs), (REPETITIONS, len(runs)))] for runs in scores]


def over_seeds(statistic: Statistic, *groups: Sequence[np.ndarray], seed: int = 0) -> Interval:
    """Return a statistic and its interval over seeds; without an interval if a game has a single run.

    With two groups, such as two agents, it is the statistic of the differences between their means.
    """
    rng = np.random.default_rng(seed)
    drawn = [resample(rng, group) for group in groups]
    value = float(statistic(_difference(groups)))
    if min(len(runs) for group in groups for runs in group) < 2:
        return Interval(value)
    return _percentiles(value, statistic(_difference(drawn)))


def _difference(groups: Sequence[Sequence[np.ndarray]]) -> Sequence[np.ndarray]:
    """Return the only group, or for each game the difference of the means of two groups."""
    if len(groups) == 1:
        return groups[0]
    first, second = (_means(group) for group in groups)
    return [x[..., None] for x in np.moveaxis(first - second, -1, 0)]


def over_games(statistic: Callable[[np.ndarray], np.ndarray], *columns: Sequence[float]) -> Interval:
    """Return a statistic of games and its bootstrap interval over games.

    Args:
        statistic: A function of values `(..., games)`, or `(..., games, columns)` for several columns.
        columns: Values of all games, in the same order.
    """
    values = np.stack([np.asarray(column, float) for column in columns], -1)
    values = values[:, 0] if len(columns) == 1 else values
    rng, games = np.random.default_rng(0), len(values)
    value = float(statistic(values))
    if games < 2:
        return Interval(value)
    return _percentiles(value, statistic(values[rng.integers(0, games, (REPETITIONS, games))]))


def _percentiles(value: float, drawn: np.ndarray) -> Interval:
    low, high = np.quantile(drawn, ((1 - LEVEL) / 2, (1 + LEVEL) / 2))
    return Interval(value, float(low), float(high))


def over_runs(scores: np.ndarray) -> Interval:
    """Return the mean of the runs of one game with Student's interval: three are too few to resample."""
    value, runs = float(np.mean(scores)), len(scores)
    if runs < 2:
        return Interval(value)
    half = float(stats.t.ppf((1 + LEVEL) / 2, runs - 1) * np.std(scores, ddof=1) / math.sqrt(runs))
    return Interval(value, value - half, value + half)


def between_runs(first: np.ndarray, second: np.ndarray) -> Interval:
    """Return the difference of the means of two agents' runs of one game, with Welch's interval."""
    value = float(np.mean(first) - np.mean(second))
    if min(len(first), len(second)) < 2:
        return Interval(value)
    errors = [float(np.var(runs, ddof=1)) / len(runs) for runs in (first, second)]
    if not sum(errors):
        return Interval(value, value, value)
    freedom = sum(errors) ** 2 / sum(
        e**2 / (len(runs) - 1) for e, runs in zip(errors, (first, second), strict=True)
    )
    half = float(stats.t.ppf((1 + LEVEL) / 2, freedom)) * math.sqrt(sum(errors))
    return Interval(value, value - half, value + half)


def share(count: int, number: int) -> Interval:
    """Return the part of a number of games, with the exact interval of Clopper and Pearson."""
    found = stats.binomtest(count, number).proportion_ci(LEVEL)
    return Interval(count / number, float(found.low), float(found.high))


def rank_correlation(first: Sequence[float], second: Sequence[float]) -> Interval:
    """Return Spearman's rank correlation of games, with the interval of Bonett and Wright (2000)."""
    games = len(first)
    if games < 2 or len(set(first)) < 2 or len(set(second)) < 2:
        return Interval(math.nan)
    value = float(np.corrcoef(stats.rankdata(first), stats.rankdata(second))[0, 1])
    if games < FEW or abs(value) >= 1 - 1e-12:
        return Interval(value)
    half = stats.norm.ppf((1 + LEVEL) / 2) * math.sqrt((1 + value**2 / 2) / (games - 3))
    return Interval(value, math.tanh(math.atanh(value) - half), math.tanh(math.atanh(value) + half))
