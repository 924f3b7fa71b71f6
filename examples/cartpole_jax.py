"""Double DQN on CartPole whose rewards are multiplied by 10⁴, with and without Pop-Art, compiled whole.

The settings are those with which an agent without Pop-Art learns to balance the pole when each step is
worth 1. When each is worth 10⁴ the values are in the hundreds of thousands: too far for the weights of
its last layer to go, and it learns nothing. With Pop-Art the same settings serve for both, and if the
factor is a power of two the parameters are the same to the bit.

    pip install popart-learn[jax] gymnax
    python examples/cartpole_jax.py [--head popart|linear] [--reward-scale 1e4] [--seed 0] [--steps N]

To put Pop-Art into an agent of your own, see `update`. The agent without Pop-Art is the same one with
`popart.Fixed()`: a scale of 1 and a shift of 0, so that nothing is rescaled.
"""

import argparse
import math
from functools import partial
from typing import Any, NamedTuple

import gymnax
import jax
import jax.numpy as jnp
import optax

import popart
import popart.jax

STEPS, ENVIRONMENTS, N_STEP, UPDATES_PER_COPY = 130_000, 16, 20, 20
BATCH, LEARNING_RATE, BETA = 256, 1e-3, 1e-3
GAMMA, EPSILON, EXPLORATION = 0.99, 0.1, 20_000
EVALUATIONS = 32

Array = jax.Array
Params = Any
ARTS: dict[str, popart.Rule[Any]] = {"linear": popart.Fixed(), "popart": popart.Moments(beta=BETA)}
env, _ = gymnax.make("CartPole-v1")
optimizer = popart.jax.rescale_moments(optax.adam(LEARNING_RATE), head=lambda params: params["head"])


class Agent(NamedTuple):
    """Parameters mean nothing without the statistics they are normalised with: both are kept and copied."""

    params: Params
    statistics: Any
    moments: Any


class Transitions(NamedTuple):
    """From each step of a round to its end, or to the episode's. `discount` is 0 where the pole fell."""

    observation: Any
    action: Any
    reward: Any
    discount: Any
    later: Any


def init(art: popart.Rule[Any], key: Array) -> Agent:
    def layer(key: Array, m: int, n: int) -> Params:
        return {"w": jax.random.normal(key, (m, n)) * (2 / m) ** 0.5, "b": jnp.zeros(n)}

    first, second, last = jax.random.split(key, 3)
    params = {"body": [layer(first, 4, 64), layer(second, 64, 64)], "head": layer(last, 64, 2)}
    return Agent(params, popart.jax.init(art, params["head"]), optimizer.init(params))


def features(params: Params, x: Array) -> Array:
    for layer in params["body"]:
        x = jax.nn.relu(x @ layer["w"] + layer["b"])
    return x


def greedy(params: Params, x: Array) -> Array:
    """The best action, which is the same in any units."""
    return popart.jax.normalized(params["head"], features(params, x)).argmax(-1)


def update(art: popart.Rule[Any], agent: Agent, target: Agent, batch: Transitions) -> Agent:
    at = jnp.arange(BATCH)
    h = features(target.params, batch.later)
    q = popart.jax.values(art, target.statistics, target.params["head"], h)
    y = batch.reward + batch.discount * q[at, greedy(agent.params, batch.later)]

    statistics, head, y, change = popart.jax.step(art, agent.statistics, agent.params["head"], y)
    params = {**agent.params, "head": head}

    def loss(params: Params) -> Array:
        q = popart.jax.normalized(params["head"], features(params, batch.observation))
        return jnp.mean((q[at, batch.action] - y) ** 2)

    updates, moments = optimizer.update(jax.grad(loss)(params), agent.moments, params, change=change)
    return Agent(optax.apply_updates(params, updates), statistics, moments)


def play(params: Params, games: Any, epsilon: Array, key: Array) -> tuple[Any, Transitions]:
    """A round: `N_STEP` steps of each environment."""

    def forward(games: Any, key: Array) -> tuple[Any, Any]:
        x, world = games
        explore, choose, move = jax.random.split(key, 3)
        explores = jax.random.uniform(explore, (ENVIRONMENTS,)) < epsilon
        action = jnp.where(explores, jax.random.randint(choose, (ENVIRONMENTS,), 0, 2), greedy(params, x))
        keys = jax.random.split(move, ENVIRONMENTS)
        next_x, world, reward, terminated, truncated, info = jax.vmap(env.step)(keys, world, action)
        return (next_x, world), (x, action, reward, terminated, truncated, info["final_observation"])

    def backward(carry: Any, step: Any) -> tuple[Any, Transitions]:
        G, discount, later = carry
        x, action, reward, terminated, truncated, last = step
        ends = terminated | truncated
        G = reward + jnp.where(ends, 0.0, GAMMA * G)
        # An episode that only ran out of time would have gone on, so its last state has a value.
        discount = GAMMA * jnp.where(terminated, 0.0, jnp.where(truncated, 1.0, discount))
        later = jnp.where(ends[:, None], last, later)
        return (G, discount, later), Transitions(x, action, G, discount, later)

    games, steps = jax.lax.scan(forward, games, jax.random.split(key, N_STEP))
    end = (jnp.zeros(ENVIRONMENTS), jnp.ones(ENVIRONMENTS), games[0])
    return games, jax.lax.scan(backward, end, steps, reverse=True)[1]


