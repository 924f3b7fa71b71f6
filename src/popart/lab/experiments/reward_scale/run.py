"""Train agents with all methods, cases, scales and seeds, in one compiled program per game and method."""

from collections.abc import Iterable, Sequence
from functools import partial
from itertools import groupby, product
from pathlib import Path
from typing import Any

import jax.numpy as jnp

from popart.lab.budget import announce, check_memory
from popart.lab.checks import LabError
from popart.lab.envs.games import GAMES
from popart.lab.experiments.reward_scale import agents
from popart.lab.experiments.reward_scale.config import (
    AGENTS,
    CASES,
    METHODS,
    RATE,
    TUNING_SEEDS,
    Scale,
    best_rate,
)
from popart.lab.files import REPAIR
from popart.lab.machine import as_done, cores
from popart.lab.progress import progress
from popart.lab.runs import Run

BYTES_PER_ROW = 800
"""Memory of an agent that has been trained: its row of the table."""

STEPS_PER_SECOND = 30_000
"""Steps per second and core, measured on two cores with the default settings."""

SECONDS_PER_STEP, SECONDS_TO_COMPILE = 1e-4, 15
"""On a GPU: time of a step of all agents together, and of compiling a program on a core."""

Cell = tuple[str, str, str]
"""A game, a case (how its rewards change) and a method."""

Member = tuple[str, float, float, int]
"""A case, a learning rate, a scale and a random seed."""

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
    per_game = len(settings.cases) * len(settings.methods)
    cells = len(settings.games) * per_game
    rows = cells * len(settings.scales) * (1 + settings.tuned) * BYTES_PER_ROW
    each = max(agents.bytes_of(game, settings.steps_of(game)) for game in settings.games)
    if agents.on_cpu():
        agents_each = len(settings.scales) * (1 + settings.tuned)  # with a second learning rate
        number = agents_each * settings.seeds + settings.tuned * len(settings.rates) * TUNING_SEEDS
        check_memory("seeds", settings.seeds, min(cores(), cells) / settings.seeds * each + rows)
        steps = number * per_game * sum(map(settings.steps_of, settings.games))
        return steps / STEPS_PER_SECOND / cores(), min(cores(), cells) * each + settings.seeds * rows
    check_memory("seeds", settings.seeds, rows)
    programs = (1 + settings.tuned) * len(settings.methods)
    seconds = programs * sum(map(settings.steps_of, settings.games)) * SECONDS_PER_STEP
    return seconds + programs * len(settings.games) / cores() * SECONDS_TO_COMPILE, settings.seeds * rows


def _write_random_play(run: Run, settings: Scale) -> None:
    """Write the returns of random play, which normalised returns need, if they are not there."""
    if set(settings.methods) <= set(AGENTS):
        return
    rows: list[Row] = [dict(row) for row in run.read_table("random")]
    played = {row["game"] for row in rows}
    seeds = jnp.arange(settings.seed, settings.seed + settings.seeds)
    for game in settings.games:
        if game not in played:
            values = agents.play_randomly(game, settings.steps_of(game), seeds)
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
    number = len(settings.scales) * settings.seeds
    work = {cell: number * settings.steps_of(cell[0]) for cell in cells}
    before = sum(work[cell] for cell in cells if done["returns"][cell])
    todo = sorted((cell for cell in cells if not done["returns"][cell]), key=lambda cell: -work[cell])
    with progress("scale", sum(work.values()), "steps", before) as advance:
        for together, found in as_done(partial(_train, settings), _groups(todo)):
            for name, rows in zip(TABLES, found, strict=True):
                done[name].update({cell: [] for cell in together})  # an interrupted run may have some
                for row in rows:
                    done[name][row["game"], row["case"], row["method"]].append(row)
                if settings.tuned or name == "returns":
                    run.write_table(name, [row for cell in cells for row in done[name][cell]])
            game, _, method = together[0]
            advance(sum(work[cell] for cell in together), f"{GAMES[game].label}, {METHODS[method]}")


TABLES = ("tuning", "returns")
"""Tables of the tuning seeds and of the results; written in this order."""


def _groups(cells: Sequence[Cell]) -> list[tuple[Cell, ...]]:
    """Return the cells that are trained together: on a GPU all cases of a game and method."""

    def program(cell: Cell) -> tuple[str, str]:
        return cell[0], cell[2]

    if agents.on_cpu():
        return [(cell,) for cell in cells]
    return [tuple(group) for _, group in groupby(sorted(cells, key=program), program)]


def _train(settings: Scale, cells: Sequence[Cell]) -> tuple[list[Row], list[Row]]:
    """Train with the common learning rate, and with the best at a scale of 1, if that is another one."""
    seeds = range(settings.seed, settings.seed + settings.seeds)
    tuning = range(seeds.stop, seeds.stop + TUNING_SEEDS) if settings.tuned else range(0)
    (game, _, method), cases = cells[0], [case for _, case, _ in cells]
    tried = _rows(settings, game, method, product(cases, settings.rates, (1.0,), tuning))
    members: list[Member] = []
    for case in cases:
        mine = [row for row in tried if row["case"] == case]
        rates = dict.fromkeys((RATE, best_rate(mine) if mine else RATE))
        members += product((case,), rates, settings.scales, seeds)
    return tried, _rows(settings, game, method, members)


def _rows(settings: Scale, game: str, method: str, members: Iterable[Member]) -> list[Row]:
    members = list(members)
    if not members:
        return []
    cases, rates, scales, seeds = zip(*members, strict=True)
    places = [list(CASES).index(case) for case in cases]
    given = (jnp.array(values) for values in (places, rates, scales, seeds))
    found = agents.train(method, game, settings.steps_of(game), *given)
    return [
        {"game": game, "case": case, "method": method}
        | {"rate": rate, "scale": scale, "seed": seed, "return": value}
        for (case, rate, scale, seed), value in zip(members, found.tolist(), strict=True)
    ]
