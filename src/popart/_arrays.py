"""The little that NumPy, JAX and PyTorch do not spell alike.

The method is written once, over whichever module its arguments come from. This file imports neither
JAX nor PyTorch: an argument can only be theirs if somebody else has imported them.
"""

import functools
import sys
from typing import Any

import numpy as np

Array = Any
"""A NumPy array, a JAX array or tracer, a PyTorch tensor, or a number."""

Namespace = Any
"""`numpy`, `jax.numpy` or `torch`."""

COUNT_MAX = 2**31 - 1


def namespace(*arrays: Array) -> Namespace:
    """The module that the arrays belong to; NumPy if they are of nobody else."""
    torch = sys.modules.get("torch")
    if torch is not None and any(isinstance(x, torch.Tensor) for x in arrays):
        return torch
    jax = sys.modules.get("jax")
    if jax is not None and any(isinstance(x, jax.Array) for x in arrays):
        return jax.numpy
    return np


def is_torch(xp: Namespace) -> bool:
    return xp.__name__ == "torch"


def is_jax(xp: Namespace) -> bool:
    return xp.__name__ == "jax.numpy"


def asarray(xp: Namespace, x: Array, dtype: Any, like: Array) -> Array:
    """`x` as an array of `xp` with this dtype, on the device of `like`."""
    if is_torch(xp):
        device = like.device if isinstance(like, xp.Tensor) else None
        if isinstance(x, xp.Tensor):
            return x.to(device=device, dtype=dtype)
        if isinstance(x, (bool, int, float)):
            return xp.full((), x, dtype=dtype, device=device)  # a copy would wait for the device
        return xp.asarray(x, dtype=dtype, device=device)
    return xp.asarray(x, dtype=dtype)


def is_float(xp: Namespace, dtype: Any) -> bool:
    return dtype.is_floating_point if is_torch(xp) else xp.issubdtype(dtype, xp.floating)


def float_dtype(xp: Namespace, x: Array) -> Any:
    """The dtype for statistics of `x`: its own if that is float32 or float64.

    Half precisions are measured in float32; integers, booleans and Python numbers in the module's
    default float.
    """
    dtype = getattr(x, "dtype", None)
    if dtype is None or namespace(x) is not xp or not is_float(xp, dtype):
        return xp.zeros(()).dtype
    return dtype if dtype.itemsize >= 4 else xp.float32


def is_concrete(x: Array) -> bool:
    """Whether the values of `x` can be looked at here without a trace or a wait for a device."""
    xp = namespace(x)
    if is_torch(xp):
        if xp.compiler.is_compiling() or x.device.type != "cpu":
            return False
        return not xp._C._functorch.is_functorch_wrapped_tensor(x)
    jax = sys.modules.get("jax")
    return jax is None or not isinstance(x, jax.core.Tracer)


def to_numpy(x: Array) -> np.ndarray[Any, np.dtype[Any]]:
    return np.asarray(x.detach() if is_torch(namespace(x)) else x)


def unit(*arrays: Array) -> tuple[Array, Array]:
    """A power of two of the size of the largest of the arrays, elementwise, and its inverse.

    Multiplying by either is exact. Sums, differences and squares of numbers that were divided by a
    power of two of their own size can neither overflow nor lose bits to underflow, so what is
    computed is the same to the bit whatever the size: also where the hardware flushes subnormal
    numbers to zero, as XLA has it do. Where all are 0 or subnormal the unit is 1.
    """
    xp = namespace(*arrays)
    x = functools.reduce(xp.maximum, map(xp.abs, arrays))
    one, infinity = _bits_of_one(x), _infinity(x)
    power = _bits(x) & infinity
    power = xp.where(power > 0, power, one).clip(None, 2 * one - (infinity & -infinity))
    return power.view(x.dtype), (2 * one - power).view(x.dtype)


def _bits(x: Array) -> Array:
    xp = namespace(x)
    return x.view(xp.int32 if x.dtype.itemsize == 4 else xp.int64)


def _infinity(x: Array) -> int:
    """The bits of infinity: those of the exponent."""
    return 0x7F800000 if x.dtype.itemsize == 4 else 0x7FF0000000000000


def _bits_of_one(x: Array) -> int:
    """The bits of 1.0: the exponent of a power of two and that of its inverse add up to twice this."""
    return 0x3F800000 if x.dtype.itemsize == 4 else 0x3FF0000000000000


def to_rank(x: Array) -> Array:
    """Integers in the order of the floats; that of -x is ~ that of x."""
    return _flip_negative(_bits(x))


def lowest_rank(x: Array) -> int:
    """The rank of minus infinity."""
    return ~_infinity(x)


def from_rank(rank: Array, dtype: Any) -> Array:
    return _flip_negative(rank).view(dtype)


def _flip_negative(bits: Array) -> Array:
    sign = 8 * bits.dtype.itemsize - 1
    return bits ^ ((bits >> sign) & (2**sign - 1))


def eps_of(x: Array) -> float:
    return float(namespace(x).finfo(x.dtype).eps)


def accumulate(x: Array, carry: Array, increment: Array) -> tuple[Array, Array]:
    """`x + increment`, with what rounding loses kept in `carry` for the next time.

    A running average moves by β(Y - μ), which for small β is below the last bit of μ. The exact sum
    is `x + eps * carry` (Knuth's two-sum); `carry` is stored divided by eps so that it is never
    smaller than the numbers that it belongs to.
    """
    eps = eps_of(x)
    increment = increment + eps * carry
    total = x + increment
    moved = total - x
    lost = (x - (total - moved)) + (increment - moved)
    return total, lost / eps


def divide(a: Array, b: Array) -> Array:
    """a / b, and 0 where b is 0."""
    xp = namespace(a, b)
    defined = b != 0
    return xp.where(defined, a / xp.where(defined, b, 1.0), 0.0)


def matmul(a: Array, b: Array) -> Array:
    """a @ b in the full precision of its arguments: JAX multiplies in TF32 on GPUs unless told."""
    xp = namespace(a, b)
    if is_jax(xp):
        return xp.matmul(a, b, precision="highest")
    return xp.matmul(a, b)


def solve(A: Array, B: Array) -> Array:
    """A⁻¹ B. PyTorch's own check that A is not singular would wait for the device."""
    xp = namespace(A, B)
    return xp.linalg.solve_ex(A, B)[0] if is_torch(xp) else xp.linalg.solve(A, B)


def eye(like: Array) -> Array:
    """The identity on the last axis of `like`, made where `like` is: a copy would wait for the device."""
    xp = namespace(like)
    if is_torch(xp):
        return xp.eye(like.shape[-1], dtype=like.dtype, device=like.device)
    return xp.eye(like.shape[-1], dtype=like.dtype)


def arange(n: int, like: Array) -> Array:
    xp = namespace(like)
    if is_torch(xp):
        return xp.arange(n, dtype=like.dtype, device=like.device)
    return xp.arange(n, dtype=like.dtype)


def take_along_first_axis(x: Array, index: Array) -> Array:
    xp = namespace(x)
    return xp.take_along_dim(x, index, 0) if is_torch(xp) else xp.take_along_axis(x, index, 0)


def add_to_count(count: Array, more: Array) -> Array:
    """int32 count + more, which stays at its maximum instead of wrapping around."""
    xp = namespace(count)
    return count + xp.minimum(more, COUNT_MAX - count)
