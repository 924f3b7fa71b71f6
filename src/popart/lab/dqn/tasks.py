"""Several tasks learned by one network: a common body, and an output layer per task.

As in Hessel et al., 2018, *Multi-task deep reinforcement learning with PopArt* (arXiv 1809.04474), each task
has its own statistics. Observations are flattened and padded with zeros to the longest; outputs are padded to
the largest number of actions.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import jax
import jax.numpy as jnp

from popart.jax.alternatives import Array, Linear, Tree
from popart.jax.heads import normalized
from popart.lab.dqn.methods import MethodConfig, config_of
from popart.lab.dqn.networks import MLP, Params
from popart.lab.dqn.replay import Transitions

ONE_STATISTIC = "one_statistic"
"""Pop-Art with one statistic for all tasks."""

BATCH = 32
"""Transitions of each task per update."""


@dataclass(frozen=True)
class TasksMLP(MLP):
    """Fully connected layers that all tasks share, and an output layer for each."""

    tasks: int = 1

    def init(self, key: jax.Array) -> Params:
        """Return parameters whose head has a leading axis of tasks."""
        first, *others = (super(TasksMLP, self).init(k) for k in jax.random.split(key, self.tasks))
        heads = [params["head"] for params in (first, *others)]
        return {"body": first["body"], "head": jax.tree.map(lambda *x: jnp.stack(x), *heads)}

    def features(self, body: Any, observations: jax.Array) -> jax.Array:
        return super().features(body, padded(observations, self.inputs))


@dataclass(frozen=True)
class TasksLinear(Linear):
    """A linear layer per task, whose outputs are the actions of the task."""

    shared: bool = False
    """Whether all tasks have one statistic; otherwise each has its own."""

    def init(self, head: Tree) -> Any:
        return self.art.init((), like=jax.tree.leaves(head)[0]) if self.shared else super().init(head)

    def loss(self, head: Tree, h: Array, targets: Array, *, index: Array = None) -> Array:
        """Return the loss of one output for each row of h; `index` has their tasks and actions."""
        task, action = index
        chosen = jnp.take_along_axis(normalized(head, h, index=task), action[:, None], 1)[:, 0]
        return self.cost(chosen - targets)


@dataclass(frozen=True)
class TasksConfig(MethodConfig):
    """Hyperparameters of an agent that learns several tasks with one of the methods with a linear head."""

    shared: bool = False

    def head(self, actions: int) -> TasksLinear:
        one = super().head(actions)
        if not isinstance(one, Linear):
            raise ValueError(f"method is {self.method!r}; it must have a linear head to learn several tasks")
        settings = {field.name: getattr(one, field.name) for field in fields(Linear)}
        return TasksLinear(**settings, shared=self.shared)


def config_of_tasks(method: str, tasks: int) -> TasksConfig:
    """Return the hyperparameters of a method for a number of small games.

    RMSProp's epsilon depends on the batch as if gradients were summed over it, so that an output layer learns
    from its game as it would alone.
    """
    shared = method == ONE_STATISTIC
    one = config_of("popart" if shared else method, reach=10.0)
    settings: dict[str, Any] = {field.name: getattr(one, field.name) for field in fields(one)}
    return TasksConfig(**settings | {"batch": tasks * BATCH, "shared": shared})


def padded(observations: jax.Array, width: int) -> jax.Array:
    """Return observations flattened, with zeros up to a width."""
    flat = observations.reshape(len(observations), -1).astype(jnp.float32)
    return jnp.pad(flat, ((0, 0), (0, width - flat.shape[1])))


def params_of(params: Params, task: int) -> Params:
    """Return the parameters of the network of one task."""
    return {**params, "head": jax.tree.map(lambda x: x[task], params["head"])}


def joined(samples: Sequence[Transitions], updates: int, width: int) -> Transitions:
    """Return batches of (updates, tasks * batch, ...), from one sample of (updates * batch, ...) per task."""

    def batches(task: int, sample: Transitions) -> Transitions:
        sample = sample._replace(
            observation=padded(sample.observation, width),
            next_observation=padded(sample.next_observation, width),
            task=jnp.full_like(sample.action, task),
        )
        return jax.tree.map(lambda x: x.reshape(updates, -1, *x.shape[1:]), sample)

    parts = [batches(task, sample) for task, sample in enumerate(samples)]
    return jax.tree.map(lambda *x: jnp.concatenate(x, 1), *parts)
