# pyright: reportIncompatibleVariableOverride=false
"""TD3 with Pop-Art."""

from typing import Any, ClassVar

import numpy as np
import torch
from stable_baselines3 import TD3
from torch import Tensor

from popart.sb3 import policies
from popart.sb3.critics import PopArtOffPolicy, train_actor
from popart.sb3.heads import PopArtCritic
from popart.torch import polyak_

ALIASES: Any = {
    "MlpPolicy": policies.PopArtTD3Policy,
    "CnnPolicy": policies.PopArtTD3CnnPolicy,
    "MultiInputPolicy": policies.PopArtTD3MultiInputPolicy,
}


class PopArtTD3(PopArtOffPolicy, TD3):
    """TD3 whose results do not depend on the scale of rewards.

    The statistics are those of the targets, and are updated in each gradient step. All critics have the
    same statistics. The actor maximises the normalised value.

    Args:
        policy: `"MlpPolicy"`, `"CnnPolicy"`, `"MultiInputPolicy"`, or a subclass of
            `popart.sb3.policies.PopArtTD3Policy`.
        env: The environment, as for `stable_baselines3.TD3`.
        beta: The step size of the statistics, once per gradient step; 0.001 by default.
        art: The rule that measures targets; `Moments(beta)` by default.
        *args: Other arguments of `stable_baselines3.TD3`.
        **settings: Other arguments of `stable_baselines3.TD3`.
    """

    BETA: ClassVar[float] = 1e-3
    policy_aliases = ALIASES
    policy_base = policies.PopArtTD3Policy
    policy: policies.PopArtTD3Policy
    critic: PopArtCritic
    critic_target: PopArtCritic

    def train(self, gradient_steps: int, batch_size: int = 100) -> None:
        """Take gradient steps on minibatches of the replay buffer."""
        self.policy.set_training_mode(True)
        self._update_learning_rate([self.actor.optimizer, self.critic.optimizer])
        actor_losses: list[float] = []
        critic_losses: list[float] = []
        for _ in range(gradient_steps):
            self._n_updates += 1
            data = self._sample(batch_size)
            critic_losses.append(self._train_critics(data, self._next_values(data)))
            if self._n_updates % self.policy_delay == 0:
                actor_losses.append(train_actor(self.actor, self._actor_loss(data)))
                polyak_(self.critic_target, self.critic, self.tau)
                polyak_(self.actor_target, self.actor, self.tau)
        self.logger.record("train/n_updates", self._n_updates, exclude="tensorboard")
        if actor_losses:
            self.logger.record("train/actor_loss", np.mean(actor_losses))
        self.logger.record("train/critic_loss", np.mean(critic_losses))
        self._record(self.critic.heads[0])

    @torch.no_grad()
    def _next_values(self, data: Any) -> Tensor:
        """Return the least value of the next actions, with noise that smooths the target policy."""
        noise = torch.empty_like(data.actions).normal_(0, self.target_policy_noise)
        noise = noise.clamp(-self.target_noise_clip, self.target_noise_clip)
        actions = (self.actor_target(data.next_observations) + noise).clamp(-1, 1)
        return self._least_next_value(data, actions)

    def _actor_loss(self, data: Any) -> Tensor:
        """Return the negative normalised value of the actor's actions; 0 while σ is 0."""
        with self.critic.in_normalized_units():
            values = self.critic.q1_forward(data.observations, self.actor(data.observations))
        return -self.critic.heads[0].sigma.sign() * values.mean()
