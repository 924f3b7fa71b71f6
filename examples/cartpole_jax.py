"""Double DQN on CartPole whose rewards are multiplied by 10⁴, with and without Pop-Art, all of it compiled.

The settings are those with which an agent without Pop-Art learns to balance the pole when each step is
worth 1. When each is worth 10⁴ the values are in the hundreds of thousands: too far for the weights of
its last layer to go, and it learns nothing. With Pop-Art the same settings serve for both, and if the
factor is a power of two the parameters are the same to the bit.

    pip install popart-learn[jax] gymnax
    python examples/cartpole_jax.py [--head popart|linear] [--reward-scale 1e4] [--seed 0] [--steps N]

To put Pop-Art into an agent of your own, see what `learn` does with `art`. The agent without Pop-Art is
the same with `popart.Fixed()`, whose scale is 1 and whose shift is 0, so that it changes nothing.
"""

import argparse
from functools import partial
from typing import Any, NamedTuple

import gymnax
import jax
import jax.numpy as jnp
import optax

import popart
import popart.jax

STEPS, ENVIRONMENTS, N_STEP, UPDATES_PER_COPY = 160_000, 16, 20, 20
BATCH, LEARNING_RATE, BETA = 256, 1e-3, 1e-3
GAMMA, EPSILON, EXPLORATION = 0.99, 0.1, 20_000
EVALUATIONS = 32

Array = jax.Array
Params = Any
env, _ = gymnax.make("CartPole-v1")


class Transitions(NamedTuple):
    """From each step to the end of its window, or of its episode. `discount` is 0 where the pole fell."""

    observation: Any
    action: Any
    reward: Any
    discount: Any
    later: Any


class Agent(NamedTuple):
    params: Params
    state: Any
    moments: Any


def init(key: Array) -> Params:
    def layer(key: Array, m: int, n: int) -> Params:
        return {"w": jax.random.normal(key, (m, n)) * (2 / m) ** 0.5, "b": jnp.zeros(n)}

    first, second, last = jax.random.split(key, 3)
    return {"body": [layer(first, 4, 64), layer(second, 64, 64)], "head": layer(last, 64, 2)}


def features(params: Params, x: Array) -> Array:
    for layer in params["body"]:
        x = jax.nn.relu(x @ layer["w"] + layer["b"])
    return x


def greedy(params: Params, x: Array) -> Array:
    """The best action, which is the same in any units."""
    return popart.jax.normalized(params["head"], features(params, x)).argmax(-1)


def of(action: Array, q: Array) -> Array:
    return jnp.take_along_axis(q, action[:, None], axis=1)[:, 0]


def play(
    params: Params, x: Array, world: Any, epsilon: Array, reward_scale: float | Array, key: Array
) -> tuple[Array, Any, Transitions]:
    """`N_STEP` steps in all environments."""

    def forward(carry: Any, key: Array) -> tuple[Any, Any]:
        x, world = carry
        explore, choose, move = jax.random.split(key, 3)
        dice = jax.random.uniform(explore, (ENVIRONMENTS,))
        anything = jax.random.randint(choose, (ENVIRONMENTS,), 0, 2)
        action = jnp.where(dice < epsilon, anything, greedy(params, x))
        keys = jax.random.split(move, ENVIRONMENTS)
        next_x, world, reward, terminated, truncated, info = jax.vmap(env.step)(keys, world, action)
        step = (x, action, reward_scale * reward, terminated, truncated, info["final_observation"])
        return (next_x, world), step

    def backward(carry: Any, step: Any) -> tuple[Any, Transitions]:
        G, discount, later = carry
        x, action, reward, terminated, truncated, last = step
        ends = terminated | truncated
        G = reward + jnp.where(ends, 0.0, GAMMA * G)
        # An episode that only ran out of time would have gone on, so its last state has a value.
        discount = GAMMA * jnp.where(terminated, 0.0, jnp.where(truncated, 1.0, discount))
        later = jnp.where(ends[:, None], last, later)
        return (G, discount, later), Transitions(x, action, G, discount, later)

    (x, world), steps = jax.lax.scan(forward, (x, world), jax.random.split(key, N_STEP))
    nothing = jnp.zeros(ENVIRONMENTS)
    _, transitions = jax.lax.scan(backward, (nothing, nothing + 1, x), steps, reverse=True)
    return x, world, transitions


