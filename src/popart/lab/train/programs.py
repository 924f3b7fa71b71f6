"""What the device does in a turn: two programs, so that actions need not wait for updates."""

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from popart.lab.dqn import agent
from popart.lab.dqn.learner import Learner, Settings
from popart.lab.dqn.networks import Network
from popart.lab.dqn.replay import Replay, Seen


class Acting(NamedTuple):
    """What choosing actions depends on, besides the network."""

    key: jax.Array
    steps: jax.Array


def observe(
    network: Network,
    schedule: agent.Schedule,
    stacked: int,
    reward_scale: float,
    memory: Replay,
    acting: Acting,
    params: Any,
    observation: jax.Array,
    rest: jax.Array,
    first: jax.Array,
) -> tuple[Replay, Acting, jax.Array]:
    reward, terminal, start, last = rest
    seen = Seen(observation, reward_scale * reward, terminal > 0, start > 0, last > 0)
    key, now = jax.random.split(acting.key)
    epsilon = schedule.epsilon_at(acting.steps)
    memory, action = agent.observe(network, params, memory, seen, epsilon, now, stacked, first)
    return memory, Acting(key, acting.steps + (last == 0).sum()), action


def learn(
    settings: Settings,
    network: Network,
    stacked: int,
    updates: int,
    updates_per_copy: int,
    learned: Learner,
    key: jax.Array,
    memory: Replay,
) -> tuple[Learner, jax.Array, jax.Array]:
    key, now = jax.random.split(key)
    learned, metrics = agent.learn(
        settings, network, learned, memory, now, updates, stacked, updates_per_copy
    )
    return learned, key, jnp.stack(metrics)


@lru_cache(maxsize=8)
def compiled(program: Callable[..., Any], *settings: Any, **options: str) -> Callable[..., Any]:
    """A program with its first arguments fixed; `options` are the compiler's.

    Runs in one process that have the same settings share it, and compile it once.
    """
    return jax.jit(partial(program, *settings), donate_argnums=(0, 1), compiler_options=options)
