"""An agent among its environments: what it sees it stores, acts upon, and learns from."""

from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp

from popart.lab.dqn import learner, replay
from popart.lab.dqn.learner import Learner, Metrics, Settings
from popart.lab.dqn.networks import Network, Params
from popart.lab.dqn.replay import Index, Replay, Seen


@dataclass(frozen=True)
class Schedule:
    """When to explore and when to learn, in steps of all environments together. Defaults are DQN's."""

    warm_up: int = 50_000
    """Steps at random before the first update."""

    exploration: int = 1_000_000
    """Steps after these in which epsilon falls from 1 to its end."""

    epsilon: float = 0.01
    """The part of random actions in the end."""

    steps_per_update: int = 4

    copy_every: int = 30_000
    """Steps from one copy of the network to the target network to the next."""

    def epsilon_at(self, steps: jax.Array) -> jax.Array:
        explored = jnp.clip((steps - self.warm_up) / max(self.exploration, 1), 0, 1)
        return 1 - (1 - self.epsilon) * explored

    def updates(self, before: int, after: int) -> int:
        """How many are due when so many steps were taken, and then so many."""
        return after // self.steps_per_update - before // self.steps_per_update

    @property
    def updates_per_copy(self) -> int:
        return max(1, self.copy_every // self.steps_per_update)


def observe(
    network: Network,
    params: Params,
    memory: Replay,
    seen: Seen,
    epsilon: jax.Array | float,
    key: jax.Array,
    stacked: int,
    first: Index = 0,
) -> tuple[Replay, jax.Array]:
    """Store what environments from `first` on show, and choose what to do in each."""
    memory = replay.insert(memory, seen, first)
    stacks = replay.newest(memory, stacked, first, len(seen.start))
    action = learner.act(network, params, stacks, epsilon, key)
    return replay.record(memory, action, first), action


def learn(
    settings: Settings,
    network: Network,
    agent: Learner,
    memory: Replay,
    key: jax.Array,
    updates: int,
    stacked: int,
    updates_per_copy: int,
) -> tuple[Learner, Metrics]:
    """So many updates from what was stored; then, if it is time, a copy for the target network."""
    batch = replay.sample(memory, key, updates * settings.batch, stacked)
    batches = jax.tree.map(lambda x: x.reshape(updates, settings.batch, *x.shape[1:]), batch)
    learned, metrics = learner.learn(settings, network, agent, batches)
    due = learned.updates // updates_per_copy > agent.updates // updates_per_copy
    return jax.tree.map(partial(jnp.where, due), learner.copy_target(learned), learned), metrics
