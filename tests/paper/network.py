"""A small network with its Jacobian by hand, for the paper's algorithms."""

from typing import Any

import numpy as np


def tanh_network(rng: np.random.Generator, inputs: int, hidden: int, features: int) -> Any:
    """h(theta, X), its Jacobian (one column per feature) and an initial theta."""
    A = rng.normal(size=(hidden, inputs))
    B = rng.normal(size=(features, hidden))

    def unpack(theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return theta[: A.size].reshape(A.shape), theta[A.size :].reshape(B.shape)

    def h(theta: np.ndarray, X: np.ndarray) -> np.ndarray:
        A, B = unpack(theta)
        return np.tanh(B @ np.tanh(A @ X))

    def jacobian(theta: np.ndarray, X: np.ndarray) -> np.ndarray:
        A, B = unpack(theta)
        z = np.tanh(A @ X)
        slope = 1 - h(theta, X) ** 2
        columns = []
        for i in range(features):
            dB = np.zeros_like(B)
            dB[i] = slope[i] * z
            dA = slope[i] * np.outer(B[i] * (1 - z**2), X)
            columns.append(np.concatenate((dA.ravel(), dB.ravel())))
        return np.stack(columns, axis=1)

    return h, jacobian, np.concatenate((A.ravel(), B.ravel()))
