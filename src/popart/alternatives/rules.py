"""Rules that scale without a shift: return-based scaling, and DreamerV3's percentile span."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from popart._arrays import Array, cast, namespace
from popart.affine import Affine
from popart.batches import Across, Batch
from popart.moments import Moments, MomentsState
from popart.numerics import unit
from popart.rules import Rule, check_settings, step_size, tally, without_precision, zeros
from popart.steps import StepSize, harmonic

ALL_DATA = harmonic()
"""The step size that gives all data the same weight."""


@dataclass(frozen=True, repr=False)
class ReturnScaling(Rule[MomentsState]):
    r"""Scale by the spread of rewards and returns (Schaul et al., 2021, arXiv 2105.05347), without a shift.

    $$\sigma^2 = V[R] + V[\gamma] E[G^2]$$

    with rewards R, discounts $\gamma$ (0 at the end of an episode) and returns G. Updates take all three,
    stacked on the last axis. So do heads, whose normalised targets are then the last of the three:

        y = head.update(torch.stack((rewards, discounts, returns), -1))[..., -1]

    The paper divides temporal-difference errors by this scale and leaves outputs as they are. As a rule of
    Pop-Art it divides outputs, too, and is therefore free of scale.

    It cannot be measured from targets alone. `head.loss` takes only targets, and does not work with it.
    There is no shift: targets with a large mean beside their spread stay large. The scale is 0 while all
    rewards are the same and no episode has ended.

    Args:
        beta: the step size of the three statistics; by default all data count the same, as in the paper.
    """

    beta: float | StepSize = ALL_DATA
    symmetric: bool = True

    def __post_init__(self) -> None:
        without_precision(self)
        check_settings(self.beta, None)
        if not self.symmetric:
            raise ValueError("symmetric is False; return-based scaling has no shift")

    @property
    def _moments(self) -> Moments:
        return Moments(self.beta)

    def init(self, shape: Sequence[int] = (), like: Array = None) -> MomentsState:
        return self._moments.init((*shape, 3), like)

    def update(
        self,
        state: MomentsState,
        targets: Array,
        *,
        mask: Array = None,
        weights: Array = None,
        index: Array = None,
        across: Across | None = None,
    ) -> MomentsState:
        """Return the state after a batch of rewards, discounts and returns, `(*batch, *shape, 3)`."""
        if not getattr(targets, "ndim", 0) or targets.shape[-1] != 3:
            raise ValueError(
                f"targets have shape {tuple(getattr(targets, 'shape', ()))}; return-based scaling measures "
                "rewards, discounts and returns, stacked on a last axis of 3"
            )
        given = {"mask": mask, "weights": weights, "index": index, "across": across}
        return self._moments.update(state, targets, **given)

    def absorb(self, state: MomentsState, batch: Batch) -> MomentsState:
        return self._moments.absorb(state, batch)

    def affine(self, state: MomentsState) -> Affine:
        (_, _, mean), (reward, discount, spread) = (_last_axis(x) for x in (state.mu, state.sigma))
        xp = namespace(mean)
        u, per_u = unit(reward, mean, spread)
        squares = ((x * per_u) ** 2 for x in (reward, discount * mean, discount * spread))
        scale = u * xp.sqrt(sum(squares))
        return self.finish(cast(scale, mean.dtype), 0 * mean, state.counts[0][..., 0] > 0)


def _last_axis(x: Array) -> tuple[Array, Array, Array]:
    return x[..., 0], x[..., 1], x[..., 2]


class SpanState(NamedTuple):
    """The running difference of two percentiles."""

    counts: Array
    span: Array


@dataclass(frozen=True, repr=False)
class PercentileSpan(Rule[SpanState]):
    r"""Scale by the range of returns between two percentiles (DreamerV3, arXiv 2301.04104), without a shift.

    $$S_t = (1 - \beta_t) S_{t-1} + \beta_t \left(\mathrm{Per}(Y_t, high) - \mathrm{Per}(Y_t, low)\right)
      \qquad \sigma_t = \max(floor, S_t)$$

    with the percentiles of each minibatch. DreamerV3 divides the advantages of its actor by this scale, and
    has a categorical critic that is not normalised.

    It cannot enlarge small targets: those with a span below the floor are divided by the floor. (With
    `floor=0` there is no such limit, and it is free of scale.) There is no shift, and a minibatch of one
    target has no span. Weights other than 0 count as 1.

    Args:
        beta: the step size; DreamerV3 keeps 0.99 of the last span.
        low: the lower percentile, as a fraction.
        high: the upper percentile, as a fraction.
        floor: the least scale, in units of the targets.
    """

    beta: float | StepSize = 1e-2
    low: float = 0.05
    high: float = 0.95
    floor: float = 1.0
    symmetric: bool = True

    def __post_init__(self) -> None:
        without_precision(self)
        check_settings(self.beta, None)
        if not 0 <= self.low < self.high <= 1:
            raise ValueError(
                f"low is {self.low!r} and high is {self.high!r}; both must be in [0, 1], in order"
            )
        if not 0 <= self.floor < math.inf:
            raise ValueError(f"floor is {self.floor!r}; it must be in [0, inf)")
        if not self.symmetric:
            raise ValueError("symmetric is False; a percentile span has no shift")

    def init(self, shape: Sequence[int] = (), like: Array = None) -> SpanState:
        return SpanState(*zeros(shape, like))

    def absorb(self, state: SpanState, batch: Batch) -> SpanState:
        span = cast(percentile(batch, self.high) - percentile(batch, self.low), state.span.dtype)
        beta, fresh = step_size(self.beta, None, state.counts[0], state.span)
        moved = state.span + beta * (span - state.span)
        span = namespace(span).where(fresh, span, moved)
        return SpanState(tally(state.counts, batch), batch.where_counted(cast(span, moved.dtype), state.span))

    def affine(self, state: SpanState) -> Affine:
        span, seen = state.span, state.counts[0] > 0
        if self.floor:
            span = namespace(span).where(seen, span.clip(self.floor, None), 0 * span)
        return self.finish(span, 0 * span, seen)


def percentile(batch: Batch, q: float) -> Array:
    """Return a percentile of the targets that count, interpolated between the two nearest; 0 of none."""
    batch = batch.one_column_per_task()
    xp, y = namespace(batch.y), batch.y
    share = xp.ones_like(y) if batch.share is None else xp.zeros_like(y) + batch.share
    if batch.across is not None:
        y, share = (x.reshape((-1, *x.shape[2:])) for x in map(batch.across.gather, (y, share)))
    count = (share > 0).sum(0)
    ordered = _sorted(xp, xp.where(share > 0, y, math.inf))
    place = q * cast((count - 1).clip(0, None), y.dtype)
    below = cast(xp.floor(place), count.dtype)
    at = [_row(xp, ordered, i) for i in (below, xp.minimum(below + 1, (count - 1).clip(0, None)))]
    found = at[0] + (place - below) * (at[1] - at[0])
    return xp.where(count > 0, found, 0.0)


def _sorted(xp: Any, x: Array) -> Array:
    ordered = xp.sort(x, 0)
    return ordered[0] if isinstance(ordered, tuple) else ordered


def _row(xp: Any, x: Array, index: Array) -> Array:
    """Return for each column the value in the row with this index."""
    if xp.__name__ == "torch":
        return x.take_along_dim(index[None], 0)[0]
    return xp.take_along_axis(x, index[None], 0)[0]
