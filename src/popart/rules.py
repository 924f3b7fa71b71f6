"""What every rule has in common: how targets are taken in, summarised, merged and counted."""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar, cast

import numpy as np

from popart._arrays import (
    Array,
    Namespace,
    add_to_count,
    asarray,
    eps_of,
    float_dtype,
    is_concrete,
    is_float,
    namespace,
    to_numpy,
)
from popart.affine import Affine
from popart.steps import Step, as_step, check_beta

State = TypeVar("State", bound=Any)
Summary = TypeVar("Summary", bound=Any)


class Rule(ABC, Generic[State, Summary]):
    """How targets are measured (ART): settings, and pure functions of a state.

    A state is a NamedTuple of arrays of one shape: `()` for one normalisation of everything, `(k,)`
    for one per output, `(tasks, ...)` for one per task. It counts the updates (`count`) and the
    targets that were left out because they were not finite (`skipped`).
    """

    @abstractmethod
    def init(self, shape: Sequence[int] = (), like: Array = None) -> State:
        """The state before any target.

        Its arrays have the module, precision and device of `like`, or are NumPy's and follow the
        first targets.
        """

    @abstractmethod
    def _summarize(self, state: State, targets: "Targets") -> Summary: ...

    @abstractmethod
    def _merge(self, stacked: Summary) -> Summary: ...

    @abstractmethod
    def _absorb(self, state: State, summary: Summary) -> State: ...

    @abstractmethod
    def affine(self, state: State) -> Affine:
        """The normalisation that the state stands for."""

    @property
    def _event_axes(self) -> int:
        """How many trailing axes of a target are measured together."""
        return 0

    def update(
        self,
        state: State,
        targets: Array,
        *,
        mask: Array = None,
        weights: Array = None,
        index: Array = None,
    ) -> State:
        """The state after a batch of targets: one step, whatever the size of the batch.

        Args:
            state: from `init` or an earlier update; it is not changed.
            targets: `(*batch, *shape)`, any number of batch axes, also none.
            mask: which targets count: `(*batch,)`, or one value per number, `(*batch, *shape)`.
            weights: how much each counts, of the same shapes; 2 is as much as two copies.
            index: which task each target is of, `(*batch,)`, for statistics of shape
                `(tasks, *shape)`. A task without a target is left as it was.

        Targets that are not finite are left out and counted in `skipped`.
        """
        summary = self.summarize(state, targets, mask=mask, weights=weights, index=index)
        return self.absorb(state, summary)

    def summarize(
        self,
        state: State,
        targets: Array,
        *,
        mask: Array = None,
        weights: Array = None,
        index: Array = None,
    ) -> Summary:
        """What `absorb` needs to know of a batch. Replicas merge theirs before they absorb it."""
        state = follow(state, targets)
        like = self.affine(state).shift
        batch = take_in(tuple(like.shape), like, targets, mask, weights, index, self._event_axes)
        return self._summarize(state, batch)

    def merge(self, summaries: Sequence[Summary] | Summary) -> Summary:
        """The summary of several batches as one: of the whole batch when each replica has a part.

        `summaries` is a list, or one summary whose arrays have a leading axis, as an all-gather gives.
        """
        if hasattr(summaries, "_fields"):
            return self._merge(cast("Summary", summaries))
        if not summaries:
            raise ValueError("summaries is empty; there must be at least one")
        xp = namespace(*summaries[0])
        return self._merge(type(summaries[0])(*map(xp.stack, zip(*summaries, strict=True))))

    def absorb(self, state: State, summary: Summary) -> State:
        """The state after the batch that `summary` is of."""
        return self._absorb(follow(state, summary[0]), summary)


class Targets(NamedTuple):
    """A batch as `(n, *shape)` arrays: those that are left out have weight 0 and value 0.

    Per-task statistics see every target, with weight 0 for all tasks but its own; `values` then
    broadcasts with `weights`.
    """

    values: Array
    weights: Array
    skipped: Array


