"""From the errors of a stream's windows to one number, and to a curve."""

from typing import Any

import numpy as np

from popart.lab.experiments.streams.config import CAP, WINDOWS
from popart.lab.intervals import iqm

QUARTER = WINDOWS // 4
LAST = QUARTER // 5


def capped(windows: np.ndarray) -> np.ndarray:
    """Return errors limited to `CAP`; those that are not finite become `CAP`."""
    return np.nan_to_num(windows, nan=CAP, posinf=CAP).clip(None, CAP)


def geometric_mean(x: np.ndarray) -> float:
    return float(np.exp(np.log(x).mean()))


def error(windows: np.ndarray) -> np.ndarray:
    """Return the geometric mean over all windows but the first: the average height of the curve."""
    return np.exp(np.log(capped(windows)[..., 1:]).mean(-1))


def settled(windows: np.ndarray) -> np.ndarray:
    """Return the geometric mean over the last fifth of each quarter; sensors change units after each."""
    quarters = capped(windows).reshape(*windows.shape[:-1], 4, QUARTER)
    return np.exp(np.log(quarters[..., -LAST:]).mean((-1, -2)))


def curve(windows: np.ndarray, samples: int) -> list[dict[str, Any]]:
    """Return the interquartile mean and the quartiles over runs for each window, at its last sample."""
    e = capped(windows).T
    low, high = np.quantile(e, (0.25, 0.75), axis=1)
    ends = samples // WINDOWS * np.arange(1, WINDOWS + 1)
    columns = zip(ends.tolist(), iqm([e]), low, high, strict=True)
    return [{"sample": end, **_short(error=m, low=a, high=b)} for end, m, a, b in columns]


def _short(**numbers: float) -> dict[str, float]:
    return {name: float(f"{x:.4g}") for name, x in numbers.items()}
