r"""Gradients that are normalised: Normalized SGD (Algorithm 2) and Deep Pop-Art (appendix)."""

import functools
from typing import Any

import jax
import jax.numpy as jnp

from popart.affine import Affine
from popart.jax.heads import Array, Tree, open_head
from popart.rules import Rule


def normalized_linear(head: Tree, h: Array, affine: Affine) -> Array:
    r"""Return $W h + b$ for Normalized SGD (Algorithm 2), with outputs and targets that are not normalised.

    Only the gradient that goes to h and the layers below is normalised:
    $(\Sigma^{-1} W)^\top \Sigma^{-1} \delta$ instead of $W^\top \delta$. W and b have their usual gradients.
    With SGD on the squared loss $\frac12 \|W h + b - Y\|^2$ it learns the same as Pop-Art
    (Proposition 3), for any scale: one number, one per output, or dense.
    """
    (layer,), leaves, _ = open_head(head)
    W = leaves[layer.weight] if layer.layout == "in_out" else leaves[layer.weight].T
    if W.ndim != 2:
        raise ValueError(f"head has a weight of shape {W.shape}; give one head at a time")
    f = _linear(h, W, jax.lax.stop_gradient(affine.scale))
    return f if layer.bias is None else f + leaves[layer.bias]


@jax.custom_vjp
def _linear(h: Array, W: Array, scale: Array) -> Array:
    return h @ W


def _linear_forward(h: Array, W: Array, scale: Array) -> tuple[Array, tuple[Array, ...]]:
    return h @ W, (h, W, scale)


def _linear_backward(saved: tuple[Array, ...], delta: Array) -> tuple[Array, ...]:
    h, W, scale = saved
    by_scale = Affine(scale, jnp.zeros(scale.shape[:1] if scale.ndim == 2 else scale.shape, scale.dtype))
    down = by_scale.normalize(delta) @ by_scale.normalize(W).T
    each, features = delta.reshape(-1, delta.shape[-1]), h.reshape(-1, h.shape[-1])
    return down, features.T @ each, jnp.zeros_like(scale)


_linear.defvjp(_linear_forward, _linear_backward)


def normalize_gradient(
    x: Array, art: Rule[Any], state: Any, probe: Array = None, weight: float | Array = 1.0
) -> Array:
    r"""Return x unchanged; the backward pass normalises the gradient: Deep Pop-Art for several sources.

    Put one on the output of each branch, so that no source dominates the others, and one where the branches
    join, so that their sum is not too large. (If it were below a head, this head would still get the
    original gradient.) Gradients are divided by the scale of `art`, after it has measured them, too, and
    multiplied by `weight`, the importance of this source: the root mean square of the result. (A mean over n
    losses makes gradients of 1/n; `weight=1/n` restores that.) `art` must have no shift, such as
    `popart.Moments(1e-2, symmetric=True)`.

    A pure function cannot store the gradients that it sees in the backward pass. The gradient with respect
    to `probe`, zeros like x, returns them: it is the gradient before normalisation.

        gradients, seen = jax.grad(loss, argnums=(0, 1))(params, probes)
        states = {name: art.update(states[name], seen[name]) for name in states}
    """
    if art.has_shift:
        raise ValueError(f"art is {art!r}, which would shift gradients; give it symmetric=True")
    probe = jnp.zeros_like(x) if probe is None else probe
    return _normalize(art, x, probe, state, jnp.asarray(weight, x.dtype))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _normalize(art: Rule[Any], x: Array, probe: Array, state: Any, weight: Array) -> Array:
    return x


def _normalize_forward(
    art: Rule[Any], x: Array, probe: Array, state: Any, weight: Array
) -> tuple[Array, tuple[Any, Array]]:
    return x, (state, weight)


def _normalize_backward(
    art: Rule[Any], saved: tuple[Any, Array], gradient: Array
) -> tuple[Array | None, ...]:
    state, weight = saved
    affine = art.affine(art.update(state, gradient))
    return weight * affine.normalize(gradient), gradient, None, None


_normalize.defvjp(_normalize_forward, _normalize_backward)
