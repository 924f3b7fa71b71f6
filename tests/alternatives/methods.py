"""All methods in one table: a head for PyTorch, one for JAX, and whether the method is free of scale."""

from collections.abc import Callable
from typing import Any, NamedTuple

import popart
import popart.jax.alternatives as in_jax
import popart.torch.alternatives as in_torch
from popart.alternatives import H, HLGauss, PercentileSpan, ReturnScaling, Symlog, TwoHot
from popart.rules import Rule
from popart.torch import PopArt

BETA = 0.1
NORMALIZED_BINS = HLGauss(-4, 4, 41, Symlog())


class Method(NamedTuple):
    """Heads of 6 features and 2 outputs."""

    torch: Callable[[], Any]
    jax: in_jax.Head
    is_scale_free: bool


def of_rule(art: Rule[Any], is_scale_free: bool) -> Method:
    return Method(lambda: PopArt(6, 2, art), in_jax.Linear(art), is_scale_free)


def of_transform(transform: Any, art: Rule[Any]) -> Method:
    return Method(
        lambda: in_torch.Transformed(6, 2, art, transform=transform), in_jax.Linear(art, transform), False
    )


def of_bins(histogram: Any, art: Rule[Any], is_scale_free: bool) -> Method:
    return Method(
        lambda: in_torch.Categorical(6, 2, histogram, art),
        in_jax.Categorical(2, histogram, art),
        is_scale_free,
    )


METHODS = {
    "plain": of_rule(popart.Fixed(), False),
    "Pop-Art": of_rule(popart.Moments(BETA), True),
    "Art without Pop": Method(
        lambda: in_torch.Art(6, 2, beta=BETA), in_jax.Linear(popart.Moments(BETA), preserve=False), True
    ),
    "scale only": of_rule(popart.Moments(BETA, symmetric=True), True),
    "return-based scaling": of_rule(ReturnScaling(), True),
    "percentile span": of_rule(PercentileSpan(), False),
    "percentile span without a floor": of_rule(PercentileSpan(floor=0.0), True),
    "h(x)": of_transform(H(), popart.Fixed()),
    "symlog": of_transform(Symlog(), popart.Fixed()),
    "h(x) and Pop-Art": of_transform(H(), popart.Moments(BETA)),
    "two-hot, symlog bins": of_bins(TwoHot(), popart.Fixed(), False),
    "HL-Gauss": of_bins(HLGauss(), popart.Fixed(), False),
    "HL-Gauss, bins in normalised units": of_bins(NORMALIZED_BINS, popart.Moments(BETA), True),
}
