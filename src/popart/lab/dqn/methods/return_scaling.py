"""Errors divided by a scale of rewards and returns; outputs are in the units of the rewards."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from popart.affine import Affine, change_of
from popart.alternatives import ReturnScaling
from popart.jax import heads
from popart.jax.heads import Step
from popart.lab.dqn.methods import Method

RULE = ReturnScaling()


@dataclass(frozen=True)
class ErrorScaling:
    r"""A linear layer whose gradient is that of $\delta / \sigma$ instead of $\delta$.

    Targets are rewards, discounts and returns. As in other implementations of the paper, the scale is the
    larger of that of all data and that of the batch.
    """

    art: ReturnScaling = RULE

    @property
    def width(self) -> int:
        return 1

    def init(self, head: Any) -> Any:
        return heads.init(self.art, head)

    def step(self, state: Any, head: Any, targets: jax.Array, **options: Any) -> Step:
        """Return targets together with the scale of their errors."""
        targets = jax.lax.stop_gradient(targets)
        new = self.art.update(state, targets, **options)
        batch = self.art.update(self.art.init((), like=targets), targets, **options)
        scale = jnp.maximum(self.art.affine(new).scale, self.art.affine(batch).scale)
        y = targets[..., -1]
        units = self.affine(new)
        return Step(new, head, jnp.stack((0 * y + scale, y), -1), change_of(units, units))

    def normalized(self, head: Any, h: jax.Array, *, index: jax.Array | None = None) -> jax.Array:
        return heads.normalized(head, h, index=index)

    def values(self, state: Any, head: Any, h: jax.Array, *, index: jax.Array | None = None) -> jax.Array:
        return self.normalized(head, h, index=index)

    def loss(
        self, head: Any, h: jax.Array, targets: jax.Array, *, index: jax.Array | None = None
    ) -> jax.Array:
        scale, y = targets[..., 0], targets[..., 1]
        error = self.normalized(head, h, index=index) - y
        return jnp.where(scale > 0, error**2 / (2 * jnp.where(scale > 0, scale, 1.0)), 0.0)

    def affine(self, state: Any) -> Affine:
        """Return the units of the outputs, which are those of the rewards."""
        return Affine(jnp.ones(()), jnp.zeros(()))


METHOD = Method("Schaul et al., 2021, arXiv 2105.05347", lambda config, actions: ErrorScaling())
