"""Double DQN on CartPole in JAX, with and without Pop-Art, for rewards of any size: training is one program.

    pip install "popart-learn[jax]" gymnax six
    python examples/dqn_jax.py [--head popart|linear] [--reward-scale 1e4] [--seed 0] [--steps 130000]

The lines that Pop-Art adds or changes end with `# Pop-Art`. `--head linear` is the same agent without it:
`popart.Fixed()` has a scale of 1 and a shift of 0, so that the head is a plain linear layer. With rewards
× 10⁴ that agent learns nothing: values are in the hundreds of thousands, too far for the weights of its head.
"""

import argparse
import math
from functools import partial
from typing import Any, NamedTuple

import gymnax
import jax
import jax.numpy as jnp
import optax

import popart.jax  # Pop-Art

STEPS, ENVIRONMENTS, N_STEP, UPDATES_PER_COPY = 130_000, 16, 20, 20
BATCH, LEARNING_RATE = 256, 1e-3
GAMMA, EPSILON, EXPLORATION = 0.99, 0.1, 20_000
EVALUATIONS = 32
ART = {"popart": popart.Moments(beta=1e-3), "linear": popart.Fixed()}  # Pop-Art

Array = jax.Array
Params = Any
env, _ = gymnax.make("CartPole-v1")
optimizer = popart.jax.rescale_optimizer(optax.adam(LEARNING_RATE), head=lambda p: p["head"])  # Pop-Art


class Agent(NamedTuple):
    """Parameters, optimizer state and statistics; a target network is a copy of all of them."""

    params: Params
    optimizer: Any
    statistics: Any = None  # Pop-Art


class Transitions(NamedTuple):
    """Transitions to the end of the rollout or of the episode. `discount` is 0 where it terminated."""

    observation: Any
    action: Any
    reward: Any
    discount: Any
    next_observation: Any


def init(key: Array) -> Agent:
    def layer(key: Array, m: int, n: int) -> Params:
        return {"w": jax.random.normal(key, (m, n)) * (2 / m) ** 0.5, "b": jnp.zeros(n)}

    first, second, last = jax.random.split(key, 3)
    params = {"body": [layer(first, 4, 64), layer(second, 64, 64)], "head": layer(last, 64, 2)}
    return Agent(params, optimizer.init(params))


def linear(layer: Params, x: Array) -> Array:
    return x @ layer["w"] + layer["b"]


def values(params: Params, x: Array) -> Array:
    """Return the values of all actions: with Pop-Art, in normalised units, in which the best is the same."""
    for layer in params["body"]:
        x = jax.nn.relu(linear(layer, x))
    return linear(params["head"], x)


def learn(art: Any, agent: Agent, target: Agent, batch: Transitions) -> Agent:
    """Take a step on the squared error of the values of the actions that were taken."""
    at = jnp.arange(BATCH)
    best = values(agent.params, batch.next_observation).argmax(-1)
    q = values(target.params, batch.next_observation)[at, best]
    q = art.affine(target.statistics).denormalize(q)  # Pop-Art
    y = batch.reward + batch.discount * q
    step = popart.jax.step(art, agent.statistics, agent.params["head"], y)  # Pop-Art
    agent = agent._replace(params={**agent.params, "head": step.head}, statistics=step.state)  # Pop-Art
    y, params = step.targets, agent.params  # Pop-Art

    def loss(params: Params) -> Array:
        return jnp.mean((values(params, batch.observation)[at, batch.action] - y) ** 2)

    gradients = jax.grad(loss)(params)
    updates, state = optimizer.update(gradients, agent.optimizer, params, change=step.change)  # Pop-Art
    return agent._replace(params=optax.apply_updates(params, updates), optimizer=state)


