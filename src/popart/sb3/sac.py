# pyright: reportIncompatibleVariableOverride=false
"""SAC with Pop-Art."""

from typing import Any, ClassVar

import numpy as np
import torch
from stable_baselines3 import SAC
from torch import Tensor

from popart.sb3 import policies
from popart.sb3.critics import PopArtOffPolicy, train_actor
from popart.sb3.heads import PopArtCritic
from popart.torch import polyak_

ALIASES: Any = {
    "MlpPolicy": policies.PopArtSACPolicy,
    "CnnPolicy": policies.PopArtSACCnnPolicy,
    "MultiInputPolicy": policies.PopArtSACMultiInputPolicy,
}


class PopArtSAC(PopArtOffPolicy, SAC):
    r"""SAC whose results do not depend on the scale of rewards.

    The statistics are those of the targets, and are updated in each gradient step. All critics have the
    same statistics. The
    entropy coefficient $\alpha$ is in units of $\rho$, the root mean square of the rewards. With it, the
    targets of the critics and the loss of the actor are

    $$r + \gamma (\min Q - \rho \alpha \log \pi) \qquad (\rho \alpha \log \pi - \min Q) / \sigma$$

    The unit is not $\sigma$, because $\sigma$ is measured from targets that contain the entropy.

    Args:
        policy: `"MlpPolicy"`, `"CnnPolicy"`, `"MultiInputPolicy"`, or a subclass of
            `popart.sb3.policies.PopArtSACPolicy`.
        env: The environment, as for `stable_baselines3.SAC`.
        beta: The step size of the statistics, once per gradient step; 0.001 by default.
        art: The rule that measures targets and, without its shift, rewards; `Moments(beta)` by default.
        *args: Other arguments of `stable_baselines3.SAC`.
        **settings: Other arguments of `stable_baselines3.SAC`.
    """

    BETA: ClassVar[float] = 1e-3
    policy_aliases = ALIASES
    policy_base = policies.PopArtSACPolicy
    policy: policies.PopArtSACPolicy
    critic: PopArtCritic
    critic_target: PopArtCritic

    def train(self, gradient_steps: int, batch_size: int = 64) -> None:
        """Take gradient steps on minibatches of the replay buffer."""
        self.policy.set_training_mode(True)
        learned = [] if self.ent_coef_optimizer is None else [self.ent_coef_optimizer]
        self._update_learning_rate([self.actor.optimizer, self.critic.optimizer, *learned])
        history: dict[str, list[float]] = {}
        for step in range(gradient_steps):
            for name, value in self._gradient_step(self._sample(batch_size)).items():
                history.setdefault(name, []).append(value)
            if step % self.target_update_interval == 0:
                polyak_(self.critic_target, self.critic, self.tau)
        self._n_updates += gradient_steps
        self.logger.record("train/n_updates", self._n_updates, exclude="tensorboard")
        for name, values in history.items():
            self.logger.record(f"train/{name}", np.mean(values))
        self.logger.record("popart/reward_scale", self.policy.reward_scale.scale.item())
        self._record(self.critic.heads[0])

    def _gradient_step(self, data: Any) -> dict[str, float]:
        """Take a gradient step of the entropy coefficient, the critics and the actor; return the metrics."""
        self.policy.reward_scale.update(data.rewards)
        if self.use_sde:
            self.actor.reset_noise()
        actions, log_prob = self.actor.action_log_prob(data.observations)
        log_prob = log_prob.reshape(-1, 1)
        alpha, metrics = self._train_entropy_coefficient(log_prob)
        metrics["critic_loss"] = self._train_critics(data, self._next_values(data, alpha), 0.5)
        metrics["actor_loss"] = train_actor(self.actor, self._actor_loss(data, actions, alpha * log_prob))
        return metrics

    def _train_entropy_coefficient(self, log_prob: Tensor) -> tuple[Tensor, dict[str, float]]:
        """Return the entropy coefficient and metrics, and take a gradient step of it if it is learned."""
        if self.ent_coef_optimizer is None or self.log_ent_coef is None:
            return self.ent_coef_tensor, {"ent_coef": self.ent_coef_tensor.item()}
        alpha = self.log_ent_coef.detach().exp()
        loss = -(self.log_ent_coef * (log_prob + float(self.target_entropy)).detach()).mean()
        self.ent_coef_optimizer.zero_grad()
        loss.backward()
        self.ent_coef_optimizer.step()
        return alpha, {"ent_coef": alpha.item(), "ent_coef_loss": loss.item()}

    @torch.no_grad()
    def _next_values(self, data: Any, alpha: Tensor) -> Tensor:
        """Return the least value of the next actions with its entropy, in the units of returns."""
        actions, log_prob = self.actor.action_log_prob(data.next_observations)
        entropy = -self.policy.reward_scale.sigma * alpha * log_prob.reshape(-1, 1)
        return self._least_next_value(data, actions) + entropy

    def _actor_loss(self, data: Any, actions: Tensor, penalty: Tensor) -> Tensor:
        """Return the loss of the actor in units of the scale; the entropy alone while σ is 0."""
        with self.critic.in_normalized_units():
            values = torch.cat(self.critic(data.observations, actions), dim=1).amin(1, keepdim=True)
        sigma, size = self.critic.heads[0].sigma, self.policy.reward_scale.sigma
        weight = torch.where(sigma > 0, size / sigma, 1.0)
        return (weight * penalty - sigma.sign() * values).mean()
