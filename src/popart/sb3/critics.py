"""The common part of SAC and TD3: critics that learn in normalised units."""

from collections.abc import Sequence
from typing import Any

import torch
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from torch import Tensor
from torch.nn.functional import mse_loss

from popart.sb3.base import PopArtAlgorithm, parameters_of
from popart.sb3.heads import PopArtCritic


class PopArtOffPolicy(PopArtAlgorithm, OffPolicyAlgorithm):
    """The base of SAC and TD3."""

    critic: PopArtCritic
    critic_target: PopArtCritic

    def _sample(self, batch_size: int) -> Any:
        assert self.replay_buffer is not None
        return self.replay_buffer.sample(batch_size, env=self._vec_normalize_env)

    def _train_critics(self, data: Any, next_values: Tensor, weight: float = 1.0) -> float:
        """Take a gradient step of all critics towards bootstrapped targets, and return the loss."""
        discounts = self.gamma if data.discounts is None else data.discounts
        optimizer = self.critic.optimizer
        targets = data.rewards + (1 - data.dones) * discounts * next_values
        targets = self.critic.update(targets, optimizer)
        with self.critic.in_normalized_units():
            outputs: Sequence[Tensor] = self.critic(data.observations, data.actions)
        loss = weight * torch.stack([mse_loss(q, targets) for q in outputs]).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    def _least_next_value(self, data: Any, actions: Tensor) -> Tensor:
        """Return the least value of the target critics, in the units of returns."""
        return torch.cat(self.critic_target(data.next_observations, actions), dim=1).amin(1, keepdim=True)


def train_actor(actor: Any, loss: Tensor) -> float:
    """Take a gradient step of the actor, without gradients of the critics, and return the loss."""
    actor.optimizer.zero_grad()
    loss.backward(inputs=[p for p in parameters_of(actor.optimizer) if p.requires_grad])
    actor.optimizer.step()
    return loss.item()
