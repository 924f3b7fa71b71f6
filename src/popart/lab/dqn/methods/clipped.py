"""Rewards and errors clipped to [-1, 1]. This changes the problem if rewards differ in size."""

import optax

import popart
from popart.jax.alternatives import Linear
from popart.lab.dqn.methods import Method

METHOD = Method(
    "Mnih et al., 2015 (Nature 518)",
    lambda config, actions: Linear(popart.Fixed(), cost=optax.huber_loss),
    agent="clipped",
)
