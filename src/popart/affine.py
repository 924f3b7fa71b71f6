r"""How targets are mapped and how outputs are kept: Eq. 1, Eq. 2 and Proposition 1."""

from typing import Literal, NamedTuple

import numpy as np

from popart._arrays import (
    Array,
    Namespace,
    asarray,
    eye,
    float_dtype,
    is_concrete,
    is_float,
    matmul,
    namespace,
    solve,
    to_numpy,
    unit,
)

Layout = Literal["out_in", "in_out"]


class Affine(NamedTuple):
    r"""The normalisation $\tilde Y = \Sigma^{-1}(Y - \mu)$ (Eq. 1).

    `shift` is $\mu$: a scalar, or one number per output. `scale` is $\Sigma$: shaped like `shift`
    (or broadcasting with it) for a scalar or diagonal scale; with one more axis, `(..., k, k)` for
    a `shift` of `(..., k)`, for a dense one.

    Where `scale` is 0 no spread is known: normalised targets are 0 and outputs are the shift. Where
    `seen` is false not even a single target is known, and `preserve` adopts instead of preserving.
    """

    scale: Array
    shift: Array
    seen: Array = True

    @property
    def is_dense(self) -> bool:
        return _ndim(self.scale) > _ndim(self.shift)

    def normalize(self, targets: Array) -> Array:
        r"""$\Sigma^{-1}(Y - \mu)$ for targets of shape `(*batch, *shape)`."""
        xp, (scale, shift, _) = _arrays_of(self, targets)
        y = _floats(xp, targets, scale)
        if self.is_dense:
            per_u, A = _equilibrate(scale)
            live = xp.any(scale != 0, axis=-1)
            return _solve(A, xp.where(live, y * per_u - shift * per_u, 0.0))
        _, per_u = unit(scale)
        live = scale != 0
        return xp.where(live, (y * per_u - shift * per_u) / xp.where(live, scale * per_u, 1.0), 0.0)

    def denormalize(self, outputs: Array) -> Array:
        r"""$\Sigma g + \mu$ (Eq. 2): normalised outputs in the targets' own units."""
        xp, (scale, shift, _) = _arrays_of(self, outputs)
        g = _floats(xp, outputs, scale)
        if self.is_dense:
            return matmul(scale, g[..., None])[..., 0] + shift
        return scale * g + shift

    def or_identity(self) -> "Affine":
        r"""The same where a spread is known, and elsewhere a map that loses nothing.

        For a layer whose outputs are to be kept from the start: $\Sigma = I$ and $\mu = 0$ before any
        target, and $\Sigma = |\mu|$ while all targets are the same, so that none of them is large.
        """
        xp, (scale, shift, seen) = _arrays_of(self, self.shift)
        dead = xp.all(scale == 0, axis=-1) if self.is_dense else scale == 0
        fallback = xp.where(shift != 0, xp.abs(shift), 1.0)
        if self.is_dense:
            scale = scale + xp.where(dead, fallback, 0.0)[..., None] * eye(scale)
        else:
            scale = xp.where(dead, fallback, scale)
        return Affine(scale, xp.where(dead, 0.0, shift), xp.ones_like(seen))

    def select(self, index: Array) -> "Affine":
        """The normalisation of each task in `index`, where the first axis is the task."""
        _, (scale, shift, seen) = _arrays_of(self, self.shift)
        seen = seen[index] if seen.ndim else seen
        return Affine(scale[index], shift[index], seen)


def preserve(
    weight: Array, bias: Array, old: Affine, new: Affine, *, layout: Layout = "out_in"
) -> tuple[Array, Array]:
    r"""The last layer after its normalisation changed, with the same outputs (Proposition 1).

    $$W_{new} = \Sigma_{new}^{-1} \Sigma W \qquad
      b_{new} = \Sigma_{new}^{-1} (\Sigma b + \mu - \mu_{new})$$

    `weight` is `(..., out, in)`, or `(..., in, out)` with `layout="in_out"`; `bias` is
    `(..., out)`. Leading axes are heads. Scale and shift broadcast with the bias: `(heads, 1)` is one
    normalisation per head. A `bias` of `None` stands for a layer without one, whose shift must not
    change.

    Where nothing is known there is nothing to preserve: where `old` has seen no target the layer is
    adopted as it is; where `old` has no spread its outputs were all $\mu$, so $W$ is kept and the
    shift alone is made up for. The new scale must not be singular where the old one is not; compiled
    code, which cannot raise, leaves that part of the layer alone.
    """
    _, new = _arrays_of(new, weight)
    _, old = _arrays_of(old, weight)
    _check_head(weight, bias, old, new, layout)
    _check_new_scale(old, new)
    change = change_of(old, new)
    W = change.rescale(weight, layout=layout)
    return W, None if bias is None else change.rescale_bias(bias, shift=True)


