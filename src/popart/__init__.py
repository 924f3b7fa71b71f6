"""Pop-Art: learn targets whose size nobody knows beforehand.

Preserving Outputs Precisely, while Adaptively Rescaling Targets, after van Hasselt, Guez, Hessel,
Mnih and Silver, *Learning values across many orders of magnitude* (2016); for NumPy, JAX and PyTorch.
"""

from popart.affine import Affine, preserve
from popart.correspondence import (
    batch_from_ratio,
    batch_from_std,
    bound,
    ratio_from_batch,
    ratio_from_std,
    std_from_batch,
    std_from_ratio,
)
from popart.deep import softmax_targets, step_targets
from popart.moments import Covariance, Moments
from popart.percentiles import Expectiles, Extremes, OrderStatistics, Percentiles
from popart.rules import Fixed, Kept, Rule, Symmetric, check_finite
from popart.steps import constant, debiased, harmonic

__all__ = [
    "Affine",
    "Covariance",
    "Expectiles",
    "Extremes",
    "Fixed",
    "Kept",
    "Moments",
    "OrderStatistics",
    "Percentiles",
    "Rule",
    "Symmetric",
    "batch_from_ratio",
    "batch_from_std",
    "bound",
    "check_finite",
    "constant",
    "debiased",
    "harmonic",
    "preserve",
    "ratio_from_batch",
    "ratio_from_std",
    "softmax_targets",
    "std_from_batch",
    "std_from_ratio",
    "step_targets",
]
__version__ = "0.1.0"
