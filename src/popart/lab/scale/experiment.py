"""`popart scale`: all scales and seeds of a game and an agent in one compiled program."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

from popart.lab.dqn.learner import AgentName, Settings
from popart.lab.figures import COLOURS, letter, styled, subplots
from popart.lab.machine import as_done
from popart.lab.progress import progress
from popart.lab.runs import Run
from popart.lab.scale import AGENTS, GAMES, Scale
from popart.lab.scale.games import Game
from popart.lab.scale.training import Training, advance, start

STEP_SIZE, BETA = 1e-3, 1e-3
LAST = 0.2
"""The part of the training whose episodes are the score."""

COLOUR = {"unclipped": COLOURS["sgd"], "clipped": COLOURS["art"], "popart": COLOURS["popart"]}

FIGURE = """Mean return of the episodes in the last fifth of training, in the game's own units, when the
agent's rewards are multiplied by the scale. The line is the mean over seeds, dots are single agents. All
agents have the same network, optimizer and step size."""

TABLE = "The mean return of each agent in the last fifth of its training, in the game's own units."

Row = Mapping[str, Any]


def run(settings: Scale) -> Path:
    with Run("scale", "The same agent at any scale of rewards (small games)", settings) as run:
        if not run.finished:
            rows = _returns(run, settings)
            run.show_figure("scale", "Return against the scale of rewards", FIGURE, _figure(settings, rows))
            run.show_table("returns", "All agents", TABLE)
            _find(run, settings, rows)
            run.finish()
    return run.folder


def _returns(run: Run, settings: Scale) -> list[Row]:
    """The score of every agent, of which what was measured before is read."""
    cases = [(game, agent) for game in settings.games for agent in settings.agents]
    done = {case: [] for case in cases}
    for row in run.read_table("returns"):
        numbers = {"scale": float(row["scale"]), "seed": int(row["seed"]), "return": float(row["return"])}
        done[row["game"], row["agent"]].append({"game": row["game"], "agent": row["agent"], **numbers})
    many = len(settings.scales) * settings.seeds
    work = {case: many * settings.steps_of(case[0]) for case in cases}
    before = sum(work[case] for case in cases if done[case])
    todo = sorted((case for case in cases if not done[case]), key=lambda case: -work[case])
    with progress("scale", sum(work.values()), "steps", before) as advance:
        for case, found in as_done(partial(_train, settings), todo):
            done[case] = found
            run.write_table("returns", [row for case in cases for row in done[case]])
            advance(work[case], f"{GAMES[case[0]].label}, {AGENTS[case[1]]}")
    return [row for case in cases for row in done[case]]


def _train(settings: Scale, case: tuple[str, str]) -> list[Row]:
    game, agent = case
    scales = jnp.array(settings.scales, jnp.float32)
    seeds = settings.seed + jnp.arange(settings.seeds)
    found = np.asarray(
        train(cast("AgentName", agent), GAMES[game].name, settings.steps_of(game), scales, seeds)
    )
    return [
        {
            "game": game,
            "agent": agent,
            "scale": scale,
            "seed": settings.seed + j,
            "return": float(found[i, j]),
        }
        for i, scale in enumerate(settings.scales)
        for j in range(settings.seeds)
    ]


@partial(jax.jit, static_argnums=(0, 1, 2))
def train(agent: AgentName, game: str, steps: int, scales: jax.Array, seeds: jax.Array) -> jax.Array:
    """The score for each scale and seed."""
    training = Training(steps=steps)
    settings = Settings(agent, step_size=STEP_SIZE, beta=BETA)
    rounds = steps // training.environments

    def one(scale: jax.Array, seed: jax.Array) -> jax.Array:
        def step(carry: Any, i: jax.Array) -> tuple[Any, None]:
            state, total, count = carry
            state, progress = advance(training, settings, Game(game), scale, state)
            counts = progress.ended & (i >= (1 - LAST) * rounds)
            return (state, total + jnp.where(counts, progress.score, 0.0).sum(), count + counts.sum()), None

        state = start(training, settings, Game(game), jax.random.key(seed))
        zero = jnp.zeros(()), jnp.zeros((), jnp.int32)
        (state, total, count), _ = jax.lax.scan(step, (state, *zero), jnp.arange(rounds))
        return jnp.where(count > 0, total / jnp.maximum(count, 1), state.scores.mean())

    return jax.vmap(jax.vmap(one, (None, 0)), (0, None))(scales, seeds)


def _means(rows: Sequence[Row], game: str, agent: str, scales: Sequence[float]) -> np.ndarray:
    """Over seeds, for each scale."""
    found = [
        [r["return"] for r in rows if (r["game"], r["agent"], r["scale"]) == (game, agent, s)] for s in scales
    ]
    return np.mean(found, 1)


def _find(run: Run, settings: Scale, rows: Sequence[Row]) -> None:
    if "popart" not in settings.agents:
        return
    for game in settings.games:
        means = {agent: _means(rows, game, agent, settings.scales) for agent in settings.agents}
        popart = means.pop("popart")
        best = max((m.max() for m in means.values()), default=popart.max())
        least = {agent: m.min() for agent, m in means.items()}
        others = ", ".join(f"{AGENTS[agent]} down to {value:.3g}" for agent, value in least.items())
        run.find(
            f"With Pop-Art the size of rewards does not matter in {GAMES[game].label}",
            paper="updates do not depend on the size of targets",
            here=f"{popart.min():.3g} to {popart.max():.3g} at all scales"
            + (f"; {others}" if others else ""),
            agrees=bool(popart.max() - popart.min() <= 0.25 * max(abs(popart.mean()), abs(best))),
        )


@styled
def _figure(settings: Scale, rows: Sequence[Row]) -> Figure:
    columns = min(2, len(settings.games))
    lines = -(-len(settings.games) // columns)
    figure, panels = subplots(lines, columns, height=2.1 * lines + 0.4, squeeze=False)
    for axes, game in zip(panels.flat, settings.games, strict=False):
        for agent in settings.agents:
            mine = [row for row in rows if (row["game"], row["agent"]) == (game, agent)]
            colour, label = COLOUR[agent], AGENTS[agent] if game == settings.games[0] else None
            axes.plot(
                [r["scale"] for r in mine],
                [r["return"] for r in mine],
                ".",
                color=colour,
                alpha=0.35,
                markersize=4,
            )
            means = _means(rows, game, agent, settings.scales)
            axes.plot(settings.scales, means, color=colour, label=label, linewidth=1.6)
        axes.set(xscale="log", xlabel="scale of rewards", ylabel="return")
        axes.xaxis.set_major_locator(LogLocator(10, numticks=9))
        axes.minorticks_off()
        axes.grid()
        letter(axes, GAMES[game].label)
    for axes in panels.flat[len(settings.games) :]:
        axes.remove()
    figure.legend(loc="outside upper center", ncols=3)
    return figure
