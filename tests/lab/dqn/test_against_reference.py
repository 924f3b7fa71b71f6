"""The agents learn as the reference does, on the full network of Mnih et al. (2015)."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from popart.lab.dqn import learner
from popart.lab.dqn.config import AGENTS, AgentConfig, AgentName
from popart.lab.dqn.networks import Nature
from popart.lab.dqn.replay import Transitions
from tests.lab.dqn import reference

NETWORK = Nature(actions=6)
UPDATES, COPY_AFTER = 6, 3

Batch = tuple[np.ndarray, ...]
"""S, A, R, terminal and S', in this order."""

init = jax.jit(learner.init, static_argnums=(0, 1))
learn = jax.jit(learner.learn, static_argnums=(0, 1))
values = jax.jit(learner.values, static_argnums=(0, 1))


@pytest.mark.parametrize("name", AGENTS)
def test_six_updates_are_those_of_the_reference(name: AgentName) -> None:
    """Statistics, gradients, parameters and values agree after each update, to the rounding of float32.

    The agent takes the mean over the batch and ε/32² where the reference takes the sum and ε: its gradients
    are 32 times smaller, and its steps the same. One rounding of float32 is 6e-8. Over 36 runs with different
    seeds, scale, shift and gradient norm differed by up to 3e-7 of their size, and values by 1.4e-6. RMSProp
    divides a gradient by its own size, to steps of up to 4.6 α; where the terms of a gradient cancel, their
    rounding is divided by little. Parameters are therefore compared in units of α; they differed by up to
    0.0024 α.
    """
    config = AgentConfig(name, initial_weights="he", beta=0.1)
    agent = init(config, NETWORK, jax.random.key(3))
    alpha, beta, gamma = config.learning_rate, config.beta, config.discount
    expected = reference.Agent(
        name, reference.Network(*plain(agent.params)), alpha=alpha, beta=beta, gamma=gamma
    )
    f = expected.network
    rng = np.random.default_rng(3)
    S = images(rng, 16)
    for t in range(UPDATES):
        if t == COPY_AFTER:
            agent = learner.copy_target(agent)
            expected.copy_target()
        batch = decided(f, transitions(rng, 2 * config.batch), config.batch)
        gradients = reference.update(expected, *batch)
        agent, metrics = learn(config, NETWORK, agent, stacked(batch))

        np.testing.assert_allclose(metrics.scale, [f.sigma], rtol=2e-6)
        np.testing.assert_allclose(metrics.shift, [f.mu], rtol=0, atol=2e-6 * f.sigma)
        norm = np.sqrt(sum((g**2).sum() for g in gradients))
        np.testing.assert_allclose(config.batch * metrics.gradient_norm, [norm], rtol=2e-6)
        theta, W, b = plain(agent.params)
        for p, q in zip([*theta, W, b], reference.parameters(f), strict=True):
            np.testing.assert_allclose(p, q, rtol=0, atol=0.01 * alpha)
        Q = reference.values(f, S)
        found = values(config, NETWORK, agent.params, agent.statistics, S)
        np.testing.assert_allclose(found, Q, rtol=0, atol=5e-6 * abs(Q).max())


def images(rng: np.random.Generator, number: int) -> np.ndarray:
    """Return noisy images of large blocks, some dark and some bright, whose values differ."""
    blocks = rng.random((number, 7, 7, 4)) * rng.uniform(0.2, 1, (number, 1, 1, 1))
    noise = rng.uniform(0.5, 1, (number, 84, 84, 4))
    return (255 * blocks.repeat(12, 1).repeat(12, 2) * noise).astype(np.uint8)


def transitions(rng: np.random.Generator, number: int) -> Batch:
    """Return transitions with all actions; rewards are 0 or in the hundreds, and a fifth is terminal."""
    A = rng.integers(0, NETWORK.actions, number)
    R = 300 * rng.normal(size=number) * (rng.random(number) < 0.7)
    terminal = rng.random(number) < 0.2
    return images(rng, number), A, R.astype(np.float32), terminal, images(rng, number)


def decided(f: reference.Network, batch: Batch, number: int) -> Batch:
    """Return the first transitions for which no decision depends on rounding.

    A ReLU whose input is 0 up to rounding may pass a gradient in float32 and stop it in float64. Of two
    actions whose values are equal up to rounding, either may be the best.
    """
    margin = 4e-6  # rounding errors of these numbers are up to 2e-6
    S, *_, S_next = batch
    g = np.sort(reference.normalized(f, S_next))
    clear = g[:, -1] - g[:, -2] > margin
    for z in reference.layers(f.theta, S)[1:]:
        clear &= abs(z).reshape(len(z), -1).min(1) > margin
    chosen = np.flatnonzero(clear)[:number]
    assert len(chosen) == number
    return tuple(x[chosen] for x in batch)


def stacked(batch: Batch) -> Transitions:
    """Return the agent's batches for a single update, each transition with a weight of 1."""
    S, A, R, terminal, S_next = (jnp.asarray(x)[None] for x in batch)
    return Transitions(S, A, R, terminal, S_next, jnp.ones(R.shape))


def plain(params: Any) -> tuple[list[np.ndarray], np.ndarray, np.ndarray]:
    """Return theta, W and b of the agent in the reference's layout, with kernels (width, width, in, out).

    The agent's kernels have a row for each pixel: blocks as wide as the stride, and pixels within a block.
    """
    theta: list[np.ndarray] = []
    for layer, (width, stride) in zip(params["body"], ((8, 4), (4, 2), (3, 1), (7, 1)), strict=True):
        w, blocks = np.asarray(layer["w"], float), width // stride
        w = w.reshape(blocks, blocks, stride, stride, -1, w.shape[1]).swapaxes(1, 2)
        theta += [w.reshape(width, width, -1, w.shape[-1]), np.array(layer["b"], float)]
    return theta, np.array(params["head"]["w"].T, float), np.array(params["head"]["b"], float)
