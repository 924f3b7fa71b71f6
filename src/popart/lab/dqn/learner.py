r"""Double DQN: how an agent learns, and how it acts.

Targets are in the units of the rewards,
$Y = R + \gamma Q(S', \arg\max_a Q(S', a; \theta); \theta^-)$,
and each of the two networks has its own statistics. An agent without Pop-Art has `popart.Fixed()`: a scale of
1 and a shift of 0, so that everything else is the same.
"""

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax

import popart
import popart.jax
from popart.lab.dqn.networks import Network, Params, he
from popart.lab.dqn.replay import Transitions

AgentName = Literal["clipped", "unclipped", "popart"]


@dataclass(frozen=True)
class Settings:
    """What an agent is. Defaults are those of the tuned Double DQN and of the Pop-Art paper."""

    agent: AgentName = "popart"
    """clipped: rewards and errors clipped to [-1, 1]; unclipped: neither; popart: neither, with Pop-Art."""

    discount: float = 0.99
    """γ: how much a reward counts one step later."""

    batch: int = 32
    """Transitions per update."""

    optimizer: Literal["rmsprop", "adam"] = "rmsprop"
    """RMSProp is centred, decays by 0.95 and has its epsilon inside the root, as DQN's. Adam's epsilon is
    Rainbow's: with a small one, steps are as large when there is nothing to learn, and units die of them."""

    step_size: float = 1e-4
    """Of the network."""

    start: Literal["dqn", "he"] = "dqn"
    """Of the network's weights: DQN's, or `networks.he`."""

    beta: float = 1e-4
    """Of Pop-Art's statistics."""

    @property
    def clips(self) -> bool:
        return self.agent == "clipped"

    @property
    def art(self) -> popart.Rule[Any, Any]:
        return popart.Moments(self.beta) if self.agent == "popart" else popart.Fixed()


class Learner(NamedTuple):
    """Parameters mean nothing without the statistics that they are normalised with: both are copied."""

    params: Params
    statistics: Any
    target_params: Params
    target_statistics: Any
    moments: Any
    updates: jax.Array


class Metrics(NamedTuple):
    """Of one update: the loss, norms of gradients, and the normalisation after it."""

    loss: jax.Array
    gradient_norm: jax.Array
    body_norm: jax.Array
    head_norm: jax.Array
    scale: jax.Array
    shift: jax.Array


def init(settings: Settings, network: Network, key: jax.Array) -> Learner:
    params = network.init(key) if settings.start == "dqn" else he(network.init(key))
    statistics = popart.jax.init(settings.art, params["head"])
    moments = _optimizer(settings).init(params)
    learner = Learner(params, statistics, params, statistics, moments, jnp.zeros((), jnp.int32))
    return copy_target(learner)


def copy_target(learner: Learner) -> Learner:
    """The target network becomes a copy of the online network."""
    params, statistics = jax.tree.map(jnp.copy, (learner.params, learner.statistics))
    return learner._replace(target_params=params, target_statistics=statistics)


def act(
    network: Network, params: Params, observations: jax.Array, epsilon: jax.Array | float, key: jax.Array
) -> jax.Array:
    """The best actions, or with probability epsilon random ones. Which is best does not depend on units."""
    explore, choose = jax.random.split(key)
    best = popart.jax.normalized(params["head"], network.features(params["body"], observations)).argmax(-1)
    anything = jax.random.randint(choose, best.shape, 0, network.actions)
    return jnp.where(jax.random.uniform(explore, best.shape) < epsilon, anything, best)


def values(
    settings: Settings, network: Network, params: Params, statistics: Any, observations: jax.Array
) -> jax.Array:
    """Q in the units of the rewards, (batch, actions)."""
    h = network.features(params["body"], observations)
    return popart.jax.values(settings.art, statistics, params["head"], h)


def targets(settings: Settings, batch: Transitions, online: jax.Array, target: jax.Array) -> jax.Array:
    """Y of Double DQN, in the units of the rewards.

    Of `batch.later`, `online` has the online network's values, in any units, and `target` those of the target
    network in the units of the rewards.
    """
    later = jnp.take_along_axis(target, online.argmax(-1)[:, None], 1)[:, 0]
    reward = jnp.clip(batch.reward, -1, 1) if settings.clips else batch.reward
    return reward + jnp.where(batch.terminal, 0.0, settings.discount * later)


def learn(
    settings: Settings, network: Network, learner: Learner, batches: Transitions
) -> tuple[Learner, Metrics]:
    """One update for each batch of (updates, batch, ...), with the same target network.

    That network's values do not depend on the updates, and are computed for all of them at once.
    """
    later = batches.later.reshape(-1, *batches.later.shape[2:])
    target = values(settings, network, learner.target_params, learner.target_statistics, later)
    target = target.reshape(*batches.reward.shape, -1)
    return jax.lax.scan(lambda agent, x: update(settings, network, agent, *x), learner, (batches, target))


def update(
    settings: Settings, network: Network, learner: Learner, batch: Transitions, target: jax.Array
) -> tuple[Learner, Metrics]:
    """One step: targets, statistics and head, then the gradient. `target` is as in `targets`."""
    body = learner.params["body"]
    online = popart.jax.normalized(learner.params["head"], network.features(body, batch.later))
    y = targets(settings, batch, online, target)
    step = popart.jax.step(settings.art, learner.statistics, learner.params["head"], y, weights=batch.weight)
    params = {**learner.params, "head": step.head}

    def loss(params: Params) -> jax.Array:
        h = network.features(params["body"], batch.observation)
        error = popart.jax.normalized(params["head"], h, index=batch.action) - step.targets
        cost = optax.huber_loss(error) if settings.clips else error**2 / 2
        return (batch.weight * cost).mean()

    value, gradient = jax.value_and_grad(loss)(params)
    changes, moments = _optimizer(settings).update(gradient, learner.moments, params, change=step.change)
    affine = settings.art.affine(step.state)
    body_norm, head_norm = _norm(gradient["body"]), _norm(gradient["head"])
    metrics = Metrics(
        value, jnp.hypot(body_norm, head_norm), body_norm, head_norm, affine.scale, affine.shift
    )
    learner = learner._replace(
        params=optax.apply_updates(params, changes),
        statistics=step.state,
        moments=moments,
        updates=learner.updates + 1,
    )
    return learner, metrics


def _norm(tree: Any) -> jax.Array:
    return jnp.sqrt(sum(jnp.vdot(x, x) for x in jax.tree.leaves(tree)))


def _optimizer(settings: Settings) -> optax.GradientTransformationExtraArgs:
    """DQN's RMSProp takes the sum over the batch and adds 0.01 inside the root; this takes the mean."""
    if settings.optimizer == "adam":
        inner = optax.adam(settings.step_size, eps=1.5e-4)
    else:
        epsilon = 0.01 / settings.batch**2
        inner = optax.rmsprop(settings.step_size, 0.95, epsilon, centered=True, eps_in_sqrt=True)
    return popart.jax.rescale_moments(inner, lambda params: params["head"])