class Change(NamedTuple):
    r"""What becomes of a layer when its normalisation changes, with $F = \Sigma_{new}^{-1} \Sigma$.

    $W_{new} = F W$ and $b_{new} = F b + moved$. F is `factor`, or the identity plus `factor` where
    `near`: where the scale hardly changed, rounding then costs half an ulp of the weight, and no error
    is common to all weights, which would add up over updates.

    An error of $\delta$ is $F \delta$ in the new units, so gradients of the layer on the squared loss,
    and what an optimizer remembers of them, are rescaled by the same F: averages with `power` 1,
    averages of squares with 2.
    """

    near: Array
    factor: Array
    moved: Array

    def rescale(self, W: Array, *, power: int = 1, layout: Layout = "out_in") -> Array:
        """F W, or with `power` 2 what becomes of squares of it (which is exact if F is diagonal)."""
        if layout == "out_in" or self.factor.ndim == 0:
            return self._columns(W, power)
        xp = namespace(W)
        return xp.swapaxes(self._columns(xp.swapaxes(W, -1, -2), power), -1, -2)

    def rescale_bias(self, b: Array, *, power: int = 1, shift: bool = False) -> Array:
        """F b, or with `shift` what becomes of the bias itself."""
        scaled = self._columns(b[..., None], power)[..., 0]
        return asarray(namespace(b), scaled + self.moved, b.dtype, b) if shift else scaled

    def _columns(self, x: Array, power: int) -> Array:
        xp = namespace(x, self.factor)
        near, factor = self.near[..., None], self.factor
        if factor.ndim <= self.near.ndim:
            y = x
            for _ in range(power):
                y = xp.where(near, y, 0.0) + factor[..., None] * y
        else:
            whole = xp.where(near, eye(factor), 0.0) + factor
            y = matmul(whole**2, x) if power == 2 else xp.where(near, x, 0.0) + matmul(factor, x)
        return asarray(xp, y, x.dtype, x)


def change_of(old: Affine, new: Affine, *, adopt: bool = True) -> Change:
    """The change from one normalisation to another, without a check of either.

    With `adopt` false the layer is rescaled also where `old` knows no spread, so that what was constant
    stays so.
    """
    dense = old.is_dense or new.is_dense
    return (_dense_change if dense else _diagonal_change)(old, new, adopt)


def _diagonal_change(old: Affine, new: Affine, adopt: bool) -> Change:
    xp = namespace(new.scale)
    live = new.scale != 0
    _, per_u = unit(new.scale)
    s_new = xp.where(live, new.scale * per_u, 1.0)
    told = live & old.seen if adopt else live
    s_old = xp.where(told & (old.scale != 0) if adopt else told, old.scale * per_u, s_new)
    change = (s_old - s_new) / s_new
    near = xp.abs(change) <= 0.5
    moved = xp.where(told, old.shift * per_u - new.shift * per_u, 0.0) / s_new
    return Change(near, xp.where(near, change, s_old / s_new), moved)


def _dense_change(old: Affine, new: Affine, adopt: bool) -> Change:
    xp = namespace(new.scale)
    before, after = _as_dense(old), _as_dense(new)
    per_u, A = _equilibrate(after)
    live = xp.any(after != 0, axis=-1)
    told = live & old.seen if adopt else live
    known = told & xp.any(before != 0, axis=-1) if adopt else told
    B = xp.where(known[..., None], before * per_u[..., None], A)
    change = solve(A, B - A)
    near = xp.amax(xp.abs(change), axis=(-2, -1)) <= 0.5
    factor = xp.where(near[..., None, None], change, solve(A, B))
    moved = _solve(A, xp.where(told, old.shift * per_u - new.shift * per_u, 0.0))
    return Change(near[..., None], factor, moved)


def _equilibrate(scale: Array) -> tuple[Array, Array]:
    """Powers of two, one per row, and the dense scale times them, its zero rows made unit."""
    xp = namespace(scale)
    largest = xp.amax(xp.abs(scale), axis=-1)
    _, per_u = unit(largest)
    dead = asarray(xp, largest == 0, scale.dtype, scale)
    return per_u, scale * per_u[..., None] + dead[..., None] * eye(scale)


