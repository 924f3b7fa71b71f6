"""An agent that plays and learns in one compiled program."""

import math
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from popart.lab.dqn import learner, replay
from popart.lab.dqn.learner import Learner, Settings
from popart.lab.dqn.networks import MLP
from popart.lab.dqn.replay import Replay, Seen
from popart.lab.scale.games import Game, World


@dataclass(frozen=True)
class Training:
    """How long, and how often."""

    steps: int = 50_000
    """Of all environments together."""

    environments: int = 8
    """That play at the same time."""

    warm_up: int = 1000
    """Steps before the first update."""

    steps_per_update: int = 4

    updates_per_copy: int = 100
    """Updates from one copy of the network to the target network to the next."""

    exploration: int = 10_000
    """Steps in which epsilon falls from 1 to its end."""

    epsilon: float = 0.05


class State(NamedTuple):
    """All that a run is made of."""

    learner: Learner
    replay: Replay
    world: World
    seen: Seen
    scores: jax.Array
    key: jax.Array


class Progress(NamedTuple):
    """Of one step of all environments: which episodes ended, and with which scores."""

    ended: jax.Array
    score: jax.Array


def start(training: Training, settings: Settings, game: Game, key: jax.Array) -> State:
    key, weights, world = jax.random.split(key, 3)
    world, seen = game.reset(world, training.environments)
    slots = training.steps // training.environments + 1
    memory = replay.init(training.environments, slots, game.shape, seen.observation.dtype)
    agent = learner.init(settings, _network(game), weights)
    return State(agent, memory, world, seen, jnp.zeros(training.environments), key)


def advance(
    training: Training, settings: Settings, game: Game, scale: jax.Array, state: State
) -> tuple[State, Progress]:
    """Every environment takes a step, and the agent its updates. Rewards are multiplied by `scale`."""
    network = _network(game)
    key, acting, moving, learning = jax.random.split(state.key, 4)
    seen = state.seen._replace(reward=scale * state.seen.reward)
    memory = replay.insert(state.replay, seen)
    steps = memory.written * training.environments
    epsilon = jnp.maximum(training.epsilon, 1 - (1 - training.epsilon) * steps / training.exploration)
    action = learner.act(network, state.learner.params, replay.newest(memory, 1), epsilon, acting)
    memory = replay.record(memory, action)

    def one(agent: Learner, key: jax.Array) -> tuple[Learner, None]:
        agent, _ = learner.update(settings, network, agent, replay.sample(memory, key, settings.batch, 1))
        copied = agent.updates % training.updates_per_copy == 0
        return jax.tree.map(partial(jnp.where, copied), learner.copy_target(agent), agent), None

    keys = jax.random.split(learning, training.environments // training.steps_per_update)
    learned, _ = jax.lax.scan(one, state.learner, keys)
    warm = steps > training.warm_up
    agent = jax.tree.map(partial(jnp.where, warm), learned, state.learner)
    world, new = game.step(state.world, action, moving)
    scores = jnp.where(new.start, 0.0, state.scores) + new.reward
    return State(agent, memory, world, new, scores, key), Progress(new.last, scores)


def _network(game: Game) -> MLP:
    return MLP(math.prod(game.shape), game.actions)
