"""Classification into 51 bins with Gaussian targets.

The published support, -10 to 10, is for clipped rewards. It is larger for games whose values are larger at a
reward scale of 1: -100 to 100 for CartPole. The optimizer is Adam, as published.
"""

from popart.alternatives import HLGauss
from popart.jax.alternatives import Categorical
from popart.lab.dqn.methods import Method

METHOD = Method(
    "Farebrother et al., 2024, arXiv 2403.03950",
    lambda config, actions: Categorical(actions, HLGauss(-config.reach, config.reach, 51)),
    optimizer="adam",
)
