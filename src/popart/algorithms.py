r"""Algorithms 1 and 2 as the paper prints them, in NumPy, in its letters.

Slow and literal, for any differentiable $h_\theta$ and any sequence of scales, dense ones included:
what the documentation shows and what fast paths are tested against. `h(theta, X)` is a vector of m
features; `jacobian(theta, X)` is the matrix $J = (\nabla_\theta h_1, \ldots, \nabla_\theta h_m)$, one
column per feature.
"""

# pyright: reportConstantRedefinition=false

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]
Features = Callable[[Vector, Vector], NDArray[np.float64]]


class PopArtParameters(NamedTuple):
    r"""$f(x) = \Sigma (W h_\theta(x) + b) + \mu$"""

    theta: Vector
    W: Matrix
    b: Vector
    Sigma: Matrix
    mu: Vector

    def f(self, h: Features, x: Vector) -> Vector:
        theta, W, b, Sigma, mu = self
        return Sigma @ (W @ h(theta, x) + b) + mu


class Parameters(NamedTuple):
    r"""$f(x) = W h_\theta(x) + b$"""

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
    """One step of Algorithm 1: SGD on squared loss with Pop-Art."""
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
    """One step of Algorithm 2: Normalized SGD."""
    theta, W, b = parameters
    features = h(theta, X)
    J = jacobian(theta, X)
    delta = W @ features + b - Y
    theta = theta - alpha * J @ np.linalg.solve(Sigma, W).T @ np.linalg.solve(Sigma, delta)
    W = W - alpha * np.outer(delta, features)
    b = b - alpha * delta
    return Parameters(theta, W, b)
