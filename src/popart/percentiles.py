r"""Normalisation by percentiles and by minibatch extremes (appendix; Propositions 4 to 6).

Each of these rules follows a lower and an upper bound of the targets, $y^{min}$ and $y^{max}$, and
normalises by $\mu = \frac12(y^{max} + y^{min})$ and $\sigma = \frac12(y^{max} - y^{min})$, which maps
what lies between the bounds to [-1, 1].
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from popart._arrays import (
    Array,
    accumulate,
    add_to_count,
    divide,
    namespace,
    power_of_two,
    take_along_first_axis,
)
from popart.affine import Affine
from popart.correspondence import check_ratio
from popart.rules import (
    Rule,
    Targets,
    check_settings,
    counted,
    empty,
    resolution,
    step_size,
    weighted_range,
)
from popart.steps import Step


class BoundsState(NamedTuple):
    """y_min and y_max, each with the part that its last bit cannot hold."""

    count: Array
    low: Array
    low_carry: Array
    high: Array
    high_carry: Array
    skipped: Array


class BoundsSummary(NamedTuple):
    """Total weight of a batch, its least and largest target, and how far it pulls each bound."""

    weight: Array
    least: Array
    largest: Array
    pull_low: Array
    pull_high: Array
    skipped: Array


class _Bounds(Rule[BoundsState, BoundsSummary]):
    """What the online rules share. While no spread has been seen the bounds are the range seen."""

    beta: float | Step
    nu0: float | None

    def _pulls(self, y: Array, low: Array, high: Array, u: Array) -> tuple[Array, Array]:
        """How far each target would move y_min and y_max with a step of 1, all in units of u."""
        raise NotImplementedError

    def init(self, shape: Sequence[int] = (), like: Array = None) -> BoundsState:
        zero, count = empty(shape, like)
        start = math.sqrt(self.nu0 or 0.0)
        return BoundsState(count, zero - start, zero, zero + start, zero, count)

    def affine(self, state: BoundsState) -> Affine:
        return _between(state.low, state.high, (state.count > 0) | (self.nu0 is not None))

    def _summarize(self, state: BoundsState, targets: Targets) -> BoundsSummary:
        y, w, skipped = targets
        weight, least, largest = weighted_range(y, w)
        u = _unit(state.low, state.high, least, largest)
        pulls = self._pulls(y / u, state.low / u, state.high / u, u)
        down, up = (u * divide((w * pull).sum(0), weight) for pull in pulls)
        return BoundsSummary(weight, least, largest, down, up, skipped)

    def _merge(self, stacked: BoundsSummary) -> BoundsSummary:
        n, least, largest, down, up, skipped = stacked
        weight, least, _ = weighted_range(least, n)
        _, _, largest = weighted_range(largest, n)
        share = divide(n, weight)
        down, up = (share * down).sum(0), (share * up).sum(0)
        return BoundsSummary(weight, least, largest, down, up, skipped.sum(0))

    def _absorb(self, state: BoundsState, summary: BoundsSummary) -> BoundsState:
        xp = namespace(state.low)
        weight, least, largest, down, up, skipped = summary
        beta, _ = step_size(self.beta, self.nu0, state.count, state.low)
        u = _unit(state.low, state.high, least, largest)
        low, low_carry = accumulate(state.low / u, state.low_carry / u, beta * (down / u))
        high, high_carry = accumulate(state.high / u, state.high_carry / u, beta * (up / u))
        low, high = xp.minimum(low, high), xp.maximum(low, high)
        first = state.count == 0
        flat = (state.low == state.high) & (self.nu0 is None)
        new = BoundsState(
            state.count,
            xp.where(flat, xp.where(first, least, xp.minimum(state.low, least)), u * low),
            xp.where(flat, 0.0, u * low_carry),
            xp.where(flat, xp.where(first, largest, xp.maximum(state.high, largest)), u * high),
            xp.where(flat, 0.0, u * high_carry),
            state.skipped,
        )
        return counted(state, new, weight, skipped)


@dataclass(frozen=True)
class Percentiles(_Bounds):
    r"""Follow the percentiles between which a part p of the targets lies (Eq. 5, Proposition 5).

    $$y^{max}_t = y^{max}_{t-1} + \beta_t \left(I(Y_t > y^{max}_{t-1}) - \tfrac{1-p}{2}\right) \qquad
      y^{min}_t = y^{min}_{t-1} - \beta_t \left(I(Y_t < y^{min}_{t-1}) - \tfrac{1-p}{2}\right)$$

    Args:
        beta: the step size: a float for `debiased(beta)`, or a function of t.
        p: the part of the targets that is to be normalised into [-1, 1].
        relative: steps are multiplied by the current spread $y^{max} - y^{min}$, so that scale does
            not matter. `False` is the paper's equation, with steps in the units of the targets.
        nu0: start from $\mp\sqrt{\nu_0}$ instead of adopting the first targets' range; a float
            `beta` is then `constant(beta)`.
    """

    beta: float | Step = 1e-2
    p: float = 0.95
    relative: bool = True
    nu0: float | None = None

    def __post_init__(self) -> None:
        check_settings(self.beta, self.nu0)
        check_ratio(self.p)

    def _pulls(self, y: Array, low: Array, high: Array, u: Array) -> tuple[Array, Array]:
        xp = namespace(y)
        step = high - low if self.relative else 1 / u
        beyond = (1 - self.p) / 2
        down = xp.where(y < low, beyond - 1, beyond)
        up = xp.where(y > high, 1 - beyond, -beyond)
        return step * down, step * up


@dataclass(frozen=True)
class Expectiles(_Bounds):
    r"""Follow expectiles: percentile-like bounds with steps in proportion to the errors.

    The asymmetric least-squares form that the paper suggests where fixed steps are too slow. With
    $\tau = (1 + p) / 2$, $y^{max}$ goes to the expectile where
    $\tau E[(Y - y)_+] = (1 - \tau) E[(y - Y)_+]$ and $y^{min}$ to its mirror image:

    $$y^{max}_t = y^{max}_{t-1} + \beta_t w (Y_t - y^{max}_{t-1}) \qquad
      w = 1 \text{ if } Y_t > y^{max}_{t-1} \text{ else } \tfrac{1-\tau}{\tau}$$

    The arguments are those of `Percentiles`.
    """

    beta: float | Step = 1e-2
    p: float = 0.95
    nu0: float | None = None

    def __post_init__(self) -> None:
        check_settings(self.beta, self.nu0)
        check_ratio(self.p)

    def _pulls(self, y: Array, low: Array, high: Array, u: Array) -> tuple[Array, Array]:
        xp = namespace(y)
        inside = (1 - self.p) / (1 + self.p)
        down, up = y - low, y - high
        return xp.where(down < 0, down, inside * down), xp.where(up > 0, up, inside * up)


@dataclass(frozen=True)
class Extremes(_Bounds):
    r"""Follow the extremes of minibatches (Eq. 7, Proposition 6).

    $$y^{min}_t = (1 - \beta_t) y^{min}_{t-1} + \beta_t \min_b Y_{t,b} \qquad
      y^{max}_t = (1 - \beta_t) y^{max}_{t-1} + \beta_t \max_b Y_{t,b}$$

    For minibatches of at least two: a single target has no spread. `beta` and `nu0` are those of
    `Percentiles`.
    """

    beta: float | Step = 1e-2
    nu0: float | None = None

    def __post_init__(self) -> None:
        check_settings(self.beta, self.nu0)

    def _summarize(self, state: BoundsState, targets: Targets) -> BoundsSummary:
        weight, least, largest = weighted_range(targets.values, targets.weights)
        return BoundsSummary(weight, least, largest, least * 0, largest * 0, targets.skipped)

    def _absorb(self, state: BoundsState, summary: BoundsSummary) -> BoundsState:
        u = _unit(state.low, state.high, summary.least, summary.largest)
        down = u * (summary.least / u - state.low / u)
        up = u * (summary.largest / u - state.high / u)
        return super()._absorb(state, summary._replace(pull_low=down, pull_high=up))


class OrderStatisticsState(NamedTuple):
    """The last targets, oldest first, with their weights: 0 where there is none yet."""

    count: Array
    values: Array
    weights: Array
    skipped: Array


class OrderStatisticsSummary(NamedTuple):
    """The batch itself, `(n, *shape)`."""

    values: Array
    weights: Array
    skipped: Array


@dataclass(frozen=True)
class OrderStatistics(Rule[OrderStatisticsState, OrderStatisticsSummary]):
    r"""Exact percentiles of all data, from its order statistics (appendix).

    With t targets, $n^\pm = \frac{t+1}{2} \pm p \frac{t-1}{2}$ and $Y^{(n)}$ the n-th smallest,
    interpolated linearly for n between integers, $y^{min} = Y^{(n^-)}$ and $y^{max} = Y^{(n^+)}$.
    (The paper's two goal equations have these exchanged; its solution for $\mu$ and $\sigma$ is
    what is meant.)

    A reference for the online rules: it stores and sorts its targets.

    Args:
        p: the part of the targets that is to be normalised into [-1, 1].
        capacity: how many targets to keep; beyond that, the most recent ones.
    """

    p: float = 0.95
    capacity: int = 4096

    def __post_init__(self) -> None:
        check_ratio(self.p)
        if not self.capacity >= 1:
            raise ValueError(f"capacity is {self.capacity!r}; it must be at least 1")

    def init(self, shape: Sequence[int] = (), like: Array = None) -> OrderStatisticsState:
        _, count = empty(shape, like)
        values, _ = empty((self.capacity, *shape), like)
        return OrderStatisticsState(count, values, values, count)

    def affine(self, state: OrderStatisticsState) -> Affine:
        xp = namespace(state.values)
        order = xp.argsort(xp.where(state.weights > 0, state.values, math.inf), axis=0, stable=True)
        y = take_along_first_axis(state.values, order)
        w = take_along_first_axis(state.weights, order)
        t = w.sum(0)
        middle, half = (t + 1) / 2, self.p * (t - 1) / 2
        return _between(
            _order_statistic(y, w, middle - half), _order_statistic(y, w, middle + half), t > 0
        )

    def _summarize(self, state: OrderStatisticsState, targets: Targets) -> OrderStatisticsSummary:
        y = targets.values + namespace(targets.weights).zeros_like(targets.weights)
        return OrderStatisticsSummary(y, targets.weights, targets.skipped)

    def _merge(self, stacked: OrderStatisticsSummary) -> OrderStatisticsSummary:
        shape = (-1, *stacked.values.shape[2:])
        return OrderStatisticsSummary(
            stacked.values.reshape(shape), stacked.weights.reshape(shape), stacked.skipped.sum(0)
        )

    def _absorb(
        self, state: OrderStatisticsState, summary: OrderStatisticsSummary
    ) -> OrderStatisticsState:
        xp = namespace(state.values)
        values = xp.concatenate((state.values, summary.values))
        weights = xp.concatenate((state.weights, summary.weights))
        order = xp.argsort(xp.where(weights > 0, 1, 0), axis=0, stable=True)[-self.capacity :]
        got = xp.any(summary.weights > 0, axis=0)
        return OrderStatisticsState(
            add_to_count(state.count, xp.where(got, 1, 0)),
            take_along_first_axis(values, order),
            take_along_first_axis(weights, order),
            add_to_count(state.skipped, summary.skipped),
        )


def _order_statistic(y: Array, w: Array, n: Array) -> Array:
    """The n-th smallest of sorted y, where y_i counts w_i times.

    Laid end to end, the targets cover the line from 0 to t. The average over the unit interval that
    ends at n is the n-th for integer n, and interpolates linearly in between.
    """
    xp = namespace(y)
    end = xp.cumsum(w, axis=0)
    covered = (xp.minimum(end, n) - xp.maximum(end - w, n - 1)).clip(0, None)
    u = power_of_two(xp.amax(xp.abs(y), axis=0))
    return u * divide((covered * (y / u)).sum(0), covered.sum(0))


def _between(low: Array, high: Array, seen: Array) -> Affine:
    """The map that takes [low, high] to [-1, 1]."""
    xp = namespace(low)
    shift, scale = low / 2 + high / 2, high / 2 - low / 2
    return Affine(xp.where(scale > 0, xp.maximum(scale, resolution(shift)), 0.0), shift, seen)


def _unit(*arrays: Array) -> Array:
    """A power of two of the size of the largest of all."""
    xp = namespace(*arrays)
    largest = xp.abs(arrays[0])
    for x in arrays[1:]:
        largest = xp.maximum(largest, xp.abs(x))
    return power_of_two(largest)
