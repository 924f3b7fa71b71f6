"""The methods that `popart scale` compares: one file each, with a `METHOD`, found by its name.

To add one, write a file here, and a line in the table of `popart.lab.experiments.reward_scale.config`. The
option `--methods`, its help and the figures take it from there.
"""

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from popart.jax.alternatives import Head
from popart.lab.dqn.config import SMALL_AGENT, AgentConfig, AgentName
from popart.lab.dqn.rewards import Rewards, Unchanged


@dataclass(frozen=True)
class Method:
    """A way to handle targets of unknown size."""

    source: str
    """The publication that the method and its settings are from."""

    head: Callable[["MethodConfig", int], Head]
    """The head, from the hyperparameters and the number of actions."""

    rewards: Rewards = Unchanged()  # noqa: RUF009
    agent: AgentName = "unclipped"
    """`clipped` clips rewards to [-1, 1]."""

    optimizer: Literal["rmsprop", "adam"] = "rmsprop"


@dataclass(frozen=True)
class MethodConfig(AgentConfig):
    """Hyperparameters of an agent with one of the methods."""

    method: str = "popart"

    reach: float = 10.0
    """Bound of the values at a reward scale of 1, for heads with a fixed support."""

    def head(self, actions: int) -> Head:
        return method(self.method).head(self, actions)

    @property
    def rewards(self) -> Rewards:
        return method(self.method).rewards


def config_of(name: str, reach: float) -> MethodConfig:
    """Return the hyperparameters of a method on small games."""
    found = method(name)
    settings = {"optimizer": found.optimizer, **SMALL_AGENT}
    return MethodConfig(found.agent, method=name, reach=reach, **settings)


def method(name: str) -> Method:
    """Return the method of a file here."""
    return importlib.import_module(f"popart.lab.dqn.methods.{name}").METHOD
