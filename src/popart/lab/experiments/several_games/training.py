"""An agent that plays and learns several games with one network, in one compiled program."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from popart.lab.dqn import learner, replay
from popart.lab.dqn.acting import learn_from, observe
from popart.lab.dqn.config import SMALL_SCHEDULE, Schedule
from popart.lab.dqn.learner import Learner
from popart.lab.dqn.networks import Params
from popart.lab.dqn.replay import Replay
from popart.lab.dqn.tasks import BATCH, TasksConfig, TasksMLP, joined, params_of
from popart.lab.envs.small import Game, World
from popart.lab.envs.timestep import TimeStep

Games = tuple[Game, ...]


@dataclass(frozen=True)
class Training:
    """The length of a training, and its schedule. All numbers are per game."""

    steps: int
    """Steps of all environments of a game together."""

    environments: int = 8
    """Environments that play at the same time."""

    schedule: Schedule = SMALL_SCHEDULE

    @property
    def rounds(self) -> int:
        """Steps of each environment."""
        return self.steps // self.environments


class Played(NamedTuple):
    """The environments of one game, and its replay buffer."""

    replay: Replay
    world: World
    seen: TimeStep
    rewards: Any


class State(NamedTuple):
    """The state of a training."""

    learner: Learner
    played: tuple[Played, ...]
    key: jax.Array


def init(training: Training, config: TasksConfig, games: Games, key: jax.Array) -> State:
    """Reset the environments of all games, and initialise the agent and its replay buffers."""
    key, weights, worlds = jax.random.split(key, 3)

    def played(game: Game, key: jax.Array) -> Played:
        world, seen = game.reset(key, training.environments)
        memory = replay.init(training.environments, training.rounds + 1, game.shape, seen.observation.dtype)
        return Played(memory, world, seen, config.rewards.init(training.environments))

    agent = learner.init(config, network_for(games), weights)
    return State(agent, tuple(map(played, games, _keys(worlds, games))), key)


def advance(
    training: Training,
    config: TasksConfig,
    games: Games,
    scales: Sequence[jax.Array] | jax.Array,
    state: State,
) -> State:
    """Take a step in every environment and the updates due; a game's rewards are multiplied by its scale."""
    network, schedule = network_for(games), training.schedule
    key, acting, moving, learning = jax.random.split(state.key, 4)
    keys = zip(*(_keys(k, games) for k in (acting, moving, learning)), strict=True)
    steps = state.played[0].replay.written.sum()
    epsilon, updates = schedule.epsilon_at(steps), schedule.updates_due(0, training.environments)
    after, samples = [], []
    for task, (game, played, (act, move, draw)) in enumerate(zip(games, state.played, keys, strict=True)):
        params = params_of(state.learner.params, task)
        seen = played.seen._replace(reward=scales[task] * played.seen.reward)
        memory, action = observe(network, params, played.replay, seen, epsilon, act, 1, actions=game.actions)
        rewards = config.rewards.observe(played.rewards, seen.reward, seen.first)
        learnable = memory._replace(reward=config.rewards.apply(rewards, memory.reward))
        samples.append(replay.sample(learnable, draw, updates * BATCH, 1))
        after.append(Played(memory, *game.step(played.world, action, move), rewards))
    batches = joined(samples, updates, network.inputs)
    actions = jnp.array([game.actions for game in games])
    learned, _ = learn_from(config, network, state.learner, batches, schedule.updates_per_copy, actions)
    agent = jax.tree.map(partial(jnp.where, steps > schedule.warm_up), learned, state.learner)
    return State(agent, tuple(after), key)


def evaluate(games: Games, params: Params, epsilon: float, episodes: int, key: jax.Array) -> jax.Array:
    """Return the mean score of each game over one episode in each of several new environments."""
    network, keys = network_for(games), _keys(key, games)
    return jnp.stack(
        [
            _evaluate(game, network, params_of(params, task), epsilon, episodes, keys[task])
            for task, game in enumerate(games)
        ]
    )


def _evaluate(
    game: Game, network: TasksMLP, params: Params, epsilon: float, episodes: int, key: jax.Array
) -> jax.Array:
    key, first = jax.random.split(key)

    def running(carry: Any) -> jax.Array:
        return ~carry[-1].all()

    def step(carry: Any) -> Any:
        world, seen, key, score, over = carry
        key, acting, moving = jax.random.split(key, 3)
        action = learner.act(network, params, seen.observation, epsilon, acting, game.actions)
        world, seen = game.step(world, action, moving)
        score = score + jnp.where(over, 0.0, seen.reward)
        return world, seen, key, score, over | seen.last

    zero, no = jnp.zeros(episodes), jnp.zeros(episodes, bool)
    start = (*game.reset(first, episodes), key, zero, no)
    return jax.lax.while_loop(running, step, start)[-2].mean()


def network_for(games: Games) -> TasksMLP:
    """Return the network for some games."""
    inputs = max(math.prod(game.shape) for game in games)
    return TasksMLP(inputs, max(game.actions for game in games), tasks=len(games))


def _keys(key: jax.Array, games: Games) -> Sequence[jax.Array]:
    """Return a key per game."""
    return list(jax.random.split(key, len(games)))
