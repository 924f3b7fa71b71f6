"""PPO on CartPole in JAX, with and without Pop-Art, for rewards of any size: all of training is one program.

    pip install "popart-learn[jax]" gymnax six
    python examples/ppo_jax.py [--head popart|linear] [--reward-scale 1e4] [--seed 0] [--steps 65536]

The lines that Pop-Art adds or changes end with `# Pop-Art`; docs/how-to/ppo.md explains them. `--head linear`
is the same agent without it: `popart.Fixed()` has a scale of 1 and a shift of 0, so that the head is a plain
linear layer.
"""

import argparse
from functools import partial
from typing import Any, NamedTuple

import gymnax
import jax
import jax.numpy as jnp
import optax

import popart.jax  # Pop-Art

STEPS, ENVIRONMENTS, ROLLOUT = 65_536, 8, 128
EPOCHS, MINIBATCH = 8, 256
GAMMA, LAMBDA = 0.99, 0.95
LEARNING_RATE = 1e-3
CLIP, ENTROPY, MAX_GRADIENT_NORM = 0.2, 0.01, 0.5
EVALUATIONS = 32
SIZE = ENVIRONMENTS * ROLLOUT
ART = {"popart": popart.Moments(beta=0.1), "linear": popart.Fixed()}  # Pop-Art

Array = jax.Array
Params = Any
env, _ = gymnax.make("CartPole-v1")


class Agent(NamedTuple):
    """Parameters, optimizer state and statistics."""

    params: Params
    optimizer: Any
    statistics: Any = None  # Pop-Art


class Rollout(NamedTuple):
    """Steps of all environments, `(ROLLOUT, ENVIRONMENTS, ...)`."""

    observation: Any
    action: Any
    log_probability: Any
    reward: Any
    next_observation: Any
    terminated: Any
    done: Any


def init(adam: optax.GradientTransformation, key: Array) -> Agent:
    def layer(key: Array, inputs: int, outputs: int) -> Params:
        bound = inputs**-0.5
        both = jax.random.uniform(key, (inputs + 1, outputs), minval=-bound, maxval=bound)
        return {"w": both[:inputs], "b": both[inputs]}

    keys = jax.random.split(key, 6)
    params = {
        "actor": [layer(keys[0], 4, 64), layer(keys[1], 64, 64)],
        "policy": layer(keys[2], 64, 2),
        "critic": [layer(keys[3], 4, 64), layer(keys[4], 64, 64)],
        "head": layer(keys[5], 64, 1),
    }
    return Agent(params, adam.init(params))


def linear(layer: Params, x: Array) -> Array:
    return x @ layer["w"] + layer["b"]


def features(layers: list[Params], x: Array) -> Array:
    for layer in layers:
        x = jnp.tanh(linear(layer, x))
    return x


def log_policy(params: Params, observation: Array) -> Array:
    return jax.nn.log_softmax(linear(params["policy"], features(params["actor"], observation)))


def chosen(log_pi: Array, action: Array) -> Array:
    return jnp.take_along_axis(log_pi, action[..., None], -1)[..., 0]


def critic(params: Params, observation: Array) -> Array:
    """Return the outputs of the critic's head: with Pop-Art, values in normalised units."""
    return linear(params["head"], features(params["critic"], observation))[..., 0]


def play(params: Params, games: Any, key: Array) -> tuple[Any, Rollout]:
    """Return the environments after a rollout, and the rollout."""

    def step(games: Any, key: Array) -> tuple[Any, Rollout]:
        x, world = games
        choose, move = jax.random.split(key)
        log_pi = log_policy(params, x)
        action = jax.random.categorical(choose, log_pi)
        keys = jax.random.split(move, ENVIRONMENTS)
        next_x, world, reward, terminated, truncated, info = jax.vmap(env.step)(keys, world, action)
        last, done = info["final_observation"], terminated | truncated
        return (next_x, world), Rollout(x, action, chosen(log_pi, action), reward, last, terminated, done)

    return jax.lax.scan(step, games, jax.random.split(key, ROLLOUT))


def lambda_returns(rollout: Rollout, values: Array, next_values: Array) -> Array:
    """Return values plus generalised advantages, in the units of the rewards."""

    def backward(advantage: Array, step: Any) -> tuple[Array, Array]:
        error, done = step
        advantage = error + GAMMA * LAMBDA * ~done * advantage
        return advantage, advantage

    errors = rollout.reward + GAMMA * ~rollout.terminated * next_values - values
    _, advantages = jax.lax.scan(backward, jnp.zeros(ENVIRONMENTS), (errors, rollout.done), reverse=True)
    return values + advantages


def loss(params: Params, batch: Any) -> Array:
    observation, action, log_old, y, advantage = batch
    log_pi = log_policy(params, observation)
    ratio = jnp.exp(chosen(log_pi, action) - log_old)
    a = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    policy_loss = -jnp.minimum(ratio * a, ratio.clip(1 - CLIP, 1 + CLIP) * a).mean()
    value_loss = ((critic(params, observation) - y) ** 2).mean() / 2
    return policy_loss + value_loss + ENTROPY * (jnp.exp(log_pi) * log_pi).sum(-1).mean()


