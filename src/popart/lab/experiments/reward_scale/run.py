"""Train agents with all methods, cases, scales and seeds, in one compiled program per game and method."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from popart.lab.budget import announce, check_memory
from popart.lab.checks import LabError
from popart.lab.dqn.config import SMALL_SCHEDULE, AgentConfig
from popart.lab.dqn.methods import config_of
from popart.lab.envs.games import GAMES
from popart.lab.envs.small import Game
from popart.lab.experiments.reward_scale.config import (
    AGENTS,
    CASES,
    METHODS,
    RATE,
    RATES,
    TUNING_SEEDS,
    Scale,
    best_rate,
)
from popart.lab.experiments.reward_scale.training import Training, advance, init
from popart.lab.files import REPAIR
from popart.lab.machine import as_done, cores
from popart.lab.progress import progress
from popart.lab.runs import Run

LAST = 0.2
"""Fraction of the training, at its end, whose episodes are scored."""

BYTES_PER_STEP, BYTES_PER_AGENT = 800, 1e6
"""Memory of an agent that is being trained: its replay buffer has all of its steps."""

BYTES_PER_ROW = 800
"""Memory of an agent that has been trained: its row of the table."""

STEPS_PER_SECOND = 30_000
"""Steps per second and core, measured on two cores with the default settings."""

Cell = tuple[str, str, str]
"""A game, a case (how its rewards change) and a method."""

Member = tuple[float, float, int]
"""A learning rate, a scale and a random seed."""

Row = dict[str, Any]


def run(settings: Scale) -> Path:
    budget = _check_budget(settings)
    title = "The same agent at any scale of rewards (small games)"
    with Run("scale", title, settings, growing=("games", "cases", "methods")) as run:
        if not run.finished:
            announce(*budget)
            _write_random_play(run, settings)
            _write_returns(run, settings)
            run.finish()
    return run.folder


def _check_budget(settings: Scale) -> tuple[float, float]:
    """Refuse settings that do not fit into memory; return seconds and bytes."""
    longest = max(map(settings.steps_of, settings.games))
    cells = len(settings.games) * len(settings.cases) * len(settings.methods)
    together = (
        min(cores(), cells) / settings.seeds if _on_cpu() else min(cores(), cells) * len(settings.scales)
    )
    bytes_each = together * (longest * BYTES_PER_STEP + BYTES_PER_AGENT)
    bytes_each += cells * len(settings.scales) * (1 + settings.tuned) * BYTES_PER_ROW
    check_memory("seeds", settings.seeds, bytes_each)
    agents = len(settings.scales) * settings.seeds * (1 + settings.tuned)  # with a second learning rate
    agents += settings.tuned * len(RATES) * TUNING_SEEDS
    steps = agents * len(settings.cases) * len(settings.methods) * sum(map(settings.steps_of, settings.games))
    return steps / STEPS_PER_SECOND / cores(), settings.seeds * bytes_each


def _write_random_play(run: Run, settings: Scale) -> None:
    """Write the returns of random play, which normalised returns need, if they are not there."""
    if set(settings.methods) <= set(AGENTS):
        return
    rows: list[Row] = [dict(row) for row in run.read_table("random")]
    played = {row["game"] for row in rows}
    seeds = jnp.arange(settings.seed, settings.seed + settings.seeds)
    for game in settings.games:
        if game not in played:
            values = play_randomly(game, settings.steps_of(game), seeds)
            found = zip(seeds.tolist(), values.tolist(), strict=True)
            rows += [{"game": game, "seed": seed, "return": value} for seed, value in found]
            run.write_table("random", rows)


def _write_returns(run: Run, settings: Scale) -> None:
    """Train every agent; those that an interrupted run has trained are read."""
    cells = list(product(settings.games, settings.cases, settings.methods))
    done: dict[str, dict[Cell, list[Row]]] = {name: {cell: [] for cell in cells} for name in TABLES}
    for name, found in done.items():
        for row in run.read_table(name):
            cell = row["game"], row.get("case", ""), row.get("method", "")
            if cell not in found:
                raise LabError(f"{run.folder / name}.csv has a row of {', '.join(cell)}; {REPAIR}")
            found[cell].append(dict(row))
    agents = len(settings.scales) * settings.seeds
    work = {cell: agents * settings.steps_of(cell[0]) for cell in cells}
    before = sum(work[cell] for cell in cells if done["returns"][cell])
    todo = sorted((cell for cell in cells if not done["returns"][cell]), key=lambda cell: -work[cell])
    with progress("scale", sum(work.values()), "steps", before) as advance:
        for cell, tables in as_done(partial(_train, settings), todo):
            for name, rows in zip(TABLES, tables, strict=True):
                done[name][cell] = rows
                if settings.tuned or name == "returns":
                    run.write_table(name, [row for cell in cells for row in done[name][cell]])
            advance(work[cell], f"{GAMES[cell[0]].label}, {METHODS[cell[2]]}")


TABLES = ("tuning", "returns")
"""Tables of the tuning seeds and of the results; written in this order."""


def _train(settings: Scale, cell: Cell) -> tuple[list[Row], list[Row]]:
    """Train with the common learning rate, and with the best at a scale of 1, if that is another one."""
    seeds = range(settings.seed, settings.seed + settings.seeds)
    tuning = range(seeds.stop, seeds.stop + TUNING_SEEDS) if settings.tuned else range(0)
    tried = _rows(settings, cell, list(product(RATES, (1.0,), tuning)))
    rates = dict.fromkeys((RATE, best_rate(tried) if tried else RATE))
    return tried, _rows(settings, cell, list(product(rates, settings.scales, seeds)))


def _rows(settings: Scale, cell: Cell, members: Sequence[Member]) -> list[Row]:
    if not members:
        return []
    game, case, method = cell
    rates, scales, seeds = zip(*members, strict=True)
    given = jnp.array(rates), jnp.array(scales), jnp.array(seeds)
    found = train(method, game, settings.steps_of(game), *given, case)
    return [
        {"game": game, "case": case, "method": method}
        | {"rate": rate, "scale": scale, "seed": seed, "return": value}
        for (rate, scale, seed), value in zip(members, found.tolist(), strict=True)
    ]


def _on_cpu() -> bool:
    return jax.default_backend() == "cpu"


def train(
    method: str,
    game: str,
    steps: int,
    rates: jax.Array,
    scales: jax.Array,
    seeds: jax.Array,
    case: str = "steady",
) -> np.ndarray:
    """Return the mean score of episodes at the end of training, for each learning rate, scale and seed."""
    program = partial(_program, method, game, steps, list(CASES).index(case))
    return _for_each(program, rates, scales, seeds)


def play_randomly(game: str, steps: int, seeds: jax.Array) -> np.ndarray:
    """Return the mean score of episodes at the end of a training without any update."""
    return _for_each(partial(_random_program, game, steps), seeds)


def _for_each(program: Callable[..., jax.Array], *members: jax.Array) -> np.ndarray:
    """Run a program for all members at once, or on a CPU for one after the other, within its cache."""
    if not _on_cpu():
        return np.asarray(jax.vmap(program)(*members))
    return np.array([program(*member) for member in zip(*members, strict=True)])


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
    return _return(Training(steps=steps), config, game, scale, seed, case)


@partial(jax.jit, static_argnums=(0, 1))
def _random_program(game: str, steps: int, seed: jax.Array) -> jax.Array:
    training = Training(steps=steps, schedule=replace(SMALL_SCHEDULE, warm_up=2 * steps))
    return _return(training, config_of("unclipped", GAMES[game].reach), game, jnp.ones(()), seed)


def _return(
    training: Training,
    config: AgentConfig,
    game: str,
    scale: jax.Array,
    seed: jax.Array,
    case: jax.Array | int = 0,
) -> jax.Array:
    """Train an agent, and return the mean score of its last episodes, in the game's own units."""
    world, rounds = Game(GAMES[game].name), training.steps // training.environments

    def step(carry: Any, i: jax.Array) -> tuple[Any, None]:
        state, total, count = carry
        state, progress = advance(training, config, world, scale, state, case)
        counts = progress.ended & (i >= (1 - LAST) * rounds)
        return (state, total + jnp.where(counts, progress.score, 0.0).sum(), count + counts.sum()), None

    state = init(training, config, world, jax.random.key(seed))
    zero = jnp.zeros(()), jnp.zeros((), jnp.int32)
    (state, total, count), _ = jax.lax.scan(step, (state, *zero), jnp.arange(rounds))
    return jnp.where(count > 0, total / jnp.maximum(count, 1), state.scores.mean())
