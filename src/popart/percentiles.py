r"""Normalisation by percentiles and by minibatch extremes (appendix; Propositions 4 to 6).

Each of these rules follows a lower and an upper bound of the targets, $y^{min}$ and $y^{max}$, and
normalises by $\mu = \frac12(y^{max} + y^{min})$ and $\sigma = \frac12(y^{max} - y^{min})$, which maps
what lies between the bounds to [-1, 1].
"""

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from popart._arrays import (
    Array,
    accumulate,
    asarray,
    divide,
    eps_of,
    namespace,
    take_along_first_axis,
    unit,
)
from popart.affine import Affine
from popart.batches import Batch, Targets, Values
from popart.correspondence import check_ratio
from popart.rules import Rule, check_settings, empty, step_size, tally
from popart.steps import Step


class BoundsState(NamedTuple):
    """Rows of `bounds`: y_min, y_max, and what the last bit of each cannot hold."""

    counts: Array
    bounds: Array

    @property
    def low(self) -> Array:
        return self.bounds[0]

    @property
    def high(self) -> Array:
        return self.bounds[1]


class BoundsSummary(NamedTuple):
    """Total weight of a batch, its least and largest target, and how far it pulls each bound.

    The pulls are quarters, because the whole is up to four times the largest target.
    """

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

    @abstractmethod
    def _pulls(self, y: Array, low: Array, high: Array, one: Array) -> tuple[Array, Array]:
        """How far each target would move y_min and y_max with a step of 1.

        All in a unit in which a length of 1 in the targets' own units is `one`.
        """

    def init(self, shape: Sequence[int] = (), like: Array = None) -> BoundsState:
        zero, counts = empty(shape, like)
        start = math.sqrt(self.nu0 or 0.0)
        return BoundsState(counts, namespace(zero).stack((zero - start, zero + start, zero, zero)))

    def affine(self, state: BoundsState) -> Affine:
        return _between(state.low, state.high, (state.counts[0] > 0) | (self.nu0 is not None))

    def _summarize(self, state: BoundsState, targets: Targets) -> BoundsSummary:
        least, largest = targets.range()
        u, per_u = unit(state.low, state.high, least, largest)
        low, high, per_u = (x[..., None] for x in (state.low * per_u, state.high * per_u, per_u))

        def terms(v: Values) -> tuple[Array, ...]:
            return *v.totals(), *map(v.weighted, self._pulls(v.y * per_u, low, high, per_u))

        weight, skipped, down, up = targets.sums(terms)
        down, up = u * (divide(down, weight) / 4), u * (divide(up, weight) / 4)
        return BoundsSummary(weight, least, largest, down, up, skipped)

    def _merge(self, stacked: BoundsSummary) -> BoundsSummary:
        n, least, largest, down, up, skipped = stacked
        weight = n.sum(0)
        least, _ = Targets(Batch(least[..., None], weights=n[..., None])).range()
        _, largest = Targets(Batch(largest[..., None], weights=n[..., None])).range()
        share = divide(n, weight)
        down, up = (share * down).sum(0), (share * up).sum(0)
        return BoundsSummary(weight, least, largest, down, up, skipped.sum(0))

    def _absorb(self, state: BoundsState, summary: BoundsSummary) -> BoundsState:
        xp = namespace(state.bounds)
        weight, least, largest, down, up, skipped = summary
        beta, _ = step_size(self.beta, self.nu0, state.counts[0], state.low)
        u, per_u = unit(state.low, state.high, least, largest)
        low, high, low_carry, high_carry = state.bounds * per_u
        low, low_carry = accumulate(low, low_carry, beta * (4 * (down * per_u)))
        high, high_carry = accumulate(high, high_carry, beta * (4 * (up * per_u)))
        moved = u * xp.stack((xp.minimum(low, high), xp.maximum(low, high), low_carry, high_carry))
        first = state.counts[0] == 0
        least = xp.where(first, least, xp.minimum(state.low, least))
        largest = xp.where(first, largest, xp.maximum(state.high, largest))
        seen = xp.stack((least, largest, 0 * least, 0 * largest))
        flat = (state.low == state.high) & (self.nu0 is None)
        bounds = xp.where(weight > 0, xp.where(flat, seen, moved), state.bounds)
        return BoundsState(tally(state.counts, weight, skipped), bounds)


