"""Rewards as an agent learns from them: unchanged, or scaled by a running statistic."""

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp


class Rewards(Protocol):
    """Settings and pure functions. The replay buffer stores the original rewards."""

    def init(self, environments: int) -> Any: ...

    def observe(self, state: Any, reward: jax.Array, first: jax.Array) -> Any:
        """Return the state after a reward of each environment; `first` where an episode begins."""
        ...

    def apply(self, state: Any, reward: jax.Array) -> jax.Array:
        """Return the rewards to learn from."""
        ...


@dataclass(frozen=True)
class Unchanged:
    """Rewards are not changed."""

    def init(self, environments: int) -> tuple[()]:
        return ()

    def observe(self, state: tuple[()], reward: jax.Array, first: jax.Array) -> tuple[()]:
        return ()

    def apply(self, state: tuple[()], reward: jax.Array) -> jax.Array:
        return reward


class Running(NamedTuple):
    """The discounted sum of rewards so far of each environment, and the moments of these sums."""

    returns: jax.Array
    mean: jax.Array
    variance: jax.Array
    number: jax.Array


@dataclass(frozen=True)
class VecNormalize:
    r"""Rewards divided by the standard deviation of their discounted sums, and clipped.

    This follows `VecNormalize` of Stable-Baselines3 (and of OpenAI's baselines), with its settings: the sum
    is that of past rewards, $R_t = \gamma R_{t-1} + r_t$; the moments are those of all sums and of 10⁻⁴ more
    with mean 0 and variance 1; $\epsilon = 10^{-8}$ is added to the variance; the result is clipped to ±10.
    As there, old rewards are scaled by the current statistic. One thing differs: the step between two
    episodes, which has no reward, counts with a sum of 0. In episodes of nine steps it makes σ 5 % smaller.

    It cannot serve several sizes of rewards one after the other: values that were learned are wrong after the
    statistic has changed. Rewards below $\sqrt\epsilon$ stay small.
    """

    discount: float = 0.99
    epsilon: float = 1e-8
    limit: float = 10.0

    def init(self, environments: int) -> Running:
        return Running(jnp.zeros(environments), jnp.zeros(()), jnp.ones(()), jnp.full((), 1e-4))

    def observe(self, state: Running, reward: jax.Array, first: jax.Array) -> Running:
        returns = jnp.where(first, 0.0, self.discount * state.returns + reward)
        n = len(returns)
        total = state.number + n
        delta = returns.mean() - state.mean
        squares = state.variance * state.number + returns.var() * n + delta**2 * state.number * n / total
        return Running(returns, state.mean + delta * n / total, squares / total, total)

    def apply(self, state: Running, reward: jax.Array) -> jax.Array:
        scaled = reward / jnp.sqrt(state.variance + self.epsilon)
        return jnp.clip(scaled, -self.limit, self.limit)
