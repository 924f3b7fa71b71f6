"""Targets normalised as with Pop-Art, without preserved outputs: MAPPO's value normalisation."""

from popart import Moments
from popart.jax.alternatives import Linear
from popart.lab.dqn.methods import Method

METHOD = Method(
    "Yu et al., 2021, arXiv 2103.01955", lambda config, actions: Linear(Moments(config.beta), preserve=False)
)