@dataclass(frozen=True)
class Percentiles(_Bounds):
    r"""Follow the percentiles between which a part p of the targets lies (Eq. 7 and 8, Proposition 5).

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

    def _pulls(self, y: Array, low: Array, high: Array, one: Array) -> tuple[Array, Array]:
        step = high - low if self.relative else one
        below, above = (asarray(namespace(y), x, y.dtype, y) for x in (y < low, y > high))
        return step * ((1 - self.p) / 2 - below), step * (above - (1 - self.p) / 2)


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

    def _pulls(self, y: Array, low: Array, high: Array, one: Array) -> tuple[Array, Array]:
        xp = namespace(y)
        inside = (1 - self.p) / (1 + self.p)
        down, up = y - low, y - high
        return xp.where(down < 0, down, inside * down), xp.where(up > 0, up, inside * up)


@dataclass(frozen=True)
class Extremes(_Bounds):
    r"""Follow the extremes of minibatches (Eq. 9, Proposition 6).

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
        least, largest = targets.range()
        weight, skipped = targets.sums(Values.totals)
        return BoundsSummary(weight, least, largest, 0 * least, 0 * largest, skipped)

    def _pulls(self, y: Array, low: Array, high: Array, one: Array) -> tuple[Array, Array]:
        return y - low, y - high

    def _absorb(self, state: BoundsState, summary: BoundsSummary) -> BoundsState:
        u, per_u = unit(state.low, state.high, summary.least, summary.largest)
        down, _ = self._pulls(summary.least * per_u, state.low * per_u, state.low, per_u)
        _, up = self._pulls(summary.largest * per_u, state.low, state.high * per_u, per_u)
        return super()._absorb(state, summary._replace(pull_low=u * (down / 4), pull_high=u * (up / 4)))


class OrderStatisticsState(NamedTuple):
    """The last targets, oldest first, with their weights: 0 where there is none yet."""

    counts: Array
    values: Array
    weights: Array


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
        _, counts = empty(shape, like)
        values, weights = (empty((self.capacity, *shape), like)[0] for _ in range(2))
        return OrderStatisticsState(counts, values, weights)

    def affine(self, state: OrderStatisticsState) -> Affine:
        xp = namespace(state.values)
        order = xp.argsort(xp.where(state.weights > 0, state.values, math.inf), axis=0, stable=True)
        y = take_along_first_axis(state.values, order)
        w = take_along_first_axis(state.weights, order)
        t = w.sum(0)
        middle, half = (t + 1) / 2, self.p * (t - 1) / 2
        return _between(_order_statistic(y, w, middle - half), _order_statistic(y, w, middle + half), t > 0)

    def _summarize(self, state: OrderStatisticsState, targets: Targets) -> OrderStatisticsSummary:
        values = targets.values
        xp = namespace(values.y)
        _, skipped = targets.sums(Values.totals)
        w, _ = values.totals()
        y, w = (xp.moveaxis(x, -1, 1) for x in (values.y, w))
        shape = (-1, *w.shape[2:])
        return OrderStatisticsSummary(y.reshape(shape), w.reshape(shape), skipped)

    def _merge(self, stacked: OrderStatisticsSummary) -> OrderStatisticsSummary:
        shape = (-1, *stacked.values.shape[2:])
        return OrderStatisticsSummary(
            stacked.values.reshape(shape), stacked.weights.reshape(shape), stacked.skipped.sum(0)
        )

    def _absorb(self, state: OrderStatisticsState, summary: OrderStatisticsSummary) -> OrderStatisticsState:
        xp = namespace(state.values)
        values = xp.concatenate((state.values, summary.values))
        weights = xp.concatenate((state.weights, summary.weights))
        order = xp.argsort(xp.where(weights > 0, 1, 0), axis=0, stable=True)[-self.capacity :]
        return OrderStatisticsState(
            tally(state.counts, summary.weights.sum(0), summary.skipped),
            take_along_first_axis(values, order),
            take_along_first_axis(weights, order),
        )


def _order_statistic(y: Array, w: Array, n: Array) -> Array:
    """The n-th smallest of sorted y, where y_i counts w_i times.

    Laid end to end, the targets cover the line from 0 to t. The average over the unit interval that
    ends at n is the n-th for integer n, and interpolates linearly in between.
    """
    xp = namespace(y)
    end = xp.cumsum(w, axis=0)
    covered = (xp.minimum(end, n) - xp.maximum(end - w, n - 1)).clip(0, None)
    u, per_u = unit(xp.amax(xp.abs(y), axis=0))
    return u * divide((covered * (y * per_u)).sum(0), covered.sum(0))


def _between(low: Array, high: Array, seen: Array) -> Affine:
    """The map that takes [low, high] to [-1, 1]."""
    xp = namespace(low)
    shift, scale = low / 2 + high / 2, high / 2 - low / 2
    floor = eps_of(shift) * xp.abs(shift)
    return Affine(xp.where(scale > 0, xp.maximum(scale, floor), 0.0), shift, seen)
