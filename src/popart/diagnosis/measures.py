"""Numbers that describe a stream of targets: size, drift, tails, clipping, cancellation, equal targets."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

Floats = np.ndarray[Any, np.dtype[np.float64]]

TENTHS = 10
"""Number of parts of a stream whose location and scale are compared."""

FEWEST = 100
"""Smallest number of targets of which drift and tails are measured.

Of 2,000 streams of 50 independent targets, 19 from a normal, 135 from a Laplace and 249 from a t distribution
with 3 degrees of freedom seemed to change; with 100 targets, 0, 2 and 19.
"""

TOP = 0.01
"""Part of the targets, the farthest from the mean, whose share of the variance is measured."""


@dataclass(frozen=True)
class Measures:
    """Measures of a stream. Drift, tails and the bulk do not depend on the unit of the targets.

    Drift and tails are NaN with fewer than 100 targets: the tenths of so short a stream differ by chance.
    """

    count: int
    """Number of finite targets."""

    nonfinite: int
    """Number of targets that are NaN or infinite; they are left out of everything else."""

    mean: float
    std: float

    rms: float
    """Root mean square of the targets: their size, as a network sees them."""

    smallest: float
    """Smallest magnitude of a target that is not 0."""

    largest: float
    """Largest magnitude of a target."""

    orders: float
    """Orders of magnitude between the 1 % and the 99 % quantile of the magnitudes of targets that are not 0.

    Targets from a normal distribution around 0 have 2.3.
    """

    location_drift: float
    """Range of the means of the ten tenths of the stream, in standard deviations within tenths."""

    scale_drift: float
    """Largest scale of a tenth, divided by the smallest. Constant tenths do not count.

    The scale of a tenth is half the range of its middle 90 %, or its standard deviation if at least half of
    the targets of any tenth are the same.
    """

    scale_fall: float
    """Largest factor by which the scale of a tenth is above that of a later one."""

    kurtosis: float
    """Excess kurtosis within tenths; 0 for a normal distribution."""

    tail_share: float
    """Share of the variance within tenths that 1 % of the targets have; 0.08 for a normal distribution."""

    bulk: float
    """Half the range of the middle 90 % of a tenth, in its standard deviations (the median over tenths).

    With fewer than 100 targets it is that of the whole stream. 1.64 for a normal distribution; 0 if at least
    half of the targets of a tenth are the same.
    """

    zeros: float
    """Share of targets that are 0."""

    longest_run: int
    """Number of targets in the longest run of equal ones."""

    of_rewards: bool
    """Whether rewards and a discount were given: a clip is then one of rewards, the rest is of returns."""

    clipped: float
    """Share of targets (or rewards) that a clip to [-1, 1] would change."""

    clip_loss: float
    """Share of the sum of their magnitudes that a clip to [-1, 1] would remove."""

    naive_std: float
    """Standard deviation from mean of squares minus squared mean in float32; NaN of a negative difference."""

    cancellation: float
    """Relative error of that difference as a variance, if both of its terms are rounded correctly."""


def measure(y: Floats, nonfinite: int, rewards: Floats | None = None) -> Measures:
    """Measure finite targets in the order of time; these are returns if rewards are given."""
    unclipped = y if rewards is None else rewards
    unit = power_of_two(y)
    x = y / unit
    mean, std = mean_and_std(x)
    naive_std, cancellation = naive_variance(y, unit * std)
    return Measures(
        count=len(y),
        nonfinite=nonfinite,
        mean=unit * mean,
        std=unit * std,
        rms=unit * math.sqrt(float(np.mean(x * x))),
        **magnitudes(y, x),
        **drift(x),
        **tails(x),
        zeros=float(np.mean(y == 0)),
        longest_run=longest_run(y),
        of_rewards=rewards is not None,
        clipped=float(np.mean(np.abs(unclipped) > 1)),
        clip_loss=clip_loss(unclipped),
        naive_std=naive_std,
        cancellation=cancellation,
    )


def power_of_two(y: Floats) -> float:
    """Return the power of two at or below the largest magnitude: in this unit nothing overflows."""
    largest = float(np.max(np.abs(y), initial=0.0))
    return 2.0 ** (math.frexp(largest)[1] - 1) if largest else 1.0


def mean_and_std(x: Floats) -> tuple[float, float]:
    """Return mean and standard deviation; of equal targets precisely these and 0."""
    d = x - x[0]
    mean = float(d.mean())
    return float(x[0]) + mean, math.sqrt(float(np.mean((d - mean) ** 2)))


def magnitudes(y: Floats, x: Floats) -> dict[str, float]:
    sizes = np.abs(x[x != 0])
    if not sizes.size:
        return {"smallest": 0.0, "largest": 0.0, "orders": 0.0}
    low, high = np.quantile(sizes, [0.01, 0.99])
    nonzero = np.abs(y[y != 0])
    return {
        "smallest": float(nonzero.min()),
        "largest": float(nonzero.max()),
        "orders": float(np.log10(high) - np.log10(low)),
    }


def tenths(x: Floats) -> list[Floats]:
    """Return ten parts of the stream in the order of time, or all of it if it has too few targets."""
    return np.array_split(x, TENTHS if len(x) >= FEWEST else 1)


def middle(x: Floats) -> float:
    """Return half the range of the middle 90 %, or 0 if the middle half is one number."""
    low, first, third, high = np.quantile(x, [0.05, 0.25, 0.75, 0.95])
    return float(high - low) / 2 if third > first else 0.0


def drift(x: Floats) -> dict[str, float]:
    if len(x) < FEWEST:
        return dict.fromkeys(("location_drift", "scale_drift", "scale_fall"), math.nan)
    parts = tenths(x)
    means, stds = np.array([mean_and_std(part) for part in parts]).T
    middles = np.array([middle(part) for part in parts])
    within = math.sqrt(float(np.mean(stds**2)))
    gap = float(np.ptp(means))
    scales = middles if (middles > 0).all() else stds
    spread = scales[scales > 0]
    later = np.minimum.accumulate(spread[::-1])[::-1] if spread.size else spread
    return {
        "location_drift": gap / within if within else math.inf if gap else 0.0,
        "scale_drift": float(spread.max() / spread.min()) if spread.size else 1.0,
        "scale_fall": float((spread / later).max()) if spread.size else 1.0,
    }


def tails(x: Floats) -> dict[str, float]:
    standard: list[Floats] = []
    bulks: list[float] = []
    for part in tenths(x):
        mean, std = mean_and_std(part)
        if std > 0:
            standard.append((part - mean) / std)
            bulks.append(middle(part) / std)
    bulk = float(np.median(bulks)) if bulks else 0.0
    if len(x) < FEWEST:
        return {"kurtosis": math.nan, "tail_share": math.nan, "bulk": bulk}
    if not standard:
        return {"kurtosis": 0.0, "tail_share": 0.0, "bulk": bulk}
    squares = np.sort(np.concatenate(standard) ** 2)
    top = math.ceil(TOP * squares.size)
    return {
        "kurtosis": float(np.mean(squares**2)) - 3,
        "tail_share": float(squares[-top:].sum() / squares.sum()),
        "bulk": bulk,
    }


def longest_run(y: Floats) -> int:
    changes = np.flatnonzero(np.diff(y) != 0) + 1
    return int(np.diff(np.concatenate(([0], changes, [len(y)]))).max())


def clip_loss(y: Floats) -> float:
    unit = max(power_of_two(y), 1.0)
    total = float(np.sum(np.abs(y) / unit))
    return 1 - float(np.sum(np.minimum(np.abs(y), 1.0) / unit)) / total if total else 0.0


def naive_variance(y: Floats, std: float) -> tuple[float, float]:
    """Return the root of the naive variance in float32, and the relative error of this variance."""
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        nu, mu = np.float32(np.mean(y * y)), np.float32(np.mean(y))
        naive = float(nu - mu * mu)
    root = math.sqrt(naive) if naive >= 0 else math.nan
    if not math.isfinite(naive) or std == 0:
        return root, 0.0 if naive == 0 else math.inf
    return root, abs(naive / std / std - 1)  # one division at a time: the square may be 0 even in float64
