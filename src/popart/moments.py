r"""Normalisation by mean and variance (Eq. 3, Eq. 4, Proposition 2), scalar, diagonal and dense."""

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from popart._arrays import (
    Array,
    accumulate,
    asarray,
    divide,
    eps_of,
    eye,
    is_jax,
    namespace,
    unit,
)
from popart.affine import Affine
from popart.batches import BATCH, Batch, Targets, Values
from popart.correspondence import check_std
from popart.rules import Rule, check_settings, empty, step_size, tally
from popart.steps import Step


class MomentsState(NamedTuple):
    """Rows of `moments`: the mean, the standard deviation, and what the last bit of each cannot hold."""

    counts: Array
    moments: Array

    @property
    def mu(self) -> Array:
        return self.moments[0]

    @property
    def sigma(self) -> Array:
        return self.moments[1]


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
        zero, counts = empty(shape, like)
        return MomentsState(counts, _start(zero, self.nu0))

    def affine(self, state: MomentsState) -> Affine:
        mu, sigma = _resolved(state.moments)
        seen = (state.counts[0] > 0) | (self.nu0 is not None)
        if self.epsilon:
            sigma = namespace(mu).where(seen, sigma.clip(math.sqrt(self.epsilon), None), 0.0)
        return Affine(sigma / self.std, mu, seen)

    def _summarize(self, state: MomentsState, targets: Targets) -> MomentsSummary:
        return MomentsSummary(*_measure(targets, state.mu))

    def _merge(self, stacked: MomentsSummary) -> MomentsSummary:
        merged = _merge(stacked.weight, stacked.mean, stacked.std)
        return MomentsSummary(*merged, stacked.skipped.sum(0))

    def _absorb(self, state: MomentsState, summary: MomentsSummary) -> MomentsState:
        weight, mean, std, skipped = summary
        beta, fresh = step_size(self.beta, self.nu0, state.counts[0], mean)
        moments = _advance(state.moments, mean, std, beta, fresh)
        moments = namespace(moments).where(weight > 0, moments, state.moments)
        return MomentsState(tally(state.counts, weight, skipped), moments)


class CovarianceState(NamedTuple):
    """The moments of each output, as in `MomentsState`, and the Cholesky factor of their correlations."""

    counts: Array
    moments: Array
    factor: Array


class CovarianceSummary(NamedTuple):
    """Total weight of a batch, moments of each output, and the Cholesky factor of their correlations."""

    weight: Array
    mean: Array
    std: Array
    factor: Array
    skipped: Array


