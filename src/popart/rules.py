"""What every rule has in common: how targets are taken in, summarised, merged and counted."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar, cast

import numpy as np

from popart._arrays import (
    Array,
    add_to_count,
    asarray,
    float_dtype,
    is_concrete,
    is_float,
    namespace,
    to_numpy,
)
from popart.affine import Affine
from popart.batches import Targets, Values, take_in
from popart.steps import Step, check_beta, step_at

State = TypeVar("State", bound=Any)
Summary = TypeVar("Summary", bound=Any)


class Rule(ABC, Generic[State, Summary]):
    """How targets are measured (ART): settings, and pure functions of a state.

    A state is a NamedTuple of arrays for statistics of some shape: `()` for one normalisation of
    everything, `(k,)` for one per output, `(tasks, ...)` for one per task. Its first array, `counts`,
    has the number of updates in `counts[0]`, and in `counts[1]` the number of targets that were left
    out because they were not finite.
    """

    @abstractmethod
    def init(self, shape: Sequence[int] = (), like: Array = None) -> State:
        """The state before any target.

        Its arrays have the module, precision and device of `like`, or are NumPy's and follow the
        first targets.
        """

    @abstractmethod
    def _summarize(self, state: State, targets: Targets) -> Summary: ...

    @abstractmethod
    def _merge(self, stacked: Summary) -> Summary: ...

    @abstractmethod
    def _absorb(self, state: State, summary: Summary) -> State: ...

    @abstractmethod
    def affine(self, state: State) -> Affine:
        """The normalisation that the state stands for."""

    @property
    def has_shift(self) -> bool:
        r"""Whether $\mu$ can be anything but 0, which takes a bias to make up for."""
        return True

    def _statistic(self, state: State) -> Array:
        """Any one of the statistics, for its shape and precision."""
        return state[1][0]

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

        Targets that are not finite are left out and counted.
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
        taken = take_in(self._statistic(state), targets, mask, weights, index, self._event_axes)
        return self._summarize(state, taken)

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


def follow(state: State, targets: Array) -> State:
    """A state of NumPy arrays in the module, precision and on the device of targets of another."""
    xp = namespace(targets, *state)

    def moved(x: Array) -> Array:
        if namespace(x) is xp:
            return x
        dtype = float_dtype(xp, targets) if is_float(namespace(x), x.dtype) else xp.int32
        return asarray(xp, x, dtype, targets)

    return type(state)(*map(moved, state))


def empty(shape: Sequence[int], like: Array) -> tuple[Array, Array]:
    """Zeros for statistics of this shape, and for their counts."""
    xp = namespace(like)
    zeros = asarray(xp, xp.zeros(tuple(shape)), float_dtype(xp, like), like)
    return zeros, asarray(xp, xp.stack((zeros, zeros)), xp.int32, like)


def step_size(beta: float | Step, nu0: float | None, count: Array, like: Array) -> tuple[Array, Array]:
    """The step of the next update, and whether it adopts the batch: the first one, or a step of 1."""
    xp = namespace(like)
    t = asarray(xp, count, like.dtype, like) + 1
    b = asarray(xp, step_at(beta, t, start_counts=nu0 is not None), like.dtype, like)
    if callable(beta) and is_concrete(b) and not ((b > 0) & (b <= 1)).all():
        raise ValueError(f"beta gave {b} for t = {count + 1}; a step must be in (0, 1]")
    return b, (b >= 1) if nu0 is not None else (b >= 1) | (count == 0)


def tally(counts: Array, weight: Array, skipped: Array) -> Array:
    """The counts after a batch: one more update where it had any weight, and what was left out."""
    xp = namespace(counts)
    more = xp.stack((asarray(xp, weight > 0, skipped.dtype, skipped), skipped))
    return add_to_count(counts, asarray(xp, more, xp.int32, counts))


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
    skipped = to_numpy(state.counts[1])
    if skipped.any():
        raise FloatingPointError(f"targets that were not finite were left out: {skipped} of them")


class FixedState(NamedTuple):
    """The scale and shift as arrays."""

    counts: Array
    scale: Array
    shift: Array


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
        zero, counts = empty(shape, like)
        xp = namespace(zero)
        scale, shift = (asarray(xp, x, zero.dtype, zero) for x in (self.scale, self.shift))
        if (zero + scale + shift).shape != zero.shape:
            raise ValueError(
                f"shape is {tuple(shape)}; it does not hold a scale of shape {tuple(scale.shape)} "
                f"and a shift of shape {tuple(shift.shape)}"
            )
        return FixedState(counts, zero + scale, zero + shift)

    @property
    def has_shift(self) -> bool:
        return bool(np.any(self.shift))

    def _statistic(self, state: FixedState) -> Array:
        return state.scale

    def affine(self, state: FixedState) -> Affine:
        return Affine(state.scale, state.shift, state.counts[0] >= 0)

    def _summarize(self, state: FixedState, targets: Targets) -> FixedSummary:
        return FixedSummary(*targets.sums(Values.totals))

    def _merge(self, stacked: FixedSummary) -> FixedSummary:
        return FixedSummary(stacked.weight.sum(0), stacked.skipped.sum(0))

    def _absorb(self, state: FixedState, summary: FixedSummary) -> FixedState:
        return FixedState(tally(state.counts, *summary), state.scale, state.shift)


class _Wrapper(Rule[Any, Any]):
    """A rule that leaves to another what it does not change."""

    rule: Rule[Any, Any]

    def __post_init__(self) -> None:
        if not isinstance(self.rule, Rule):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"rule is {self.rule!r}; it must be a rule, such as popart.Moments()")

    @property
    def has_shift(self) -> bool:
        return self.rule.has_shift

    @property
    def _event_axes(self) -> int:
        return self.rule._event_axes

    def init(self, shape: Sequence[int] = (), like: Array = None) -> Any:
        return self.rule.init(shape, like)

    def affine(self, state: Any) -> Affine:
        return self.rule.affine(state)

    def _statistic(self, state: Any) -> Array:
        return self.rule._statistic(state)

    def _summarize(self, state: Any, targets: Targets) -> Any:
        return self.rule._summarize(state, targets)

    def _merge(self, stacked: Any) -> Any:
        return self.rule._merge(stacked)

    def _absorb(self, state: Any, summary: Any) -> Any:
        return self.rule._absorb(state, summary)


@dataclass(frozen=True)
class Symmetric(_Wrapper):
    r"""Another rule without a shift: $\mu = 0$, for layers that have no bias to make up for one.

    Targets are measured together with their negatives. With `Moments`, $\sigma$ is then the root of
    the second moment, $\sqrt{\nu_t}$ (Eq. 4); with percentiles and extremes the bounds are $\pm$ the
    same. A minibatch of B targets has the extremes of 2B.
    """

    rule: Rule[Any, Any]

    @property
    def has_shift(self) -> bool:
        return False

    def affine(self, state: Any) -> Affine:
        scale, shift, seen = self.rule.affine(state)
        return Affine(scale, namespace(shift).zeros_like(shift), seen)

    def _summarize(self, state: Any, targets: Targets) -> Any:
        summary = self.rule._summarize(state, targets.mirrored())
        fields = zip(summary._fields, summary, strict=True)
        return type(summary)(*(x / 2 if name == "skipped" else x for name, x in fields))


@dataclass(frozen=True)
class Kept(_Wrapper):
    """Another rule for a layer that has learned already: its outputs are kept from the start.

    Before the first targets the normalisation is the identity, not 0, and from then on outputs are
    preserved, not adopted (see `Affine.or_identity`).
    """

    rule: Rule[Any, Any]

    def affine(self, state: Any) -> Affine:
        return self.rule.affine(state).or_identity()
