"""Agents of one game and method: one program, run for all of them at once on a GPU, one by one on a CPU."""

import math
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache, partial
from threading import Lock
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from popart.lab.dqn.config import SMALL_SCHEDULE, AgentConfig
from popart.lab.dqn.methods import config_of
from popart.lab.envs.games import GAMES
from popart.lab.envs.small import Game
from popart.lab.experiments.reward_scale.training import State, Training, advance, init
from popart.lab.machine import free_on_device

LAST = 0.2
"""Fraction of the training, at its end, whose episodes are scored."""

BYTES_PER_STEP, BYTES_PER_AGENT = 40, 2e6
"""Memory of an agent that is being trained, besides the observations of all of its steps."""

SHARE = 0.8
"""Share of the GPU's free memory that agents may take."""

ONE_AT_A_TIME = Lock()
"""A GPU has one program at a time, while other threads compile the next ones."""


def on_cpu() -> bool:
    return jax.default_backend() == "cpu"


def bytes_of(game: str, steps: int) -> float:
    """Return the memory of an agent that is being trained: its replay buffer has all of its steps."""
    one = Game(GAMES[game].name)
    observation = math.prod(one.shape) * np.dtype(one.dtype).itemsize
    return steps * (observation + BYTES_PER_STEP) + BYTES_PER_AGENT


@lru_cache(maxsize=1)
def room() -> float:
    """Return the bytes of a GPU's memory that agents may take; without a limit if JAX does not know them."""
    return SHARE * (free_on_device() or sys.maxsize)


def train(
    method: str,
    game: str,
    steps: int,
    cases: jax.Array,
    rates: jax.Array,
    scales: jax.Array,
    seeds: jax.Array,
) -> np.ndarray:
    """Return the mean score of episodes at the end of training, for each case, rate, scale and seed.

    Cases are numbers, their places in `CASES`; rates are learning rates.
    """
    return _for_each(
        partial(_program, method, game, steps), bytes_of(game, steps), cases, rates, scales, seeds
    )


def play_randomly(game: str, steps: int, seeds: jax.Array) -> np.ndarray:
    """Return the mean score of episodes at the end of a training without any update."""
    return _for_each(partial(_random_program, game, steps), bytes_of(game, steps), seeds)


def _for_each(program: Callable[..., jax.Array], bytes_each: float, *members: jax.Array) -> np.ndarray:
    """Run a program for all members: on a CPU for one after the other, within its cache.

    On a GPU it is run for as many at once as fit into memory.
    """
    if on_cpu():
        return np.array([program(*member) for member in zip(*members, strict=True)])
    number = len(members[0])
    parts = math.ceil(number / max(1, room() // bytes_each))
    places = np.resize(np.arange(number), (parts, math.ceil(number / parts)))  # the last part is filled up
    all_at_once = jax.jit(jax.vmap(program)).lower(*(x[places[0]] for x in members)).compile()
    with ONE_AT_A_TIME:
        found = [np.asarray(all_at_once(*(x[part] for x in members))) for part in places]
    return np.concatenate(found)[:number]


@partial(jax.jit, static_argnums=(0, 1, 2))
def _program(
    method: str,
    game: str,
    steps: int,
    case: jax.Array,
    rate: jax.Array,
    scale: jax.Array,
    seed: jax.Array,
) -> jax.Array:
    config = replace(config_of(method, GAMES[game].reach), learning_rate=rate)
    return trained(Training(steps=steps), config, game, scale, seed, case)[1]


@partial(jax.jit, static_argnums=(0, 1))
def _random_program(game: str, steps: int, seed: jax.Array) -> jax.Array:
    training = Training(steps=steps, schedule=replace(SMALL_SCHEDULE, warm_up=2 * steps))
    return trained(training, config_of("unclipped", GAMES[game].reach), game, jnp.ones(()), seed)[1]


def trained(
    training: Training,
    config: AgentConfig,
    game: str,
    scale: jax.Array,
    seed: jax.Array,
    case: jax.Array | int = 0,
) -> tuple[State, jax.Array]:
    """Train an agent; return it, and the mean score of its last episodes in the game's own units."""
    world, rounds = Game(GAMES[game].name), training.steps // training.environments

    def step(carry: Any, i: jax.Array) -> tuple[Any, None]:
        state, total, count = carry
        state, progress = advance(training, config, world, scale, state, case)
        counts = progress.ended & (i >= (1 - LAST) * rounds)
        return (state, total + jnp.where(counts, progress.score, 0.0).sum(), count + counts.sum()), None

    state = init(training, config, world, jax.random.key(seed))
    zero = jnp.zeros(()), jnp.zeros((), jnp.int32)
    (state, total, count), _ = jax.lax.scan(step, (state, *zero), jnp.arange(rounds))
    return state, jnp.where(count > 0, total / jnp.maximum(count, 1), state.scores.mean())