@dataclass(frozen=True)
class Covariance(Rule[CovarianceState, CovarianceSummary]):
    r"""Normalise k outputs together to white targets, with a dense $\Sigma$.

    The running covariance follows the same equation as the variance in `Moments`. $\Sigma$ is its
    lower Cholesky factor divided by s, so that $\Sigma^{-1}(Y - \mu)$ has covariance $s^2 I$. What is
    kept are standard deviations and the factor L of the correlations $L L^\top$: outputs of very
    different size do not disturb each other, and rounding cannot make the covariance indefinite. It is
    updated by orthogonal transformations of what it is the product of,

    $$L_t L_t^\top = M M^\top \qquad M = \left[\sqrt{1-\beta}\, A L_{t-1},\;
      \sqrt{(1-\beta)\beta}\, d,\; \sqrt\beta\, S L\right]$$

    with A, d and S the old deviations, the error of the mean, and the deviations within the batch, in
    units of the new ones, and L the factor of the batch. Targets that lie in a subspace leave a factor
    that is singular; a few ulps of the identity are added to the correlations before they are used.

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
        _, counts = empty(tuple(shape)[:-1], like)
        return CovarianceState(counts, _start(zero, self.nu0), zero[..., None] + eye(zero))

    def affine(self, state: CovarianceState) -> Affine:
        mu, sigma = _resolved(state.moments)
        jitter = math.sqrt(8 * mu.shape[-1] * eps_of(mu))
        L = _factor([state.factor, jitter * eye(mu) + 0 * state.factor])
        seen = (state.counts[0] > 0) | (self.nu0 is not None)
        return Affine(sigma[..., None] * L / self.std, mu, seen[..., None])

    def _summarize(self, state: CovarianceState, targets: Targets) -> CovarianceSummary:
        weight, mean, std, skipped = _measure(targets, state.moments[0])
        xp, values = namespace(mean), targets.values
        z = Affine(std[..., None], mean[..., None]).normalize(values.y)
        z = z - divide(values.weighted(z).sum(BATCH), weight)[..., None]
        share, _ = values.totals()
        columns = xp.moveaxis(xp.sqrt(share) * z, 0, -1)[..., 0, :]
        return CovarianceSummary(weight[..., 0], mean, std, _factor([columns]), skipped[..., 0])

    def _merge(self, stacked: CovarianceSummary) -> CovarianceSummary:
        n = stacked.weight[..., None]
        weight, mean, std = _merge(n, stacked.mean, stacked.std)
        share = namespace(n).sqrt(divide(n, weight))[..., None]
        within = share * divide(stacked.std, std)[..., None] * stacked.factor
        between = share * Affine(std, mean).normalize(stacked.mean)[..., None]
        factor = _factor([*within, *between])
        return CovarianceSummary(weight[..., 0], mean, std, factor, stacked.skipped.sum(0))

    def _absorb(self, state: CovarianceState, summary: CovarianceSummary) -> CovarianceState:
        weight, mean, std, factor, skipped = summary
        xp = namespace(mean)
        beta, fresh = step_size(self.beta, self.nu0, state.counts[0], mean)
        moments = _advance(state.moments, mean, std, beta[..., None], fresh[..., None])
        sigma, b = moments[1], beta[..., None, None]
        before = divide(state.moments[1], sigma)[..., None] * state.factor
        jump = Affine(sigma, state.moments[0]).normalize(mean)[..., None]
        within = divide(std, sigma)[..., None] * factor
        moved = _factor([xp.sqrt(1 - b) * before, xp.sqrt((1 - b) * b) * jump, xp.sqrt(b) * within])
        got = (weight > 0)[..., None]
        moved = xp.where(fresh[..., None, None], factor, moved)
        return CovarianceState(
            tally(state.counts, weight, skipped),
            xp.where(got, moments, state.moments),
            xp.where(got[..., None], moved, state.factor),
        )


def _factor(blocks: Sequence[Array]) -> Array:
    """The lower factor L of the correlations that M Mᵀ has, where M is made of blocks of columns.

    Its rows have length 1 and its diagonal is not negative. The row of an output that does not vary is
    that of the identity.
    """
    xp = namespace(*blocks)
    columns = xp.concatenate(list(blocks), axis=-1)
    still = asarray(xp, ~xp.any(columns != 0, axis=-1), columns.dtype, columns)
    one = eye(still)
    M = xp.concatenate([columns, still[..., None] * one], axis=-1)
    L = xp.swapaxes(xp.linalg.qr(xp.swapaxes(M, -1, -2))[1], -1, -2)
    negative = asarray(xp, (L * one).sum(-1) < 0, L.dtype, L)
    return L * (1 - 2 * negative)[..., None, :] / xp.sqrt((L * L).sum(-1))[..., None]


def _start(zero: Array, nu0: float | None) -> Array:
    return namespace(zero).stack((zero, zero + math.sqrt(nu0 or 0.0), zero, zero))


def _resolved(moments: Array) -> tuple[Array, Array]:
    """Mean and standard deviation, of which the mean's precision can tell any that is not 0."""
    xp = namespace(moments)
    mu, sigma = moments[0], moments[1]
    return mu, xp.where(sigma > 0, xp.maximum(sigma, eps_of(mu) * xp.abs(mu)), 0.0)


def _measure(targets: Targets, about: Array) -> tuple[Array, Array, Array, Array]:
    """Total weight, mean (near `about`, perhaps) and deviation of a batch; and how many were left out."""
    on_gpu = is_jax(namespace(about)) and sys.modules["jax"].default_backend() != "cpu"
    return measure_at_once(targets, about) if on_gpu else measure_in_passes(targets)


