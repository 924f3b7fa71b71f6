r"""Normalisation by mean and variance (Eq. 3, Eq. 4, Proposition 2), scalar, diagonal and dense."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from popart._arrays import (
    Array,
    accumulate,
    divide,
    eps_of,
    eye,
    matmul,
    namespace,
    outer,
    power_of_two,
)
from popart.affine import Affine
from popart.correspondence import check_std
from popart.rules import (
    Rule,
    Targets,
    check_settings,
    counted,
    empty,
    resolution,
    step_size,
    weighted_range,
)
from popart.steps import Step


class MomentsState(NamedTuple):
    """Mean and standard deviation, each with the part that its last bit cannot hold."""

    count: Array
    mu: Array
    mu_carry: Array
    sigma: Array
    sigma_carry: Array
    skipped: Array


class MomentsSummary(NamedTuple):
    """Total weight, mean and standard deviation of a batch."""

    weight: Array
    mean: Array
    std: Array
    skipped: Array


@dataclass(frozen=True)
class Moments(Rule[MomentsState, MomentsSummary]):
    r"""Normalise to mean 0 and standard deviation s (Eq. 4; minibatches as in the appendix).

    $$\mu_t = (1 - \beta_t) \mu_{t-1} + \beta_t \bar Y_t \qquad
      \nu_t = (1 - \beta_t) \nu_{t-1} + \beta_t \overline{Y^2_t} \qquad
      \sigma_t = \sqrt{\nu_t - \mu_t^2} / s$$

    with the means over the minibatch. $\nu_t - \mu_t^2$ is never formed, because it cancels. What is
    tracked is its root, through the same equation without the difference, where
    $\delta_t = \bar Y_t - \mu_{t-1}$ and $v_t$ is the variance within the minibatch:

    $$\sigma_t^2 = (1 - \beta_t)(\sigma_{t-1}^2 + \beta_t \delta_t^2) + \beta_t v_t$$

    Args:
        beta: the step size $\beta$: a float for `debiased(beta)`, or a function of t.
        std: s, the standard deviation that normalised targets are to have.
        nu0: start from $\mu_0 = 0$ and this second moment, and preserve outputs from the first update
            on: 1 is the paper's literal start, 10⁴ or 10⁶ its safe high one. A float `beta` is then
            `constant(beta)`. `None` adopts the first targets instead.
        epsilon: the paper's lower bound on $\nu_t - \mu_t^2$, in squared units of the targets. Scale
            does not matter only while it is 0.
    """

    beta: float | Step = 1e-4
    std: float = 1.0
    nu0: float | None = None
    epsilon: float = 0.0

    def __post_init__(self) -> None:
        check_settings(self.beta, self.nu0)
        check_std(self.std)
        if not 0 <= self.epsilon < math.inf:
            raise ValueError(f"epsilon is {self.epsilon!r}; it must be in [0, inf)")

    def init(self, shape: Sequence[int] = (), like: Array = None) -> MomentsState:
        zero, count = empty(shape, like)
        return MomentsState(count, zero, zero, zero + math.sqrt(self.nu0 or 0.0), zero, count)

    def affine(self, state: MomentsState) -> Affine:
        xp = namespace(state.mu)
        seen = (state.count > 0) | (self.nu0 is not None)
        sigma = xp.where(state.sigma > 0, xp.maximum(state.sigma, resolution(state.mu)), 0.0)
        if self.epsilon:
            sigma = xp.where(seen, sigma.clip(math.sqrt(self.epsilon), None), 0.0)
        return Affine(sigma / self.std, state.mu, seen)

    def _summarize(self, state: MomentsState, targets: Targets) -> MomentsSummary:
        return MomentsSummary(*_measure(targets.values, targets.weights), targets.skipped)

    def _merge(self, stacked: MomentsSummary) -> MomentsSummary:
        merged = _merge(stacked.weight, stacked.mean, stacked.std)
        return MomentsSummary(*merged, stacked.skipped.sum(0))

    def _absorb(self, state: MomentsState, summary: MomentsSummary) -> MomentsState:
        weight, mean, std, skipped = summary
        beta, fresh = step_size(self.beta, self.nu0, state.count, state.mu)
        new = state._replace(**_advance(state, mean, std, beta, fresh))
        return counted(state, new, weight, skipped)


class CovarianceState(NamedTuple):
    """Mean and standard deviation of each output, and the correlations between outputs."""

    count: Array
    mu: Array
    mu_carry: Array
    sigma: Array
    sigma_carry: Array
    correlation: Array
    skipped: Array


class CovarianceSummary(NamedTuple):
    """Total weight of a batch, mean and standard deviation of each output, and correlations."""

    weight: Array
    mean: Array
    std: Array
    correlation: Array
    skipped: Array


@dataclass(frozen=True)
class Covariance(Rule[CovarianceState, CovarianceSummary]):
    r"""Normalise k outputs together to white targets, with a dense $\Sigma$.

    The running covariance follows the same equation as the variance in `Moments`. $\Sigma$ is its
    lower Cholesky factor divided by s, so that $\Sigma^{-1}(Y - \mu)$ has covariance $s^2 I$. It is
    kept as standard deviations and correlations: outputs of very different size do not disturb each
    other. Targets that lie in a subspace leave the correlations singular; a few ulps of the identity
    are added before they are factorised.

    A target is a vector of shape `(k,)`; it is left out whole if any of its elements is not finite.
    The arguments are those of `Moments`.
    """

    beta: float | Step = 1e-4
    std: float = 1.0
    nu0: float | None = None

    def __post_init__(self) -> None:
        check_settings(self.beta, self.nu0)
        check_std(self.std)

    @property
    def _event_axes(self) -> int:
        return 1

    def init(self, shape: Sequence[int] = (1,), like: Array = None) -> CovarianceState:
        if not tuple(shape):
            raise ValueError("shape is (); a covariance needs an axis of outputs: (k,) or (tasks, k)")
        zero, _ = empty(shape, like)
        _, count = empty(tuple(shape)[:-1], like)
        sigma = zero + math.sqrt(self.nu0 or 0.0)
        correlation = zero[..., None] + eye(zero)
        return CovarianceState(count, zero, zero, sigma, zero, correlation, count)

    def affine(self, state: CovarianceState) -> Affine:
        xp = namespace(state.mu)
        seen = ((state.count > 0) | (self.nu0 is not None))[..., None]
        sigma = xp.where(state.sigma > 0, xp.maximum(state.sigma, resolution(state.mu)), 0.0)
        jitter = 4 * state.mu.shape[-1] * eps_of(state.mu)
        C = (state.correlation + jitter * eye(state.mu)) / (1 + jitter)
        scale = sigma[..., None] * xp.linalg.cholesky(C) / self.std
        return Affine(scale, state.mu, seen)

    def _summarize(self, state: CovarianceState, targets: Targets) -> CovarianceSummary:
        y, w, skipped = targets
        weight, mean, std = _measure(y, w[..., None])
        z = Affine(std, mean).normalize(y)
        z = z - divide((w[..., None] * z).sum(0), weight)
        wz = namespace(y).moveaxis(w[..., None] * z, 0, -1)
        correlation = divide(matmul(wz, namespace(y).moveaxis(z, 0, -2)), weight[..., None])
        return CovarianceSummary(weight[..., 0], mean, std, correlation, skipped)

    def _merge(self, stacked: CovarianceSummary) -> CovarianceSummary:
        n = stacked.weight[..., None]
        weight, mean, std = _merge(n, stacked.mean, stacked.std)
        share = divide(n, weight)[..., None]
        within = outer(divide(stacked.std, std)) * stacked.correlation
        between = outer(Affine(std, mean).normalize(stacked.mean))
        correlation = (share * (within + between)).sum(0)
        return CovarianceSummary(weight[..., 0], mean, std, correlation, stacked.skipped.sum(0))

    def _absorb(self, state: CovarianceState, summary: CovarianceSummary) -> CovarianceState:
        weight, mean, std, correlation, skipped = summary
        beta, fresh = step_size(self.beta, self.nu0, state.count, state.mu)
        moved = _advance(state, mean, std, beta[..., None], fresh[..., None])
        sigma, b = moved["sigma"], beta[..., None, None]
        before = outer(divide(state.sigma, sigma)) * state.correlation
        jump = outer(Affine(sigma, state.mu).normalize(mean))
        within = outer(divide(std, sigma)) * correlation
        C = (1 - b) * (before + b * jump) + b * within
        C = namespace(C).where(fresh[..., None, None], correlation, C)
        new = state._replace(**moved, correlation=C * (1 - eye(std)) + eye(std))
        return counted(state, new, weight, skipped)


def _measure(y: Array, w: Array) -> tuple[Array, Array, Array]:
    """Total weight, weighted mean and standard deviation over the first axis.

    Deviations are taken from the middle of the range, which is one of the targets if all are the
    same, so that a constant batch has a spread of 0 and not of a rounding error.
    """
    xp = namespace(y)
    weight, low, high = weighted_range(y, w)
    u = power_of_two(xp.maximum(xp.abs(low), xp.abs(high)))
    middle = (low / u + high / u) / 2
    d = y / u - middle
    mean = divide((w * d).sum(0), weight)
    variance = divide((w * (d - mean) ** 2).sum(0), weight)
    return weight, u * (middle + mean), u * xp.sqrt(variance)


def _merge(n: Array, mean: Array, std: Array) -> tuple[Array, Array, Array]:
    """The same of several batches, stacked along the first axis, as one."""
    xp = namespace(mean)
    weight, centre, between = _measure(mean, n)
    largest = xp.maximum(xp.amax(std, axis=0), between)
    u = power_of_two(largest)
    within = divide((n * (std / u) ** 2).sum(0), weight)
    return weight, centre, u * xp.sqrt(within + (between / u) ** 2)


def _advance(
    state: MomentsState | CovarianceState, mean: Array, std: Array, beta: Array, fresh: Array
) -> dict[str, Array]:
    r"""Eq. 4 without cancellation; where fresh, the batch is adopted.

    The increment of $\sigma$ is that of $\sigma^2$ divided by $\sigma_t + \sigma_{t-1}$, so that what
    rounding loses of it can be carried, as for $\mu$.
    """
    xp = namespace(state.mu)
    sizes = xp.maximum(xp.abs(state.mu), state.sigma), xp.maximum(xp.abs(mean), std)
    u = power_of_two(xp.maximum(*sizes))
    mu, mu_carry, sigma, sigma_carry = (
        x / u for x in (state.mu, state.mu_carry, state.sigma, state.sigma_carry)
    )
    y, s = mean / u, std / u
    delta = (y - mu) - eps_of(mu) * mu_carry
    root = xp.sqrt((1 - beta) * (sigma**2 + beta * delta**2) + beta * s**2)
    growth = divide(beta * ((1 - beta) * delta**2 + s**2 - sigma**2), root + sigma)
    mu, mu_carry = accumulate(mu, mu_carry, beta * delta)
    near = xp.abs(growth) <= sigma / 2
    grown, sigma_carry = accumulate(sigma, sigma_carry, growth)
    return {
        "mu": xp.where(fresh, mean, u * mu),
        "mu_carry": xp.where(fresh, 0.0, u * mu_carry),
        "sigma": xp.where(fresh, std, u * xp.where(near, grown, root)),
        "sigma_carry": xp.where(near & ~fresh, u * sigma_carry, 0.0),
    }
