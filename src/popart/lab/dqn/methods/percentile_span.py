"""Targets divided by the span of their percentiles, at least 1, with preserved outputs.

DreamerV3 divides advantages by it, which Double DQN does not have.
"""

from popart.alternatives import PercentileSpan
from popart.jax.alternatives import Linear
from popart.lab.dqn.methods import Method

METHOD = Method("Hafner et al., 2023, arXiv 2301.04104", lambda config, actions: Linear(PercentileSpan()))
