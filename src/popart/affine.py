r"""How targets are normalised and how outputs are preserved: Eq. 1, Eq. 2 and Proposition 1."""

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np

from popart._arrays import (
    Array,
    Bias,
    Namespace,
    Targets,
    Weight,
    asarray,
    cast,
    eye,
    float_dtype,
    is_float,
    is_numpy,
    matmul,
    namespace,
    solve,
    values_of,
)
from popart.numerics import divide, unit, widened

Layout = Literal["out_in", "in_out"]

HUGE = 2.0**100
"""The largest factor of weights with a limit of their norm: weights of 0 set none."""


class Affine(NamedTuple):
    r"""The normalisation $\tilde Y = \Sigma^{-1}(Y - \mu)$ (Eq. 1).

    `shift` is $\mu$: a scalar, or one number per output. `scale` is $\Sigma$: a scalar or diagonal one
    broadcasts with `shift`; a dense one has one more axis, `(..., k, k)` for a `shift` of `(..., k)`.

    A scale of 0 means that no spread is known: normalised targets are 0 and outputs are the shift. A shift of
    NaN means that no target is known: outputs are 0, and `preserve` does not change the layer.
    """

    scale: Array
    shift: Array

    @property
    def is_dense(self) -> bool:
        return getattr(self.scale, "ndim", 0) > getattr(self.shift, "ndim", 0)

    def normalize(self, targets: Targets) -> Targets:
        r"""Return $\Sigma^{-1}(Y - \mu)$ for targets of shape `(*batch, *shape)`."""
        xp, (scale, shift) = _arrays_of(self, targets)
        y = _floats(xp, targets, scale)
        if self.is_dense:
            live, per_u, A = _equilibrate(scale)
            return _solve(A, xp.where(live, y * per_u - shift * per_u, 0.0))
        live = scale != 0
        if is_numpy(scale) and scale.ndim == shift.ndim == 0 and y.dtype.itemsize <= 4:
            return ((y - np.float64(shift)) / np.float64(scale) if live else 0 * y).astype(y.dtype)
        _, per_u = unit(scale)
        return xp.where(live, (y * per_u - shift * per_u) / xp.where(live, scale * per_u, 1.0), 0.0)

    def denormalize(self, outputs: Targets) -> Targets:
        r"""Return $\Sigma g + \mu$ (Eq. 2): normalised outputs in the targets' own units."""
        xp, (scale, shift) = _arrays_of(self, outputs)
        g = _floats(xp, outputs, scale)
        scaled = matmul(scale, g[..., None])[..., 0] if self.is_dense else scale * g
        return scaled + xp.where(xp.isnan(shift), 0.0, shift)

    def select(self, index: Array) -> "Affine":
        """Return the normalisation of each task in `index`, where the first axis is the task."""
        return Affine(self.scale[index], self.shift[index])


def preserve(
    weight: Weight,
    bias: Bias,
    old: Affine,
    new: Affine,
    *,
    layout: Layout = "out_in",
    max_norm: float | None = None,
) -> tuple[Weight, Bias]:
    r"""Return the last layer with the same outputs after its normalisation changed (Proposition 1).

    $$W_{new} = \Sigma_{new}^{-1} \Sigma W \qquad
      b_{new} = \Sigma_{new}^{-1} (\Sigma b + \mu - \mu_{new})$$

    `weight` is `(..., out, in)`, or `(..., in, out)` with `layout="in_out"`; `bias` is `(..., out)`, or None
    for a layer without one, whose shift must not change. Leading axes are heads. Scale and shift broadcast
    with the bias: `(heads, 1)` is one normalisation per head.

    If `old` has seen no target, the layer does not change. If `old` has no spread, all outputs were $\mu$:
    $W$ stays, and the bias accounts for the change of the shift. The new scale must not be singular where the
    old one is not; compiled code, which cannot raise, leaves that part of the layer alone.

    With `max_norm`, outputs are preserved only while this does not make the norm of an output's weights
    larger than `max_norm`. Beyond it they shrink towards the new shift.
    """
    old, new = (_arrays_of(x, weight)[1] for x in (old, new))
    _check_head(weight, bias, old, new, layout)
    _check_new_scale(old, new)
    change = change_of(old, new)
    change = change if max_norm is None else limited(change, old, new, [(weight, layout)], max_norm)
    W = change.rescale(weight, layout=layout)
    return W, None if bias is None else change.rescale_bias(bias, shift=True)


