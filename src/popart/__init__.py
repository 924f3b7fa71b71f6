"""Pop-Art: learn targets of unknown size.

Preserving Outputs Precisely, while Adaptively Rescaling Targets, after van Hasselt, Guez, Hessel,
Mnih and Silver, *Learning values across many orders of magnitude* (2016); for NumPy, JAX and PyTorch.
"""

from popart.affine import Affine, Change, preserve
from popart.diagnosis.report import diagnose
from popart.moments import Covariance, Moments
from popart.percentiles import Expectiles, Extremes, Percentiles
from popart.rules import Fixed, Rule, check_finite
from popart.steps import constant, debiased, harmonic

__all__ = [
    "Affine",
    "Change",
    "Covariance",
    "Expectiles",
    "Extremes",
    "Fixed",
    "Moments",
    "Percentiles",
    "Rule",
    "check_finite",
    "constant",
    "debiased",
    "diagnose",
    "harmonic",
    "preserve",
]
__version__ = "0.2.0.dev0"
