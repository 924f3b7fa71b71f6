"""The task of Section 3: regress integers on their binary digits; every 1000th is much larger."""

from collections.abc import Sequence
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np

BITS = 16
LARGEST = 2**10 - 1
RARE = 2**16 - 1
EVERY = 1000
SIZES = (BITS, 10, 10, 10, 1)

Layers = tuple[tuple[jax.Array, jax.Array], ...]
"""Weights and biases of each layer, shaped (outputs, inputs, ...) and (outputs, ...)."""


def integers(seed: int, repetition: int, samples: int) -> np.ndarray:
    """Return the targets of one repetition: uniform in 0 ... 1023, and every 1000th is 65,535."""
    n = _rng(seed, repetition, 0).integers(0, LARGEST + 1, samples, dtype=np.uint16)
    n[EVERY - 1 :: EVERY] = RARE
    return n


def digits(n: jax.Array) -> jax.Array:
    """Return the binary digits of integers, least significant first, along a new first axis."""
    shifts = np.arange(BITS, dtype=np.int32).reshape(-1, *(1,) * n.ndim)
    return (n.astype(jnp.int32) >> shifts & 1).astype(jnp.float32)


def network(seed: int, repetition: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Initialise a 16-10-10-10-1 network with Glorot and Bengio's weights for tanh and zero biases.

    The paper does not say how it initialises.
    """
    rng = _rng(seed, repetition, 1)

    def layer(inputs: int, outputs: int) -> tuple[np.ndarray, np.ndarray]:
        bound = np.sqrt(6 / (inputs + outputs))
        W = rng.uniform(-bound, bound, (outputs, inputs))
        return W.astype(np.float32), np.zeros(outputs, np.float32)

    return [layer(*sizes) for sizes in pairwise(SIZES)]


def stack(seed: int, repetitions: Sequence[int], samples: int) -> tuple[np.ndarray, Layers]:
    """Return targets (samples, repetitions) and networks, with the repetition as last axis."""
    n = np.stack([integers(seed, r, samples) for r in repetitions], -1)
    layers = jax.tree.map(lambda *x: np.stack(x, -1), *(network(seed, r) for r in repetitions))
    return n, tuple(layers)


def _rng(seed: int, repetition: int, purpose: int) -> np.random.Generator:
    """Return a generator per repetition: the first ones are the same however many there are."""
    return np.random.default_rng((seed, repetition, purpose))
