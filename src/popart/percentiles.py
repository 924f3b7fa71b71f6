r"""Normalisation by percentiles and by minibatch extremes (appendix; Propositions 4 to 6).

Each of these rules follows a lower and an upper bound of the targets, $y^{min}$ and $y^{max}$, and
normalises by $\mu = \frac12(y^{max} + y^{min})$ and $\sigma = \frac12(y^{max} - y^{min})$, which maps
targets between the bounds to [-1, 1].
"""

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from popart._arrays import Array, cast, namespace
from popart.affine import Affine
from popart.batches import Batch
from popart.correspondence import check_ratio
from popart.numerics import accumulate, joined, split, unit
from popart.rules import Rule, check_settings, step_size, tally, without_precision, zeros
from popart.steps import StepSize


class BoundsState(NamedTuple):
    """Rows of `bounds`: y_min, y_max, and the rounding remainder of each."""

    counts: Array
    bounds: Array

    @property
    def low(self) -> Array:
        return self.bounds[0]

    @property
    def high(self) -> Array:
        return self.bounds[1]


@dataclass(frozen=True, repr=False)
class Bounds(Rule[BoundsState]):
    """The base of the rules in this module. Until targets differ, the bounds are the range of all targets."""

    beta: float | StepSize = 1e-2
    p: float = 0.95
    nu0: float | None = None

    adopts = False
    """Whether a step of 1 sets the bounds to the range of the batch."""

    def __post_init__(self) -> None:
        without_precision(self)
        check_settings(self.beta, self.nu0)
        check_ratio(self.p)

    @abstractmethod
    def moves(self, batch: Batch, bounds: Array, one: Array) -> tuple[Array, Array]:
        """Return how far a batch moves y_min and y_max with a step of 1.

        All arguments are in one unit, in which `one` is 1 in the targets' own units.
        """

    def init(self, shape: Sequence[int] = (), like: Array = None) -> BoundsState:
        counts, zero = zeros(shape, like)
        start = math.sqrt(self.nu0 or 0.0)
        return BoundsState(counts, namespace(zero).stack((zero - start, zero + start, zero, zero)))

    def absorb(self, state: BoundsState, batch: Batch) -> BoundsState:
        batch = batch.mirrored() if self.symmetric else batch
        xp, bounds = namespace(batch.y), state.bounds
        least, largest = batch.range()
        beta, _ = step_size(self.beta, self.nu0, state.counts[0], least)
        if batch.wide:
            now = joined(bounds[:2], bounds[2:], least.dtype)
            low, high = now + beta * xp.stack(self.moves(batch, now, 1.0))
            new = xp.concatenate(split(_in_order(low, high), bounds.dtype))
        else:
            u, per_u = unit(bounds[0], bounds[1], least, largest)
            now = bounds * per_u
            moves = self.moves(batch._replace(y=batch.y * batch.each(per_u)), now[:2], per_u)
            (low, high), carry = accumulate(now[:2], now[2:], beta * xp.stack(moves))
            new = u * xp.concatenate((_in_order(low, high), carry))
        if self.adopts:
            found = cast(xp.stack((least, largest, 0 * least, 0 * largest)), bounds.dtype)
            new = xp.where(beta >= 1, found, new)
        if self.nu0 is None:
            first = state.counts[0] == 0
            least = xp.where(first, least, xp.minimum(state.low, least))
            largest = xp.where(first, largest, xp.maximum(state.high, largest))
            seen = cast(xp.stack((least, largest, 0 * least, 0 * largest)), bounds.dtype)
            new = xp.where(state.low == state.high, seen, new)
        return BoundsState(tally(state.counts, batch), batch.where_counted(new, bounds))

    def affine(self, state: BoundsState) -> Affine:
        low, high, seen = state.low, state.high, self.nu0 is not None or state.counts[0] > 0
        return self.finish(high / 2 - low / 2, low / 2 + high / 2, seen)


def _in_order(low: Array, high: Array) -> Array:
    xp = namespace(low)
    return xp.stack((xp.minimum(low, high), xp.maximum(low, high)))


@dataclass(frozen=True, repr=False)
class Percentiles(Bounds):
    r"""Follow the percentiles between which a part p of the targets lies (Eq. 7 and 8, Proposition 5).

    $$y^{max}_t = y^{max}_{t-1} + \beta_t \left(I(Y_t > y^{max}_{t-1}) - \tfrac{1-p}{2}\right) \qquad
      y^{min}_t = y^{min}_{t-1} - \beta_t \left(I(Y_t < y^{min}_{t-1}) - \tfrac{1-p}{2}\right)$$

    Args:
        beta: the step size: a float for `debiased(beta)`, or a function of t.
        p: the fraction of the targets that is normalised into [-1, 1].
        nu0: initial bounds $\mp\sqrt{\nu_0}$, instead of the range of the first targets; a float
            `beta` is then `constant(beta)`.
        relative: steps are multiplied by the current spread $y^{max} - y^{min}$, so that scale does
            not matter. `False` is the paper's equation, with steps in the units of the targets.
    """

    relative: bool = True

    def moves(self, batch: Batch, bounds: Array, one: Array) -> tuple[Array, Array]:
        (low, high), y = bounds, batch.y
        step = high - low if self.relative else one
        below, above = (batch.mean(cast(x, y.dtype)) for x in (y < batch.each(low), y > batch.each(high)))
        return step * ((1 - self.p) / 2 - below), step * (above - (1 - self.p) / 2)


@dataclass(frozen=True, repr=False)
class Expectiles(Bounds):
    r"""Follow expectiles: percentile-like bounds with steps in proportion to the errors.

    The asymmetric least-squares form that the paper suggests where fixed steps are too slow. With
    $\tau = (1 + p) / 2$, $y^{max}$ goes to the expectile where
    $\tau E[(Y - y)_+] = (1 - \tau) E[(y - Y)_+]$ and $y^{min}$ to its mirror image:

    $$y^{max}_t = y^{max}_{t-1} + \beta_t w (Y_t - y^{max}_{t-1}) \qquad
      w = 1 \text{ if } Y_t > y^{max}_{t-1} \text{ else } \tfrac{1-\tau}{\tau}$$

    The arguments are those of `Percentiles`.
    """

    def moves(self, batch: Batch, bounds: Array, one: Array) -> tuple[Array, Array]:
        where, inside = namespace(bounds).where, (1 - self.p) / (1 + self.p)
        down, up = batch.y - batch.each(bounds[0]), batch.y - batch.each(bounds[1])
        down, up = where(down < 0, down, inside * down), where(up > 0, up, inside * up)
        return batch.mean(down), batch.mean(up)


@dataclass(frozen=True, repr=False)
class Extremes(Bounds):
    r"""Follow the extremes of minibatches (Eq. 9, Proposition 6).

    $$y^{min}_t = (1 - \beta_t) y^{min}_{t-1} + \beta_t \min_b Y_{t,b} \qquad
      y^{max}_t = (1 - \beta_t) y^{max}_{t-1} + \beta_t \max_b Y_{t,b}$$

    For minibatches of at least two: a single target has no spread. The part p that lies within follows from
    the size of the minibatch (`popart.correspondence`). The other arguments are those of `Percentiles`.
    """

    p: float = 1.0

    adopts = True

    def moves(self, batch: Batch, bounds: Array, one: Array) -> tuple[Array, Array]:
        least, largest = batch.range()
        return least - bounds[0], largest - bounds[1]