class Change(NamedTuple):
    r"""The change of a layer whose normalisation changes, with $F = \Sigma_{new}^{-1} \Sigma$.

    $W_{new} = F W$ and $b_{new} = F b + moved$, where F is `factor + rest`. If F is near 1, as it mostly is,
    `factor` is 1 and `rest` has the small difference in full precision: a rounded F would make an error that
    all weights have in common, and which adds up over updates. Otherwise `factor` is 0.

    An error of $\delta$ is $F \delta$ in the new units. So an optimizer's averages of gradients on the
    squared loss are rescaled by the same F: averages with `power` 1, averages of squares with 2.
    """

    factor: Array
    rest: Array
    moved: Array

    def rescale(self, W: Weight, *, power: int = 1, layout: Layout = "out_in") -> Weight:
        """Return F W, or with `power` 2 the new squares of W (exact if F is diagonal)."""
        if layout == "out_in" or self.factor.ndim == 0:
            return self._columns(W, power)
        return self._columns(W.swapaxes(-1, -2), power).swapaxes(-1, -2)

    def rescale_bias(self, b: Bias, *, power: int = 1, shift: bool = False) -> Bias:
        """Return F b, or with `shift` the new bias F b + moved."""
        scaled = self._columns(b[..., None], power)[..., 0]
        return cast(scaled + self.moved, b.dtype) if shift else scaled

    def _columns(self, x: Array, power: int) -> Array:
        factor, rest = self.factor, self.rest
        if factor.ndim > self.moved.ndim:
            y = matmul((factor + rest) ** 2, x) if power == 2 else matmul(factor, x) + matmul(rest, x)
        else:
            factor, rest = (factor[..., None], rest[..., None]) if factor.ndim else (factor, rest)
            y = x
            for _ in range(power):
                y = factor * y + rest * y
        return cast(y, x.dtype)


def change_of(old: Affine, new: Affine, *, adopt: bool = True) -> Change:
    """Return the change from one normalisation to another, without a check of either.

    With `adopt` false the layer is rescaled also where `old` knows no spread, so that constant
    outputs stay constant.
    """
    dtype = new.scale.dtype
    if not adopt:
        xp = namespace(old.shift)
        old = Affine(old.scale, xp.where(xp.isnan(old.shift), 0.0, old.shift))
    if is_numpy(new.scale) and new.scale.ndim == old.scale.ndim == new.shift.ndim == old.shift.ndim == 0:
        return _scalar_change(old, new, adopt)
    old, new = (Affine(widened(x.scale), widened(x.shift)) for x in (old, new))
    parts = (_dense_change if old.is_dense or new.is_dense else _diagonal_change)(old, new, adopt)
    return Change(*(cast(x, dtype) for x in parts))


def limited(
    change: Change, old: Affine, new: Affine, weights: Sequence[tuple[Array, Layout]], max_norm: float
) -> Change:
    r"""Return a change that does not enlarge weights beyond a norm: outputs then shrink towards the new mean.

    With $n$ the largest norm of an output's weights, F becomes $k F$ and *moved* becomes $k \cdot moved$:

    $$k = \min\left(1, \frac{\max(n_{old}, max\_norm)}{n_{new}}\right)$$

    Outputs that share a scale share k, so that their order is preserved. `change` is the change from `old` to
    `new`, and `weights` are those of all layers before it.
    """
    if not max_norm > 0:
        raise ValueError(f"max_norm is {max_norm!r}; it must be positive, or None for no limit")
    xp, is_dense = namespace(change.moved), change.factor.ndim > change.moved.ndim
    k = xp.ones_like(change.moved)
    largest = k * HUGE  # k F, which is finite where F is not
    for weight, layout in weights:
        W = cast(weight, k.dtype) if weight.dtype.itemsize < 4 else weight
        norm = _largest_norm(W, layout, k)
        allowed = norm.clip(max_norm, None)
        largest = xp.minimum(largest, allowed / xp.maximum(norm, allowed / HUGE))
        if is_dense:
            after = _largest_norm(change.rescale(W, layout=layout), layout, k)
            k = xp.minimum(k, allowed / xp.maximum(after, allowed))
    if is_dense:
        return Change(change.factor * k[..., None], change.rest * k[..., None], change.moved * k)
    s_old, is_known = old.scale / largest, old.shift == old.shift  # not NaN
    is_limited = (s_old > new.scale) & (new.scale != 0) & is_known
    moved = largest * divide(old.shift - new.shift, xp.where(is_limited, old.scale, 0.0))
    return Change(
        xp.where(is_limited, largest, change.factor),
        xp.where(is_limited, 0.0, change.rest),
        xp.where(is_limited, moved, change.moved),
    )


