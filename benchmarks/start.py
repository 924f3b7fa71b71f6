"""Why DQN starts slowly: initial weights, gradients beside RMSProp's ε, and one backup per target copy.

Observations are from random play of one game, Pong by default. Three measurements:

- rewards: the network learns to predict rewards alone (a discount of 0), with the agents' own updates. Each
  row has the part of the rewards' variance that is explained after a number of updates, on transitions
  sampled from the same play, and the part of the last hidden layer's units that are active for any of these
  transitions at the end.
- gradients: the size of the gradient of each layer beside √ε of DQN's RMSProp, after a number of updates as
  in training (a discount of 0.99). Where |gradient| is well below √ε, RMSProp is SGD with a learning rate of
  α/√ε, and does not normalise.
- backups: values of Catch, whose only reward comes at the end of an episode, by the number of copies to the
  target network so far and the steps that remain. Between two copies the network learns to convergence, so
  that each copy passes the reward on by one step.

    python -m benchmarks.start                # results/start.csv
    python -m benchmarks.start gradients      # results/start_gradients.csv
    python -m benchmarks.start backups        # results/start_backups.csv
"""

import argparse
import itertools
import math
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from rich.progress import track

import popart.jax
from benchmarks.tables import publish
from popart.lab.dqn import acting, learner, replay
from popart.lab.dqn.config import AgentConfig
from popart.lab.dqn.networks import Network, Params, network_for
from popart.lab.dqn.replay import Replay, Transitions
from popart.lab.envs.atari import SPEC, Atari
from popart.lab.envs.small import SmallGames
from popart.lab.envs.timestep import Environments
from popart.lab.train.config import Train

ENVIRONMENTS = 16

PER_CALL, PER_COPY = 20, 2000
"""Updates in one call, and between two copies to the target network."""

BATCHES, EARLY = 50, 100
"""Batches over which gradients are averaged, and the updates after which they are measured first."""

CATCH_STEPS = 9
"""Steps of an episode of Catch."""


def random_play(games: Environments, steps: int) -> tuple[Network, Replay]:
    """Play with random actions; return a network for the game, and the observations in a replay buffer."""
    network = network_for(games.spec.shape, games.actions)
    memory = replay.init(ENVIRONMENTS, steps, games.spec.shape, games.spec.dtype)
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


Row = list[str]


def learning(
    config: AgentConfig, network: Network, memory: Replay, updates: int, stack_size: int, per_copy: int
) -> Iterator[tuple[int, learner.Learner]]:
    """Yield the agent after every few updates, and their number."""
    learned, key = learner.init(config, network, jax.random.key(0)), jax.random.key(2)
    learn = jax.jit(
        partial(acting.learn, config, network),
        static_argnames=("updates", "stack_size", "updates_per_copy"),
        donate_argnums=0,
    )
    for done in range(PER_CALL, updates + 1, PER_CALL):
        key, now = jax.random.split(key)
        learned, _ = learn(
            learned, memory, now, updates=PER_CALL, stack_size=stack_size, updates_per_copy=per_copy
        )
        yield done, learned


def config_of(game: str, agent: str, optimizer: str, weights: str, **options: float) -> AgentConfig:
    (member,) = Train.of(
        game=game, agent=agent, optimizer=optimizer, initial_weights=weights, **options
    ).members()
    return member.agent