@partial(jax.jit, static_argnames=("head", "steps"))
def learn(head: str, reward_scale: float | Array, seed: int | Array, steps: int) -> tuple[Params, Any]:
    """The parameters and the statistics after training."""
    art = popart.Moments(beta=BETA) if head == "popart" else popart.Fixed()
    optimizer = popart.jax.rescale_moments(optax.adam(LEARNING_RATE), head=lambda params: params["head"])
    size = N_STEP * ENVIRONMENTS
    rounds = steps // size

    def update(agent: Agent, target: Agent, batch: Transitions) -> Agent:
        best = greedy(agent.params, batch.later)
        h = features(target.params, batch.later)
        q = popart.jax.values(art, target.state, target.params["head"], h)
        y = batch.reward + batch.discount * of(best, q)

        state, head, y, change = popart.jax.step(art, agent.state, agent.params["head"], y)
        params = {**agent.params, "head": head}

        def loss(params: Params) -> Array:
            q = popart.jax.normalized(params["head"], features(params, batch.observation))
            return jnp.mean((of(batch.action, q) - y) ** 2)

        updates, moments = optimizer.update(jax.grad(loss)(params), agent.moments, params, change=change)
        return Agent(optax.apply_updates(params, updates), state, moments)

    def round_(carry: Any, i: Array) -> tuple[Any, None]:
        agent, memory, x, world, key = carry
        key, playing, learning = jax.random.split(key, 3)
        epsilon = jnp.maximum(EPSILON, 1 - i * size / EXPLORATION)
        x, world, new = play(agent.params, x, world, epsilon, reward_scale, playing)
        memory = jax.tree.map(lambda old, new: old.at[i].set(new.reshape(old.shape[1:])), memory, new)
        past = jax.tree.map(lambda old: old.reshape(-1, *old.shape[2:]), memory)

        def one(now: Agent, key: Array) -> tuple[Agent, None]:
            chosen = jax.random.randint(key, (BATCH,), 0, (i + 1) * size)
            return update(now, agent, jax.tree.map(lambda x: x[chosen], past)), None

        now, _ = jax.lax.scan(one, agent, jax.random.split(learning, UPDATES_PER_COPY))
        return (now, memory, x, world, key), None

    key, weights, start = jax.random.split(jax.random.key(seed), 3)
    params = init(weights)
    agent = Agent(params, popart.jax.init(art, params["head"]), optimizer.init(params))
    x, world = jax.vmap(env.reset)(jax.random.split(start, ENVIRONMENTS))
    empty = jnp.zeros((rounds, size))
    observations = jnp.zeros((rounds, size, 4))
    memory = Transitions(observations, empty.astype(int), empty, empty, observations)
    (agent, *_), _ = jax.lax.scan(round_, (agent, memory, x, world, key), jnp.arange(rounds))
    return agent.params, agent.state


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
    params, _ = learn(head, reward_scale, seed, steps)
    return float(evaluate(params, seed))


def main() -> None:
    parser = argparse.ArgumentParser(
        description="DQN on CartPole with large rewards, with and without Pop-Art."
    )
    parser.add_argument(
        "--head", choices=("popart", "linear"), help="the last layer; by default both in turn"
    )
    parser.add_argument("--reward-scale", type=float, default=1e4, help="by what rewards are multiplied")
    parser.add_argument("--seed", type=int, default=0, help="of everything that is random")
    parser.add_argument("--steps", type=int, default=STEPS, help="how many steps of CartPole to learn from")
    arguments = parser.parse_args()

    for head in (arguments.head,) if arguments.head else ("linear", "popart"):
        print(f"{head}, rewards × {arguments.reward_scale:g}", flush=True)
        mean = train(head, arguments.reward_scale, arguments.seed, arguments.steps)
        print(f"  after training: mean return {mean:.1f} in {EVALUATIONS} greedy episodes", flush=True)


if __name__ == "__main__":
    main()
