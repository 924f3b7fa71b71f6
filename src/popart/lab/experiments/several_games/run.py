"""Train one network per method and seed on all games, and references on each game alone."""

import math
from collections.abc import Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from popart.lab.budget import announce, check_memory
from popart.lab.dqn.tasks import config_of_tasks
from popart.lab.envs.games import GAMES
from popart.lab.envs.small import Game
from popart.lab.experiments.several_games.config import LABELS, Tasks
from popart.lab.experiments.several_games.training import (
    Training,
    advance,
    evaluate,
    init,
    network_for,
)
from popart.lab.lanes import mapped
from popart.lab.machine import as_done, cores
from popart.lab.progress import progress
from popart.lab.runs import Run

LAST, EVALUATIONS, EPISODES = 0.2, 5, 8
"""Evaluations, equally spaced over the last part of training, with some episodes of each game."""

BYTES_PER_NUMBER, BYTES_PER_AGENT = 4, 3e7
"""Memory of an agent: its replay buffers have all of its observations."""

STEPS_PER_SECOND, SECONDS_TO_COMPILE = 20_000, 5
"""Steps of one game per second and core, and time to compile for each game of a program; measured on a core
with the default settings."""


class Case(NamedTuple):
    """A network to train, with all random seeds that are trained together."""

    method: str
    games: tuple[str, ...]
    scales: tuple[float, ...]
    seeds: tuple[int, ...]


Row = dict[str, Any]


def run(settings: Tasks) -> Path:
    budget = _check_budget(settings)
    title = "Several games of different size with one network"
    with Run("tasks", title, settings, growing=("seeds",)) as run:
        if not run.finished:
            announce(*budget)
            _write_returns(run, settings)
            run.finish()
    return run.folder


def cases_of(settings: Tasks) -> list[Case]:
    """Return all networks to train: seed by seed on a CPU, together on other devices.

    Programs that are the same are far apart, so that no two threads compile the same one.
    """
    all_ = tuple(range(settings.seed, settings.seed + settings.seeds))
    together = [(seed,) for seed in all_] if jax.default_backend() == "cpu" else [all_]
    shared = [(method, settings.games, settings.scales) for method in settings.methods]
    single = [
        (method, (game,), (scale,))
        for method, (game, scale) in product(
            ("alone", "random"), zip(settings.games, settings.scales, strict=True)
        )
    ]
    return [Case(*what, seeds) for seeds in together for what in (*shared, *single)]


def _check_budget(settings: Tasks) -> tuple[float, float]:
    """Refuse settings that do not fit into memory; return seconds and bytes. A core trains one network."""
    numbers = sum(math.prod(Game(GAMES[game].name).shape) + 5 for game in settings.games)
    bytes_each = settings.steps * numbers * BYTES_PER_NUMBER + BYTES_PER_AGENT
    on_cpu = jax.default_backend() == "cpu"
    agents = cores() if on_cpu else settings.seeds * cores()
    bytes_needed = agents * bytes_each
    check_memory("steps", settings.steps, bytes_needed / settings.steps)
    games = len(settings.games) * (len(settings.methods) + 1)
    seconds = games * (settings.steps * settings.seeds / STEPS_PER_SECOND + SECONDS_TO_COMPILE)
    return seconds / cores(), bytes_needed


def _write_returns(run: Run, settings: Tasks) -> None:
    """Train every network; those that an interrupted run has trained are read."""
    cases = cases_of(settings)
    done = _read(run, cases)
    work = {case: _work(settings, case) for case in cases}
    before = sum(work[case] for case in cases if done[case])
    with progress("tasks", sum(work.values()), "steps", before) as advanced:
        for case, found in as_done(partial(_rows, settings), [case for case in cases if not done[case]]):
            done[case] = found
            run.write_table("returns", [row for case in cases for row in done[case]])
            what = f"{GAMES[case.games[0]].label}, " if len(case.games) == 1 else ""
            advanced(work[case], f"{what}{LABELS[case.method]}")


def _read(run: Run, cases: Sequence[Case]) -> dict[Case, list[Row]]:
    """Return the rows of each network that an interrupted run has; none if some of its seeds are missing."""
    table = {(row["method"], row["game"], row["seed"]): dict(row) for row in run.read_table("returns")}
    done: dict[Case, list[Row]] = {}
    for case in cases:
        keys = [(case.method, game, str(seed)) for seed, game in product(case.seeds, case.games)]
        done[case] = [table[key] for key in keys] if all(key in table for key in keys) else []
    return done


def _work(settings: Tasks, case: Case) -> int:
    return 0 if case.method == "random" else settings.steps * len(case.games) * len(case.seeds)


def _rows(settings: Tasks, case: Case) -> list[Row]:
    seeds = jnp.array(case.seeds)
    if case.method == "random":
        found = play_randomly(case.games, seeds)
    else:
        method = "popart" if case.method == "alone" else case.method
        found = train(method, case.games, settings.steps, jnp.array(case.scales), seeds)
    return [
        {"game": game, "scale": scale, "method": case.method, "seed": seed, "return": value}
        for seed, values in zip(case.seeds, np.asarray(found).tolist(), strict=True)
        for game, scale, value in zip(case.games, case.scales, values, strict=True)
    ]


def _games(names: tuple[str, ...]) -> tuple[Game, ...]:
    return tuple(Game(GAMES[name].name) for name in names)


@partial(jax.jit, static_argnums=0)
def play_randomly(names: tuple[str, ...], seeds: jax.Array) -> jax.Array:
    """Return the mean scores of as many episodes with random actions, (seeds, games)."""
    games = _games(names)

    def one(seed: jax.Array) -> jax.Array:
        key, weights = jax.random.split(jax.random.key(seed))
        return evaluate(games, network_for(games).init(weights), 1.0, EVALUATIONS * EPISODES, key)

    return mapped(one, len(seeds), (0,))(seeds)


@partial(jax.jit, static_argnums=(0, 1, 2))
def train(method: str, names: tuple[str, ...], steps: int, scales: jax.Array, seeds: jax.Array) -> jax.Array:
    """Return the mean scores at the end of training, (seeds, games), in the games' own units."""
    games, config = _games(names), config_of_tasks(method, len(names))
    training = Training(steps)

    def part(state: Any, x: tuple[jax.Array, jax.Array]) -> tuple[Any, jax.Array]:
        """Train for a number of rounds, and evaluate."""
        rounds, key = x
        state = jax.lax.fori_loop(0, rounds, lambda _, s: advance(training, config, games, scales, s), state)
        return state, evaluate(games, state.learner.params, training.schedule.epsilon, EPISODES, key)

    def one(seed: jax.Array) -> jax.Array:
        key, playing = jax.random.split(jax.random.key(seed))
        last = int(LAST * training.rounds) // EVALUATIONS
        rounds = jnp.full(EVALUATIONS, last).at[0].add(training.rounds - EVALUATIONS * last)
        state = init(training, config, games, key)
        return jax.lax.scan(part, state, (rounds, jax.random.split(playing, EVALUATIONS)))[1].mean(0)

    return mapped(one, len(seeds), (0,))(seeds)