def take_in(
    shape: tuple[int, ...],
    like: Array,
    targets: Array,
    mask: Array,
    weights: Array,
    index: Array,
    event_axes: int,
) -> Targets:
    """Check a batch against statistics of this shape, flatten it, leave out what is not finite."""
    xp = namespace(like)
    if index is not None and not shape:
        raise ValueError("index needs statistics per task, from init((tasks, ...)); these have shape ()")
    one = shape if index is None else shape[1:]
    measured = one[: len(one) - event_axes]
    y = asarray(xp, targets, like.dtype, like)
    batch = _batch_shape(tuple(y.shape), one)
    if 0 in batch:
        return _nothing(shape[: len(shape) - event_axes], like)
    y = y.reshape((-1, *one)) if batch else y[None]
    finite = xp.isfinite(y)
    if event_axes:
        finite = xp.all(finite, axis=-1)
    values = xp.where(finite[..., None] if event_axes else finite, y, 0.0)
    eligible, w = True, None
    if mask is not None:
        eligible = _per_target(asarray(xp, mask, xp.bool, like), batch, measured, "mask")
    if weights is not None:
        w = _per_target(asarray(xp, weights, like.dtype, like), batch, measured, "weights")
        _check_weights(w)
        eligible = eligible & xp.isfinite(w) & (w > 0)
    if index is not None:
        member = _membership(xp, index, batch, shape[0], like)
        member = member.reshape((*member.shape, *(1,) * len(measured)))
        eligible = member if eligible is True else member & eligible[:, None]
        values, finite, w = values[:, None], finite[:, None], None if w is None else w[:, None]
    share = asarray(xp, finite & eligible, like.dtype, like)
    if w is not None:
        share = xp.where(share > 0, w, 0.0)
    return Targets(values, share, xp.sum(~finite & eligible, axis=0, dtype=xp.int32))


def _nothing(shape: tuple[int, ...], like: Array) -> Targets:
    """An empty batch: one target that does not count."""
    zeros, count = empty(shape, like)
    return Targets(like[None] * 0, zeros[None], count)


def _batch_shape(shape: tuple[int, ...], one: tuple[int, ...]) -> tuple[int, ...]:
    lead = len(shape) - len(one)
    if lead < 0 or shape[lead:] != one:
        raise ValueError(
            f"targets have shape {shape}; these statistics measure targets of shape (*batch, "
            f"{', '.join(map(str, one))})"
        )
    return shape[:lead]


def _per_target(x: Array, batch: tuple[int, ...], measured: tuple[int, ...], name: str) -> Array:
    """X of shape (*batch,) or (*batch, *measured), as (n, *measured or ones)."""
    shape = tuple(x.shape)
    if shape == batch:
        return x.reshape((-1, *(1,) * len(measured)))
    if shape == (*batch, *measured):
        return x.reshape((-1, *measured))
    allowed = " or ".join(map(str, dict.fromkeys((batch, (*batch, *measured)))))
    raise ValueError(f"{name} has shape {shape}; it may have {allowed}")


def _check_weights(w: Array) -> None:
    if is_concrete(w):
        values = to_numpy(w)
        if values.size and not (values.min() >= 0 and values.max() < float("inf")):
            raise ValueError(
                f"weights reach from {values.min()} to {values.max()}; they must be in [0, inf)"
            )


def _membership(xp: Namespace, index: Array, batch: tuple[int, ...], tasks: int, like: Array) -> Array:
    """Which target is of which task, (n, tasks). One mask per task: no order of adding is left open,
    as it would be with a scatter on a GPU.
    """
    index = index if namespace(index) is xp and hasattr(index, "dtype") else xp.asarray(index)
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
    task = asarray(xp, xp.arange(tasks), index.dtype, index)
    return index.reshape((-1, 1)) == task


def follow(state: State, targets: Array) -> State:
    """A state of NumPy arrays in the module, precision and on the device of targets of another."""
    xp = namespace(targets, *state)
    if all(namespace(x) is xp for x in state):
        return state
    dtype = float_dtype(xp, targets)
    kinds = (dtype if is_float(namespace(x), x.dtype) else xp.int32 for x in state)
    leaves = (asarray(xp, x, kind, targets) for x, kind in zip(state, kinds, strict=True))
    return type(state)(*leaves)


def empty(shape: Sequence[int], like: Array) -> tuple[Array, Array]:
    """Zeros of this shape: the statistics' floats, and int32 counts."""
    xp = namespace(like)
    zeros = xp.zeros(tuple(shape))
    return asarray(xp, zeros, float_dtype(xp, like), like), asarray(xp, zeros, xp.int32, like)


