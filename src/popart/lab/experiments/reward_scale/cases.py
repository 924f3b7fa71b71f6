"""Cases: how rewards change in the course of training, apart from their scale."""

import jax
import jax.numpy as jnp

from popart.lab.experiments.reward_scale.config import CASES

FACTOR = 1e4
"""By how much rewards grow or shrink in the middle of training."""

RARE, HUGE = 0.01, 1e3
"""The share of rewards that are larger than the others, and by which factor."""


def change(case: jax.Array, reward: jax.Array, progress: jax.Array, key: jax.Array) -> jax.Array:
    """Return rewards as the agent gets them, when a fraction of the training is over.

    The case is a number, its place in `CASES`, so that one compiled program serves all cases.
    """
    late = progress >= 0.5
    rare = jax.random.uniform(key, reward.shape) < RARE
    rewards = {
        "steady": reward,
        "grows": jnp.where(late, FACTOR * reward, reward),
        "shrinks": jnp.where(late, reward / FACTOR, reward),
        "rare": jnp.where(rare, HUGE * reward, reward),
        "constant": jnp.where(late, reward, 1.0),
    }
    return jnp.stack([rewards[name] for name in CASES])[case]
