"""How a batch of targets is taken in: checked, folded, sifted, and reduced to a few numbers."""

import math
import sys
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from popart._arrays import (
    Array,
    Namespace,
    arange,
    asarray,
    from_rank,
    is_concrete,
    is_float,
    is_jax,
    lowest_rank,
    namespace,
    to_numpy,
    to_rank,
)

BATCH = (0, -1)
"""The axes of a batch that was folded to (rows, *shape, lanes)."""

LANES = 1024
"""How long the rows are that XLA goes through one by one."""


class Batch(NamedTuple):
    """A batch as it was given, each array folded to `(rows, ..., lanes)` and of the same rank."""

    targets: Array
    mask: Array = None
    weights: Array = None
    index: Array = None


class Values(NamedTuple):
    """Each value of a batch: itself, which count, their weights, and which are left out as not finite.

    Values that do not count are 0. Per-task statistics see every value and count none but their own.
    """

    y: Array
    counts: Array
    weights: Array
    bad: Array

    def weighted(self, x: Array) -> Array:
        """What `x` adds to a weighted sum: nothing where it does not count."""
        return namespace(x).where(self.counts, x if self.weights is None else self.weights * x, 0.0)

    def totals(self) -> tuple[Array, Array]:
        """What each value adds to the total weight, and to the number of values left out."""
        one = namespace(self.y).ones_like(self.y)
        return self.weighted(one), namespace(one).where(self.bad, one, 0.0)


class Targets:
    """A batch for statistics of some shape, whose last `event_axes` axes are measured together."""

    def __init__(self, batch: Batch, tasks: int | None = None, event_axes: int = 0) -> None:
        self.batch = batch
        self.tasks = tasks
        self.event_axes = event_axes
        self.values = self._sift(batch)

    def _sift(self, batch: Batch) -> Values:
        """The values of the batch, or of some of its rows."""
        y, mask, w, index = batch
        xp = namespace(y)
        finite = xp.abs(y) < math.inf
        if self.event_axes:
            finite = xp.all(finite, axis=-2)[..., None, :]
        eligible = mask
        if w is not None:
            positive = (w > 0) & (w < math.inf)
            eligible = positive if eligible is None else eligible & positive
        if self.tasks is not None:
            task = arange(self.tasks, index)
            member = index[:, None] == task.reshape((self.tasks, *(1,) * (index.ndim - 1)))
            eligible = member if eligible is None else member & eligible[:, None]
            y, finite, w = y[:, None], finite[:, None], None if w is None else w[:, None]
        counts = finite if eligible is None else finite & eligible
        bad = ~finite if eligible is None else ~finite & eligible
        return Values(xp.where(counts, y, 0.0), counts, w, bad)

    def mirrored(self) -> "Targets":
        """These together with their negatives."""
        concatenate = namespace(self.batch.targets).concatenate
        y, *rest = self.batch
        both = (x if x is None else concatenate((x, x)) for x in rest)
        return Targets(Batch(concatenate((y, -y)), *both), self.tasks, self.event_axes)

    def sums(self, f: Callable[[Values], tuple[Array, ...]]) -> tuple[Array, ...]:
        """The sum over the batch of each array that f makes of its values."""
        return self._reduce("sum", "add", f)

    def range(self) -> tuple[Array, Array]:
        """The least and the largest value; 0 of nothing."""
        xp = namespace(self.batch.targets)
        if is_jax(xp):
            return self._range_by_rank()
        y, counts, *_ = self.values
        low = xp.amin(xp.where(counts, y, math.inf), axis=BATCH)
        high = xp.amax(xp.where(counts, y, -math.inf), axis=BATCH)
        return xp.where(low <= high, low, 0.0), xp.where(low <= high, high, 0.0)

    def _range_by_rank(self) -> tuple[Array, Array]:
        """The same with integers, which XLA compares in half the time: they have no NaN to look out for."""
        xp, dtype = namespace(self.batch.targets), self.batch.targets.dtype
        lowest = lowest_rank(self.batch.targets)

        def both_ways(v: Values) -> tuple[Array, Array]:
            rank = to_rank(v.y)
            return xp.where(v.counts, rank, lowest), xp.where(v.counts, ~rank, lowest)

        high, down = self._reduce("amax", "maximum", both_ways)
        some = high > lowest
        return xp.where(some, from_rank(~down, dtype), 0.0), xp.where(some, from_rank(high, dtype), 0.0)

    def _reduce(
        self, reduction: str, join: str, f: Callable[[Values], tuple[Array, ...]]
    ) -> tuple[Array, ...]:
        """Reduce what f makes of the values over the batch.

        On a CPU, XLA writes what it is about to reduce to memory and reads it back. A loop over rows
        that stay in the cache takes half the time.
        """
        xp = namespace(self.batch.targets)
        reduce, joined = getattr(xp, reduction), getattr(xp, join)
        rows, *_, lanes = self.batch.targets.shape
        if lanes == 1 or rows == 1:
            return tuple(reduce(x, axis=BATCH) for x in f(self.values))
        jax = sys.modules["jax"]

        def at_once(batch: Batch) -> tuple[Array, ...]:
            return tuple(reduce(x, axis=BATCH) for x in f(self._sift(batch)))

        def row_by_row(batch: Batch) -> tuple[Array, ...]:
            first, rest = (
                Batch(*(x if x is None else x[at] for x in batch))
                for at in ((slice(0, 1)), (slice(1, None), None))
            )

            def add_row(total: tuple[Array, ...], row: Batch) -> tuple[tuple[Array, ...], None]:
                return tuple(map(joined, total, f(self._sift(row)))), None

            total, _ = jax.lax.scan(add_row, f(self._sift(first)), rest)
            return tuple(reduce(x, axis=BATCH) for x in total)

        return jax.lax.platform_dependent(self.batch, cpu=row_by_row, default=at_once)


