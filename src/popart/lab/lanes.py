"""Lanes: independent computations of the same kind, side by side along the first axis of every array."""

from collections.abc import Callable, Sequence
from typing import Any

import jax


def mapped(f: Callable[..., Any], lanes: int, in_axes: Sequence[int | None]) -> Callable[..., Any]:
    """Return `jax.vmap(f)`, or for one lane `f` itself on arrays whose first axis has length 1.

    One lane thus computes what `f` computes, to the bit; a `vmap` of one would compile to other kernels.
    """
    if lanes > 1:
        return jax.vmap(f, tuple(in_axes))

    def one(*arguments: Any) -> Any:
        inner = (
            x if axis is None else jax.tree.map(_without_axis, x)
            for x, axis in zip(arguments, in_axes, strict=True)
        )
        return jax.tree.map(lambda x: x.reshape(1, *x.shape), f(*inner))

    return one


def _without_axis(x: Any) -> Any:
    return x.reshape(x.shape[1:])
