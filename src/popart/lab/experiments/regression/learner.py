"""Online learning of many networks at once: the paper's Algorithm 1 and the methods it is compared with.

The network is the last axis of every array, and gradients are written out. XLA then has only elementwise
loops over networks, which it vectorises on a CPU: two to four times as many updates per second as a `vmap`
over `jax.grad` of one network (`benchmarks/regression.py`).
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

import popart
from popart.lab.experiments.regression.methods import RULES, Method
from popart.lab.experiments.regression.task import Layers, digits

DECAY, FLOOR = 0.9, 1e-8
"""RMSprop's decay of the average of squared gradients, and the constant added to its root."""


class Learner(NamedTuple):
    """The state of learning: layers, statistics, RMSprop's squared gradients, and the latest targets."""

    layers: Layers
    statistics: Any
    squares: Layers | None
    latest: jax.Array | None


def errors(method: Method, layers: Layers, alpha: Any, beta: Any, n: Any) -> jax.Array:
    """Return |f(X) - Y| for each sample and network, before its update. `n` is (samples, networks)."""
    return _errors(method, layers, alpha, beta, n, 1.0)


@functools.partial(jax.jit, static_argnums=0)
def _errors(
    method: Method, layers: Layers, alpha: jax.Array, beta: jax.Array, n: jax.Array, one: jax.Array
) -> jax.Array:
    """Learn; `one` is 1, unknown to XLA (see `_gradients`)."""
    rule = None if method.rule is None else RULES[method.rule](beta)
    start = Learner(
        layers,
        None if rule is None else rule.init(alpha.shape, like=alpha),
        jax.tree.map(jnp.zeros_like, layers) if method.optimizer == "rmsprop" else None,
        jnp.full((method.window, *alpha.shape), jnp.nan) if method.window > 1 else None,
    )
    step = functools.partial(_step, method, rule, alpha, one)
    return jax.lax.scan(step, start, n)[1]


def _step(
    method: Method, rule: Any, alpha: jax.Array, one: jax.Array, learner: Learner, n: jax.Array
) -> tuple[Learner, jax.Array]:
    layers, statistics, squares, latest = learner
    x, y = digits(n), n.astype(jnp.float32)
    *hidden, (W, b) = layers
    activations = [x]
    for V, c in hidden:
        activations.append(jnp.tanh(_apply(V, c, activations[-1])))
    h = activations[-1]
    if rule is None:
        g = _apply(W, b, h)[0]
        error = delta = g - y
    else:
        old = rule.affine(statistics)
        error = old.denormalize(_apply(W, b, h)[0]) - y
        if latest is not None:
            latest = jnp.concatenate((latest[1:], y[None]))
        targets = y if latest is None else latest
        mask = None if latest is None else ~jnp.isnan(latest)
        statistics = rule.update(statistics, targets, mask=mask)
        new = rule.affine(statistics)
        if method.preserve:
            W, b = (z[None] for z in popart.preserve(W[0], b[0], old, new, layout="in_out"))
        delta = _apply(W, b, h)[0] - new.normalize(y)
    layers = (*hidden, (W, b))
    gradients = _gradients(layers, activations, delta[None] / one, one)
    if squares is not None:
        squares = jax.tree.map(lambda s, g: DECAY * s + (1 - DECAY) * g**2, squares, gradients)
        gradients = jax.tree.map(lambda g, s: g / (jnp.sqrt(s) + FLOOR), gradients, squares)
    layers = jax.tree.map(lambda w, g: w - alpha * g, layers, gradients)
    return Learner(layers, statistics, squares, latest), jnp.abs(error)


def _gradients(layers: Layers, activations: list[jax.Array], delta: jax.Array, one: jax.Array) -> Layers:
    r"""Return the gradients of $\frac12 \delta^2$ for each layer."""
    gradients = []
    for (W, _), h in zip(reversed(layers), reversed(activations), strict=True):
        gradients.append((delta[:, None] * h, delta))
        # XLA recomputes a sum for every weight that uses it, but a quotient only once. Without these
        # divisions by 1 a step takes twenty times as long.
        delta = _apply_transposed(W, delta) * (1 - h**2) / one
    return tuple(reversed(gradients))


def _apply(W: jax.Array, b: jax.Array, x: jax.Array) -> jax.Array:
    """Return W x + b for each network."""
    for i in range(W.shape[1]):
        b = b + W[:, i] * x[i]
    return b


def _apply_transposed(W: jax.Array, delta: jax.Array) -> jax.Array:
    return _apply(jnp.swapaxes(W, 0, 1), jnp.zeros(()), delta)
