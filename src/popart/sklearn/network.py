"""A multi-layer perceptron and Adam in NumPy, with all parameters in one vector.

An update of all parameters is then a dozen operations on arrays, however many layers there are. A layer is a
matrix with one row per input and its bias as the last row.
"""

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from popart.affine import Change

Floats = NDArray[Any]
Features = Any
"""A NumPy array `(rows, features)`, or a sparse one of SciPy."""


class Activation(NamedTuple):
    """A function that works in place, and one that multiplies an array by the derivative at the outputs h."""

    apply: Callable[[Floats], None]
    multiply_slope: Callable[[Floats, Floats], None]


def _relu(z: Floats) -> None:
    np.maximum(z, 0, out=z)


def _relu_slope(d: Floats, h: Floats) -> None:
    d *= h > 0


def _tanh(z: Floats) -> None:
    np.tanh(z, out=z)


def _tanh_slope(d: Floats, h: Floats) -> None:
    d *= 1 - h * h


def _logistic(z: Floats) -> None:
    expit(z, out=z)


def _logistic_slope(d: Floats, h: Floats) -> None:
    d *= h * (1 - h)


ACTIVATIONS = {
    "identity": Activation(lambda z: None, lambda d, h: None),
    "logistic": Activation(_logistic, _logistic_slope),
    "tanh": Activation(_tanh, _tanh_slope),
    "relu": Activation(_relu, _relu_slope),
}


class Network:
    """A multi-layer perceptron whose outputs are in normalised units.

    Hidden layers have Glorot's initial weights. The last layer is 0, so that the first outputs are the
    mean of the targets.
    """

    def __init__(
        self, sizes: Sequence[int], activation: str, dtype: Any, random_state: np.random.RandomState
    ) -> None:
        self.sizes = tuple(sizes)
        self._hold(np.zeros(sum((n + 1) * m for n, m in pairwise(self.sizes)), dtype))
        gain = 2.0 if activation == "logistic" else 6.0
        for layer, (n, m) in zip(self.layers[:-1], pairwise(self.sizes), strict=False):
            bound = math.sqrt(gain / (n + m))
            layer[...] = random_state.uniform(-bound, bound, layer.shape)

    def _hold(self, parameters: Floats) -> None:
        self.parameters = parameters
        self.layers = self.views(parameters)

    def __getstate__(self) -> dict[str, Any]:
        return {"sizes": self.sizes, "parameters": self.parameters}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.sizes = state["sizes"]
        self._hold(np.array(state["parameters"]))  # joblib's workers get memory that is read-only

    def views(self, vector: Floats) -> list[Floats]:
        """Return views of a vector like the parameters: the part of each layer, `(inputs + 1, outputs)`."""
        views, start = [], 0
        for n, m in pairwise(self.sizes):
            end = start + (n + 1) * m
            views.append(vector[start:end].reshape(n + 1, m))
            start = end
        return views

    def outputs(self, X: Features, activation: str) -> Floats:
        """Return normalised outputs, `(rows, outputs)`."""
        return self._activations(X, ACTIVATIONS[activation])[-1]

    def _activations(self, X: Features, activation: Activation) -> list[Any]:
        h = [X]
        for layer in self.layers:
            z = h[-1] @ layer[:-1]
            z += layer[-1]
            h.append(z)
            if len(h) <= len(self.layers):
                activation.apply(z)
        return h

    def loss_and_gradient(
        self, X: Features, y: Floats, share: Floats | None, alpha: float, activation: str, out: list[Floats]
    ) -> float:
        r"""Return the mean loss over targets, and write its gradient to `out`, which has a view per layer.

        With n rows, k outputs, errors $\delta$ and shares s of the rows, whose mean is about 1:

        $$\frac{1}{2nk} \left(\sum_{ij} s_i \delta_{ij}^2 + \alpha \sum W^2\right)$$
        """
        function = ACTIVATIONS[activation]
        h = self._activations(X, function)
        delta = h[-1]
        delta -= y
        per_target = 1 / delta.size
        weighted = delta if share is None else delta * share[:, None]
        loss = float(np.vdot(weighted, delta))
        delta = weighted * per_target
        for i in reversed(range(len(self.layers))):
            W, gradient = self.layers[i][:-1], out[i]
            gradient[:-1] = h[i].T @ delta
            np.add.reduce(delta, axis=0, out=gradient[-1])
            if alpha:
                gradient[:-1] += (alpha * per_target) * W
                loss += alpha * float(np.vdot(W, W))
            if i:
                delta = delta @ W.T
                function.multiply_slope(delta, h[i])
        return loss * per_target / 2


class Adam:
    """Adam (Kingma and Ba, 2014) on one vector of parameters, in place."""

    def __init__(self, like: Floats) -> None:
        self.steps = 0
        self.mean, self.square = np.zeros_like(like), np.zeros_like(like)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.steps, self.mean, self.square = state["steps"], *map(np.array, (state["mean"], state["square"]))

    def step(
        self, parameters: Floats, gradient: Floats, rate: float, beta_1: float, beta_2: float, epsilon: float
    ) -> None:
        """Update the parameters; the gradient's memory is used for intermediate results."""
        self.steps += 1
        self.mean *= beta_1
        self.mean += (1 - beta_1) * gradient
        np.square(gradient, out=gradient)
        gradient *= 1 - beta_2
        self.square *= beta_2
        self.square += gradient
        rate *= math.sqrt(1 - beta_2**self.steps) / (1 - beta_1**self.steps)
        np.sqrt(self.square, out=gradient)
        gradient += epsilon
        np.divide(self.mean, gradient, out=gradient)
        gradient *= rate
        parameters -= gradient


def rescale_head(network: Network, adam: Adam, change: Change) -> None:
    """Rescale the last layer so that outputs are preserved (Prop. 1), and Adam's state of it likewise."""
    for vector, power in ((network.parameters, 1), (adam.mean, 1), (adam.square, 2)):
        head = network.views(vector)[-1]
        head[...] = change.rescale(head, power=power, layout="in_out")
    network.layers[-1][-1] += change.moved
