"""A batch of targets, checked and ready to be summed for statistics of some shape."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from popart._arrays import (
    Array,
    Namespace,
    arange,
    asarray,
    cast,
    is_float,
    is_numpy,
    namespace,
    segment_max,
    segment_sum,
    sum_of_squares,
    values_of,
)
from popart.numerics import divide, wide_dtype

FLOAT32_MAX = (2 - 2.0**-23) * 2.0**127
"""The largest float32: targets beyond it count as infinite where statistics are float32."""

MANY = 2**26
"""Two numbers of targets below this are exact as one float64, so that one sum by index counts both."""


class Across(Protocol):
    """Replicas that see parts of one batch: how their sums and maxima are joined."""

    def sum(self, x: Array) -> Array: ...

    def max(self, x: Array) -> Array: ...

    def gather(self, x: Array) -> Array:
        """Stack the arrays of all replicas along a new first axis."""
        ...


class Batch(NamedTuple):
    """Targets `(n, *shape)` in the precision to compute in; 0 where they do not count.

    With `index`, each belongs to one of several tasks, and sums are `(tasks, *shape)`.
    """

    y: Array
    share: Array
    """How much each target counts, `(n, ...)`; None: all count once."""

    weight: Array
    """Total weight of the targets of each statistic, over all replicas."""

    skipped: Array
    """Number of targets that were left out because they were not finite."""

    index: Array
    tasks: int
    across: Across | None
    wide: bool
    """Whether this is a higher precision than that of the statistics."""

    def each(self, statistic: Array) -> Array:
        """Return for each target the value of the statistic that it belongs to."""
        if self.index is None:
            return statistic
        if is_numpy(statistic):
            return statistic.take(self.index, 0, mode="clip")  # "raise" takes twice as long to check again
        return statistic[self.index]

    def mean(self, x: Array) -> Array:
        """Return weighted means of values `(n, *shape)`; 0 of none."""
        total = self.sum(x)
        return total / self.weight if isinstance(self.weight, int) else divide(total, self.weight)

    def where_counted(self, new: Array, old: Array) -> Array:
        """Return new values for statistics that got any weight, and old ones for the rest."""
        return new if isinstance(self.weight, int) else namespace(new).where(self.weight > 0, new, old)

    def sum(self, x: Array) -> Array:
        """Return weighted sums of values `(n, *shape)`."""
        total = self.sum_here(x if self.share is None else self.share * x)
        return total if self.across is None else self.across.sum(total)

    def sum_here(self, x: Array) -> Array:
        """Return sums without weights, over the targets of this replica."""
        return x.sum(0) if self.index is None else segment_sum(x, self.index, self.tasks)

    def range(self) -> tuple[Array, Array]:
        """Return the least and the largest target; 0 of none."""
        xp = namespace(self.y)
        if xp is np and self.share is None and self.index is None and self.across is None:
            return self.y.min(0), self.y.max(0)
        both = -self.y, self.y
        if self.share is not None:
            both = [xp.where(self.share > 0, x, -math.inf) for x in both]
        if self.index is None:
            found = xp.stack([xp.amax(x, 0) for x in both])
        else:
            found = xp.stack([segment_max(x, self.index, self.tasks) for x in both])
        found = found if self.across is None else self.across.max(found)
        found = xp.where(found > -math.inf, found, 0.0)
        return -found[0], found[1]

    def mirrored(self) -> "Batch":
        """Return these targets together with their negatives, which have the same total weight."""
        xp = namespace(self.y)
        half = xp.full_like(self.y, 0.5) if self.share is None else self.share / 2
        index = None if self.index is None else xp.concatenate((self.index, self.index))
        both = xp.concatenate((self.y, -self.y))
        return self._replace(y=both, share=xp.concatenate((half, half)), index=index)

    def one_column_per_task(self) -> "Batch":
        """Return the same without an index: all targets for each task, which count in one of them."""
        if self.index is None:
            return self
        mine = self.index[:, None] == arange(self.tasks, self.index)
        mine = mine.reshape((*mine.shape, *(1,) * (self.y.ndim - 1)))
        share = cast(mine, self.y.dtype) if self.share is None else mine * self.share[:, None]
        return self._replace(y=self.y[:, None] * (share > 0), share=share, index=None)


def take(
    like: Array,
    targets: Array,
    mask: Array = None,
    weights: Array = None,
    index: Array = None,
    across: Across | None = None,
    event_axes: int = 0,
) -> Batch:
    """Check targets against statistics that are like this one, and make a batch of them.

    The last `event_axes` axes of a target are measured together: it is left out whole.
    """
    xp, shape = namespace(like), tuple(like.shape)
    if index is not None and not shape:
        raise ValueError("index needs statistics per task, from init((tasks, ...)); these have shape ()")
    tasks, one = (0, shape) if index is None else (shape[0], shape[1:])
    y = asarray(xp, targets, wide_dtype(xp, like.dtype, like), like)
    batch = _batch_shape(tuple(y.shape), one)
    y = y.reshape((math.prod(batch), *one))
    apart = one[: len(one) - event_axes]
    masks: list[Array] = []
    if mask is not None:
        masks.append(_per_target(asarray(xp, mask, xp.bool, like), batch, apart, event_axes, "mask"))
    if weights is not None:
        weights = asarray(xp, weights, y.dtype, like)
        weights = _per_target(weights, batch, apart, event_axes, "weights")
        _check_weights(weights)
    if index is not None:
        index, known = _checked_index(xp, index, batch, tasks, like)
        if known is not None:
            masks.append(known.reshape((-1, *(1,) * (y.ndim - 1))))
    if not len(y):
        y, masks, weights, index = _nothing(xp, y, like, index)
    elif xp is np and not masks and weights is None and across is None and _all_finite(y, like):
        count = len(y)
        if index is not None:
            count = np.bincount(index, minlength=tasks).reshape((tasks, *(1,) * (y.ndim - 1)))
        return Batch(y, None, count, 0, index, tasks, None, y.dtype != like.dtype)
    batch = Batch(y, None, 0, 0, index, tasks, across, y.dtype != like.dtype)
    return _sifted(batch, weights, masks, event_axes)


def _sifted(batch: Batch, weights: Array, masks: Sequence[Array], event_axes: int) -> Batch:
    """Leave out what is masked, has no weight, or is not finite.

    Masks are multiplied as floats: compilers make slow loops of conditions on numbers of different size.
    """
    xp, y, index = namespace(batch.y), batch.y, batch.index
    finite = xp.abs(y) <= FLOAT32_MAX if batch.wide else xp.abs(y) < math.inf
    if event_axes:
        finite = xp.all(finite, axis=-1)[..., None]
    if weights is not None:
        masks = [*masks, (weights > 0) & (weights < math.inf)]
    counts = cast(finite, y.dtype)
    bad = 1 - counts
    for mask in (cast(mask, y.dtype) for mask in masks):
        counts, bad = counts * mask, bad * mask
    share = counts if weights is None else xp.where(counts > 0, weights, 0.0)
    batch = batch._replace(y=xp.where(counts > 0, y, 0.0))
    if not masks and index is None and batch.across is None:
        skipped = batch.sum(bad)
        return batch._replace(share=share, weight=len(y) - skipped, skipped=skipped)
    if batch.wide and weights is None and batch.across is None and len(y) < MANY:
        both = batch.sum(share + MANY * bad)
        skipped = xp.floor(both * (1 / MANY))
        return batch._replace(share=share, weight=both - MANY * skipped, skipped=skipped)
    both = xp.stack((batch.sum_here(share), batch.sum_here(bad)))
    both = both if batch.across is None else batch.across.sum(both)
    return batch._replace(share=share, weight=both[0], skipped=both[1])


def _all_finite(y: Array, like: Array) -> bool:
    """Return whether all targets are known to be finite; the sum of their squares takes the least time."""
    flat = y.reshape(-1)
    with np.errstate(over="ignore", invalid="ignore"):  # they are looked at one by one then
        return bool(sum_of_squares(flat) < (FLOAT32_MAX**2 if like.dtype == np.float32 else math.inf))


def _nothing(xp: Namespace, y: Array, like: Array, index: Array) -> tuple[Array, list[Array], None, Array]:
    """Return one target that does not count, for a batch of none."""
    y = asarray(xp, xp.zeros((1, *y.shape[1:])), y.dtype, like)
    first = y.reshape(-1)[:1]
    return y, [first.reshape((1,) * y.ndim) > 0], None, None if index is None else cast(first, index.dtype)


def _batch_shape(shape: tuple[int, ...], one: tuple[int, ...]) -> tuple[int, ...]:
    lead = len(shape) - len(one)
    if lead < 0 or shape[lead:] != one:
        raise ValueError(
            f"targets have shape {shape}; these statistics measure targets of shape "
            f"(*batch{''.join(f', {size}' for size in one)})"
        )
    return shape[:lead]


def _per_target(
    x: Array, batch: tuple[int, ...], apart: tuple[int, ...], event_axes: int, name: str
) -> Array:
    """Bring an argument of shape `(*batch,)` or `(*batch, *apart)` to the rank of the targets."""
    shape = tuple(x.shape)
    if shape not in (batch, (*batch, *apart)):
        allowed = " or ".join(map(str, dict.fromkeys((batch, (*batch, *apart)))))
        raise ValueError(f"{name} has shape {shape}; it may have {allowed}")
    sizes = (1,) * len(apart) if shape == batch else apart
    return x.reshape((math.prod(batch), *sizes, *(1,) * event_axes))


def _check_weights(w: Array) -> None:
    values = values_of(w)
    if values is not None and values.size and not (values.min() >= 0 and values.max() < math.inf):
        raise ValueError(f"weights reach from {values.min()} to {values.max()}; they must be in [0, inf)")


def _checked_index(
    xp: Namespace, index: Any, batch: tuple[int, ...], tasks: int, like: Array
) -> tuple[Array, Array]:
    """Return the tasks of all targets, and which of them exist, or None if all do.

    Numbers out of range are refused where they can be looked at, and else left out.
    """
    if namespace(index) is not xp or not hasattr(index, "dtype"):
        index = asarray(xp, np.asarray(index), None, like)
    if is_float(xp, index.dtype) or index.dtype == xp.bool:
        raise ValueError(f"index has dtype {index.dtype}; it must be of integers")
    if tuple(index.shape) != batch:
        raise ValueError(f"index has shape {tuple(index.shape)}; the batch has shape {batch}")
    index, values = index.reshape(-1), values_of(index)
    if values is None:
        inside = index.clip(0, tasks - 1)
        return inside, index == inside
    if values.size and not 0 <= values.min() <= values.max() < tasks:
        raise ValueError(
            f"index reaches from {values.min()} to {values.max()}; "
            f"these statistics are of tasks 0 to {tasks - 1}"
        )
    return index.astype(np.intp, copy=False) if xp is np else index, None
