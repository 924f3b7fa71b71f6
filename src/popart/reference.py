r"""Reference implementations: literal and slow, to read and to test against.

Algorithms 1 and 2 as the paper prints them, in NumPy, in its letters, for any differentiable $h_\theta$ and
any sequence of scales, dense ones included. `h(theta, X)` is a vector of m features; `jacobian(theta, X)` is
the matrix $J = (\nabla_\theta h_1, \ldots, \nabla_\theta h_m)$, one column per feature.

`OrderStatistics` has the exact percentiles of all targets, which it stores and sorts.
"""

# pyright: reportConstantRedefinition=false

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from popart._arrays import Array, cast, is_torch, namespace
from popart.affine import Affine
from popart.batches import Batch
from popart.correspondence import check_ratio
from popart.numerics import divide, unit
from popart.rules import Rule, tally, zeros

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]
Features = Callable[[Vector, Vector], NDArray[np.float64]]


class PopArtParameters(NamedTuple):
    r"""The parameters of Algorithm 1: $f(x) = \Sigma (W h_\theta(x) + b) + \mu$."""

    theta: Vector
    W: Matrix
    b: Vector
    Sigma: Matrix
    mu: Vector

    def f(self, h: Features, x: Vector) -> Vector:
        theta, W, b, Sigma, mu = self
        return Sigma @ (W @ h(theta, x) + b) + mu


class Parameters(NamedTuple):
    r"""The parameters of Algorithm 2: $f(x) = W h_\theta(x) + b$."""

    theta: Vector
    W: Matrix
    b: Vector

    def f(self, h: Features, x: Vector) -> Vector:
        theta, W, b = self
        return W @ h(theta, x) + b


def pop_art_sgd(
    parameters: PopArtParameters,
    h: Features,
    jacobian: Features,
    X: Vector,
    Y: Vector,
    Sigma_new: Matrix,
    mu_new: Vector,
    alpha: float,
) -> PopArtParameters:
    """Make one step of Algorithm 1: SGD on squared loss with Pop-Art."""
    theta, W, b, Sigma, mu = parameters
    W = np.linalg.solve(Sigma_new, Sigma @ W)
    b = np.linalg.solve(Sigma_new, Sigma @ b + mu - mu_new)
    Sigma, mu = Sigma_new, mu_new
    features = h(theta, X)
    J = jacobian(theta, X)
    delta = W @ features + b - np.linalg.solve(Sigma, Y - mu)
    theta = theta - alpha * J @ W.T @ delta
    W = W - alpha * np.outer(delta, features)
    b = b - alpha * delta
    return PopArtParameters(theta, W, b, Sigma, mu)


def normalized_sgd(
    parameters: Parameters,
    h: Features,
    jacobian: Features,
    X: Vector,
    Y: Vector,
    Sigma: Matrix,
    alpha: float,
) -> Parameters:
    """Make one step of Algorithm 2: Normalized SGD."""
    theta, W, b = parameters
    features = h(theta, X)
    J = jacobian(theta, X)
    delta = W @ features + b - Y
    theta = theta - alpha * J @ np.linalg.solve(Sigma, W).T @ np.linalg.solve(Sigma, delta)
    W = W - alpha * np.outer(delta, features)
    b = b - alpha * delta
    return Parameters(theta, W, b)


class OrderStatisticsState(NamedTuple):
    """The last targets, oldest first, with their weights: 0 where there is none yet."""

    counts: Array
    values: Array
    weights: Array


@dataclass(frozen=True, repr=False)
class OrderStatistics(Rule[OrderStatisticsState]):
    r"""Follow the exact percentiles of all data, from its order statistics (appendix).

    With t targets, $n^\pm = \frac{t+1}{2} \pm p \frac{t-1}{2}$ and $Y^{(n)}$ the n-th smallest,
    interpolated linearly for n between integers, $y^{min} = Y^{(n^-)}$ and $y^{max} = Y^{(n^+)}$.
    (The paper's two goal equations have these exchanged; its solution for $\mu$ and $\sigma$ is
    right.)

    Args:
        p: the fraction of the targets that is normalised into [-1, 1].
        capacity: the largest number of stored targets; older ones are dropped.
    """

    p: float = 0.95
    capacity: int = 4096

    def __post_init__(self) -> None:
        check_ratio(self.p)
        if not self.capacity >= 1:
            raise ValueError(f"capacity is {self.capacity!r}; it must be at least 1")

    def init(self, shape: Sequence[int] = (), like: Array = None) -> OrderStatisticsState:
        counts, _ = zeros(shape, like)
        values, weights = (zeros((self.capacity, *shape), like)[1] for _ in range(2))
        return OrderStatisticsState(counts, values, weights)

    def absorb(self, state: OrderStatisticsState, batch: Batch) -> OrderStatisticsState:
        if batch.across is not None:
            raise ValueError("across is given; order statistics are a reference for a single process")
        wide = (batch.mirrored() if self.symmetric else batch).one_column_per_task()
        xp, dtype = namespace(wide.y), state.values.dtype
        share = xp.ones_like(wide.y) if wide.share is None else wide.share + 0 * wide.y
        values = xp.concatenate((state.values, cast(wide.y, dtype)))
        weights = xp.concatenate((state.weights, cast(share, dtype)))
        order = xp.argsort(xp.where(weights > 0, 1, 0), axis=0, stable=True)[-self.capacity :]
        kept = _along_first_axis(values, order), _along_first_axis(weights, order)
        return OrderStatisticsState(tally(state.counts, batch), *kept)

    def affine(self, state: OrderStatisticsState) -> Affine:
        xp = namespace(state.values)
        order = xp.argsort(xp.where(state.weights > 0, state.values, math.inf), axis=0, stable=True)
        y, w = (_along_first_axis(x, order) for x in (state.values, state.weights))
        t = w.sum(0)
        middle, half = (t + 1) / 2, self.p * (t - 1) / 2
        low, high = (_order_statistic(y, w, n) for n in (middle - half, middle + half))
        return self.finish(high / 2 - low / 2, low / 2 + high / 2, t > 0)


def _along_first_axis(x: Array, index: Array) -> Array:
    xp = namespace(x)
    return xp.take_along_dim(x, index, 0) if is_torch(xp) else xp.take_along_axis(x, index, 0)


def _order_statistic(y: Array, w: Array, n: Array) -> Array:
    """Return the n-th smallest of sorted y, where y_i counts w_i times.

    Laid end to end, the targets cover the line from 0 to t. The average over the unit interval that
    ends at n is the n-th for integer n, and interpolates linearly in between.
    """
    xp = namespace(y)
    end = xp.cumsum(w, axis=0)
    covered = (xp.minimum(end, n) - xp.maximum(end - w, n - 1)).clip(0, None)
    u, per_u = unit(xp.amax(xp.abs(y), axis=0))
    return u * divide((covered * (y * per_u)).sum(0), covered.sum(0))
