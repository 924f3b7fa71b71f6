r"""The three Atari agents of Section 4, written a second time: slow, in NumPy and float64.

This follows the papers, in the letters of the Pop-Art paper: the targets of Double DQN, Algorithm 1 with the
moments of Eq. 4, the network of Mnih et al. (2015) with plain convolutions, and the centred RMSProp of DQN on
the gradient of the *sum* of the losses of a minibatch. It shares no code with `popart`.

B is the number of transitions and K that of actions. Images are (B, rows, columns, channels).
"""

import copy
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

Array = np.ndarray

STRIDES = (4, 2, 1, 1)
"""Strides of the kernels, whose widths are 8, 4, 3 and 7. The last covers the whole image of 7 x 7 pixels,
which makes it the fully connected layer."""

DECAY, EPSILON = 0.95, 0.01
"""RMSProp's decay of both averages, and the constant inside its root."""


@dataclass
class Network:
    r"""Action values $f(x) = \sigma (W h_\theta(x) + b) + \mu$ (Eq. 2)."""

    theta: list[Array]
    """Kernel (width, width, in, out) and bias (out,) of each layer in turn; h has 512 features."""

    W: Array
    """(K, 512)"""

    b: Array
    """(K,), one for each action as in the original DQN"""

    sigma: float = 1.0
    mu: float = 0.0
    nu: float = 1.0


class Agent:
    """An online network, a target network, and RMSProp's two averages for each parameter."""

    def __init__(
        self,
        name: Literal["clipped", "unclipped", "popart"],
        network: Network,
        *,
        alpha: float,
        beta: float,
        gamma: float,
    ) -> None:
        self.name, self.alpha, self.beta, self.gamma = name, alpha, beta, gamma
        self.network, self.t = network, 0
        if name == "popart":  # all values are 0 until the first targets are seen
            network.sigma = network.mu = network.nu = 0.0
        self.averages = [(np.zeros_like(p), np.zeros_like(p)) for p in parameters(network)]
        self.copy_target()

    def copy_target(self) -> None:
        self.target = copy.deepcopy(self.network)


def parameters(network: Network) -> list[Array]:
    return [*network.theta, network.W, network.b]


def values(network: Network, S: Array) -> Array:
    """Return the action values (B, K) of images with pixels from 0 to 255, in the units of the rewards."""
    return network.sigma * normalized(network, S) + network.mu


def normalized(network: Network, S: Array) -> Array:
    """Return W h + b, (B, K)."""
    h = relu(layers(network.theta, S)[-1])
    return h @ network.W.T + network.b


def update(agent: Agent, S: Array, A: Array, R: Array, terminal: Array, S_next: Array) -> list[Array]:
    """Learn from a minibatch of transitions, and return the gradient of each parameter."""
    Y = targets(agent, R, terminal, S_next)
    if agent.name == "popart":
        rescale(agent, Y)
    gradients = backward(agent, S, A, Y)
    for p, g, (m, v) in zip(parameters(agent.network), gradients, agent.averages, strict=True):
        m[:] = DECAY * m + (1 - DECAY) * g
        v[:] = DECAY * v + (1 - DECAY) * g**2
        p -= agent.alpha * g / np.sqrt(v - m**2 + EPSILON)
    return gradients


def targets(agent: Agent, R: Array, terminal: Array, S_next: Array) -> Array:
    r"""Return $Y = R + \gamma Q(S', \arg\max_a Q(S', a; \theta); \theta^-)$, (B,), or R where terminal."""
    if agent.name == "clipped":
        R = np.clip(R, -1, 1)
    best = values(agent.network, S_next).argmax(1)
    bootstrap = values(agent.target, S_next)[np.arange(len(R)), best]
    return R + agent.gamma * np.where(terminal, 0.0, bootstrap)


def rescale(agent: Agent, Y: Array) -> None:
    r"""ART: Eq. 4 with the step size of Prop. 7. POP: Prop. 1, and the averages of gradients rescaled alike.

    Gradients of W and b are proportional to $1/\sigma$. The averages become what they would be if all past
    gradients had been computed with the new $\sigma$.
    """
    f = agent.network
    sigma, mu = f.sigma, f.mu
    agent.t += 1
    beta = agent.beta / (1 - (1 - agent.beta) ** agent.t)
    f.mu = (1 - beta) * f.mu + beta * Y.mean()
    f.nu = (1 - beta) * f.nu + beta * (Y**2).mean()
    f.sigma = np.sqrt(f.nu - f.mu**2)
    if agent.t == 1:  # before the first targets there were no outputs to preserve
        return
    f.W *= sigma / f.sigma
    f.b[:] = (sigma * f.b + mu - f.mu) / f.sigma
    for m, v in agent.averages[-2:]:
        m *= sigma / f.sigma
        v *= (sigma / f.sigma) ** 2


def backward(agent: Agent, S: Array, A: Array, Y: Array) -> list[Array]:
    """Return the gradient of each parameter: of half the sum of squared normalised errors (Algorithm 1)."""
    f, taken = agent.network, (np.arange(len(A)), A)
    z = layers(f.theta, S)
    h = relu(z[-1])
    delta = np.zeros((len(A), len(f.b)))
    delta[taken] = (h @ f.W.T + f.b)[taken] - (Y - f.mu) / f.sigma
    if agent.name == "clipped":
        delta = np.clip(delta, -1, 1)
    gradients = [delta.T @ h, delta.sum(0)]
    d = (delta @ f.W)[:, None, None]  # the derivative by the output of layer i, an image
    for i in reversed(range(len(STRIDES))):
        w, stride, x = f.theta[2 * i], STRIDES[i], relu(z[i])
        d = d * (z[i + 1].reshape(d.shape) > 0)
        by_w = np.tensordot(windows(x, len(w), stride), d, ((0, 1, 2), (0, 1, 2)))
        gradients = [by_w, d.sum((0, 1, 2)), *gradients]
        if i > 0:  # nothing depends on the derivative by the pixels
            d = spread(d, w, stride, x.shape)
    return gradients


def layers(theta: list[Array], S: Array) -> list[Array]:
    """Return the image scaled to [0, 1] and each layer's outputs before the ReLU; the last are (B, 512)."""
    z = [S / 255]
    for w, c, stride in zip(theta[::2], theta[1::2], STRIDES, strict=True):
        z.append(np.tensordot(windows(relu(z[-1]), len(w), stride), w, 3) + c)
    return [*z[:-1], z[-1][:, 0, 0]]


def relu(z: Array) -> Array:
    return np.maximum(z, 0)


def windows(x: Array, width: int, stride: int) -> Array:
    """Return the squares of images below a kernel, (B, rows, columns, width, width, channels)."""
    squares = sliding_window_view(x, (width, width), (1, 2))[:, ::stride, ::stride]
    return np.ascontiguousarray(np.moveaxis(squares, 3, 5))


def spread(d: Array, w: Array, stride: int, shape: tuple[int, ...]) -> Array:
    """Return the derivative by a convolution's input, of the given shape, from that by its output."""
    x, squares = np.zeros(shape), np.tensordot(d, w, (3, 3))
    for r, c in np.ndindex(d.shape[1:3]):
        x[:, r * stride : r * stride + len(w), c * stride : c * stride + len(w)] += squares[:, r, c]
    return x