def measure_in_passes(targets: Targets) -> tuple[Array, Array, Array, Array]:
    """Range, mean and deviations one after the other: the least work.

    Deviations are taken from the middle of the range, which is one of the targets if all are the
    same, so that a constant batch has a spread of 0 and not of a rounding error.
    """
    low, high = targets.range()
    u, per_u = unit(low, high)
    middle = (low * per_u + high * per_u) / 2

    def deviation(values: Values) -> Array:
        return values.y * per_u[..., None] - middle[..., None]

    weight, skipped, total = targets.sums(lambda v: (*v.totals(), v.weighted(deviation(v))))
    mean = divide(total, weight)
    (total,) = targets.sums(lambda v: (v.weighted((deviation(v) - mean[..., None]) ** 2),))
    return weight, u * (middle + mean), u * namespace(total).sqrt(divide(total, weight)), skipped


def measure_at_once(targets: Targets, about: Array) -> tuple[Array, Array, Array, Array]:
    """The same in one reduction, of JAX's arrays: a GPU takes longer to start another than to do this.

    Two parts of a batch are merged into one by their weights, means, and roots of summed squares. Means
    are of differences (halved, so that none overflows) from some number of the size of the targets, so
    that rounding them costs no more than it does in several passes.
    """
    jax, values = sys.modules["jax"], targets.values
    xp = namespace(values.y)
    weight, skipped = xp.broadcast_arrays(*values.totals())
    centre = xp.where(about == 0, values.y[0, ..., 0], about) / 2
    y = xp.where(values.counts, values.y / 2 - centre[..., None], 0.0)
    zero = xp.zeros((), y.dtype)

    def merge(a: tuple[Array, ...], b: tuple[Array, ...]) -> tuple[Array, ...]:
        (n_a, mean_a, root_a, skipped_a), (n_b, mean_b, root_b, skipped_b) = a, b
        u, per_u = unit(mean_a, mean_b, root_a, root_b)
        n, apart = n_a + n_b, mean_b * per_u - mean_a * per_u
        share = divide(n_b, n)
        squares = (root_a * per_u) ** 2 + (root_b * per_u) ** 2 + n_a * share * apart**2
        return n, mean_a + u * (share * apart), u * xp.sqrt(squares), skipped_a + skipped_b

    parts = weight, y, xp.zeros_like(y), skipped
    n, mean, root, left_out = jax.lax.reduce(parts, (zero,) * 4, merge, (0, y.ndim - 1))
    got = n > 0
    return n, xp.where(got, 2 * (centre + mean), 0.0), 2 * divide(root, xp.sqrt(n)), left_out


def _merge(n: Array, mean: Array, std: Array) -> tuple[Array, Array, Array]:
    """Total weight, mean and standard deviation of batches, stacked along the first axis, as one."""
    xp = namespace(mean)
    parts = Targets(Batch(mean[..., None], weights=n[..., None]))
    weight, centre, between, _ = _measure(parts, mean[0])
    u, per_u = unit(xp.amax(std, axis=0), between)
    within = divide((n * (std * per_u) ** 2).sum(0), weight)
    return weight, centre, u * xp.sqrt(within + (between * per_u) ** 2)


def _advance(moments: Array, mean: Array, std: Array, beta: Array, fresh: Array) -> Array:
    r"""Eq. 4 without cancellation; where fresh, the batch is adopted.

    The increment of $\sigma$ is that of $\sigma^2$ divided by $\sigma_t + \sigma_{t-1}$, so that what
    rounding loses of it can be carried, as for $\mu$.
    """
    xp = namespace(moments)
    u, per_u = unit(moments[0], moments[1], mean, std)
    mu, sigma, mu_carry, sigma_carry = moments * per_u
    y, s = mean * per_u, std * per_u
    delta = (y - mu) - eps_of(mu) * mu_carry
    root = xp.sqrt((1 - beta) * (sigma**2 + beta * delta**2) + beta * s**2)
    growth = divide(beta * ((1 - beta) * delta**2 + s**2 - sigma**2), root + sigma)
    near = xp.abs(growth) <= sigma / 2
    mu, mu_carry = accumulate(mu, mu_carry, beta * delta)
    grown, sigma_carry = accumulate(sigma, sigma_carry, growth)
    moved = xp.stack((mu, xp.where(near, grown, root), mu_carry, xp.where(near, sigma_carry, 0.0)))
    adopted = xp.stack((y, s, 0 * y, 0 * s))
    return u * xp.where(fresh, adopted, moved)