def play(params: Params, games: Any, epsilon: Array, key: Array) -> tuple[Any, Transitions]:
    """Return the environments after a rollout of `N_STEP` steps, and its transitions."""

    def forward(games: Any, key: Array) -> tuple[Any, Any]:
        x, world = games
        explore, choose, move = jax.random.split(key, 3)
        explores = jax.random.uniform(explore, (ENVIRONMENTS,)) < epsilon
        randomly = jax.random.randint(choose, (ENVIRONMENTS,), 0, 2)
        action = jnp.where(explores, randomly, values(params, x).argmax(-1))
        keys = jax.random.split(move, ENVIRONMENTS)
        next_x, world, reward, terminated, truncated, info = jax.vmap(env.step)(keys, world, action)
        return (next_x, world), (x, action, reward, terminated, truncated, info["final_observation"])

    def backward(carry: Any, step: Any) -> tuple[Any, Transitions]:
        G, discount, after = carry
        x, action, reward, terminated, truncated, last = step
        ends = terminated | truncated
        G = reward + jnp.where(ends, 0.0, GAMMA * G)
        # A truncated episode would have continued, so its last state has a value.
        discount = GAMMA * jnp.where(terminated, 0.0, jnp.where(truncated, 1.0, discount))
        after = jnp.where(ends[:, None], last, after)
        return (G, discount, after), Transitions(x, action, G, discount, after)

    games, steps = jax.lax.scan(forward, games, jax.random.split(key, N_STEP))
    end = (jnp.zeros(ENVIRONMENTS), jnp.ones(ENVIRONMENTS), games[0])
    return games, jax.lax.scan(backward, end, steps, reverse=True)[1]


@partial(jax.jit, static_argnames=("head", "steps"))
def train(head: str, reward_scale: float | Array, seed: int | Array, steps: int = STEPS) -> Agent:
    """Return the agent after training on rewards × `reward_scale`."""
    art, size = ART[head], N_STEP * ENVIRONMENTS
    rollouts = math.ceil(steps / size)

    def play_and_learn(carry: Any, i: Array) -> tuple[Any, None]:
        target, buffer, games, key = carry
        key, playing, learning = jax.random.split(key, 3)
        epsilon = jnp.maximum(EPSILON, 1 - i * size / EXPLORATION)
        games, new = play(target.params, games, epsilon, playing)
        new = new._replace(reward=reward_scale * new.reward)
        rows = i * size + jnp.arange(size)
        buffer = jax.tree.map(lambda old, x: old.at[rows].set(x.reshape(size, *x.shape[2:])), buffer, new)

        def one(agent: Agent, key: Array) -> tuple[Agent, None]:
            chosen = jax.random.randint(key, (BATCH,), 0, (i + 1) * size)
            return learn(art, agent, target, jax.tree.map(lambda x: x[chosen], buffer)), None

        agent, _ = jax.lax.scan(one, target, jax.random.split(learning, UPDATES_PER_COPY))
        return (agent, buffer, games, key), None

    key, weights, first = jax.random.split(jax.random.key(seed), 3)
    agent = init(weights)
    agent = agent._replace(statistics=popart.jax.init(art, agent.params["head"]))  # Pop-Art
    games = jax.vmap(env.reset)(jax.random.split(first, ENVIRONMENTS))
    number, observation = jnp.zeros(rollouts * size), jnp.zeros((rollouts * size, 4))
    buffer = Transitions(observation, number.astype(int), number, number, observation)
    (agent, *_), _ = jax.lax.scan(play_and_learn, (agent, buffer, games, key), jnp.arange(rollouts))
    return agent


@jax.jit
def evaluate(agent: Agent, seed: int | Array) -> Array:
    """Return the mean return of the greedy policy, in CartPole's own units: steps survived."""

    def step(carry: Any, key: Array) -> tuple[Any, Array]:
        x, world, alive = carry
        action = values(agent.params, x).argmax(-1)
        keys = jax.random.split(key, EVALUATIONS)
        x, world, reward, terminated, truncated, _ = jax.vmap(env.step)(keys, world, action)
        return (x, world, alive & ~(terminated | truncated)), reward * alive

    first, key = jax.random.split(jax.random.key(seed + 1_000_000))
    x, world = jax.vmap(env.reset)(jax.random.split(first, EVALUATIONS))
    _, rewards = jax.lax.scan(step, (x, world, jnp.full(EVALUATIONS, True)), jax.random.split(key, 500))
    return rewards.sum(0).mean()


def main() -> None:
    parser = argparse.ArgumentParser(description="Double DQN on CartPole in JAX with and without Pop-Art.")
    parser.add_argument("--head", choices=("popart", "linear"), default="popart", help="last layer")
    parser.add_argument("--reward-scale", type=float, default=1.0, help="factor of all rewards")
    parser.add_argument("--seed", type=int, default=0, help="random seed")
    parser.add_argument("--steps", type=int, default=STEPS, help="environment steps of training")
    options = parser.parse_args()

    print(f"DQN in JAX, {options.head} head, rewards × {options.reward_scale:g}", flush=True)
    agent = train(options.head, options.reward_scale, options.seed, options.steps)
    print(f"mean return {evaluate(agent, options.seed):.1f} in {EVALUATIONS} greedy episodes")


if __name__ == "__main__":
    main()
