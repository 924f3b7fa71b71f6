r"""Normalisation by mean and variance, scalar, diagonal and dense (Proposition 2).

$$\mu_t = \frac1t \sum_{i=1}^t Y_i \qquad
  \sigma_t^2 = \frac1t \sum_{i=1}^t Y_i^2 - \mu_t^2 \tag{Eq. 3}$$

$$\mu_t = (1 - \beta_t) \mu_{t-1} + \beta_t Y_t \qquad
  \sigma_t^2 = \nu_t - \mu_t^2 \qquad
  \nu_t = (1 - \beta_t) \nu_{t-1} + \beta_t Y_t^2 \tag{Eq. 4}$$

Eq. 3 is Eq. 4 with $\beta_t = 1/t$ (`popart.harmonic`).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from popart._arrays import Array, asarray, cast, eps_of, eye, is_numpy, namespace, sum_of_squares
from popart.affine import Affine
from popart.batches import Batch, are_finite
from popart.correspondence import check_std
from popart.numerics import EPS, accumulate, divide, joined, split, unit, widened
from popart.rules import COUNT_MAX, Rule, check_settings, step_size, tally, without_precision, zeros
from popart.steps import StepSize, step_at

NOISE = 2.0**-40
"""Part of the mean below which a first spread is taken for rounding; two float32 differ by 2⁻²⁴ or more."""


def equation_4(
    mu: Array, sigma: Array, mean: Array, std: Array, beta: Array, sqrt: Callable[[Any], Any]
) -> tuple[Array, Array]:
    r"""Return $\mu_t$ and $\sigma_t$ of Eq. 4 for a batch, without $\nu_t - \mu_t^2$, which cancels."""
    delta = mean - mu
    return mu + beta * delta, sqrt((1 - beta) * (sigma**2 + beta * delta**2) + beta * std**2)


class MomentsState(NamedTuple):
    """Rows of `moments`: mean, standard deviation, and the rounding remainder of each."""

    counts: Array
    moments: Array

    @property
    def mu(self) -> Array:
        return self.moments[0]

    @property
    def sigma(self) -> Array:
        return self.moments[1]


@dataclass(frozen=True, repr=False)
class Moments(Rule[MomentsState]):
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
        std: s, the standard deviation of normalised targets.
        nu0: the initial second moment, with $\mu_0 = 0$; outputs are then preserved from the first update on,
            and a float `beta` is `constant(beta)`. 1 is the paper's initial value, 10⁴ or 10⁶ its safe high
            one. `None` initialises from the first targets.
        epsilon: the paper's lower bound on $\nu_t - \mu_t^2$, in squared units of the targets. If it is not
            0, results depend on the size of targets.
    """

    beta: float | StepSize = 1e-4
    std: float = 1.0
    nu0: float | None = None
    epsilon: float = 0.0

    def __post_init__(self) -> None:
        without_precision(self)
        check_settings(self.beta, self.nu0)
        check_std(self.std)
        if not 0 <= self.epsilon < math.inf:
            raise ValueError(f"epsilon is {self.epsilon!r}; it must be in [0, inf)")

    def init(self, shape: Sequence[int] = (), like: Array = None) -> MomentsState:
        counts, zero = zeros(shape, like)
        return MomentsState(counts, _initial_moments(zero, self.nu0))

    def absorb(self, state: MomentsState, batch: Batch) -> MomentsState:
        mean, std = measure(batch, self.symmetric)
        beta, fresh = step_size(self.beta, self.nu0, state.counts[0], mean)
        moments = advance(state.moments, mean, std, beta, fresh)
        return MomentsState(tally(state.counts, batch), batch.where_counted(moments, state.moments))

    def _quick_update(self, state: MomentsState, targets: Array) -> MomentsState | None:
        """Update one float32 NumPy statistic with Python floats, which take a fraction of the time.

        Return None for other arrays, targets that are not finite, and a step that is a function.
        """
        counts, moments = state
        if not (isinstance(state.moments, np.ndarray) and is_numpy(targets) and getattr(targets, "size", 0)):
            return None
        if moments.shape != (4,) or moments.dtype != np.float32 or callable(self.beta):
            return None
        y, count = targets.astype(np.float64).reshape(-1), int(counts[0])
        if count >= COUNT_MAX or not are_finite(y, wide=True):
            return None
        mean = 0.0 if self.symmetric else float(y.sum()) / len(y)
        new = mean, math.sqrt(sum_of_squares(y - mean) / len(y))
        beta, had_spread = step_at(self.beta, count + 1.0, has_initial_values=self.nu0 is not None), False
        if beta < 1 and (count or self.nu0 is not None):
            mu, sigma, mu_carry, sigma_carry = moments.tolist()
            before, had_spread = (mu + EPS * mu_carry, sigma + EPS * sigma_carry), sigma > 0
            new = equation_4(*before, *new, beta, math.sqrt)
        if not (had_spread or new[1] > NOISE * abs(new[0])):
            new = new[0], 0.0
        counts = counts.copy()
        counts[0] += 1
        return MomentsState(counts, np.concatenate(split(np.array(new), moments.dtype)))

    def affine(self, state: MomentsState) -> Affine:
        mu, sigma = state.moments[0], state.moments[1]
        seen = self.nu0 is not None or state.counts[0] > 0
        if self.epsilon:
            sigma = seen * sigma.clip(math.sqrt(self.epsilon), None)  # 0 before any target
        return self.finish(sigma, mu, seen, self.std)


