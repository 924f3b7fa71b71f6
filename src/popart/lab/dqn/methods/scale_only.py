"""Pop-Art without a shift."""

from popart import Moments
from popart.jax.alternatives import Linear
from popart.lab.dqn.methods import Method

METHOD = Method(
    "a variant of Pop-Art; none published",
    lambda config, actions: Linear(Moments(config.beta, symmetric=True)),
)
