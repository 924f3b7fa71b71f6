"""Targets transformed by h(x) of R2D2."""

import popart
from popart.alternatives import H
from popart.jax.alternatives import Linear
from popart.lab.dqn.methods import Method

METHOD = Method(
    "Pohlen et al., 2018, arXiv 1805.11593; R2D2's ε = 10⁻³",
    lambda config, actions: Linear(popart.Fixed(), H()),
)
