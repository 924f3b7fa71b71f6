r"""Step sizes $\beta_t$ for the statistics, as functions of the number of updates t = 1, 2, ...

A rule takes one of these, any other callable of t, or a float, which means `debiased`.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

from popart._arrays import Array, is_numpy, namespace

StepSize = Callable[[Array], Array]
"""A function from the number of updates t = 1, 2, ... to the step size."""


@dataclass(frozen=True)
class constant:
    r"""The constant step size $\beta_t = \beta$, of an exponential average with an initial value."""

    beta: float

    def __post_init__(self) -> None:
        check_beta(self.beta)

    def __call__(self, t: Array) -> Array:
        return self.beta + 0 * t


@dataclass(frozen=True)
class harmonic:
    r"""The step size $\beta_t = 1/t$ of the average of all batches (Eq. 3).

    A batch is one step, whatever its size, so it is the average of all targets if batches are equally large.
    """

    def __call__(self, t: Array) -> Array:
        return 1 / t


@dataclass(frozen=True)
class debiased:
    r"""The step size $\beta_t = \beta / (1 - (1 - \beta)^t)$ (Proposition 7).

    The average is that of a constant step size, without the weight of its initial value.
    """

    beta: float

    def __post_init__(self) -> None:
        check_beta(self.beta)

    def __call__(self, t: Array) -> Array:
        return _debias(self.beta, t)


def _debias(beta: float, t: Array) -> Array:
    """Return the debiased step; the first one is exactly 1."""
    if is_numpy(beta) and beta == 1:
        return 1 + 0 * t
    log = math.log1p(-beta) if is_numpy(beta) else namespace(beta).log1p(-beta)
    if type(t) in (int, float) and type(log) is float:
        return beta / -math.expm1(t * log) if t > 1 else 1.0
    xp = namespace(t)
    return xp.where(t > 1, beta / -xp.expm1(t * log), 1.0)


def check_beta(beta: float) -> None:
    is_number = hasattr(beta, "dtype") or isinstance(beta, (int, float))  # pyright: ignore[reportUnnecessaryIsInstance]
    if not is_number or (is_numpy(beta) and not 0 < beta <= 1):
        raise ValueError(f"beta is {beta!r}; it must be in (0, 1]")


def step_at(beta: float | StepSize, t: Array, *, has_initial_values: bool) -> Array:
    """Return the step size of a rule at update t.

    A float is debiased, unless the rule has initial values that count: debiasing would forget these at the
    first target.
    """
    if callable(beta):
        return beta(t)
    return beta + 0 * t if has_initial_values else _debias(beta, t)
