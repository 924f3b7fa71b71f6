"""The base class of all rules, and `Fixed`, a rule that measures nothing."""

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np

from popart._arrays import Array, PerTarget, Targets, asarray, eps_of, float_dtype, is_numpy, namespace
from popart.affine import Affine
from popart.batches import Across, Batch, checked_batch
from popart.steps import StepSize, check_beta, step_at

COUNT_MAX = 2**31 - 1

State = TypeVar("State", bound=Any)


@dataclass(frozen=True, repr=False)
class Rule(ABC, Generic[State]):
    """How targets are measured (ART): settings, and pure functions `init`, `absorb` and `affine` of a state.

    A state is a NamedTuple of arrays for statistics of some shape: `()` for one normalisation of everything,
    `(k,)` for one per output, `(tasks, ...)` for one per task. Its first array, `counts`, has the number of
    updates, and the number of targets that were left out because they were not finite.

    Args:
        symmetric: True fixes μ at 0, for layers without a bias: targets are measured together with their
            negatives.
        keep: True preserves the outputs of a layer that has been trained already: before the first targets
            the normalisation is the identity, and these are not adopted. While all targets are the same, the
            scale is their size.
    """

    _: KW_ONLY
    symmetric: bool = False
    keep: bool = False

    event_axes = 0
    """Number of last axes of a target that are measured together."""

    @abstractmethod
    def init(self, shape: Sequence[int] = (), like: Array = None) -> State:
        """Return the state before any target, on the device of `like` and in its module and precision.

        Without `like`, its arrays are NumPy's, which the first update converts.
        """

    @abstractmethod
    def absorb(self, state: State, batch: Batch) -> State:
        """Return the state after a batch of targets: one step, whatever the size of the batch."""

    @abstractmethod
    def affine(self, state: State) -> Affine:
        """Return the scale and shift of a state."""

    def __repr__(self) -> str:
        """Return the settings that differ from their defaults."""
        fields = ((f.name, getattr(self, f.name), f.default) for f in dataclasses.fields(self))
        return f"{type(self).__name__}({', '.join(f'{n}={x!r}' for n, x, usual in fields if x != usual)})"

    @property
    def has_shift(self) -> bool:
        """Whether μ can be anything but 0, so that the layer needs a bias."""
        return not self.symmetric

    def finish(self, scale: Array, shift: Array, seen: Array, std: float = 1.0) -> Affine:
        """Return a normalisation, to a standard deviation `std`, with the options that all rules have.

        The scale is never smaller than the last bit of the shift.
        """
        if is_numpy(shift) and not shift.ndim and not self.keep:  # Python floats take a tenth of the time
            dtype, scale, shift = shift.dtype, float(scale), 0.0 if self.symmetric else float(shift)
            scale = max(scale, eps_of(dtype) * abs(shift)) if scale > 0 else 0.0
            return Affine(dtype.type(scale) / std, dtype.type(shift if seen else math.nan))
        xp = namespace(shift)
        shift = 0 * shift if self.symmetric else shift
        scale = xp.where(scale > 0, xp.maximum(scale, eps_of(shift.dtype) * xp.abs(shift)), 0.0)
        scale = scale if std == 1 else scale / std
        shift = shift if seen is True else xp.where(seen, shift, math.nan)
        if self.keep:
            flat, size = scale == 0, xp.abs(shift)
            scale = xp.where(flat, xp.where(size > 0, size, 1.0), scale)
            shift = xp.where(flat, 0.0, shift)
        return Affine(scale, shift)

    def update(
        self,
        state: State,
        targets: Targets,
        *,
        mask: PerTarget | Targets | None = None,
        weights: PerTarget | Targets | None = None,
        index: PerTarget | None = None,
        across: Across | None = None,
    ) -> State:
        """Return the state after a batch of targets: one step, whatever the size of the batch.

        Targets that are not finite are left out and counted.

        Args:
            state: from `init` or an earlier update; it is not changed.
            targets: `(*batch, *shape)`, any number of batch axes, also none.
            mask: the targets that count: `(*batch,)`, or one value per number, `(*batch, *shape)`.
            weights: the weight of each, of the same shapes; 2 is as much as two copies.
            index: the task of each target, `(*batch,)`, for statistics of shape `(tasks, *shape)`. A
                task without a target is left as it was.
            across: replicas that see parts of the same batch; `popart.jax.step` and heads make one.
        """
        plain = mask is None and weights is None and index is None and across is None
        quick = self._quick_update(state, targets) if plain else None
        if quick is not None:
            return quick
        state = follow(state, targets)
        statistic = state[1] if state[1].ndim == state[0].ndim - 1 else state[1][0]
        batch = checked_batch(statistic, targets, mask, weights, index, across, self.event_axes)
        return self.absorb(state, batch)

    def _quick_update(self, state: State, targets: Array) -> State | None:
        """Return the state after a batch without options, or None where there is no quicker way."""