def weighted_range(y: Array, w: Array) -> tuple[Array, Array, Array]:
    """Total weight, least and largest value over the first axis, of what has weight; 0 of nothing."""
    xp = namespace(y)
    weight = w.sum(0)
    least = xp.amin(xp.where(w > 0, y, math.inf), axis=0)
    largest = xp.amax(xp.where(w > 0, y, -math.inf), axis=0)
    return weight, xp.where(weight > 0, least, 0.0), xp.where(weight > 0, largest, 0.0)


def step_size(beta: float | Step, nu0: float | None, count: Array, like: Array) -> tuple[Array, Array]:
    """The step of the next update, and whether it adopts the batch: the first one, or a step of 1."""
    xp = namespace(like)
    step = as_step(beta, start_counts=nu0 is not None)
    b = asarray(xp, step(asarray(xp, count, like.dtype, like) + 1), like.dtype, like)
    if callable(beta) and is_concrete(b) and not ((b > 0) & (b <= 1)).all():
        raise ValueError(f"beta gave {b} for t = {count + 1}; a step must be in (0, 1]")
    return b, (b >= 1) if nu0 is not None else (b >= 1) | (count == 0)


def counted(old: State, new: State, weight: Array, skipped: Array) -> State:
    """`new` where the batch had any weight, else `old`; one more update there."""
    xp = namespace(weight)
    got = weight > 0

    def pick(a: Array, b: Array) -> Array:
        return a if a is b else xp.where(got.reshape((*got.shape, *(1,) * (b.ndim - got.ndim))), a, b)

    count = add_to_count(old.count, asarray(xp, got, xp.int32, weight))
    skipped = add_to_count(old.skipped, skipped)
    return type(old)(*map(pick, new, old))._replace(count=count, skipped=skipped)


def resolution(x: Array) -> Array:
    """The least spread around x that its precision can tell from none."""
    return eps_of(x) * namespace(x).abs(x)


def check_settings(beta: float | Step, nu0: float | None) -> None:
    if not callable(beta):
        check_beta(beta)
    if nu0 is not None and not 0 < nu0 < float("inf"):
        raise ValueError(f"nu0 is {nu0!r}; it must be positive and finite, or None to adopt the data")


def check_finite(state: Any) -> None:
    """Raise if targets were left out of this state because they were not finite.

    Updates never raise for them, so that they run in compiled code and without waiting for a device;
    call this where a wait does no harm.
    """
    skipped = to_numpy(state.skipped)
    if skipped.any():
        raise FloatingPointError(f"targets that were not finite were left out: {skipped} of them")


class FixedState(NamedTuple):
    """Counts, and the scale and shift as arrays."""

    count: Array
    scale: Array
    shift: Array
    skipped: Array


class FixedSummary(NamedTuple):
    """Total weight of a batch: all else is known."""

    weight: Array
    skipped: Array


@dataclass(frozen=True)
class Fixed(Rule[FixedState, FixedSummary]):
    """A known scale and shift, from the start and for ever: numbers, or a tuple with one per output."""

    scale: float | tuple[float, ...] = 1.0
    shift: float | tuple[float, ...] = 0.0

    def __post_init__(self) -> None:
        scale, shift = np.asarray(self.scale, float), np.asarray(self.shift, float)
        if not np.isfinite(scale).all() or (scale == 0).any():
            raise ValueError(f"scale is {self.scale!r}; it must be finite and not 0")
        if not np.isfinite(shift).all():
            raise ValueError(f"shift is {self.shift!r}; it must be finite")

    def init(self, shape: Sequence[int] = (), like: Array = None) -> FixedState:
        zero, count = empty(shape, like)
        xp = namespace(zero)
        scale, shift = (asarray(xp, x, zero.dtype, zero) for x in (self.scale, self.shift))
        if (zero + scale + shift).shape != zero.shape:
            raise ValueError(
                f"shape is {tuple(shape)}; it does not hold a scale of shape {tuple(scale.shape)} "
                f"and a shift of shape {tuple(shift.shape)}"
            )
        return FixedState(count, zero + scale, zero + shift, count)

    def affine(self, state: FixedState) -> Affine:
        return Affine(state.scale, state.shift, state.count >= 0)

    def _summarize(self, state: FixedState, targets: Targets) -> FixedSummary:
        return FixedSummary(targets.weights.sum(0), targets.skipped)

    def _merge(self, stacked: FixedSummary) -> FixedSummary:
        return FixedSummary(stacked.weight.sum(0), stacked.skipped.sum(0))

    def _absorb(self, state: FixedState, summary: FixedSummary) -> FixedState:
        return counted(state, state, summary.weight, summary.skipped)
