r"""Double DQN: how an agent learns, and how it acts.

Targets are in the units of the rewards,
$Y = R + \gamma Q(S', \arg\max_a Q(S', a; \theta); \theta^-)$,
and each of the two networks has its own statistics. An agent without Pop-Art has `popart.Fixed()`, a scale of
1 and a shift of 0, so that everything else is the same.

A network may have more outputs than its game has actions, if agents of several games share a program. These
padded outputs come last, are never chosen, and are in no target.

One network may also learn several tasks (`popart.lab.dqn.tasks`). A batch then has the task of each
transition, and the head has an output layer per task.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

import popart.jax
from popart.alternatives import ReturnScaling
from popart.jax.alternatives import Head
from popart.lab.dqn.config import AgentConfig
from popart.lab.dqn.networks import Network, Params, he
from popart.lab.dqn.replay import Transitions


class Learner(NamedTuple):
    """The state of an agent.

    Parameters are copied together with the statistics that their outputs are normalised with.
    """

    params: Params
    statistics: Any
    target_params: Params
    target_statistics: Any
    optimizer: Any
    updates: jax.Array


class Policy(NamedTuple):
    """A playing agent: parameters, and the statistics that their outputs are normalised with."""

    params: Params
    statistics: Any


class Metrics(NamedTuple):
    """The loss of an update, norms of its gradient, and the scale and shift after it."""

    loss: jax.Array
    gradient_norm: jax.Array
    body_norm: jax.Array
    head_norm: jax.Array
    scale: jax.Array
    shift: jax.Array


def init(config: AgentConfig, network: Network, key: jax.Array) -> Learner:
    params = network.init(key) if config.initial_weights == "dqn" else he(network.init(key))
    head = config.head(network.actions)
    if head.width > 1:
        params = {**params, "head": jax.tree.map(partial(_widened, head.width), params["head"])}
    statistics = head.init(params["head"])
    optimizer = _optimizer(config).init(params)
    learner = Learner(params, statistics, params, statistics, optimizer, jnp.zeros((), jnp.int32))
    return copy_target(learner)


def _widened(width: int, x: jax.Array) -> jax.Array:
    """Return zeros with `width` numbers for each output, which is on the last axis."""
    return jnp.zeros((*x.shape[:-1], x.shape[-1] * width))


def copy_target(learner: Learner) -> Learner:
    """Copy the online network to the target network."""
    params, statistics = jax.tree.map(jnp.copy, (learner.params, learner.statistics))
    return learner._replace(target_params=params, target_statistics=statistics)


def act(
    network: Network,
    params: Params,
    observations: jax.Array,
    epsilon: jax.Array | float,
    key: jax.Array,
    actions: jax.Array | int | None = None,
    head: Head | None = None,
) -> jax.Array:
    """Choose the best actions, or random ones with probability epsilon. Units do not change the best."""
    explore, choose = jax.random.split(key)
    normalized = popart.jax.normalized if head is None else head.normalized
    outputs = normalized(params["head"], network.features(params["body"], observations))
    best = best_action(outputs, actions)
    number = network.actions if actions is None else actions
    random = jax.random.randint(choose, best.shape, 0, number)
    return jnp.where(jax.random.uniform(explore, best.shape) < epsilon, random, best)


def best_action(values: jax.Array, actions: jax.Array | int | None) -> jax.Array:
    """Return the action with the largest value, of the first `actions`; the others are padding."""
    if actions is not None:
        values = jnp.where(jnp.arange(values.shape[-1]) < actions, values, -jnp.inf)
    return values.argmax(-1)


def values(
    config: AgentConfig,
    network: Network,
    params: Params,
    statistics: Any,
    observations: jax.Array,
    task: jax.Array | None = None,
) -> jax.Array:
    """Return Q in the units of the rewards, (batch, actions)."""
    h = network.features(params["body"], observations)
    return config.head(network.actions).values(statistics, params["head"], h, index=task)


def targets(
    config: AgentConfig,
    batch: Transitions,
    online: jax.Array,
    target: jax.Array,
    actions: jax.Array | int | None = None,
) -> jax.Array:
    """Return Y of Double DQN, in the units of the rewards.

    `online` are the online network's values of `batch.next_observation`, in any units, and `target` those of
    the target network in the units of the rewards. `actions` is one number, or one for each task.
    """
    if batch.task is not None and actions is not None:
        actions = jnp.asarray(actions)[batch.task][:, None]
    value = jnp.take_along_axis(target, best_action(online, actions)[:, None], 1)[:, 0]
    return _reward(config, batch) + jnp.where(batch.terminal, 0.0, config.discount * value)


def _reward(config: AgentConfig, batch: Transitions) -> jax.Array:
    return jnp.clip(batch.reward, -1, 1) if config.clips else batch.reward


def learn(
    config: AgentConfig,
    network: Network,
    learner: Learner,
    batches: Transitions,
    actions: jax.Array | int | None = None,
    due: jax.Array | None = None,
) -> tuple[Learner, Metrics]:
    """Make one update for each batch of (updates, batch, ...), all with the same target network.

    The target network's values do not depend on the updates, and are computed for all of them at once. Where
    `due` is False nothing changes.
    """
    observations = batches.next_observation.reshape(-1, *batches.next_observation.shape[2:])
    task = None if batches.task is None else batches.task.reshape(-1)
    target = values(config, network, learner.target_params, learner.target_statistics, observations, task)
    target = target.reshape(*batches.reward.shape, -1)

    def step(agent: Learner, x: tuple[Transitions, jax.Array]) -> tuple[Learner, Metrics]:
        learned, metrics = update(config, network, agent, *x, actions)
        return learned if due is None else jax.tree.map(partial(jnp.where, due), learned, agent), metrics

    return jax.lax.scan(step, learner, (batches, target))


def update(
    config: AgentConfig,
    network: Network,
    learner: Learner,
    batch: Transitions,
    target: jax.Array,
    actions: jax.Array | int | None = None,
) -> tuple[Learner, Metrics]:
    """Make one update: targets, statistics and head, then the gradient. `target` is as in `targets`."""
    body, head = learner.params["body"], config.head(network.actions)
    h = network.features(body, batch.next_observation)
    online = head.normalized(learner.params["head"], h, index=batch.task)
    y = targets(config, batch, online, target, actions)
    if isinstance(head.art, ReturnScaling):
        discount = jnp.where(batch.terminal, 0.0, config.discount)
        y = jnp.stack((_reward(config, batch), discount, y), -1)
    step = head.step(learner.statistics, learner.params["head"], y, weights=batch.weight, index=batch.task)
    output = batch.action if batch.task is None else jnp.stack((batch.task, batch.action))
    params = {**learner.params, "head": step.head}

    def loss(params: Params) -> jax.Array:
        h = network.features(params["body"], batch.observation)
        return (batch.weight * head.loss(params["head"], h, step.targets, index=output)).mean()

    value, gradient = jax.value_and_grad(loss)(params)
    changes, optimizer = _optimizer(config).update(gradient, learner.optimizer, params, change=step.change)
    affine = head.affine(step.state)
    body_norm, head_norm = _norm(gradient["body"]), _norm(gradient["head"])
    metrics = Metrics(
        value, jnp.hypot(body_norm, head_norm), body_norm, head_norm, affine.scale, affine.shift
    )
    learner = learner._replace(
        params=optax.apply_updates(params, changes),
        statistics=step.state,
        optimizer=optimizer,
        updates=learner.updates + 1,
    )
    return learner, metrics


def _norm(tree: Any) -> jax.Array:
    return jnp.sqrt(sum(jnp.vdot(x, x) for x in jax.tree.leaves(tree)))


def _optimizer(config: AgentConfig) -> optax.GradientTransformationExtraArgs:
    """Return the optimizer, for gradients that are means over the batch."""
    if config.optimizer == "adam":
        inner = optax.adam(config.learning_rate, eps=1.5e-4)
    else:
        epsilon = config.rmsprop_epsilon / config.batch**2
        inner = optax.rmsprop(config.learning_rate, 0.95, epsilon, centered=True, eps_in_sqrt=True)
    return popart.jax.rescale_optimizer(inner, lambda params: params["head"])
