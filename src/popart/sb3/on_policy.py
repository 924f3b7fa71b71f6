# pyright: reportIncompatibleVariableOverride=false
"""PPO and A2C with Pop-Art: `train` of Stable-Baselines3, in normalised units."""

from typing import Any, ClassVar

import numpy as np
import torch
from stable_baselines3 import A2C, PPO
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.utils import obs_as_tensor

from popart.affine import Affine
from popart.sb3 import policies
from popart.sb3.base import PopArtAlgorithm

ALIASES: Any = {
    "MlpPolicy": policies.PopArtActorCriticPolicy,
    "CnnPolicy": policies.PopArtActorCriticCnnPolicy,
    "MultiInputPolicy": policies.PopArtMultiInputActorCriticPolicy,
}


class PopArtOnPolicy(PopArtAlgorithm, OnPolicyAlgorithm):
    """The base of PPO and A2C: rollouts are collected in true units and learned from in normalised units."""

    policy_aliases = ALIASES
    policy_base = policies.PopArtActorCriticPolicy
    policy: policies.PopArtActorCriticPolicy

    def train(self) -> None:
        """Update the statistics with the returns of a rollout, normalise it, and learn from it."""
        head = self.policy.value_net
        self._normalize_rollout()
        with head.in_normalized_units():
            super().train()
        self._record(head)

    def _normalize_rollout(self) -> None:
        """Normalise returns and old values, and divide advantages by the scale."""
        head, buffer = self.policy.value_net, self.rollout_buffer
        values_were_known = head.scale.item() > 0
        buffer.returns = _array(head.learn(buffer.returns, self.policy.optimizer))
        buffer.advantages = Affine(_array(head.sigma), np.zeros((), np.float32)).normalize(buffer.advantages)
        if values_were_known:
            buffer.values = _array(head.normalize(buffer.values))
        else:
            self._predict_rollout()

    @torch.no_grad()
    def _predict_rollout(self) -> None:
        """Predict the values of a rollout again: the first update does not preserve outputs, it adopts."""
        buffer, seen = self.rollout_buffer, self.rollout_buffer.observations
        with self.policy.value_net.in_normalized_units():
            for step in range(buffer.buffer_size):
                now = {k: x[step] for k, x in seen.items()} if isinstance(seen, dict) else seen[step]
                obs = obs_as_tensor(now, self.device)
                buffer.values[step] = _array(self.policy.predict_values(obs)).flatten()

    def _maybe_recommend_cpu(self, mlp_class_name: str = "PopArtActorCriticPolicy") -> None:
        super()._maybe_recommend_cpu(mlp_class_name)


class PopArtPPO(PopArtOnPolicy, PPO):
    """PPO whose results do not depend on the scale of rewards.

    The statistics are those of the returns, and are updated once per rollout. Advantages are divided by σ.
    `clip_range_vf` is in normalised units: 0.2 is a fifth of a standard deviation of the returns.

    Args:
        policy: `"MlpPolicy"`, `"CnnPolicy"`, `"MultiInputPolicy"`, or a subclass of
            `popart.sb3.policies.PopArtActorCriticPolicy`.
        env: The environment, as for `stable_baselines3.PPO`.
        beta: The step size of the statistics, once per rollout; 0.1 by default.
        art: The rule that measures returns; `Moments(beta)` by default.
        *args: Other arguments of `stable_baselines3.PPO`.
        **settings: Other arguments of `stable_baselines3.PPO`.
    """

    BETA: ClassVar[float] = 0.1


class PopArtA2C(PopArtOnPolicy, A2C):
    """A2C whose results do not depend on the scale of rewards.

    The statistics are those of the returns, and are updated once per rollout. Advantages are divided by σ,
    so that the policy's gradient does not depend on the scale, even if `normalize_advantage` is False.

    Args:
        policy: As for `PopArtPPO`.
        env: The environment, as for `stable_baselines3.A2C`.
        beta: The step size of the statistics, once per rollout; 0.01 by default.
        art: The rule that measures returns; `Moments(beta)` by default.
        *args: Other arguments of `stable_baselines3.A2C`.
        **settings: Other arguments of `stable_baselines3.A2C`.
    """

    BETA: ClassVar[float] = 0.01


def _array(x: torch.Tensor) -> np.ndarray:
    return x.cpu().numpy()
