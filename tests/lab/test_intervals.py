"""Aggregates and their intervals have rliable's definitions, and cover what they should."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from popart.lab import intervals
from popart.lab.experiments.gradient_norms.analysis import spread
from popart.lab.intervals import AGGREGATES, over_games, over_runs, over_seeds, rank_correlation

RLIABLE = json.loads((Path(__file__).parent / "rliable.json").read_text("utf-8"))
"""Results of the package itself, which cannot be installed beside today's pandas."""


def scores(runs: int, games: int, seed: int = 0) -> np.ndarray:
    """Return normalised scores with heavy tails, (runs, games)."""
    rng = np.random.default_rng(seed)
    return rng.lognormal(size=games) * rng.normal(1, 0.5, (runs, games)) + rng.gumbel(size=(runs, games))


@pytest.mark.parametrize("name", AGGREGATES)
def test_aggregates_and_intervals_are_those_of_rliable(name: str) -> None:
    """Intervals up to the error of the bootstrap itself, a few percent of their width."""
    found = over_seeds(AGGREGATES[name], list(np.array(RLIABLE["scores"]).T))
    value, low, high = RLIABLE["intervals"][name]
    assert found.value == pytest.approx(value, abs=1e-5)
    assert (found.low, found.high) == pytest.approx((low, high), abs=0.04 * (high - low))


@pytest.mark.parametrize("shape", [(3, 57), (5, 8), (1, 57), (2, 3), (3, 1)])
def test_the_interquartile_mean_is_the_trimmed_mean_over_runs_and_games(shape: tuple[int, int]) -> None:
    matrix = scores(*shape)
    assert float(intervals.iqm(list(matrix.T))) == pytest.approx(stats.trim_mean(matrix.ravel(), 0.25))


@pytest.mark.parametrize("name", AGGREGATES)
def test_nine_in_ten_intervals_over_seeds_cover_the_true_value(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The percentile bootstrap of five runs is a little too narrow; it is not far from 95 %."""
    monkeypatch.setattr(intervals, "REPETITIONS", 400)
    rng = np.random.default_rng(0)
    games = 2 * rng.normal(size=30)
    true = float(AGGREGATES[name]([game + rng.gumbel(size=20_000) for game in games]))
    covered = 0
    for _ in range(300):
        found = over_seeds(AGGREGATES[name], [game + rng.gumbel(size=5) for game in games])
        covered += found.low <= true <= found.high
    assert 0.86 <= covered / 300 <= 0.99


def test_intervals_of_single_games_and_of_correlations_cover_95_percent() -> None:
    rng, runs, correlations = np.random.default_rng(0), 0, 0
    true = 6 / np.pi * np.arcsin(0.5 / 2)  # Spearman's correlation of normal variables that correlate by 0.5
    for _ in range(2000):
        found = over_runs(rng.normal(3.0, 2.0, 3))
        runs += found.low <= 3.0 <= found.high
        x, noise = rng.normal(size=(2, 30))
        found = rank_correlation(x.tolist(), (0.5 * x + math.sqrt(0.75) * noise).tolist())
        correlations += found.low <= true <= found.high
    assert runs / 2000 == pytest.approx(0.95, abs=0.015)
    assert correlations / 2000 == pytest.approx(0.95, abs=0.02)


@pytest.mark.parametrize(("games", "least", "most"), [(8, 0.0, 0.3), (57, 0.7, 0.95), (400, 0.88, 0.99)])
def test_intervals_of_ranges_need_many_games(
    games: int, least: float, most: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Games that are not there cannot be resampled: with eight, the interval hardly ever covers the range."""
    monkeypatch.setattr(intervals, "REPETITIONS", 400)
    rng, true = np.random.default_rng(0), 2 * stats.norm.ppf(0.975)
    found = [over_games(spread, (10 ** rng.normal(size=games)).tolist()) for _ in range(150)]
    assert least <= np.mean([x.low <= true <= x.high for x in found]) <= most


def test_a_single_run_has_no_interval_over_seeds() -> None:
    found = over_seeds(intervals.median, list(scores(1, 5).T))
    assert not found.known
    assert found.text() == f"{found.value:.1f}"
    assert not over_runs(np.array([3.0])).known
    three_and_one = [np.array([1.0, 2.0, 3.0]), np.array([4.0])]
    assert not over_seeds(intervals.mean, three_and_one).known


def test_the_statistic_of_two_agents_is_that_of_the_differences_of_their_means() -> None:
    first, second = scores(3, 9, seed=1), scores(5, 9, seed=2)
    difference = first.mean(0) - second.mean(0)
    found = over_seeds(intervals.median, list(first.T), list(second.T))
    assert found.value == pytest.approx(np.median(difference))
    assert found.low < found.value < found.high
    assert over_seeds(intervals.iqm, list(first.T), list(second.T)).value == pytest.approx(
        stats.trim_mean(difference, 0.25)
    )


def test_the_rank_correlation_of_few_or_equal_games_has_no_interval() -> None:
    few = rank_correlation([1, 2, 3, 4], [1, 2, 4, 3])
    assert few.value == pytest.approx(0.8)
    assert not few.known
    assert rank_correlation([1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 5, 6]).value == pytest.approx(1)
    assert not rank_correlation([1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 5, 6]).known
    assert math.isnan(rank_correlation([1, 1, 1, 1, 1], [1, 2, 3, 4, 5]).value)
    assert math.isnan(rank_correlation([1], [2]).value)