def learn(head: str, adam: Any, agent: Agent, rollout: Rollout, key: Array) -> Agent:
    """Train for several epochs on a rollout, in minibatches."""
    both = critic(agent.params, jnp.stack((rollout.observation, rollout.next_observation)))
    values, next_values = ART[head].affine(agent.statistics).denormalize(both)  # Pop-Art
    returns = lambda_returns(rollout, values, next_values)
    step = popart.jax.step(ART[head], agent.statistics, agent.params["head"], returns)  # Pop-Art
    agent = agent._replace(params={**agent.params, "head": step.head}, statistics=step.state)  # Pop-Art
    returns, values = step.targets, ART[head].affine(step.state).normalize(values)  # Pop-Art
    columns = (*rollout[:3], returns, returns - values)
    data = jax.tree.map(lambda x: x.reshape(SIZE, *x.shape[2:]), columns)

    def minibatch(carry: tuple[Params, Any], i: Array) -> tuple[tuple[Params, Any], None]:
        params, state = carry
        gradients = jax.grad(loss)(params, jax.tree.map(lambda x: x[i], data))
        updates, state = adam.update(gradients, state, params)
        return (optax.apply_updates(params, updates), state), None

    orders = jax.vmap(partial(jax.random.permutation, x=SIZE))(jax.random.split(key, EPOCHS))
    carry = (agent.params, agent.optimizer)
    (params, state), _ = jax.lax.scan(minibatch, carry, orders.reshape(-1, MINIBATCH))
    return agent._replace(params=params, optimizer=state)


def report(step: Array, falls: Array) -> None:
    print(f"  step {step:6}: the pole fell {falls} times in the last {SIZE} steps", flush=True)


@partial(jax.jit, static_argnames=("head", "steps"))
def train(head: str, reward_scale: float | Array, seed: int | Array, steps: int = STEPS) -> Agent:
    """Return the agent after training on rewards × `reward_scale`."""
    rollouts = -(-steps // SIZE)
    rate = optax.linear_schedule(LEARNING_RATE, 0.0, rollouts * EPOCHS * SIZE // MINIBATCH)
    adam = optax.chain(optax.clip_by_global_norm(MAX_GRADIENT_NORM), optax.adam(rate, eps=1e-5))

    def play_and_learn(carry: Any, i: Array) -> tuple[Any, None]:
        agent, games, key = carry
        key, playing, learning = jax.random.split(key, 3)
        games, rollout = play(agent.params, games, playing)
        falls = rollout.terminated.sum()
        jax.lax.cond(i % 8 == 7, lambda: jax.debug.callback(report, (i + 1) * SIZE, falls), lambda: None)
        rollout = rollout._replace(reward=reward_scale * rollout.reward)
        return (learn(head, adam, agent, rollout, learning), games, key), None

    key, weights, first = jax.random.split(jax.random.key(seed), 3)
    agent = init(adam, weights)
    agent = agent._replace(statistics=popart.jax.init(ART[head], agent.params["head"]))  # Pop-Art
    games = jax.vmap(env.reset)(jax.random.split(first, ENVIRONMENTS))
    (agent, *_), _ = jax.lax.scan(play_and_learn, (agent, games, key), jnp.arange(rollouts))
    return agent


@jax.jit
def evaluate(agent: Agent, seed: int | Array) -> Array:
    """Return the mean return of the greedy policy, in CartPole's own units: steps survived."""

    def step(carry: Any, key: Array) -> tuple[Any, Array]:
        x, world, alive = carry
        action = log_policy(agent.params, x).argmax(-1)
        keys = jax.random.split(key, EVALUATIONS)
        x, world, reward, terminated, truncated, _ = jax.vmap(env.step)(keys, world, action)
        return (x, world, alive & ~(terminated | truncated)), reward * alive

    first, key = jax.random.split(jax.random.key(seed + 1_000_000))
    x, world = jax.vmap(env.reset)(jax.random.split(first, EVALUATIONS))
    _, rewards = jax.lax.scan(step, (x, world, jnp.full(EVALUATIONS, True)), jax.random.split(key, 500))
    return rewards.sum(0).mean()


def main() -> None:
    parser = argparse.ArgumentParser(description="PPO on CartPole in JAX with and without Pop-Art.")
    parser.add_argument("--head", choices=("popart", "linear"), default="popart", help="critic's last layer")
    parser.add_argument("--reward-scale", type=float, default=1.0, help="factor of all rewards")
    parser.add_argument("--seed", type=int, default=0, help="random seed")
    parser.add_argument("--steps", type=int, default=STEPS, help="environment steps of training")
    options = parser.parse_args()

    print(f"PPO in JAX, {options.head} head, rewards × {options.reward_scale:g}", flush=True)
    agent = train(options.head, options.reward_scale, options.seed, options.steps)
    print(f"mean return {evaluate(agent, options.seed):.1f} in {EVALUATIONS} greedy episodes")


if __name__ == "__main__":
    main()
