"""Pop-Art."""

from popart import Moments
from popart.jax.alternatives import Linear
from popart.lab.dqn.methods import Method

METHOD = Method(
    "van Hasselt et al., 2016, arXiv 1602.07714", lambda config, actions: Linear(Moments(config.beta))
)