def _largest_norm(W: Array, layout: Layout, like: Array) -> Array:
    """Return the largest norm of an output's weights among the outputs that share a normalisation."""
    xp, wide, axis = namespace(W), widened(W), -1 if layout == "out_in" else -2
    u, per_u = unit(xp.amax(xp.abs(wide), axis=axis, keepdims=True))
    norms = xp.sqrt(((wide * per_u) ** 2).sum(axis)) * u.squeeze(axis)
    while norms.ndim > like.ndim:
        norms = xp.amax(norms, axis=0)
    for axis, size in enumerate(like.shape):
        norms = xp.amax(norms, axis=axis, keepdims=True) if size == 1 else norms
    return cast(norms, like.dtype)


def _scalar_change(old: Affine, new: Affine, adopt: bool) -> Change:
    """Return the change for NumPy scalars, with Python floats, in a tenth of the time."""
    kind, s_old, s_new, moved = new.scale.dtype.type, float(old.scale), float(new.scale), 0.0
    is_preserved = s_new != 0 and not math.isnan(old.shift)
    if is_preserved:
        moved = (float(old.shift) - float(new.shift)) / s_new
    if not is_preserved or (adopt and s_old == 0):
        s_old = s_new = 1.0
    factor = 1.0 if abs(s_old - s_new) <= abs(s_new) / 2 else 0.0
    return Change(kind(factor), kind((s_old - factor * s_new) / s_new), kind(moved))


def _diagonal_change(old: Affine, new: Affine, adopt: bool) -> Change:
    """Return the change in units of the new scale."""
    xp = namespace(new.scale)
    live = new.scale != 0
    is_preserved = live & (old.shift == old.shift)  # not NaN
    _, per_u = unit(new.scale)
    s_new = xp.where(live, new.scale * per_u, 1.0)
    s_old = xp.where(is_preserved & (old.scale != 0) if adopt else is_preserved, old.scale * per_u, s_new)
    factor = cast(xp.abs(s_old - s_new) <= xp.abs(s_new) / 2, s_new.dtype)
    moved = xp.where(is_preserved, old.shift * per_u - new.shift * per_u, 0.0) / s_new
    return Change(factor, (s_old - factor * s_new) / s_new, moved)


def _dense_change(old: Affine, new: Affine, adopt: bool) -> Change:
    """Return the change in units of the rows of the new scale."""
    xp = namespace(new.scale)
    before, after = _as_dense(old), _as_dense(new)
    live, per_u, A = _equilibrate(after)
    is_preserved = live & (old.shift == old.shift)  # not NaN
    known = is_preserved & xp.any(before != 0, axis=-1) if adopt else is_preserved
    B = xp.where(known[..., None], before * per_u[..., None], A)
    change = solve(A, B - A)
    near = cast(xp.amax(xp.abs(change), axis=(-2, -1)) <= 0.5, A.dtype)[..., None, None]
    moved = _solve(A, xp.where(is_preserved, old.shift * per_u - new.shift * per_u, 0.0))
    return Change(near * eye(A), xp.where(near > 0, change, solve(A, B)), moved)


def _equilibrate(scale: Array) -> tuple[Array, Array, Array]:
    """Return which rows are not 0, a power of two for each, and each row times it.

    Rows of 0 become those of the identity, so that the matrix can be inverted.
    """
    largest = namespace(scale).amax(abs(scale), axis=-1)
    live, (_, per_u) = largest != 0, unit(largest)
    return live, per_u, scale * per_u[..., None] + cast(~live, scale.dtype)[..., None] * eye(scale)


