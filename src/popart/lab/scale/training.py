"""An agent that plays and learns in one compiled program."""

import math
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from popart.lab.dqn import learner, replay
from popart.lab.dqn.agent import Schedule, learn, observe
from popart.lab.dqn.learner import Learner, Settings
from popart.lab.dqn.networks import MLP
from popart.lab.dqn.replay import Replay, Seen
from popart.lab.scale.games import Game, World

SCHEDULE = Schedule(warm_up=1000, exploration=10_000, epsilon=0.05, copy_every=400)


@dataclass(frozen=True)
class Training:
    """How long, and how often."""

    steps: int = 50_000
    """Of all environments together."""

    environments: int = 8
    """That play at the same time."""

    schedule: Schedule = SCHEDULE


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
    agent = learner.init(settings, network_for(game), weights)
    return State(agent, memory, world, seen, jnp.zeros(training.environments), key)


def advance(
    training: Training, settings: Settings, game: Game, scale: jax.Array, state: State
) -> tuple[State, Progress]:
    """Every environment takes a step, and the agent its updates. Rewards are multiplied by `scale`."""
    network, schedule = network_for(game), training.schedule
    key, acting, moving, learning = jax.random.split(state.key, 4)
    seen = state.seen._replace(reward=scale * state.seen.reward)
    steps = state.replay.written.sum()
    epsilon = schedule.epsilon_at(steps)
    memory, action = observe(network, state.learner.params, state.replay, seen, epsilon, acting, 1)
    updates = schedule.updates(0, training.environments)
    learned, _ = learn(
        settings, network, state.learner, memory, learning, updates, 1, schedule.updates_per_copy
    )
    agent = jax.tree.map(partial(jnp.where, steps > schedule.warm_up), learned, state.learner)
    world, new = game.step(state.world, action, moving)
    scores = jnp.where(new.start, 0.0, state.scores) + new.reward
    return State(agent, memory, world, new, scores, key), Progress(new.last, scores)


def network_for(game: Game) -> MLP:
    return MLP(math.prod(game.shape), game.actions)
