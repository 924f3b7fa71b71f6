"""The few functions that NumPy, JAX and PyTorch name differently.

The method is written once, over the module of its arguments. This file imports neither JAX nor PyTorch: an
argument can only be theirs if the caller has imported them.
"""

import math
import sys
from typing import Annotated, Any, Literal

import numpy as np

Array = Any
"""A NumPy array, a JAX array or tracer, a PyTorch tensor, or a number."""

Targets = Annotated[Array, "(*batch, *shape)"]
"""Targets or outputs for statistics of this shape, with any number of batch axes, also none."""

PerTarget = Annotated[Array, "(*batch,)"]
"""A number for each target."""

Weight = Annotated[Array, "(..., out, in)"]
Bias = Annotated[Array, "(..., out)"]

Namespace = Any
"""`numpy`, `jax.numpy` or `torch`."""

ROW = 4096
"""Length of a vector for which BLAS starts no threads."""

LONG = 65_536
"""Number of targets up to which JAX sums those of each task one by one, which loses digits with more."""

_NUMPY = (np.ndarray, np.generic, int, float, list, tuple, type(None))


def namespace(*arrays: Array) -> Namespace:
    """Return the module that the arrays belong to; NumPy for numbers and lists."""
    found: Namespace = np
    for x in arrays:
        if isinstance(x, _NUMPY):
            continue
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(x, torch.Tensor):
            return torch
        if hasattr(x, "__array_namespace__"):
            found = x.__array_namespace__()
    return found


def is_torch(xp: Namespace) -> bool:
    return xp.__name__ == "torch"


def is_numpy(x: Array) -> bool:
    return isinstance(x, _NUMPY)


def values_of(x: Array) -> np.ndarray[Any, np.dtype[Any]] | None:
    """Return the values as a NumPy array, or None where they cannot be read: traced, or on a GPU."""
    xp = namespace(x)
    if is_torch(xp):
        if x.device.type != "cpu" or xp.compiler.is_compiling() or xp.jit.is_tracing():
            return None
        x = x.detach()
    try:
        return np.asarray(x)
    except (TypeError, RuntimeError):
        return None


def asarray(xp: Namespace, x: Array, dtype: Any, like: Array) -> Array:
    """Convert `x` to an array of `xp` with this dtype, on the device of `like`."""
    if not is_torch(xp):
        return xp.asarray(x, dtype=dtype)
    device = like.device if isinstance(like, xp.Tensor) else None
    if isinstance(x, xp.Tensor):
        return x.to(device=device, dtype=dtype)
    if isinstance(x, (bool, int, float)):
        return xp.full((), x, dtype=dtype, device=device)  # a copy would wait for the device
    return xp.asarray(np.asarray(x), dtype=dtype, device=device)


def cast(x: Array, dtype: Any) -> Array:
    """Convert the dtype of an array."""
    return x if x.dtype == dtype else x.astype(dtype) if hasattr(x, "astype") else x.to(dtype)


def is_float(dtype: Any) -> bool:
    return dtype.kind in "fV" if isinstance(dtype, np.dtype) else dtype.is_floating_point  # V: bfloat16


def floats(x: Array) -> Array:
    """Convert integers to floats."""
    xp = namespace(x)
    return x if hasattr(x, "dtype") and is_float(x.dtype) else asarray(xp, x, float_dtype(xp, x), x)


def float_dtype(xp: Namespace, x: Array) -> Any:
    """Return the dtype for statistics of `x`: float32 for half precisions, the default for other numbers."""
    dtype = getattr(x, "dtype", None)
    if dtype is None or namespace(x) is not xp or not is_float(dtype):
        return xp.zeros(()).dtype
    return dtype if dtype.itemsize >= 4 else xp.float32


def eps_of(dtype: Any) -> float:
    return 2.0**-23 if dtype.itemsize == 4 else 2.0**-52


def matmul(a: Array, b: Array) -> Array:
    """Return a @ b in the full precision of its arguments; on GPUs JAX would multiply in TF32."""
    xp = namespace(a, b)
    if is_torch(xp):
        dtype = xp.promote_types(a.dtype, b.dtype)
        return cast(a, dtype) @ cast(b, dtype)
    return a @ b if xp is np else xp.matmul(a, b, precision="highest")


def solve(A: Array, B: Array) -> Array:
    """Return A⁻¹ B. PyTorch's own check that A is not singular would wait for the device."""
    xp = namespace(A, B)
    return xp.linalg.solve_ex(A, B)[0] if is_torch(xp) else xp.linalg.solve(A, B)


def arange(n: int, like: Array) -> Array:
    """Return the numbers from 0 to n - 1, with the dtype of `like` and made where it is."""
    xp = namespace(like)
    device = {"device": like.device} if is_torch(xp) else {}
    return xp.arange(n, dtype=like.dtype, **device)


def eye(like: Array) -> Array:
    """Return the identity on the last axis of `like`."""
    i = arange(like.shape[-1], like)
    return cast(i[:, None] == i, like.dtype)


def sum_of_squares(x: Array) -> Array:
    """Return the sum of the squares of a vector of NumPy's.

    BLAS starts threads for long vectors. They compete with PyTorch's, which keep waiting for more work: an
    update took ten times as long. So no vector is long here.
    """
    if len(x) < ROW:
        return x @ x
    long = len(x) // ROW * ROW
    rows, rest = x[:long].reshape(-1, ROW), x[long:]
    return rest @ rest + np.vecdot(rows, rows).sum()


def fold(kind: Literal["sum", "max"], x: Array, index: Array, n: int) -> Array:
    """Return the sums or the maxima of the rows of `x` with each index from 0 to n - 1, `(n, *x.shape[1:])`.

    Without an index, of all rows, `x.shape[1:]`. The maximum of no rows is minus infinity.
    """
    xp, shape, none = namespace(x), (n, *x.shape[1:]), 0.0 if kind == "sum" else -math.inf
    if index is None:
        return x.sum(0) if kind == "sum" else xp.amax(x, 0)
    if is_torch(xp):
        if kind == "sum" and x.device.type != "cpu":  # where it takes twice the time of scatter_reduce
            return x.new_zeros(shape).index_add(0, index, x)
        places = index.long().reshape(-1, *(1,) * (x.ndim - 1)).expand(x.shape)
        return x.new_full(shape, none).scatter_reduce(0, places, x, "sum" if kind == "sum" else "amax")
    if xp is not np and kind == "sum":
        blocks = -(-len(x) // LONG)
        places = index if blocks == 1 else index + n * (xp.arange(len(x)) // LONG)
        sums = xp.zeros((blocks * n, *shape[1:]), x.dtype).at[places].add(x)
        return sums.reshape((blocks, *shape)).sum(0)
    if xp is not np:
        return xp.full(shape, none, x.dtype).at[index].max(x)
    if kind == "max":
        largest = np.full(shape, none, x.dtype)
        np.maximum.at(largest, index, x)
        return largest
    columns = math.prod(shape[1:])
    places = index if columns == 1 else (index[:, None] * columns + np.arange(columns)).reshape(-1)
    return np.bincount(places, x.reshape(-1), n * columns).astype(x.dtype, copy=False).reshape(shape)
