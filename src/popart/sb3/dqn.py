# pyright: reportIncompatibleVariableOverride=false
"""DQN with Pop-Art."""

from typing import Any, ClassVar

import numpy as np
import torch
from stable_baselines3 import DQN
from torch import Tensor
from torch.nn.functional import smooth_l1_loss

from popart.sb3 import policies
from popart.sb3.base import PopArtAlgorithm, parameters_of
from popart.sb3.heads import PopArtQNetwork
from popart.torch import polyak_

ALIASES: Any = {
    "MlpPolicy": policies.PopArtDQNPolicy,
    "CnnPolicy": policies.PopArtDQNCnnPolicy,
    "MultiInputPolicy": policies.PopArtDQNMultiInputPolicy,
}


class PopArtDQN(PopArtAlgorithm, DQN):
    """DQN whose results do not depend on the scale of rewards.

    The statistics are those of the targets, and are updated in each gradient step. The loss is that of
    Stable-Baselines3 (Huber's, with a threshold of 1), in normalised units.

    Args:
        policy: `"MlpPolicy"`, `"CnnPolicy"`, `"MultiInputPolicy"`, or a subclass of
            `popart.sb3.policies.PopArtDQNPolicy`.
        env: The environment, as for `stable_baselines3.DQN`.
        beta: The step size of the statistics, once per gradient step; 0.001 by default.
        art: The rule that measures targets; `Moments(beta)` by default.
        *args: Other arguments of `stable_baselines3.DQN`.
        **settings: Other arguments of `stable_baselines3.DQN`.
    """

    BETA: ClassVar[float] = 1e-3
    policy_aliases = ALIASES
    policy_base = policies.PopArtDQNPolicy
    policy: policies.PopArtDQNPolicy
    q_net: PopArtQNetwork
    q_net_target: PopArtQNetwork

    def train(self, gradient_steps: int, batch_size: int = 100) -> None:
        """Take gradient steps on minibatches of the replay buffer."""
        self.policy.set_training_mode(True)
        optimizer, head = self.policy.optimizer, self.q_net.head
        self._update_learning_rate(optimizer)
        losses: list[float] = []
        for _ in range(gradient_steps):
            data = self.replay_buffer.sample(batch_size, env=self._vec_normalize_env)  # pyright: ignore[reportOptionalMemberAccess]
            targets = head.learn(self._targets(data), optimizer)
            q = self.q_net.normalized(data.observations).gather(1, data.actions.long())
            loss = smooth_l1_loss(q, targets)
            losses.append(loss.item())
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(parameters_of(optimizer), self.max_grad_norm)
            optimizer.step()
        self._n_updates += gradient_steps
        self.logger.record("train/n_updates", self._n_updates, exclude="tensorboard")
        self.logger.record("train/loss", np.mean(losses))
        self._record(head)

    @torch.no_grad()
    def _targets(self, data: Any) -> Tensor:
        """Return the targets of Q-learning, in the units of returns."""
        discounts = self.gamma if data.discounts is None else data.discounts
        best = self.q_net_target(data.next_observations).amax(1, keepdim=True)
        return data.rewards + (1 - data.dones) * discounts * best

    def _on_step(self) -> None:
        """Update the target network, averaged in the units of returns, and the exploration rate."""
        self._n_calls += 1
        if self._n_calls % max(self.target_update_interval // self.n_envs, 1) == 0:
            polyak_(self.q_net_target, self.q_net, self.tau)
        self.exploration_rate = self.exploration_schedule(self._current_progress_remaining)
        self.logger.record("rollout/exploration_rate", self.exploration_rate)
