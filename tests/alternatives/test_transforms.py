"""Fixed transforms, against their published formulas."""

import math
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import torch

from popart.alternatives import H, Symlog, Transform

SIZES = np.concatenate([[0.0], *(s * np.logspace(-30, 30, 61) for s in (-1, 1))])


def published_h(x: float, epsilon: float) -> float:
    """h(x) in the digits of Python's integers, because √(|x| + 1) - 1 cancels."""
    from decimal import Decimal, localcontext

    with localcontext() as context:
        context.prec = 80
        size = abs(Decimal(x))
        return math.copysign(1, x) * float((size + 1).sqrt() - 1 + Decimal(epsilon) * size)


def published_symlog(x: float) -> float:
    return math.copysign(math.log1p(abs(x)), x)


def published_inverse_of_h(y: float, epsilon: float) -> float:
    """The formula of Pohlen et al. (2018), Proposition A.2."""
    root = (math.sqrt(1 + 4 * epsilon * (abs(y) + 1 + epsilon)) - 1) / (2 * epsilon)
    return math.copysign(root**2 - 1, y)


@pytest.mark.parametrize("epsilon", [1e-3, 1e-2, 0.0])
def test_h_is_the_published_function(epsilon: float) -> None:
    expected = [published_h(float(x), epsilon) for x in SIZES]
    np.testing.assert_allclose(H(epsilon).apply(SIZES), expected, rtol=1e-15)


def test_the_inverse_of_h_is_the_published_one() -> None:
    y = np.array([-300.0, -2.0, 0.5, 40.0, 5000.0])
    expected = [published_inverse_of_h(float(x), 1e-3) for x in y]
    np.testing.assert_allclose(H().invert(y), expected, rtol=1e-10)


def test_symlog_is_the_published_function() -> None:
    np.testing.assert_allclose(Symlog().apply(SIZES), [published_symlog(x) for x in SIZES], rtol=1e-15)


@pytest.mark.parametrize("make", [np.asarray, torch.asarray, jnp.asarray])
@pytest.mark.parametrize("transform", [H(), Symlog()], ids=repr)
def test_integers_are_transformed_as_the_same_floats(transform: Transform, make: Any) -> None:
    x = np.array([0, 1, 200, 255], np.uint8)
    found, expected = transform.apply(make(x)), transform.apply(x.astype(np.float64))
    np.testing.assert_allclose(np.asarray(found), expected, rtol=1e-6)


@pytest.mark.parametrize("module", ["numpy", "torch", "jax"])
@pytest.mark.parametrize("transform", [H(), H(0.0), Symlog()], ids=repr)
def test_inverses_are_exact_to_rounding_at_every_size(transform: Transform, module: str) -> None:
    make = {"numpy": np.asarray, "torch": torch.asarray, "jax": lambda x: jnp.asarray(x, jnp.float32)}[module]
    x = np.concatenate([s * np.logspace(-20, 15, 36) for s in (-1, 1)])
    eps = 2.0**-23 if module == "jax" else 2.0**-52
    np.testing.assert_allclose(transform.invert(transform.apply(make(x))), x, rtol=100 * eps)
