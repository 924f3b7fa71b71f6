"""The networks: plain convolutions, the published number of parameters, and how they are initialised."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from popart.lab.dqn import learner
from popart.lab.dqn.config import AgentConfig
from popart.lab.dqn.networks import MLP, Nature, network_for

features = jax.jit(lambda net, body, x: net.features(body, x), static_argnums=0)


def test_convolutions_by_patches_equal_plain_convolutions() -> None:
    net = Nature(actions=18)
    params = net.init(jax.random.key(0))
    frames = jnp.asarray(np.random.default_rng(0).integers(0, 256, (2, 84, 84, 4)), jnp.uint8)
    x = frames.astype(jnp.float32) / 255
    for layer, (width, stride, out) in zip(params["body"], Nature.CONVOLUTIONS, strict=False):
        across, channels = width // stride, x.shape[-1]
        kernel = layer["w"].reshape(across, across, stride, stride, channels, out)
        kernel = kernel.transpose(0, 2, 1, 3, 4, 5).reshape(width, width, channels, out)
        names = ("NHWC", "HWIO", "NHWC")
        x = jax.lax.conv_general_dilated(x, kernel, (stride, stride), "VALID", dimension_numbers=names)
        x = jax.nn.relu(x + layer["b"])
    assert x.shape == (2, 7, 7, 64)
    dense = params["body"][3]
    expected = jax.nn.relu(x.reshape(2, -1) @ dense["w"] + dense["b"])
    np.testing.assert_allclose(features(net, params["body"], frames), expected, rtol=1e-4, atol=1e-5)


def test_the_nature_network_has_the_published_number_of_parameters() -> None:
    params = Nature(actions=18).init(jax.random.key(0))
    assert sum(jax.tree.leaves(jax.tree.map(jnp.size, params))) == 1_693_362


def test_features_are_float32_even_if_convolutions_are_bfloat16() -> None:
    net = Nature(actions=18, dtype="bfloat16")
    body, frames = net.init(jax.random.key(0))["body"], jnp.zeros((2, 84, 84, 4), jnp.uint8)
    assert features(net, body, frames).dtype == jnp.float32


@pytest.mark.parametrize(("weights", "kept"), [("dqn", 1 / 6), ("he", 1.0)])
def test_each_layer_initially_keeps_this_part_of_the_variance(weights: Any, kept: float) -> None:
    net = MLP(400, 2, (2000, 2000))
    params = learner.init(AgentConfig(initial_weights=weights), net, jax.random.key(0)).params
    x = np.random.default_rng(0).normal(size=(100, 400)).astype(np.float32)
    for layer in params["body"]:
        h = jax.nn.relu(x @ layer["w"])
        np.testing.assert_allclose(jnp.square(h).mean() / jnp.square(x).mean(), kept, rtol=0.05)
        x = np.asarray(h)
    assert (weights == "he") == all(not layer["b"].any() for layer in params["body"])
    jax.tree.map(np.testing.assert_array_equal, params["head"], net.init(jax.random.key(0))["head"])


def test_the_network_suits_the_shape_of_observations() -> None:
    assert network_for((84, 84), 6, "bfloat16") == Nature(6, "bfloat16")
    assert network_for((10, 5), 3) == MLP(50, 3)


def test_networks_that_differ_in_their_heads_have_the_same_initial_bodies() -> None:
    """A member of a fleet is initialised like a single agent of its game."""
    few, many = (MLP(3, actions, (8,)).init(jax.random.key(5)) for actions in (2, 5))
    jax.tree.map(np.testing.assert_array_equal, few["body"], many["body"])