def advance(moments: Array, mean: Array, std: Array, beta: Array, fresh: Array) -> Array:
    r"""Return the moments after a batch (Eq. 4); where fresh, those of the batch itself.

    In one precision, the increment of $\sigma$ is that of $\sigma^2$ divided by $\sigma_t + \sigma_{t-1}$,
    so that its rounding error can be carried, as for $\mu$.
    """
    xp = namespace(moments)
    if mean.dtype != moments.dtype:
        mu, sigma = joined(moments[:2], moments[2:], mean.dtype)
        moved = equation_4(mu, sigma, mean, std, beta, xp.sqrt)
        mu, new = xp.where(fresh, xp.stack((mean, std)), xp.stack(moved))
        new = xp.where((~fresh & (sigma > 0)) | (new > NOISE * xp.abs(mu)), new, 0.0)
        return xp.concatenate(split(xp.stack((mu, new)), moments.dtype))
    u, per_u = unit(moments[0], moments[1], mean, std)
    mu, sigma, mu_carry, sigma_carry = moments * per_u
    y, s = mean * per_u, std * per_u
    delta = (y - mu) - eps_of(mu.dtype) * mu_carry
    step, root = equation_4(0.0, sigma, delta, s, beta, xp.sqrt)
    growth = divide(beta * ((1 - beta) * delta**2 + s**2 - sigma**2), root + sigma)
    near = xp.abs(growth) <= sigma / 2
    mu, mu_carry = accumulate(mu, mu_carry, step)
    grown, sigma_carry = accumulate(sigma, sigma_carry, growth)
    moved = xp.stack((mu, xp.where(near, grown, root), mu_carry, xp.where(near, sigma_carry, 0.0)))
    return xp.where(fresh, xp.stack((mean, std, 0 * mean, 0 * std)), u * moved)


def measure(batch: Batch, symmetric: bool = False) -> tuple[Array, Array]:
    """Return the mean and the standard deviation of a batch; 0 of none.

    In one precision, deviations are taken from the middle of the range, which is one of the targets if all
    are the same, so that a constant batch has a spread of 0 and not of a rounding error.
    """
    y, u, middle = batch.y, 1.0, 0.0
    if not batch.wide:
        low, high = batch.range()
        u, per_u = unit(low, high)
        middle = 0 * u if symmetric else (low * per_u + high * per_u) / 2
        y = y * batch.each(per_u) - batch.each(middle)
    mean = batch.mean(y)
    mean = 0 * mean if symmetric else mean
    std = namespace(y).sqrt(batch.mean((y - batch.each(mean)) ** 2))
    return (mean, std) if batch.wide else (u * (middle + mean), u * std)


class CovarianceState(NamedTuple):
    """The moments of each output, as in `MomentsState`, and the Cholesky factor of their correlations."""

    counts: Array
    moments: Array
    factor: Array