def measure_rewards(game: str, updates: int, steps: int) -> tuple[Row, list[Row]]:
    """Learn to predict rewards, with each optimizer, initialisation and agent."""
    network, memory = random_play(Atari(game, ENVIRONMENTS), steps)
    test = replay.sample(memory, jax.random.key(1), 1024, SPEC.stack_size)
    marks = [updates * i // 4 for i in (1, 2, 3, 4)]
    rows = []
    for case in itertools.product(("rmsprop", "adam"), ("dqn", "he"), ("clipped", "popart")):
        optimizer, weights, name = case
        config, found = config_of(game, name, optimizer, weights, discount=0.0), []
        steps_of = learning(config, network, memory, updates, SPEC.stack_size, PER_COPY)
        for done, learned in track(steps_of, ", ".join(case), updates // PER_CALL):
            if done in marks:
                found.append(f"{float(explained(config, network, learned, test)):.3f}")
            if done == updates:
                found.append(f"{float(active(network, learned, test)):.2f}")
        rows.append([*case, *found])
    return ["optimizer", "start", "agent", *(f"explained after {n}" for n in marks), "active units"], rows


def measure_gradients(game: str, updates: int, steps: int) -> tuple[Row, list[Row]]:
    """Compare the gradients of each layer with √ε of RMSProp, early and after some updates."""
    network, memory = random_play(Atari(game, ENVIRONMENTS), steps)
    test = replay.sample(memory, jax.random.key(1), BATCHES * 32, SPEC.stack_size)
    batches = jax.tree.map(lambda x: x.reshape(BATCHES, 32, *x.shape[1:]), test)
    rows = []
    for weights, name in itertools.product(("dqn", "he"), ("clipped", "unclipped", "popart")):
        config = config_of(game, name, "rmsprop", weights)
        sizes = jax.jit(partial(gradient_sizes, config, network))
        steps_of = learning(config, network, memory, updates, SPEC.stack_size, PER_COPY)
        for done, learned in track(steps_of, f"{weights}, {name}", updates // PER_CALL):
            if done in (EARLY, updates):
                found = gradient_rows(learned.params, sizes(learned, batches), config)
                rows += [[weights, name, str(done), *row] for row in found]
    header = ["start", "agent", "updates", "layer", "parameters", "rms / sqrt(epsilon)"]
    return [*header, "below sqrt(epsilon), %", "below a tenth of it, %"], rows


def gradient_sizes(
    config: AgentConfig, network: Network, learned: learner.Learner, batches: Transitions
) -> list[jax.Array]:
    """Return for each layer the mean square of the gradient and the parts of it below √ε and √ε / 10."""
    root = math.sqrt(0.01) / config.batch

    def one(batch: Transitions) -> list[jax.Array]:
        layers = gradient_of(config, network, learned, batch)
        flat = [jnp.concatenate([x.ravel() for x in jax.tree.leaves(layer)]) for layer in layers]
        flat.append(jnp.concatenate(flat))
        size = [jnp.abs(x) for x in flat]
        return [jnp.stack([jnp.mean(x**2), (x < root).mean(), (x < root / 10).mean()]) for x in size]

    return [x.mean(0) for x in jax.lax.map(one, batches)]


def gradient_of(
    config: AgentConfig, network: Network, learned: learner.Learner, batch: Transitions
) -> list[Any]:
    """Return the gradient of the agent's loss, layer by layer, with its statistics as they are."""
    online = learner.values(config, network, learned.params, learned.statistics, batch.next_observation)
    target = learner.values(
        config, network, learned.target_params, learned.target_statistics, batch.next_observation
    )
    y = config.art.affine(learned.statistics).normalize(learner.targets(config, batch, online, target))

    def loss(params: Params) -> jax.Array:
        h = network.features(params["body"], batch.observation)
        error = popart.jax.normalized(params["head"], h, index=batch.action) - y
        return (optax.huber_loss(error) if config.clips else error**2 / 2).mean()

    gradient = jax.grad(loss)(learned.params)
    return [*gradient["body"], gradient["head"]]


def gradient_rows(params: Params, found: list[jax.Array], config: AgentConfig) -> Iterator[Row]:
    names = ("convolution 1", "convolution 2", "convolution 3", "dense", "head", "all")
    counts = [sum(x.size for x in jax.tree.leaves(layer)) for layer in (*params["body"], params["head"])]
    root = math.sqrt(0.01) / config.batch
    for name, count, x in zip(names, [*counts, sum(counts)], found, strict=True):
        square, below, far_below = (float(v) for v in x)
        yield [
            name,
            str(count),
            f"{math.sqrt(square) / root:.3g}",
            f"{100 * below:.2f}",
            f"{100 * far_below:.2f}",
        ]


def measure_backups(updates: int, steps: int) -> tuple[Row, list[Row]]:
    """Learn Catch from random play, and measure values after each copy by the steps that remain."""
    network, memory = random_play(SmallGames("Catch-bsuite", ENVIRONMENTS), steps)
    config = config_of("catch", "unclipped", "adam", "he")
    spec = SmallGames("Catch-bsuite", 1).spec
    test = replay.sample(memory, jax.random.key(1), 4096, spec.stack_size)
    left, best_value = (np.asarray(x) for x in optimum(config, test.observation))

    def by_steps(name: str, values: np.ndarray) -> Row:
        return [name, *(f"{values[left == n].mean():.2f}" for n in range(1, CATCH_STEPS + 1))]

    rows = []
    steps_of = learning(config, network, memory, updates, spec.stack_size, PER_COPY)
    for done, learned in track(steps_of, "copies", updates // PER_CALL):
        if done % PER_COPY == 0:
            q = learner.values(config, network, learned.params, learned.statistics, test.observation)
            rows.append(by_steps(str(done // PER_COPY - 1), np.asarray(q.max(1))))
    rows.append(by_steps("best play", best_value))
    return ["copies", *(f"{n} left" for n in range(1, CATCH_STEPS + 1))], rows


def optimum(config: AgentConfig, observations: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the steps until the ball of Catch is in the last row, and the value of the best play.

    The paddle, in the last row, catches the ball if it is not farther away than the steps that remain.
    """
    board = observations[..., -1].reshape(len(observations), CATCH_STEPS + 1, -1) > 0
    left = CATCH_STEPS - jnp.argmax(board.any(2), 1)
    ball, paddle = jnp.argmax(board[:, :-1].any(1), 1), jnp.argmax(board[:, -1], 1)
    reward = jnp.where(jnp.abs(ball - paddle) <= left, 1.0, -1.0)
    return left, config.discount ** (left - 1) * reward


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", nargs="?", choices=("rewards", "gradients", "backups"), default="rewards")
    parser.add_argument("--game", default="pong")
    parser.add_argument("--updates", type=int, help="default: 8000; 2000 for gradients, 24,000 for backups")
    parser.add_argument(
        "--steps", type=int, default=2500, help=f"agent steps of each of {ENVIRONMENTS} environments"
    )
    parser.add_argument("--path", type=Path, help="default: results/start.csv, results/start_WHAT.csv")
    options = parser.parse_args()
    updates = options.updates or {"rewards": 8000, "gradients": 2000, "backups": 24_000}[options.what]
    if updates < 1 or updates % (4 * PER_CALL):
        parser.error(f"--updates is {updates}; it must be a multiple of {4 * PER_CALL}")
    if options.what == "backups":
        header, rows = measure_backups(updates, options.steps)
    else:
        measure = measure_rewards if options.what == "rewards" else measure_gradients
        header, rows = measure(options.game, updates, options.steps)
    name = "start" if options.what == "rewards" else f"start_{options.what}"
    device = jax.devices()[0]
    publish(
        options.path or Path(f"results/{name}.csv"),
        header,
        rows,
        "start" if options.what == "rewards" else f"start {options.what}",
        "CPU" if device.platform == "cpu" else device.device_kind,
        game="catch" if options.what == "backups" else options.game,
        steps=ENVIRONMENTS * options.steps,
    )


if __name__ == "__main__":
    main()
