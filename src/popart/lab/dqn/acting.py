"""One turn of an agent: store observations and choose actions; then learn from the replay buffer."""

from functools import partial

import jax
import jax.numpy as jnp

from popart.jax.alternatives import Head
from popart.lab.dqn import learner, replay
from popart.lab.dqn.config import AgentConfig
from popart.lab.dqn.learner import Learner, Metrics
from popart.lab.dqn.networks import Network, Params
from popart.lab.dqn.replay import Index, Observed, Replay, Transitions


def observe(
    network: Network,
    params: Params,
    memory: Replay,
    observed: Observed,
    epsilon: jax.Array | float,
    key: jax.Array,
    stack_size: int,
    first: Index = 0,
    actions: jax.Array | int | None = None,
    head: Head | None = None,
) -> tuple[Replay, jax.Array]:
    """Store the observations of the environments from `first` on, and choose an action for each."""
    memory = replay.insert(memory, observed, first)
    stacks = replay.newest(memory, stack_size, first, len(observed.first))
    action = learner.act(network, params, stacks, epsilon, key, actions, head)
    return replay.record(memory, action, first), action


def learn(
    config: AgentConfig,
    network: Network,
    agent: Learner,
    memory: Replay,
    key: jax.Array,
    updates: int,
    stack_size: int,
    updates_per_copy: int,
    actions: jax.Array | int | None = None,
    due: jax.Array | None = None,
) -> tuple[Learner, Metrics]:
    """Make some updates from the replay buffer; then copy the network to the target network if due.

    Where `due` is False the agent does not change.
    """
    batch = replay.sample(memory, key, updates * config.batch, stack_size)
    batches = jax.tree.map(lambda x: x.reshape(updates, config.batch, *x.shape[1:]), batch)
    return learn_from(config, network, agent, batches, updates_per_copy, actions, due)


def learn_from(
    config: AgentConfig,
    network: Network,
    agent: Learner,
    batches: Transitions,
    updates_per_copy: int,
    actions: jax.Array | int | None = None,
    due: jax.Array | None = None,
) -> tuple[Learner, Metrics]:
    """Make an update for each batch of (updates, batch, ...), and the copy that is due, as in `learn`."""
    learned, metrics = learner.learn(config, network, agent, batches, actions, due)
    copy = learned.updates // updates_per_copy > agent.updates // updates_per_copy
    return jax.tree.map(partial(jnp.where, copy), learner.copy_target(learned), learned), metrics