@dataclass(frozen=True, repr=False)
class Covariance(Rule[CovarianceState]):
    r"""Normalise k outputs together to white targets, with a dense $\Sigma$.

    The running covariance follows the same equation as the variance in `Moments`. $\Sigma$ is its
    lower Cholesky factor divided by s, so that $\Sigma^{-1}(Y - \mu)$ has covariance $s^2 I$. The state has
    standard deviations and the factor L of the correlations $L L^\top$: outputs of very different size do
    not disturb each other, and rounding cannot make the covariance indefinite. L is updated by orthogonal
    transformations of

    $$L_t L_t^\top = M M^\top \qquad M = \left[\sqrt{1-\beta}\, A L_{t-1},\;
      \sqrt{(1-\beta)\beta}\, d,\; \sqrt\beta\, S L\right]$$

    with A, d and S the old deviations, the error of the mean, and the deviations within the batch, in
    units of the new ones, and L the factor of the batch. For targets that lie in a subspace, a few ulps of
    the identity are added to the correlations before they are used.

    A target `(k,)` is left out whole if any number of it is not finite. The arguments are as for `Moments`.
    """

    beta: float | StepSize = 1e-4
    std: float = 1.0
    nu0: float | None = None

    event_axes = 1

    def __post_init__(self) -> None:
        without_precision(self)
        check_settings(self.beta, self.nu0)
        check_std(self.std)

    def init(self, shape: Sequence[int] = (1,), like: Array = None) -> CovarianceState:
        if not tuple(shape):
            raise ValueError("shape is (); a covariance needs an axis of outputs: (k,) or (tasks, k)")
        _, zero = zeros(shape, like)
        counts, _ = zeros(tuple(shape)[:-1], like)
        return CovarianceState(counts, _initial_moments(zero, self.nu0), zero[..., None] + eye(zero))

    def absorb(self, state: CovarianceState, batch: Batch) -> CovarianceState:
        xp, old = namespace(batch.y), widened(state.factor)
        mean, std = measure(batch, self.symmetric)
        factor = self._factor_of(batch, mean, std)
        beta, fresh = (x[..., None] for x in step_size(self.beta, self.nu0, state.counts[0], mean))
        moments = advance(state.moments, mean, std, beta, fresh)
        mu, sigma, b = widened(state.moments[0]), widened(moments[1]), beta[..., None]
        before = divide(widened(state.moments[1]), sigma)[..., None] * old
        jump = Affine(sigma, mu).normalize(mean)[..., None]
        within = divide(std, sigma)[..., None] * factor
        moved = _factor([xp.sqrt(1 - b) * before, xp.sqrt((1 - b) * b) * jump, xp.sqrt(b) * within])
        moved = cast(xp.where(fresh[..., None], factor, moved), state.factor.dtype)
        has_weight = asarray(xp, batch.weight, mean.dtype, mean)[..., None] > 0
        moments = batch.where_counted(moments, state.moments)
        moved = xp.where(has_weight, moved, state.factor)
        return CovarianceState(tally(state.counts, batch), moments, moved)

    def _factor_of(self, batch: Batch, mean: Array, std: Array) -> Array:
        """Return the factor of the correlations of a batch, over all replicas."""
        xp, wide = namespace(mean), batch.one_column_per_task()
        z = Affine(std, mean).normalize(wide.y)
        z = z if self.symmetric else z - wide.mean(z)
        columns = xp.moveaxis(z if wide.share is None else xp.sqrt(wide.share) * z, 0, -1)
        if batch.across is None:
            return _factor([columns])
        return _factor(list(batch.across.gather(_triangle(columns))))

    def affine(self, state: CovarianceState) -> Affine:
        mu, sigma = state.moments[0], state.moments[1]
        jitter = math.sqrt(8 * mu.shape[-1] * eps_of(mu.dtype))
        L = _factor([state.factor, jitter * eye(mu) + 0 * state.factor])
        seen = self.nu0 is not None or (state.counts[0] > 0)[..., None]
        scale, shift = self.finish(sigma, mu, seen, self.std)
        return Affine(scale[..., None] * L, shift)


def _factor(blocks: Sequence[Array]) -> Array:
    """Return the lower factor L of the correlations that M Mᵀ has, where M is made of blocks of columns.

    Its rows have length 1 and its diagonal is not negative. The row of an output that does not vary is
    that of the identity.
    """
    xp = namespace(*blocks)
    columns = xp.concatenate(list(blocks), axis=-1)
    still = cast(~xp.any(columns != 0, axis=-1), columns.dtype)
    one = eye(still)
    L = _triangle(xp.concatenate([columns, still[..., None] * one], axis=-1))
    negative = cast((L * one).sum(-1) < 0, L.dtype)
    return L * (1 - 2 * negative)[..., None, :] / xp.sqrt((L * L).sum(-1))[..., None]


def _triangle(M: Array) -> Array:
    """Return a lower triangle L with L Lᵀ = M Mᵀ."""
    return namespace(M).linalg.qr(M.swapaxes(-1, -2))[1].swapaxes(-1, -2)


def _initial_moments(zero: Array, nu0: float | None) -> Array:
    return namespace(zero).stack((zero, zero + math.sqrt(nu0 or 0.0), zero, zero))
