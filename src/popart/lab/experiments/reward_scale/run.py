"""Train agents at all scales and seeds, in one compiled program per game and method."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from popart.lab.budget import announce, check_memory
from popart.lab.dqn.methods import config_of
from popart.lab.envs.small import Game
from popart.lab.experiments.reward_scale.config import GAMES, METHODS, RATE, RATES, Scale
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
"""A game and a method."""

Member = tuple[float, float, int]
"""A learning rate, a scale and a random seed."""

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
    together = len(settings.scales) * min(cores(), len(settings.games) * len(settings.methods))
    bytes_each = together * (longest * BYTES_PER_STEP + BYTES_PER_AGENT)
    check_memory("seeds", settings.seeds, bytes_each)
    scales = len(settings.scales) + settings.tuned * (len(settings.scales) + 1)  # with a second learning rate
    agents = scales * settings.seeds * len(settings.methods)
    steps = agents * sum(map(settings.steps_of, settings.games))
    return steps / STEPS_PER_SECOND / cores(), settings.seeds * bytes_each


def _write_returns(run: Run, settings: Scale) -> None:
    """Train every agent; those that an interrupted run has trained are read."""
    cases = [(game, method) for game in settings.games for method in settings.methods]
    done: dict[Case, list[Row]] = {case: [] for case in cases}
    for row in run.read_table("returns"):
        done[row["game"], row["method"]].append(dict(row))
    agents = len(settings.scales) * settings.seeds
    work = {case: agents * settings.steps_of(case[0]) for case in cases}
    before = sum(work[case] for case in cases if done[case])
    todo = sorted((case for case in cases if not done[case]), key=lambda case: -work[case])
    with progress("scale", sum(work.values()), "steps", before) as advance:
        for case, found in as_done(partial(_train, settings), todo):
            done[case] = found
            run.write_table("returns", [row for case in cases for row in done[case]])
            advance(work[case], f"{GAMES[case[0]].label}, {METHODS[case[1]]}")


def _train(settings: Scale, case: Case) -> list[Row]:
    """Train with the common learning rate; then with the best at a scale of 1, if that is another one."""
    seeds = range(settings.seed, settings.seed + settings.seeds)
    members: list[Member] = list(product((RATE,), settings.scales, seeds))
    if not settings.tuned:
        return _rows(settings, case, members)
    others = [rate for rate in RATES if rate != RATE]
    rows = _rows(settings, case, [*members, *product(others, (1.0,), seeds)])
    best = best_rate(rows)
    rest = [scale for scale in settings.scales if scale != 1]
    if best != RATE and rest:
        rows += _rows(settings, case, list(product((best,), rest, seeds)))
    return rows


def best_rate(rows: Sequence[Row]) -> float:
    """Return the learning rate with the highest mean return at a scale of 1."""

    def mean(rate: float) -> float:
        at = [float(row["return"]) for row in rows if (float(row["rate"]), float(row["scale"])) == (rate, 1)]
        return sum(at) / len(at)

    return max(RATES, key=mean)


def _rows(settings: Scale, case: Case, members: Sequence[Member]) -> list[Row]:
    game, method = case
    rates, scales, seeds = zip(*members, strict=True)
    floats = (jnp.array(x, jnp.float32) for x in (rates, scales))
    found = train(method, game, settings.steps_of(game), *floats, jnp.array(seeds), settings.growth)
    return [
        {"game": game, "method": method, "rate": rate, "scale": scale, "seed": seed, "return": value}
        for (rate, scale, seed), value in zip(members, np.asarray(found).tolist(), strict=True)
    ]


@partial(jax.jit, static_argnums=(0, 1, 2))
def train(
    method: str,
    game: str,
    steps: int,
    rates: jax.Array,
    scales: jax.Array,
    seeds: jax.Array,
    growth: float = 1.0,
) -> jax.Array:
    """Return the mean score of episodes at the end of training, for each learning rate, scale and seed.

    Rewards are multiplied by the scale, and in the second half of training by `growth`, too.
    """
    training, about = Training(steps=steps), GAMES[game]
    rounds = steps // training.environments

    def one(rate: jax.Array, scale: jax.Array, seed: jax.Array) -> jax.Array:
        config = replace(config_of(method, about.reach), learning_rate=rate)

        def step(carry: Any, i: jax.Array) -> tuple[Any, None]:
            state, total, count = carry
            size = jnp.where(2 * i >= rounds, growth * scale, scale)
            state, progress = advance(training, config, Game(about.name), size, state)
            counts = progress.ended & (i >= (1 - LAST) * rounds)
            return (state, total + jnp.where(counts, progress.score, 0.0).sum(), count + counts.sum()), None

        state = init(training, config, Game(about.name), jax.random.key(seed))
        zero = jnp.zeros(()), jnp.zeros((), jnp.int32)
        (state, total, count), _ = jax.lax.scan(step, (state, *zero), jnp.arange(rounds))
        return jnp.where(count > 0, total / jnp.maximum(count, 1), state.scores.mean())

    return jax.vmap(one)(rates, scales, seeds)