def follow(state: State, targets: Array) -> State:
    """Convert a NumPy state to the targets' framework, dtype and device."""
    xp = namespace(targets, *state)
    if namespace(*state) is xp:
        return state
    real = float_dtype(xp, targets)
    return type(state)(*(asarray(xp, x, real if x.dtype.kind == "f" else xp.int32, targets) for x in state))


def zeros(shape: Sequence[int], like: Array) -> tuple[Array, Array]:
    """Return the counts of a new state, and zeros for its statistics."""
    if not isinstance(shape, Sequence):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"shape is {shape!r}; it must be a tuple, such as (3,)")
    xp = namespace(like)
    zero = asarray(xp, xp.zeros(tuple(shape)), float_dtype(xp, like), like)
    return asarray(xp, xp.stack((zero, zero)), xp.int32, like), zero


def step_size(beta: float | StepSize, nu0: float | None, count: Array, like: Array) -> tuple[Array, Array]:
    """Return the step of the next update, and whether it adopts the batch: the first one, or a step of 1."""
    xp = namespace(like)
    t = asarray(xp, count, like.dtype, like) + 1
    b = step_at(beta, t, has_initial_values=nu0 is not None)
    if callable(beta):
        b = asarray(xp, b, like.dtype, like)
        if is_numpy(b) and not ((b > 0) & (b <= 1)).all():
            raise ValueError(f"beta gave {b} for t = {count + 1}; a step must be in (0, 1]")
    return b, (b >= 1) if nu0 is not None else (b >= 1) | (count == 0)


def tally(counts: Array, batch: Batch) -> Array:
    """Return the counts after a batch: one more update where it had any weight, and the targets left out."""
    if isinstance(batch.weight, int):
        counts = counts.copy()
        counts[0] += counts[0] < COUNT_MAX
        return counts
    xp, found = namespace(counts), (batch.weight > 0, batch.skipped)
    more = xp.stack([asarray(xp, x, counts.dtype, counts) for x in found])
    more = more[..., 0] if more.ndim > counts.ndim else more  # a target that is measured whole counts once
    return counts + xp.minimum(more, COUNT_MAX - counts)


def without_precision(rule: Any) -> None:
    """Make settings that are numbers of NumPy, whose precision would spread, numbers of Python."""
    for field in dataclasses.fields(rule):
        value = getattr(rule, field.name)
        if isinstance(value, np.generic):
            object.__setattr__(rule, field.name, value.item())


def check_settings(beta: float | StepSize, nu0: float | None) -> None:
    if not callable(beta):
        check_beta(beta)
    if nu0 is not None and not 0 < nu0 < math.inf:
        raise ValueError(
            f"nu0 is {nu0!r}; it must be positive and finite, or None to initialise from the first targets"
        )


def check_finite(state: Any) -> None:
    """Raise FloatingPointError if targets were left out of this state because they were not finite.

    Updates never raise for them, so that they can be compiled and need not wait for a device. This waits.
    """
    skipped = np.array(state.counts[1].tolist())
    if skipped.any():
        raise FloatingPointError(f"targets that were not finite were left out: {skipped} of them")


class FixedState(NamedTuple):
    """The scale and shift as arrays."""

    counts: Array
    scale: Array
    shift: Array


@dataclass(frozen=True, repr=False)
class Fixed(Rule[FixedState]):
    """Normalise by a known scale and shift: numbers, or a tuple with one per output."""

    scale: float | tuple[float, ...] = 1.0
    shift: float | tuple[float, ...] = 0.0

    def __post_init__(self) -> None:
        scale, shift = np.asarray(self.scale, float), np.asarray(self.shift, float)
        if not np.isfinite(scale).all() or (scale == 0).any():
            raise ValueError(f"scale is {self.scale!r}; it must be finite and not 0")
        if not np.isfinite(shift).all():
            raise ValueError(f"shift is {self.shift!r}; it must be finite")
        if self.symmetric and shift.any():
            raise ValueError(f"shift is {self.shift!r} and symmetric is True; the shift must then be 0")

    def init(self, shape: Sequence[int] = (), like: Array = None) -> FixedState:
        counts, zero = zeros(shape, like)
        xp = namespace(zero)
        scale, shift = (asarray(xp, x, zero.dtype, zero) for x in (self.scale, self.shift))
        if (zero + scale + shift).shape != zero.shape:
            raise ValueError(
                f"shape is {tuple(shape)}; it does not hold a scale of shape {tuple(scale.shape)} "
                f"and a shift of shape {tuple(shift.shape)}"
            )
        return FixedState(counts, zero + scale, zero + shift)

    def absorb(self, state: FixedState, batch: Batch) -> FixedState:
        return state._replace(counts=tally(state.counts, batch))

    def affine(self, state: FixedState) -> Affine:
        return Affine(state.scale, state.shift)

    @property
    def has_shift(self) -> bool:
        return bool(np.any(self.shift))