@partial(jax.jit, static_argnames=("head", "steps"))
def learn(head: str, reward_scale: float | Array, seed: int | Array, steps: int) -> Agent:
    """The agent after training."""
    size = N_STEP * ENVIRONMENTS
    rounds = math.ceil(steps / size)

    def play_and_learn(carry: Any, i: Array) -> tuple[Any, None]:
        target, memory, games, key = carry
        key, playing, learning = jax.random.split(key, 3)
        epsilon = jnp.maximum(EPSILON, 1 - i * size / EXPLORATION)
        games, new = play(target.params, games, epsilon, playing)
        new = new._replace(reward=reward_scale * new.reward)
        rows = i * size + jnp.arange(size)
        memory = jax.tree.map(lambda old, x: old.at[rows].set(x.reshape(size, *x.shape[2:])), memory, new)

        def one(agent: Agent, key: Array) -> tuple[Agent, None]:
            chosen = jax.random.randint(key, (BATCH,), 0, (i + 1) * size)
            return update(ARTS[head], agent, target, jax.tree.map(lambda x: x[chosen], memory)), None

        agent, _ = jax.lax.scan(one, target, jax.random.split(learning, UPDATES_PER_COPY))
        return (agent, memory, games, key), None

    key, weights, start = jax.random.split(jax.random.key(seed), 3)
    games = jax.vmap(env.reset)(jax.random.split(start, ENVIRONMENTS))
    number, observation = jnp.zeros(rounds * size), jnp.zeros((rounds * size, 4))
    memory = Transitions(observation, number.astype(int), number, number, observation)
    carry = (init(ARTS[head], weights), memory, games, key)
    (agent, *_), _ = jax.lax.scan(play_and_learn, carry, jnp.arange(rounds))
    return agent


@jax.jit
def evaluate(params: Params, seed: int | Array) -> Array:
    """The mean return of the greedy policy, in CartPole's own units: steps survived."""

    def step(carry: Any, key: Array) -> tuple[Any, Array]:
        x, world, alive = carry
        keys = jax.random.split(key, EVALUATIONS)
        x, world, reward, terminated, truncated, _ = jax.vmap(env.step)(keys, world, greedy(params, x))
        return (x, world, alive & ~(terminated | truncated)), reward * alive

    start, key = jax.random.split(jax.random.key(seed + 1_000_000))
    x, world = jax.vmap(env.reset)(jax.random.split(start, EVALUATIONS))
    _, rewards = jax.lax.scan(step, (x, world, jnp.full(EVALUATIONS, True)), jax.random.split(key, 500))
    return rewards.sum(0).mean()


def train(head: str, reward_scale: float, seed: int, steps: int = STEPS) -> float:
    """The mean return of the greedy policy after training, in CartPole's own units: steps survived."""
    return float(evaluate(learn(head, reward_scale, seed, steps).params, seed))


def main() -> None:
    parser = argparse.ArgumentParser(
        description="DQN on CartPole with large rewards, with and without Pop-Art."
    )
    parser.add_argument("--head", choices=ARTS, help="the last layer; by default both in turn")
    parser.add_argument("--reward-scale", type=float, default=1e4, help="by what rewards are multiplied")
    parser.add_argument("--seed", type=int, default=0, help="of everything that is random")
    parser.add_argument("--steps", type=int, default=STEPS, help="how many steps of CartPole to learn from")
    arguments = parser.parse_args()

    for head in (arguments.head,) if arguments.head else ARTS:
        print(f"{head}, rewards × {arguments.reward_scale:g}", flush=True)
        mean = train(head, arguments.reward_scale, arguments.seed, arguments.steps)
        print(f"  after training: mean return {mean:.1f} in {EVALUATIONS} greedy episodes", flush=True)


if __name__ == "__main__":
    main()
