"""Classification into 255 bins that are equally spaced in symlog, from -20 to 20. The optimizer is Adam."""

from popart.alternatives import TwoHot
from popart.jax.alternatives import Categorical
from popart.lab.dqn.methods import Method

METHOD = Method(
    "Hafner et al., 2023, arXiv 2301.04104",
    lambda config, actions: Categorical(actions, TwoHot()),
    optimizer="adam",
)
