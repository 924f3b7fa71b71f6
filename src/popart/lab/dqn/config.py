"""Hyperparameters of Double DQN, with the published values as defaults."""

from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
import optax

import popart
from popart.jax.alternatives import Head, Linear, half_square
from popart.lab.dqn.rewards import Rewards, Unchanged

AgentName = Literal["clipped", "unclipped", "popart"]
AGENTS: tuple[AgentName, ...] = ("clipped", "unclipped", "popart")


@dataclass(frozen=True)
class AgentConfig:
    """Hyperparameters of an agent. Defaults are those of the tuned Double DQN and of the Pop-Art paper."""

    agent: AgentName = "popart"
    """clipped: rewards and errors clipped to [-1, 1]; unclipped: neither; popart: neither, with Pop-Art."""

    discount: float = 0.99
    """Discount factor γ."""

    batch: int = 32
    """Transitions per update."""

    optimizer: Literal["rmsprop", "adam"] = "rmsprop"
    """rmsprop: centred, with decay 0.95 and its epsilon inside the root, as in DQN. adam: with Rainbow's
    epsilon; with a smaller one, noise alone makes large updates, and units die."""

    learning_rate: float = 1e-4
    """Learning rate α of the network."""

    rmsprop_epsilon: float = 0.01
    """ε inside RMSProp's root, for gradients that are summed over a batch, as DQN's are."""

    initial_weights: Literal["dqn", "he"] = "dqn"
    """Initialisation of the network: DQN's, or that of He et al. (`networks.he`)."""

    beta: float = 1e-4
    """Step size β of Pop-Art's statistics."""

    @property
    def clips(self) -> bool:
        return self.agent == "clipped"

    @property
    def art(self) -> popart.Rule[Any]:
        return popart.Moments(self.beta) if self.agent == "popart" else popart.Fixed()

    def head(self, actions: int) -> Head:
        """Return the last layer of a network with a number of actions."""
        return Linear(self.art, cost=optax.huber_loss if self.clips else half_square)

    @property
    def rewards(self) -> Rewards:
        """The transformation of rewards before they are learned from, besides clipping."""
        return Unchanged()


@dataclass(frozen=True)
class Schedule:
    """When to explore, to learn and to copy the network, in agent steps of all environments together."""

    warm_up: int
    """Steps with random actions before the first update."""

    exploration: int
    """Steps after the warm-up in which ε falls from 1 to its final value."""

    epsilon: float
    """Final probability of a random action."""

    copy_every: int
    """Steps between two copies of the online network to the target network."""

    steps_per_update: int = 4
    """Agent steps between two updates."""

    def epsilon_at(self, steps: jax.Array) -> jax.Array:
        """Return ε after a number of steps."""
        explored = jnp.clip((steps - self.warm_up) / max(self.exploration, 1), 0, 1)
        return 1 - (1 - self.epsilon) * explored

    def updates_due(self, before: int, after: int) -> int:
        """Return the number of updates due between two step counts."""
        return after // self.steps_per_update - before // self.steps_per_update

    @property
    def updates_per_copy(self) -> int:
        return max(1, self.copy_every // self.steps_per_update)


ATARI_SCHEDULE = Schedule(warm_up=50_000, exploration=1_000_000, epsilon=0.01, copy_every=30_000)
"""The schedule of DQN, with the final ε and the copies of the tuned Double DQN."""

SMALL_SCHEDULE = Schedule(warm_up=1000, exploration=10_000, epsilon=0.05, copy_every=400)
SMALL_AGENT = {"learning_rate": 1e-3, "beta": 1e-3}
"""The schedule for small games."""


def published_learning_rate(agent: AgentName, optimizer: str) -> float:
    """Return the learning rate for Atari: Rainbow's for Adam, DQN's or the Pop-Art paper's for RMSProp."""
    if optimizer == "adam":
        return 6.25e-5
    return 2.5e-4 if agent == "clipped" else 1e-4