def _solve(A: Array, y: Array) -> Array:
    """A⁻¹ y for y of shape (*batch, ..., k) and A of shape (..., k, k), factorised once."""
    xp = namespace(A, y)
    y = xp.broadcast_to(y, xp.broadcast_shapes(y.shape, A.shape[:-1]))
    columns = xp.moveaxis(y.reshape((-1, *y.shape[y.ndim - A.ndim + 1 :])), 0, -1)
    return xp.moveaxis(solve(A, columns), -1, 0).reshape(y.shape)


def _as_dense(affine: Affine) -> Array:
    if affine.is_dense:
        return affine.scale
    xp = namespace(affine.scale)
    diagonal = affine.scale + xp.zeros_like(affine.shift)
    return diagonal[..., None] * eye(diagonal)


def _ndim(x: Array) -> int:
    return x.ndim if hasattr(x, "ndim") else np.ndim(x)


def _arrays_of(affine: Affine, x: Array) -> tuple[Namespace, Affine]:
    """The affine map as arrays of the module of `x`, in its own precision where it has one."""
    xp = namespace(x, affine.scale, affine.shift)
    own = hasattr(affine.scale, "dtype") and namespace(affine.scale) is xp
    like = affine.scale if own else x
    dtype = float_dtype(xp, like)
    scale = asarray(xp, affine.scale, dtype, like)
    shift = asarray(xp, affine.shift, dtype, like)
    return xp, Affine(scale, shift, asarray(xp, affine.seen, xp.bool, like))


def _floats(xp: Namespace, x: Array, like: Array) -> Array:
    if namespace(x) is xp and hasattr(x, "dtype") and is_float(xp, x.dtype):
        return x
    return asarray(xp, x, like.dtype, like)


def _check_head(weight: Array, bias: Array, old: Affine, new: Affine, layout: Layout) -> None:
    if layout not in ("out_in", "in_out"):
        raise ValueError(f"layout is {layout!r}; it may be 'out_in' or 'in_out'")
    shape = tuple(weight.shape)
    outputs = shape[:-1] if layout == "out_in" or len(shape) < 2 else (*shape[:-2], shape[-1])
    if bias is not None and not _broadcasts(tuple(bias.shape), outputs):
        raise ValueError(
            f"bias has shape {tuple(bias.shape)}; "
            f"a weight of shape {shape} in layout {layout!r} has outputs of shape {outputs}"
        )
    held = outputs if bias is None else tuple(bias.shape)
    for name, affine in (("old", old), ("new", new)):
        if not _broadcasts(tuple(affine.shift.shape), held):
            raise ValueError(
                f"{name}.shift has shape {tuple(affine.shift.shape)}; "
                f"it must broadcast to the layer's {'outputs' if bias is None else 'bias'}, {held}"
            )
    if bias is None and is_concrete(old.shift) and is_concrete(new.shift):
        before, after = to_numpy(old.shift), to_numpy(new.shift)
        if np.any(to_numpy(old.seen) & (before != after)):
            raise ValueError(
                f"bias is None but the shift changes from {before} to {after}; "
                "a layer without a bias can only keep its outputs while the shift stays"
            )


def _broadcasts(shape: tuple[int, ...], to: tuple[int, ...]) -> bool:
    """Whether an array of this shape broadcasts to `to` without making it larger."""
    sizes = zip(reversed(shape), reversed(to), strict=False)
    return len(shape) <= len(to) and all(size in (1, there) for size, there in sizes)


def _check_new_scale(old: Affine, new: Affine) -> None:
    if not (is_concrete(old.scale) and is_concrete(new.scale)):
        return
    before, after, seen = to_numpy(old.scale), to_numpy(new.scale), to_numpy(old.seen)
    if not (np.isfinite(after).all() and np.isfinite(to_numpy(new.shift)).all()):
        raise ValueError(f"new has scale {after} and shift {to_numpy(new.shift)}; both must be finite")
    if new.is_dense:
        live = np.any(after, axis=-1, keepdims=True)
        size = np.where(live, np.abs(after).max(-1, keepdims=True), 1.0)
        rows = (after / size).astype(float) + np.eye(after.shape[-1]) * ~live
        singular = seen.any() and bool((np.linalg.cond(rows) > 1 / np.finfo(after.dtype).eps).any())
    else:
        spread = before.any(-1) if old.is_dense else before != 0
        singular = bool(np.any((after == 0) & seen & spread))
    if singular:
        raise ValueError(
            f"new.scale is singular: {after}; outputs that differ cannot be kept by a layer whose "
            "outputs are all the shift"
        )
