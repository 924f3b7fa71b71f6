"""The methods: a head for one output, in the place of the last layer of the same network.

To add one, write an entry here, and a line in the table of `config`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from popart import Fixed, Moments, harmonic
from popart.alternatives import HLGauss, Symlog
from popart.jax.alternatives import Categorical, Head, Linear


@dataclass(frozen=True)
class Method:
    """A way to handle targets of unknown size."""

    head: Callable[[Any], Head]
    """The head, from the step size β."""

    has_beta: bool = False
    """Whether the step size matters."""

    once: bool = False
    """Whether all targets are standardised by mean and standard deviation of the first, before the head."""

    max_norm: float | None = None
    """Outputs are preserved only while the norm of the last layer's weights stays below this."""


SUPPORT = HLGauss(-5, 5, 51)
"""Support in standard deviations of the first targets, around their mean."""

BINS = HLGauss(-4, 4, 51, Symlog())
"""Bins in normalised units, as in `popart scale`."""

METHODS: dict[str, Method] = {
    "sgd": Method(lambda beta: Linear(Fixed())),
    "once": Method(lambda beta: Linear(Fixed()), once=True),
    "zscore": Method(lambda beta: Linear(Moments(harmonic()), preserve=False)),
    "symlog": Method(lambda beta: Linear(Fixed(), Symlog())),
    "hl_gauss": Method(lambda beta: Categorical(1, SUPPORT), once=True),
    "adaptive_bins": Method(lambda beta: Categorical(1, BINS, Moments(beta)), has_beta=True),
    "scale_only": Method(lambda beta: Linear(Moments(beta, symmetric=True)), has_beta=True),
    "art": Method(lambda beta: Linear(Moments(beta), preserve=False), has_beta=True),
    "popart": Method(lambda beta: Linear(Moments(beta)), has_beta=True),
    "popart_limited": Method(lambda beta: Linear(Moments(beta)), has_beta=True, max_norm=3.0),
}