def take_in(
    like: Array, targets: Array, mask: Array, weights: Array, index: Array, event_axes: int
) -> Targets:
    """Check a batch against statistics that are like this one, and fold it."""
    xp, shape = namespace(like), tuple(like.shape)
    if index is not None and not shape:
        raise ValueError("index needs statistics per task, from init((tasks, ...)); these have shape ()")
    tasks, one = (None, shape) if index is None else (shape[0], shape[1:])
    y = asarray(xp, targets, like.dtype, like)
    batch = _batch_shape(tuple(y.shape), one)
    apart = one[: len(one) - event_axes]
    n = math.prod(batch)
    if mask is not None:
        mask = _per_target(asarray(xp, mask, xp.bool, like), batch, apart, event_axes, n, "mask")
    if weights is not None:
        weights = asarray(xp, weights, like.dtype, like)
        weights = _per_target(weights, batch, apart, event_axes, n, "weights")
        _check_weights(weights)
    if index is not None:
        index = _fold(_checked_index(xp, index, batch, shape[0], like), (1,) * len(one), n)
    if n == 0:
        nothing = asarray(xp, xp.zeros((1, *shape, 1)), like.dtype, like)
        return Targets(Batch(nothing, mask=nothing[..., :1, :] > 0 if event_axes else nothing > 0))
    return Targets(Batch(_fold(y, one, n), mask, weights, index), tasks, event_axes)


def _fold(x: Array, shape: tuple[int, ...], n: int) -> Array:
    """`n` values of this shape as (rows, *shape, lanes)."""
    lanes = LANES if not shape and n and n % LANES == 0 and is_jax(namespace(x)) else 1
    return x.reshape((-1, *shape, lanes))


def _batch_shape(shape: tuple[int, ...], one: tuple[int, ...]) -> tuple[int, ...]:
    lead = len(shape) - len(one)
    if lead < 0 or shape[lead:] != one:
        raise ValueError(
            f"targets have shape {shape}; these statistics measure targets of shape "
            f"(*batch{''.join(f', {size}' for size in one)})"
        )
    return shape[:lead]


def _per_target(
    x: Array, batch: tuple[int, ...], apart: tuple[int, ...], event_axes: int, n: int, name: str
) -> Array:
    """An argument of shape `(*batch,)` or `(*batch, *apart)`, folded to the rank of the targets."""
    shape = tuple(x.shape)
    if shape not in (batch, (*batch, *apart)):
        allowed = " or ".join(map(str, dict.fromkeys((batch, (*batch, *apart)))))
        raise ValueError(f"{name} has shape {shape}; it may have {allowed}")
    sizes = (1,) * len(apart) if shape == batch else apart
    return _fold(x, (*sizes, *(1,) * event_axes), n)


def _check_weights(w: Array) -> None:
    if is_concrete(w):
        values = to_numpy(w)
        if values.size and not (values.min() >= 0 and values.max() < float("inf")):
            raise ValueError(f"weights reach from {values.min()} to {values.max()}; they must be in [0, inf)")


def _checked_index(xp: Namespace, index: Array, batch: tuple[int, ...], tasks: int, like: Array) -> Array:
    if namespace(index) is not xp or not hasattr(index, "dtype"):
        index = asarray(xp, np.asarray(index), None, like)
    if is_float(xp, index.dtype) or index.dtype == xp.bool:
        raise ValueError(f"index has dtype {index.dtype}; it must be of integers")
    if tuple(index.shape) != batch:
        raise ValueError(f"index has shape {tuple(index.shape)}; the batch has shape {batch}")
    if is_concrete(index):
        values = to_numpy(index)
        if values.size and not 0 <= values.min() <= values.max() < tasks:
            raise ValueError(
                f"index reaches from {values.min()} to {values.max()}; "
                f"these statistics are of tasks 0 to {tasks - 1}"
            )
    return index
