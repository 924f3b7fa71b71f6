"""An agent that plays and learns in one compiled program."""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from popart.lab.dqn import learner, replay
from popart.lab.dqn.acting import learn, observe
from popart.lab.dqn.config import SMALL_SCHEDULE, AgentConfig, Schedule
from popart.lab.dqn.learner import Learner
from popart.lab.dqn.networks import MLP
from popart.lab.dqn.replay import Replay
from popart.lab.envs.small import Game, World
from popart.lab.envs.timestep import TimeStep
from popart.lab.experiments.reward_scale.cases import change


@dataclass(frozen=True)
class Training:
    """The length of a training, and its schedule."""

    steps: int = 50_000
    """Steps of all environments together."""

    environments: int = 8
    """Environments that play at the same time."""

    schedule: Schedule = SMALL_SCHEDULE


class State(NamedTuple):
    """The state of a training."""

    learner: Learner
    replay: Replay
    world: World
    seen: TimeStep
    scores: jax.Array
    rewards: Any
    key: jax.Array


class Progress(NamedTuple):
    """The episodes that ended in one step of all environments, and the scores so far."""

    ended: jax.Array
    score: jax.Array


def init(training: Training, config: AgentConfig, game: Game, key: jax.Array) -> State:
    """Reset the environments, and initialise the agent and its replay buffer."""
    key, weights, world = jax.random.split(key, 3)
    world, seen = game.reset(world, training.environments)
    slots = training.steps // training.environments + 1
    memory = replay.init(training.environments, slots, game.shape, game.dtype)
    agent = learner.init(config, network_for(game), weights)
    rewards = config.rewards.init(training.environments)
    return State(agent, memory, world, seen, jnp.zeros(training.environments), rewards, key)


def advance(
    training: Training,
    config: AgentConfig,
    game: Game,
    scale: jax.Array,
    state: State,
    case: jax.Array | int = 0,
) -> tuple[State, Progress]:
    """Take a step in every environment and the updates due. Rewards are changed as in a case, and scaled."""
    network, schedule = network_for(game), training.schedule
    key, acting, moving, learning = jax.random.split(state.key, 4)
    steps = state.replay.written.sum()
    changed = change(
        jnp.asarray(case), state.seen.reward, steps / training.steps, jax.random.fold_in(state.key, 4)
    )
    seen = state.seen._replace(reward=scale * changed)
    epsilon = schedule.epsilon_at(steps)
    head = config.head(network.actions)
    memory, action = observe(network, state.learner.params, state.replay, seen, epsilon, acting, 1, head=head)
    rewards = config.rewards.observe(state.rewards, seen.reward, seen.first)
    learnable = memory._replace(reward=config.rewards.apply(rewards, memory.reward))
    updates = schedule.updates_due(0, training.environments)
    copy_every = schedule.updates_per_copy
    agent = jax.lax.cond(
        steps > schedule.warm_up,
        lambda agent: learn(config, network, agent, learnable, learning, updates, 1, copy_every)[0],
        lambda agent: agent,
        state.learner,
    )
    world, new = game.step(state.world, action, moving)
    scores = jnp.where(new.first, 0.0, state.scores) + new.reward
    return State(agent, memory, world, new, scores, rewards, key), Progress(new.last, scores)


def network_for(game: Game) -> MLP:
    """Return the network for a small game."""
    return MLP(math.prod(game.shape), game.actions)
