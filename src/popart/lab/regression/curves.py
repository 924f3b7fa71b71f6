"""From the errors of repeated runs to a curve, and from a curve to a number.

The figure shows, for each ten consecutive samples, the root of the mean of their squared errors, where the
error of a sample is the median over repetitions. The paper says that it is the median, a root mean squared
error, and smoothed over ten samples; not in which order. The other orders are computed too.
"""

import numpy as np

from popart.lab.regression import SMOOTH

QUANTILES = (0.1, 0.5, 0.9)
RESAMPLES = 400


def quantile(errors: np.ndarray, q: float) -> np.ndarray:
    """Over the last axis, which is sorted, by linear interpolation; also between infinite errors."""
    at = q * (errors.shape[-1] - 1)
    low, part = int(at), at - int(at)
    a = errors[..., low]
    if not part:
        return a
    b = errors[..., low + 1]
    return np.where(a == b, a, (1 - part) * a + part * b)


def smooth(x: np.ndarray) -> np.ndarray:
    """The root of the mean of squares of each ten consecutive values of the first axis."""
    x = np.asarray(x, np.float64)
    return np.sqrt((x.reshape(-1, SMOOTH, *x.shape[1:]) ** 2).mean(1))


def curves(errors: np.ndarray) -> np.ndarray:
    """The 10th percentile, median and 90th percentile over repetitions, smoothed: (3, points)."""
    ordered = np.sort(errors, -1)
    return np.stack([smooth(quantile(ordered, q)) for q in QUANTILES])


def area(errors: np.ndarray) -> float:
    """Of the median curve, per sample."""
    return float(smooth(quantile(np.sort(errors, -1), 0.5)).mean())


def measures(errors: np.ndarray) -> dict[str, float]:
    """What is told of a cell of the grid, from errors of shape (samples, repetitions).

    - rmse: the area under the curve of the figure, per sample
    - mean_error: the same, smoothed by averaging errors instead of squares
    - run_rmse: the same, smoothed before the median is taken
    - diverged: the part of the runs that did not end with finite errors
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
    """A 95 % interval of the area: 1.96 standard errors about it, from resampled repetitions.

    Not percentiles of the resampled areas: medians of resampled runs are noisier, squares make that a bias,
    and the area itself would lie outside.
    """
    rng = np.random.default_rng((seed, RESAMPLES))
    n = errors.shape[-1]
    middle = area(errors)
    resampled = [area(errors[:, rng.integers(0, n, n)]) for _ in range(RESAMPLES)]
    if not np.isfinite(resampled).all():
        return middle, np.inf
    margin = 1.96 * float(np.std(resampled, ddof=1))
    return middle - margin, middle + margin
