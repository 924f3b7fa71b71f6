r"""How results are made exact: double precision, powers of two as units, and sums of two floats.

**Double precision.** Statistics of float32 targets are computed in float64 where there is one (NumPy,
PyTorch): squares of the largest and the smallest float32, 10⁷⁶ and 10⁻⁹⁰, are float64 numbers like any other.
`wide_dtype` says where that is so.

**Units.** Elsewhere (float32 in JAX, float64 itself) numbers are first divided by a power of two of their own
size, which is exact: 1000 and 3 in the unit 512 are 1.953125 and 0.005859375. Their squares then neither
overflow nor underflow, and what is computed is the same to the bit whatever the size of the targets.

**Two floats.** A running average moves by β(Y - μ), which for small β is less than the last bit of μ: in
float32, 1000 + 0.00001 is 1000. The part that rounding loses is kept in a second float, the carry, and added
the next time.
"""

import functools
import math
import sys
from typing import Any

import numpy as np

from popart._arrays import Array, cast, eps_of, is_torch, namespace

EPS = 2.0**-23
"""The relative distance of two float32."""


def wide_dtype(x: Array) -> Any:
    """Return the dtype to compute in: float64 for float32 where there is one."""
    xp = namespace(x)
    has_double = xp is np or (is_torch(xp) and x.device.type != "mps")
    return xp.float64 if has_double and x.dtype.itemsize == 4 else x.dtype


def widened(x: Array) -> Array:
    """Convert `x` to the dtype to compute in."""
    return cast(x, wide_dtype(x))


def unit(*arrays: Array) -> tuple[Array, Array]:
    """Return a power of two of the size of the largest of the arrays, elementwise, and its inverse.

    Where all are 0 or subnormal the unit is 1: XLA flushes subnormal numbers to 0.
    """
    xp = namespace(*arrays)
    if xp is np and max(map(np.ndim, arrays)) == 0:
        largest = max(float(abs(x)) for x in arrays)
        power = math.frexp(largest)[1] - 1 if largest > sys.float_info.min else 0
        power = min(power, 1022)
        return math.ldexp(1.0, power), math.ldexp(1.0, -power)
    x = functools.reduce(xp.maximum, map(xp.abs, arrays))
    one, infinity = (0x3F800000, 0x7F800000) if x.dtype.itemsize == 4 else (0x3FF << 52, 0x7FF << 52)
    power = x.view(xp.int32 if x.dtype.itemsize == 4 else xp.int64) & infinity
    power = xp.where(power > 0, power, one).clip(None, 2 * one - (infinity & -infinity))
    return power.view(x.dtype), (2 * one - power).view(x.dtype)


def accumulate(x: Array, carry: Array, increment: Array) -> tuple[Array, Array]:
    """Return `x + increment`, and its rounding error, to add next time.

    The exact sum is `x + eps * carry` (Knuth's two-sum). The carry is stored divided by eps, so that it is
    never smaller than the numbers that it belongs to.
    """
    eps = eps_of(x.dtype)
    increment = increment + eps * carry
    total = x + increment
    moved = total - x
    lost = (x - (total - moved)) + (increment - moved)
    return total, lost / eps


def split(x: Array, dtype: Any) -> tuple[Array, Array]:
    """Return float64 numbers as two floats of this dtype, as `accumulate` does."""
    rounded = cast(x, dtype)
    return rounded, cast((x - rounded) / eps_of(dtype), dtype)


def joined(x: Array, carry: Array, dtype: Any) -> Array:
    """Return two floats as one number of a wider dtype: the inverse of `split`."""
    return cast(x, dtype) + eps_of(carry.dtype) * carry


def divide(a: Array, b: Array) -> Array:
    """Return a / b, and 0 where b is 0."""
    xp = namespace(a, b)
    defined = b != 0
    return xp.where(defined, a / xp.where(defined, b, 1.0), 0.0)
