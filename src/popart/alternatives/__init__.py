"""Alternatives to Pop-Art: other rules, fixed transforms of targets, and categorical heads.

Everything here works on arrays of NumPy, JAX and PyTorch. The heads are in
`popart.torch.alternatives` and `popart.jax.alternatives`. "Scale only" needs nothing new: it is any rule with
`symmetric=True`, such as `popart.Moments(symmetric=True)`.
"""

from popart.alternatives.histograms import Histogram, HLGauss, TwoHot
from popart.alternatives.rules import PercentileSpan, ReturnScaling
from popart.alternatives.transforms import H, Identity, Symlog, Transform

__all__ = [
    "H",
    "HLGauss",
    "Histogram",
    "Identity",
    "PercentileSpan",
    "ReturnScaling",
    "Symlog",
    "Transform",
    "TwoHot",
]
