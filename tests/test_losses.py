"""Pop-Art with other losses than the square: Huber's, the logarithm of cosh, and a quantile's.

The paper normalises targets, whatever the loss compares. The loss is therefore in normalised units: a Huber
loss turns linear at one standard deviation of the targets, not at an error of 1 in the targets' units.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch

import popart
import popart.jax as pj
from popart.torch import PopArt

RNG = np.random.default_rng(0)
X = RNG.normal(size=(40, 16, 3)).astype(np.float32)
Y = (5 * RNG.standard_t(3, size=(40, 16)) + 2).astype(np.float32)
"""Batches of inputs, and of targets with heavy tails, which fall on both sides of Huber's threshold."""

ART = popart.Moments(beta=0.1)
TAU = 0.9


@dataclass(frozen=True)
class Loss:
    """A loss of the error, prediction minus target, in both frameworks, and its derivative in NumPy."""

    torch: Callable[[torch.Tensor], torch.Tensor]
    jax: Callable[[jax.Array], jax.Array]
    derivative: Callable[[np.ndarray], np.ndarray]


LOSSES = {
    "huber": Loss(
        lambda e: torch.nn.functional.huber_loss(e, torch.zeros_like(e), reduction="none"),
        lambda e: optax.huber_loss(e),
        lambda e: np.clip(e, -1, 1),
    ),
    "log-cosh": Loss(
        lambda e: torch.logaddexp(e, -e),
        lambda e: jnp.logaddexp(e, -e),
        np.tanh,
    ),
    "quantile": Loss(
        lambda e: torch.maximum((1 - TAU) * e, -TAU * e),
        lambda e: jnp.maximum((1 - TAU) * e, -TAU * e),
        lambda e: np.where(e > 0, 1 - TAU, -TAU),
    ),
}

pytestmark = pytest.mark.parametrize("name", LOSSES)


def expected_gradient(name: str, g: Any, h: Any, y: np.ndarray, mean: float, std: float) -> Any:
    """Return the gradients of W and b for the mean loss of outputs g = W h + b, in float64."""
    slope = LOSSES[name].derivative(np.asarray(g, float) - (y.astype(float) - mean) / std) / len(y)
    return slope @ np.asarray(h, float), slope.sum()


def second_statistics() -> tuple[float, float]:
    """Return mean and standard deviation after the first two batches (Eq. 4 with the debiased step)."""
    step, (first, second) = 0.1 / (1 - 0.9**2), Y[:2].astype(float)
    mu = (1 - step) * first.mean() + step * second.mean()
    nu = (1 - step) * (first**2).mean() + step * (second**2).mean()
    return mu, np.sqrt(nu - mu**2)


def assert_preserved(after: Any, before: Any, scale: float) -> None:
    size = max(np.abs(before).max(), scale)
    assert np.abs(np.asarray(after) - np.asarray(before)).max() <= 32 * np.finfo(np.float32).eps * size


def test_in_pytorch_outputs_are_preserved_and_the_gradient_is_in_normalised_units(name: str) -> None:
    torch.manual_seed(0)
    head, h = PopArt(3, 1, ART), torch.asarray(X[1])
    head.update(torch.asarray(Y[0]))
    before = head(h).detach().numpy()
    t = head.update(torch.asarray(Y[1]))
    mean, std = second_statistics()
    assert_preserved(head(h).detach().numpy(), before, std)
    g = head.normalized(h)[:, 0]
    LOSSES[name].torch(g - t).mean().backward()
    assert head.weight.grad is not None
    assert head.bias is not None
    assert head.bias.grad is not None
    W, b = expected_gradient(name, g.detach(), h, Y[1], mean, std)
    np.testing.assert_allclose(head.weight.grad[0], W, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(head.bias.grad[0], b, rtol=1e-4, atol=1e-6)


def test_in_jax_outputs_are_preserved_and_the_gradient_is_in_normalised_units(name: str) -> None:
    head = {"w": jax.random.normal(jax.random.key(0), (3, 1)), "b": jnp.ones(1)}
    state, head, _, _ = pj.step(ART, pj.init(ART, head), head, Y[0])
    before = pj.values(ART, state, head, X[1])
    state, head, t, _ = pj.step(ART, state, head, Y[1])
    mean, std = second_statistics()
    assert_preserved(pj.values(ART, state, head, X[1]), before, std)
    gradient = jax.grad(lambda head: LOSSES[name].jax(pj.normalized(head, X[1])[:, 0] - t).mean())(head)
    W, b = expected_gradient(name, pj.normalized(head, X[1])[:, 0], X[1], Y[1], mean, std)
    np.testing.assert_allclose(gradient["w"][:, 0], W, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(gradient["b"][0], b, rtol=1e-4, atol=1e-6)


def trained_in_pytorch(name: str, scale: float) -> list[torch.Tensor]:
    """Return the trained parameters, and the last outputs in units of `scale`."""
    torch.manual_seed(0)
    head = PopArt(8, 1, ART)
    network = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Tanh(), head)
    body = network[:2]
    optimizer = torch.optim.Adam(network.parameters(), 0.01)
    for x, y in zip(torch.asarray(X), scale * torch.asarray(Y), strict=True):
        t = head.update(y, optimizer=optimizer)
        optimizer.zero_grad()
        LOSSES[name].torch(head.normalized(body(x))[:, 0] - t).mean().backward()
        optimizer.step()
    trained = [p.detach() for p in network.parameters() if p.requires_grad]
    return [*trained, network(torch.asarray(X[0])).detach() / scale]


@pytest.mark.parametrize("k", [-40, 40])
def test_in_pytorch_scaling_targets_by_a_power_of_two_changes_no_bit(name: str, k: int) -> None:
    one, other = trained_in_pytorch(name, 1.0), trained_in_pytorch(name, 2.0**k)
    for a, b in zip(one, other, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)


def trained_in_jax(name: str, scale: float) -> Any:
    """Return the trained parameters, and the last outputs in units of `scale`."""
    keys = jax.random.split(jax.random.key(0))
    params = {
        "body": jax.random.normal(keys[0], (3, 8)),
        "head": {"w": jax.random.normal(keys[1], (8, 1)), "b": jnp.zeros(1)},
    }
    optimizer = pj.rescale_optimizer(optax.adam(0.01), head=lambda params: params["head"])

    def step(carry: Any, batch: Any) -> Any:
        (params, state, memory), (x, y) = carry, batch
        state, head, t, change = pj.step(ART, state, params["head"], y)
        params = {**params, "head": head}

        def loss(params: Any) -> Any:
            return (
                LOSSES[name].jax(pj.normalized(params["head"], jnp.tanh(x @ params["body"]))[:, 0] - t).mean()
            )

        updates, memory = optimizer.update(jax.grad(loss)(params), memory, params, change=change)
        return (optax.apply_updates(params, updates), state, memory), None

    start = params, pj.init(ART, params["head"]), optimizer.init(params)
    (params, state, _), _ = jax.lax.scan(step, start, (X, scale * Y))
    return params, pj.values(ART, state, params["head"], jnp.tanh(X[0] @ params["body"])) / scale


@pytest.mark.parametrize("k", [-40, 40])
def test_in_jax_scaling_targets_by_a_power_of_two_changes_no_bit(name: str, k: int) -> None:
    one, other = trained_in_jax(name, 1.0), trained_in_jax(name, 2.0**k)
    jax.tree.map(np.testing.assert_array_equal, one, other)
