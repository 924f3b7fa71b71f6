"""A batch of targets, checked and ready to be summed for statistics of some shape."""

import math
from typing import Any, NamedTuple, Protocol

import numpy as np

from popart._arrays import Array, arange, asarray, cast, fold, is_float, namespace, sum_of_squares, values_of
from popart.numerics import divide, wide_dtype

FLOAT32_MAX = (2 - 2.0**-23) * 2.0**127
"""The largest float32: targets beyond it count as infinite where statistics are float32."""

MANY = 2**26
"""Two numbers of targets below this are exact as one float64, so that one sum by index counts both."""


class Across(Protocol):
    """Replicas that see parts of one batch: sums, maxima and stacks over all of them."""

    def sum(self, x: Array) -> Array:
        """Return the sum over replicas."""
        ...

    def max(self, x: Array) -> Array:
        """Return the maximum over replicas."""
        ...

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
    """Total weight of the targets of each statistic, over all replicas.

    An int if every target is known to count once for every statistic.
    """

    skipped: Array
    """Number of targets that were left out because they were not finite."""

    index: Array
    tasks: int
    across: Across | None
    wide: bool
    """Whether `y` has a higher precision than the statistics."""

    def each(self, statistic: Array) -> Array:
        """Return for each target the value of the statistic that it belongs to."""
        if self.index is None:
            return statistic
        if namespace(statistic) is np:
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
        return fold("sum", x, self.index, self.tasks)

    def range(self) -> tuple[Array, Array]:
        """Return the least and the largest target; 0 of none."""
        if isinstance(self.weight, int):
            return self.y.min(0), self.y.max(0)
        xp, both = namespace(self.y), [-self.y, self.y]
        if self.share is not None:
            both = [xp.where(self.share > 0, x, -math.inf) for x in both]
        found = xp.stack([fold("max", x, self.index, self.tasks) for x in both])
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
        """Return this batch with a column per task instead of an index; a target counts in one of them."""
        if self.index is None:
            return self
        mine = self.index[:, None] == arange(self.tasks, self.index)
        mine = mine.reshape((*mine.shape, *(1,) * (self.y.ndim - 1)))
        share = cast(mine, self.y.dtype) if self.share is None else mine * self.share[:, None]
        return self._replace(y=self.y[:, None] * (share > 0), share=share, index=None)


def checked_batch(
    like: Array, targets: Array, mask: Array, weights: Array, index: Array, across: Across | None, axes: int
) -> Batch:
    """Return a batch of targets, after checks against statistics that are like this one.

    The last `axes` axes of a target are measured together: it is left out whole.
    """
    xp, shape = namespace(like), tuple(like.shape)
    if index is not None and not shape:
        raise ValueError("index needs statistics per task, from init((tasks, ...)); these have shape ()")
    tasks, one = (0, shape) if index is None else (shape[0], shape[1:])
    y = asarray(xp, targets, wide_dtype(like), like)
    batch = tuple(y.shape)[: y.ndim - len(one)]
    if (*batch, *one) != tuple(y.shape):
        raise ValueError(
            f"targets have shape {tuple(y.shape)}; these statistics measure targets of shape "
            f"(*batch{''.join(f', {size}' for size in one)})"
        )
    y, wide = y.reshape((math.prod(batch), *one)), y.dtype != like.dtype
    index, known = (None, None) if index is None else checked_index(index, batch, tasks, like)
    share = _shares(y, batch, one[: len(one) - axes], mask=mask, weights=weights, index=known)
    if not len(y):  # one target that does not count stands for none
        y, share = (asarray(xp, xp.zeros(size), y.dtype, like) for size in ((1, *one), (1,) * y.ndim))
        index = None if index is None else cast(share.reshape(1), index.dtype)
    elif xp is np and share is None and across is None and are_finite(y, wide):
        n = len(y)
        if index is not None:
            n = np.bincount(index, minlength=tasks).reshape((tasks, *(1,) * len(one)))
        return Batch(y, None, n, 0 * n, index, tasks, None, wide)
    return _sifted(Batch(y, share, None, None, index, tasks, across, wide), weights is None, axes)


