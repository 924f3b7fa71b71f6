"""From the errors of repeated runs to a learning curve, and from a curve to its area.

A point of the curve is the root mean square of ten consecutive errors, where the error on a sample is the
median over repetitions. The paper says that the curve is a median, a root mean squared error, and smoothed
over ten samples, but not in which order. The areas for the other orders are computed too.
"""

import numpy as np

from popart.lab.experiments.regression.config import SMOOTH

QUANTILES = (0.1, 0.5, 0.9)
RESAMPLES = 400


def quantile(errors: np.ndarray, q: float) -> np.ndarray:
    """Interpolate a quantile over the last axis, which is sorted; infinite errors are allowed."""
    at = q * (errors.shape[-1] - 1)
    low, part = int(at), at - int(at)
    a = errors[..., low]
    if not part:
        return a
    b = errors[..., low + 1]
    return np.where(a == b, a, (1 - part) * a + part * b)


def smooth(x: np.ndarray) -> np.ndarray:
    """Return the root mean square of each ten consecutive values of the first axis."""
    x = np.asarray(x, np.float64)
    return np.sqrt((x.reshape(-1, SMOOTH, *x.shape[1:]) ** 2).mean(1))


def curves(errors: np.ndarray) -> np.ndarray:
    """Return the smoothed 10th percentile, median and 90th percentile over repetitions, (3, points)."""
    ordered = np.sort(errors, -1)
    return np.stack([smooth(quantile(ordered, q)) for q in QUANTILES])


def area(errors: np.ndarray) -> float:
    """Return the area under the median curve, per sample."""
    return float(smooth(quantile(np.sort(errors, -1), 0.5)).mean())


def measures(errors: np.ndarray) -> dict[str, float]:
    """Measure a cell of the grid, from errors of shape (samples, repetitions).

    - rmse: the area under the curve of the figure, per sample
    - mean_error: the same, smoothed by averaging errors instead of squares
    - run_rmse: the same, smoothed before the median is taken
    - diverged: the fraction of repetitions with an infinite error
    """
    median = quantile(np.sort(errors, -1), 0.5)
    runs = np.sort(smooth(errors), -1)
    return {
        "rmse": float(smooth(median).mean()),
        "mean_error": float(median.mean(dtype=np.float64)),
        "run_rmse": float(quantile(runs, 0.5).mean()),
        "diverged": float(np.isinf(errors).any(0).mean()),
    }


def interval(errors: np.ndarray, seed: int) -> tuple[float, float]:
    """Return a 95 % interval of the area: ±1.96 standard errors, by resampling repetitions.

    Percentiles of the resampled areas would not do: medians of resampled repetitions are noisier, the squares
    turn noise into bias, and the area itself would lie outside of the interval.
    """
    rng = np.random.default_rng((seed, RESAMPLES))
    n = errors.shape[-1]
    middle = area(errors)
    resampled = [area(errors[:, rng.integers(0, n, n)]) for _ in range(RESAMPLES)]
    if not np.isfinite(resampled).all():
        return middle, np.inf
    margin = 1.96 * float(np.std(resampled, ddof=1))
    return middle - margin, middle + margin
