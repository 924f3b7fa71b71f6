"""Double DQN on rewards as they are: the plain baseline."""

import popart
from popart.jax.alternatives import Linear
from popart.lab.dqn.methods import Method

METHOD = Method(
    "van Hasselt, Guez and Silver, 2016, arXiv 1509.06461, without clipping",
    lambda config, actions: Linear(popart.Fixed()),
)