def _sifted(batch: Batch, is_count: bool, event_axes: int) -> Batch:
    """Leave out targets without a share and those that are not finite; `is_count`: shares are 0 or 1.

    Masks are multiplied as floats: compilers make slow loops of conditions on numbers of different size.
    """
    xp, y = namespace(batch.y), batch.y
    finite = xp.abs(y) <= FLOAT32_MAX if batch.wide else xp.abs(y) < math.inf
    finite = cast(xp.all(finite, axis=-1)[..., None] if event_axes else finite, y.dtype)
    share, bad = finite, 1 - finite
    if batch.share is not None:
        given = batch.share if is_count else cast(batch.share > 0, y.dtype)
        share, bad = finite * batch.share, bad * given
    if batch.share is None and batch.index is None and batch.across is None:
        skipped = batch.sum_here(bad)
        weight = len(y) - skipped
    elif batch.wide and is_count and batch.across is None and len(y) < MANY:
        both = batch.sum_here(share + MANY * bad)
        skipped = xp.floor(both * (1 / MANY))
        weight = both - MANY * skipped
    else:
        both = xp.stack((batch.sum_here(share), batch.sum_here(bad)))
        weight, skipped = both if batch.across is None else batch.across.sum(both)
    return batch._replace(y=xp.where(share > 0, y, 0.0), share=share, weight=weight, skipped=skipped)


def are_finite(y: Array, wide: bool) -> bool:
    """Return whether all of NumPy's targets are known to be finite: the sum of their squares is."""
    with np.errstate(over="ignore", invalid="ignore"):  # then each is checked
        return bool(sum_of_squares(y.reshape(-1)) < (FLOAT32_MAX**2 if wide else math.inf))


def _total(x: np.ndarray[Any, np.dtype[Any]]) -> float:
    with np.errstate(over="ignore"):
        return float(x.sum())


def _shares(y: Array, batch: tuple[int, ...], apart: tuple[int, ...], **given: Array) -> Array:
    """Return how much each target counts, with as many axes as `y`, or None if nothing is given.

    Weights and masks have the shape `batch`, or `(*batch, *apart)`.
    """
    xp, share = namespace(y), None
    for name, x in given.items():
        if x is None:
            continue
        x = asarray(xp, x, y.dtype if name == "weights" else xp.bool, y)
        shape = tuple(x.shape)
        if shape not in (batch, (*batch, *apart)):
            allowed = " or ".join(map(str, dict.fromkeys((batch, (*batch, *apart)))))
            raise ValueError(f"{name} has shape {shape}; it may have {allowed}")
        if name == "weights":
            w = values_of(x)
            if w is not None and w.size and not (w.min() >= 0 and _total(w) < math.inf):
                raise ValueError(
                    f"weights reach from {w.min()} to {w.max()}; they must be in [0, inf), and their sum, too"
                )
            x = xp.where((x > 0) & (x < math.inf), x, 0.0)
        sizes = shape[len(batch) :]
        x = cast(x, y.dtype).reshape((len(y), *sizes, *(1,) * (y.ndim - 1 - len(sizes))))
        share = x if share is None else share * x
    return share


def checked_index(index: Any, batch: tuple[int, ...], tasks: int, like: Array) -> tuple[Array, Array]:
    """Return the tasks of all targets, and which of them exist, or None if all do.

    Numbers out of range are refused where they can be looked at, and else left out.
    """
    xp = namespace(like)
    index = asarray(xp, index, None, like)
    if is_float(index.dtype) or index.dtype == xp.bool:
        raise ValueError(f"index has dtype {index.dtype}; it must be of integers")
    if tuple(index.shape) != batch:
        raise ValueError(f"index has shape {tuple(index.shape)}; the batch has shape {batch}")
    values = values_of(index)
    if values is None:
        inside = index.clip(0, tasks - 1)
        return inside.reshape(-1), index == inside
    if values.size and not 0 <= values.min() <= values.max() < tasks:
        raise ValueError(
            f"index reaches from {values.min()} to {values.max()}; "
            f"these statistics are of tasks 0 to {tasks - 1}"
        )
    return (index.astype(np.intp, copy=False) if xp is np else index).reshape(-1), None
