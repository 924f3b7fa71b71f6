"""Pop-Art for JAX: pure functions on the parameters of a last layer of any library."""

from popart._installation import check_installation
from popart.jax.deep import normalize_gradient, normalized_linear
from popart.jax.heads import Step, init, normalized, polyak, step, values
from popart.jax.optimizers import normalized_sgd, rescale_optimizer

check_installation()

__all__ = [
    "Step",
    "init",
    "normalize_gradient",
    "normalized",
    "normalized_linear",
    "normalized_sgd",
    "polyak",
    "rescale_optimizer",
    "step",
    "values",
]
