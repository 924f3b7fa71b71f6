"""Learning curves of repeated runs, and their areas."""

import numpy as np
import pytest

from popart.lab.experiments.regression.curves import area, curves, interval, measures, quantile, smooth


@pytest.mark.parametrize("n", [1, 2, 7, 50])
@pytest.mark.parametrize("q", [0.1, 0.5, 0.9])
def test_quantiles_equal_those_of_numpy(n: int, q: float) -> None:
    x = np.random.default_rng(n).normal(size=(6, n))
    np.testing.assert_allclose(quantile(np.sort(x), q), np.quantile(x, q, axis=-1), rtol=1e-12)


def test_quantiles_of_diverged_repetitions_are_infinite_not_nan() -> None:
    x = np.array([[1.0, 2.0, np.inf, np.inf], [1.0, np.inf, np.inf, np.inf], [np.inf] * 4])
    np.testing.assert_array_equal(quantile(x, 0.5), [np.inf] * 3)
    np.testing.assert_array_equal(quantile(np.array([[1.0, 2.0, 3.0, np.inf]]), 0.5), [2.5])


def test_ten_samples_become_their_root_mean_square() -> None:
    x = np.arange(20.0)
    np.testing.assert_allclose(smooth(x), [np.sqrt(28.5), np.sqrt(218.5)])


def test_the_orders_of_median_and_smoothing_by_hand() -> None:
    """Three repetitions, one with an error of 30 on one sample of the first ten."""
    errors = np.ones((20, 3))
    errors[4, 0] = 30
    errors[10:] = 2
    found = measures(errors)
    assert found["rmse"] == pytest.approx(1.5)
    assert found["mean_error"] == pytest.approx(1.5)
    assert found["run_rmse"] == pytest.approx(1.5)
    assert found["diverged"] == 0
    errors[4] = 30
    found = measures(errors)
    assert found["rmse"] == pytest.approx((np.sqrt(90.9) + 2) / 2)
    assert found["mean_error"] == pytest.approx((39 + 20) / 20)
    assert found["run_rmse"] == pytest.approx((np.sqrt(90.9) + 2) / 2)
    errors[15, 1:] = np.inf
    found = measures(errors)
    assert found["rmse"] == found["mean_error"] == found["run_rmse"] == np.inf
    assert found["diverged"] == pytest.approx(2 / 3)


def test_the_median_curve_has_the_area() -> None:
    errors = np.random.default_rng(0).exponential(size=(100, 50))
    low, median, high = curves(errors)
    assert (low < median).all()
    assert (median < high).all()
    assert median.mean() == pytest.approx(area(errors)) == pytest.approx(measures(errors)["rmse"])


def test_the_interval_covers_the_area_of_many_runs() -> None:
    """In at least 85 of 100 experiments; 95 are expected."""
    rng = np.random.default_rng(0)
    scale = rng.gamma(5.0, size=4000)
    all_runs = scale * rng.exponential(size=(40, 4000))
    covered = 0
    for _ in range(100):
        low, high = interval(all_runs[:, rng.integers(0, 4000, 200)], 0)
        covered += low < area(all_runs) < high
    assert covered >= 85
