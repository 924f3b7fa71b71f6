"""Rewards divided by a running standard deviation of their discounted sums."""

import popart
from popart.jax.alternatives import Linear
from popart.lab.dqn.methods import Method
from popart.lab.dqn.rewards import VecNormalize

METHOD = Method(
    "Stable-Baselines3's VecNormalize; Engstrom et al., 2020, arXiv 2005.12729",
    lambda config, actions: Linear(popart.Fixed()),
    VecNormalize(),
)
