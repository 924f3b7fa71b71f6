"""How the ε of RMSProp changes what is learned, with and without preserved outputs.

Double DQN learns one of MinAtar's games as in `popart scale`, with DQN's ε of 0.01 and with others. Measured
at the end of training are the return of the last fifth, the value of the greedy actions, the norm of the
weights of the last layer, and the root mean square of the body's gradients in units of √ε. RMSProp divides
gradients far below √ε by √ε, and not by their size.

    python -m benchmarks.epsilon                    # results/epsilon.csv
    python -m benchmarks.epsilon --game asterix     # results/epsilon_asterix.csv
"""

import argparse
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from rich.progress import track

from benchmarks.tables import publish
from popart.lab.dqn import learner, replay
from popart.lab.dqn.acting import learn
from popart.lab.dqn.methods import config_of
from popart.lab.envs.games import GAMES
from popart.lab.envs.small import Game
from popart.lab.experiments.reward_scale.agents import trained
from popart.lab.experiments.reward_scale.config import METHODS
from popart.lab.experiments.reward_scale.training import Training, network_for
from popart.lab.intervals import iqm, over_seeds
from popart.lab.machine import cores

STUDIES = {
    "space_invaders": (30_000, 20, ("unclipped", "art", "popart"), (1e-2, 1e-4, 1e-6), (1e-3, 3e-3)),
    "asterix": (300_000, 10, ("unclipped", "popart"), (1e-4, 1e-2, 1.0, 100.0), (1e-4, 1e-3)),
}
"""For each game the steps of an agent, the random seeds, methods, values of ε and learning rates."""

UPDATES, OBSERVATIONS = 200, 1000
"""Updates after training over which gradients are averaged, and observations whose values are averaged."""


@lru_cache
def program(name: str, epsilon: float, game: str, steps: int) -> Any:
    """Return the compiled training of one agent, from its learning rate and random seed."""
    base = replace(config_of(name, GAMES[game].reach), rmsprop_epsilon=epsilon)
    training, network = Training(steps=steps), network_for(Game(GAMES[game].name))

    @jax.jit
    def train(rate: jax.Array, seed: jax.Array) -> tuple[jax.Array, ...]:
        config = replace(base, learning_rate=rate)
        state, score = trained(training, config, game, jnp.ones(()), seed)
        seen = replay.sample(state.replay, state.key, OBSERVATIONS, 1).observation
        agent, copy_every = state.learner, training.schedule.updates_per_copy
        values = learner.values(config, network, agent.params, agent.statistics, seen).max(-1).mean()
        _, metrics = learn(config, network, agent, state.replay, state.key, UPDATES, 1, copy_every)
        numbers = sum(x.size for x in jax.tree.leaves(agent.params["body"]))
        gradient = config.batch * jnp.sqrt((metrics.body_norm**2).mean() / numbers / epsilon)
        return score, values, jnp.linalg.norm(agent.params["head"]["w"]), gradient

    return train


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("path", nargs="?", type=Path, metavar="CSV")
    parser.add_argument("--game", choices=list(STUDIES), default="space_invaders")
    options = parser.parse_args()
    game: str = options.game
    suffix = "" if game == "space_invaders" else f"_{game}"
    path: Path = options.path or Path(f"results/epsilon{suffix}.csv")
    steps, seeds, *choices = STUDIES[game]
    cases: list[tuple[str, float, float]] = list(product(*choices))

    def train(agent: tuple[tuple[str, float, float], int]) -> tuple[float, ...]:
        (name, epsilon, rate), seed = agent
        found = program(name, epsilon, game, steps)(jnp.asarray(rate), jnp.asarray(seed))
        return tuple(map(float, found))

    agents = list(product(cases, range(seeds)))
    with ThreadPoolExecutor(cores()) as pool:
        done = list(track(pool.map(train, agents), description="Training", total=len(agents)))
    rows = []
    for (name, epsilon, rate), found in zip(cases, np.split(np.array(done), len(cases)), strict=True):
        score = over_seeds(iqm, [found[:, 0]]).text(".2f")
        medians = (f"{x:.3g}" for x in np.median(found[:, 1:], 0))
        rows.append((METHODS[name], f"{epsilon:g}", f"{rate:g}", score, *medians))
    header = ("method", "ε", "learning rate", "return", "value", "norm of the last layer", "gradient / √ε")
    publish(path, header, rows, "epsilon", "CPU", sections=1, game=game, steps=steps, seeds=seeds)


if __name__ == "__main__":
    main()
