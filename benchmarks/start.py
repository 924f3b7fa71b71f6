"""How soon DQN's network learns to predict rewards, by its initial weights and its optimizer.

Observations are from random play of one game. The network learns to predict rewards alone (a discount of 0),
with the agents' own updates. Each row has the part of the rewards' variance that is explained after a number
of updates, on transitions sampled from the same play, and the part of the last hidden layer's units that are
active for any of these transitions at the end.

    python -m benchmarks.start --path results/start.csv
"""

import argparse
import itertools
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from rich.progress import track

from benchmarks.tables import publish
from popart.lab.dqn import acting, learner, replay
from popart.lab.dqn.config import AgentConfig
from popart.lab.dqn.networks import Network, network_for
from popart.lab.dqn.replay import Replay, Transitions
from popart.lab.envs.atari import SPEC, Atari
from popart.lab.train.config import Train

ENVIRONMENTS = 16

PER_CALL, PER_COPY = 20, 2000
"""Updates in one call, and between two copies to the target network."""


def random_play(game: str, steps: int) -> tuple[Network, Replay]:
    """Play with random actions; return a network for the game, and the observations in a replay buffer."""
    games = Atari(game, ENVIRONMENTS)
    network = network_for(SPEC.shape, games.actions)
    memory = replay.init(ENVIRONMENTS, steps, SPEC.shape, SPEC.dtype)
    remember = jax.jit(
        lambda memory, seen, a: replay.record(replay.insert(memory, seen), a), donate_argnums=0
    )
    rng = np.random.default_rng(0)
    games.reset(0)
    for _ in track(range(steps), "random play"):
        seen, actions = games.receive(), rng.integers(0, network.actions, ENVIRONMENTS, dtype=np.int32)
        memory = remember(memory, seen, actions)
        games.send(actions)
    games.receive()
    games.close()
    return network, memory


def explained(
    config: AgentConfig, network: Network, learned: learner.Learner, batch: Transitions
) -> jax.Array:
    """Return the part of the targets' variance that is explained."""
    q = learner.values(config, network, learned.params, learned.statistics, batch.observation)
    y = learner.targets(config, batch, q, q)
    error = y - jnp.take_along_axis(q, batch.action[:, None], 1)[:, 0]
    return 1 - jnp.mean(error**2) / jnp.var(y)


def active(network: Network, learned: learner.Learner, batch: Transitions) -> jax.Array:
    """Return the part of the units before the head that are active for any of the observations."""
    return (network.features(learned.params["body"], batch.observation) > 0).any(0).mean()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--game", default="pong")
    parser.add_argument("--updates", type=int, default=8000)
    parser.add_argument(
        "--steps", type=int, default=2500, help=f"agent steps of each of {ENVIRONMENTS} environments"
    )
    parser.add_argument("--path", type=Path, default=Path("results/start.csv"))
    options = parser.parse_args()
    if options.updates < 1 or options.updates % (4 * PER_CALL):
        parser.error(f"--updates is {options.updates}; it must be a multiple of {4 * PER_CALL}")
    network, memory = random_play(options.game, options.steps)
    test = replay.sample(memory, jax.random.key(1), 1024, SPEC.stack_size)
    marks = [options.updates * i // 4 for i in (1, 2, 3, 4)]
    rows = []
    for optimizer, weights, name in itertools.product(
        ("rmsprop", "adam"), ("dqn", "he"), ("clipped", "popart")
    ):
        (member,) = Train.of(
            game=options.game, agent=name, optimizer=optimizer, initial_weights=weights, discount=0.0
        ).members()
        config = member.agent
        learned = learner.init(config, network, jax.random.key(0))
        learn = jax.jit(
            partial(acting.learn, config, network),
            static_argnames=("updates", "stack_size", "updates_per_copy"),
            donate_argnums=0,
        )
        found, key = [], jax.random.key(2)
        for done in track(range(PER_CALL, options.updates + 1, PER_CALL), f"{optimizer}, {weights}, {name}"):
            key, now = jax.random.split(key)
            learned, _ = learn(
                learned, memory, now, updates=PER_CALL, stack_size=SPEC.stack_size, updates_per_copy=PER_COPY
            )
            if done in marks:
                found.append(f"{float(explained(config, network, learned, test)):.3f}")
        rows.append([optimizer, weights, name, *found, f"{float(active(network, learned, test)):.2f}"])
    header = ["optimizer", "start", "agent", *(f"explained after {n}" for n in marks), "active units"]
    device = jax.devices()[0]
    publish(
        options.path,
        header,
        rows,
        "start",
        "CPU" if device.platform == "cpu" else device.device_kind,
        game=options.game,
        steps=ENVIRONMENTS * options.steps,
    )


if __name__ == "__main__":
    main()