def _solve(A: Array, y: Array) -> Array:
    """Return A⁻¹ y for y of shape (*batch, ..., k) and A of shape (..., k, k), factorised once."""
    xp = namespace(A, y)
    y = xp.broadcast_to(y, xp.broadcast_shapes(y.shape, A.shape[:-1]))
    columns = xp.moveaxis(y.reshape((-1, *y.shape[y.ndim - A.ndim + 1 :])), 0, -1)
    return xp.moveaxis(solve(A, columns), -1, 0).reshape(y.shape)


def _as_dense(affine: Affine) -> Array:
    if affine.is_dense:
        return affine.scale
    diagonal = affine.scale + namespace(affine.shift).zeros_like(affine.shift)
    return diagonal[..., None] * eye(diagonal)


def _arrays_of(affine: Affine, x: Array) -> tuple[Namespace, Affine]:
    """Return the normalisation as arrays of the module of `x`, in its own precision where it has one."""
    xp, (scale, shift) = namespace(x, *affine), affine
    if xp is np and hasattr(scale, "dtype") and hasattr(shift, "dtype") and scale.dtype == shift.dtype:
        return xp, affine
    like = scale if hasattr(scale, "dtype") and namespace(scale) is xp else x
    return xp, Affine(*(asarray(xp, part, float_dtype(xp, like), like) for part in affine))


def _floats(xp: Namespace, x: Array, like: Array) -> Array:
    """Convert to floats that are no smaller than `like`: half precision cannot hold large targets."""
    if (
        hasattr(x, "dtype")
        and is_float(x.dtype)
        and namespace(x) is xp
        and x.dtype.itemsize >= like.dtype.itemsize
    ):
        return x
    return asarray(xp, x, like.dtype, like)


def _check_head(weight: Array, bias: Array, old: Affine, new: Affine, layout: Layout) -> None:
    if layout not in ("out_in", "in_out"):
        raise ValueError(f"layout is {layout!r}; it may be 'out_in' or 'in_out'")
    shape = tuple(weight.shape)
    if getattr(weight.dtype, "kind", "f") in "biu":
        raise ValueError(f"weight has dtype {weight.dtype}; it must be of floats, which can be rescaled")
    outputs = shape[:-1] if layout == "out_in" or len(shape) < 2 else (*shape[:-2], shape[-1])
    held = outputs if bias is None else tuple(bias.shape)
    if held != outputs and not _broadcasts(held, outputs):
        raise ValueError(
            f"bias has shape {held}; "
            f"a weight of shape {shape} in layout {layout!r} has outputs of shape {outputs}"
        )
    for name, affine in (("old", old), ("new", new)):
        if affine.shift.ndim and not _broadcasts(tuple(affine.shift.shape), held):
            raise ValueError(
                f"{name}.shift has shape {tuple(affine.shift.shape)}; "
                f"it must broadcast to the layer's {'outputs' if bias is None else 'bias'}, {held}"
            )
    if bias is None:
        before, after = values_of(old.shift), values_of(new.shift)
        if before is not None and after is not None and np.any((before != after) & ~np.isnan(before)):
            raise ValueError(
                f"bias is None but the shift changes from {before} to {after}; "
                "a layer without a bias can only keep its outputs while the shift stays"
            )


def _broadcasts(shape: tuple[int, ...], to: tuple[int, ...]) -> bool:
    """Return whether an array of this shape broadcasts to `to` without making it larger."""
    sizes = zip(reversed(shape), reversed(to), strict=False)
    return len(shape) <= len(to) and all(size in (1, there) for size, there in sizes)


def _check_new_scale(old: Affine, new: Affine) -> None:
    if is_numpy(new.scale) and new.scale.ndim == 0 and 0 < abs(new.scale) < math.inf:
        return
    before, known, after, shift = map(values_of, (*old, *new))
    if before is None or known is None or after is None or shift is None:
        return
    if not np.isfinite(after).all() or np.isinf(shift).any():
        raise ValueError(f"new has scale {after} and shift {shift}; both must be finite")
    seen = ~np.isnan(known)
    if new.is_dense:
        *_, rows = _equilibrate(after.astype(float))
        singular = seen.any() and (np.linalg.cond(rows) > 1 / np.finfo(after.dtype).eps).any()
    else:
        spread = before.any(-1) if old.is_dense else before != 0
        singular = ((after == 0) & seen & spread).any()
    if singular:
        raise ValueError(
            f"new.scale is singular: {after}; a zero scale maps every output to the shift, "
            "and nothing can be preserved"
        )
