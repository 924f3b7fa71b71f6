"""Train agents at all scales and seeds, in one compiled program per game and agent."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np

from popart.lab.budget import announce, check_memory
from popart.lab.dqn.config import SMALL_AGENT, AgentConfig, AgentName
from popart.lab.envs.small import Game
from popart.lab.experiments.reward_scale.config import AGENTS, GAMES, Scale
from popart.lab.experiments.reward_scale.training import Training, advance, init
from popart.lab.machine import as_done, cores
from popart.lab.progress import progress
from popart.lab.runs import Run

LAST = 0.2
"""Fraction of the training, at its end, whose episodes are scored."""

BYTES_PER_STEP, BYTES_PER_AGENT = 500, 1e6
"""Memory of an agent: its replay buffer has all of its steps."""

STEPS_PER_SECOND = 12_000
"""Steps per second and core, measured on two cores with the default settings."""

Case = tuple[str, str]
"""A game and an agent."""

Row = dict[str, Any]


def run(settings: Scale) -> Path:
    budget = _check_budget(settings)
    with Run("scale", "The same agent at any scale of rewards (small games)", settings) as run:
        if not run.finished:
            announce(*budget)
            _write_returns(run, settings)
            run.finish()
    return run.folder


def _check_budget(settings: Scale) -> tuple[float, float]:
    """Refuse what cannot fit, and return seconds and bytes: a core trains all scales and seeds of a game."""
    longest = max(map(settings.steps_of, settings.games))
    together = len(settings.scales) * min(cores(), len(settings.games) * len(settings.agents))
    bytes_each = together * (longest * BYTES_PER_STEP + BYTES_PER_AGENT)
    check_memory("seeds", settings.seeds, bytes_each)
    agents = len(settings.scales) * settings.seeds * len(settings.agents)
    steps = agents * sum(map(settings.steps_of, settings.games))
    return steps / STEPS_PER_SECOND / cores(), settings.seeds * bytes_each


def _write_returns(run: Run, settings: Scale) -> None:
    """Train every agent; those that an interrupted run has trained are read."""
    cases = [(game, agent) for game in settings.games for agent in settings.agents]
    done: dict[Case, list[Row]] = {case: [] for case in cases}
    for row in run.read_table("returns"):
        done[row["game"], row["agent"]].append(dict(row))
    agents = len(settings.scales) * settings.seeds
    work = {case: agents * settings.steps_of(case[0]) for case in cases}
    before = sum(work[case] for case in cases if done[case])
    todo = sorted((case for case in cases if not done[case]), key=lambda case: -work[case])
    with progress("scale", sum(work.values()), "steps", before) as advance:
        for case, found in as_done(partial(_train, settings), todo):
            done[case] = found
            run.write_table("returns", [row for case in cases for row in done[case]])
            advance(work[case], f"{GAMES[case[0]].label}, {AGENTS[case[1]]}")


def _train(settings: Scale, case: Case) -> list[Row]:
    game, agent = case
    scales = jnp.array(settings.scales, jnp.float32)
    seeds = settings.seed + jnp.arange(settings.seeds)
    name, steps = GAMES[game].name, settings.steps_of(game)
    found = np.asarray(train(cast("AgentName", agent), name, steps, scales, seeds)).tolist()
    return [
        {"game": game, "agent": agent, "scale": scale, "seed": settings.seed + j, "return": found[i][j]}
        for i, scale in enumerate(settings.scales)
        for j in range(settings.seeds)
    ]


@partial(jax.jit, static_argnums=(0, 1, 2))
def train(agent: AgentName, game: str, steps: int, scales: jax.Array, seeds: jax.Array) -> jax.Array:
    """Return the mean score of episodes at the end of training, for each scale and seed."""
    training = Training(steps=steps)
    config = replace(AgentConfig(agent), **SMALL_AGENT)
    rounds = steps // training.environments

    def one(scale: jax.Array, seed: jax.Array) -> jax.Array:
        def step(carry: Any, i: jax.Array) -> tuple[Any, None]:
            state, total, count = carry
            state, progress = advance(training, config, Game(game), scale, state)
            counts = progress.ended & (i >= (1 - LAST) * rounds)
            return (state, total + jnp.where(counts, progress.score, 0.0).sum(), count + counts.sum()), None

        state = init(training, config, Game(game), jax.random.key(seed))
        zero = jnp.zeros(()), jnp.zeros((), jnp.int32)
        (state, total, count), _ = jax.lax.scan(step, (state, *zero), jnp.arange(rounds))
        return jnp.where(count > 0, total / jnp.maximum(count, 1), state.scores.mean())

    return jax.vmap(jax.vmap(one, (None, 0)), (0, None))(scales, seeds)
