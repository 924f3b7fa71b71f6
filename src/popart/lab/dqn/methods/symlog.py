"""Targets transformed by symlog."""

import popart
from popart.alternatives import Symlog
from popart.jax.alternatives import Linear
from popart.lab.dqn.methods import Method

METHOD = Method(
    "Hafner et al., 2023, arXiv 2301.04104", lambda config, actions: Linear(popart.Fixed(), Symlog())
)
