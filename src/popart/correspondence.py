r"""Conversions between the standard deviation s, the ratio p and the minibatch size B.

Proposition 4 (for normal targets) ties s to p, Proposition 6 (for uniform targets) ties B to p, and
through p they are tied to each other. Proposition 2 bounds normalised targets.
"""

import math
from statistics import NormalDist

from popart.steps import check_beta


def ratio_from_std(s: float) -> float:
    r"""Return p of Proposition 4: the fraction of normal targets in [-1, 1] if their standard deviation is s.

    $$p = \operatorname{erf}\left(\frac{1}{\sqrt 2 s}\right)$$
    """
    check_std(s)
    return math.erf(1 / (math.sqrt(2) * s))


def std_from_ratio(p: float) -> float:
    """Return s of Proposition 4: the inverse of `ratio_from_std`."""
    _check_open_ratio(p)
    return 1 / -NormalDist().inv_cdf((1 - p) / 2)


def ratio_from_batch(B: float) -> float:
    r"""Return p of Proposition 6: $p = (B - 1) / (B + 1)$."""
    if not B > 1:
        raise ValueError(f"B is {B!r}; a minibatch whose extremes differ has B > 1")
    return (B - 1) / (B + 1)


def batch_from_ratio(p: float) -> float:
    r"""Return B of Proposition 6, not rounded: $B = (1 + p) / (1 - p)$."""
    _check_open_ratio(p)
    return (1 + p) / (1 - p)


def std_from_batch(B: float) -> float:
    """Return s that corresponds to a minibatch of B targets, by Propositions 6 and 4."""
    return std_from_ratio(ratio_from_batch(B))


def batch_from_std(s: float) -> float:
    """Return B that corresponds to the standard deviation s, by Propositions 4 and 6, not rounded."""
    return batch_from_ratio(ratio_from_std(s))


def bound(beta: float, std: float = 1.0, batch: int = 1) -> float:
    r"""Return the largest possible size of a normalised target after an update with it (Proposition 2).

    $$s \sqrt{(1 - \beta) / \beta}$$

    In a minibatch of B each target has the weight $\beta / B$, which takes the place of $\beta$.
    """
    check_beta(beta)
    check_std(std)
    if not batch >= 1:
        raise ValueError(f"batch is {batch!r}; it must be at least 1")
    share = beta / batch
    return std * math.sqrt((1 - share) / share)


def check_std(std: float) -> None:
    if not 0 < std < math.inf:
        raise ValueError(f"std is {std!r}; it must be positive and finite")


def check_ratio(p: float) -> None:
    if not 0 < p <= 1:
        raise ValueError(f"p is {p!r}; it must be in (0, 1]")


def _check_open_ratio(p: float) -> None:
    if not 0 < p < 1:
        raise ValueError(f"p is {p!r}; it must be in (0, 1)")
