# pyright: reportIncompatibleVariableOverride=false
"""Policies with Pop-Art heads.

They have the arguments of the policies of Stable-Baselines3 that they are named after, and `art`, the rule
that measures targets. A policy of your own becomes one by inheritance: `class Mine(PopArtSACPolicy, Theirs)`.
"""

import warnings
from typing import Any

from stable_baselines3.common import policies as common
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.dqn import policies as dqn
from stable_baselines3.sac import policies as sac
from stable_baselines3.td3 import policies as td3

from popart.moments import Moments
from popart.rules import Rule
from popart.sb3.heads import LastLayer, PopArtCritic, PopArtQNetwork, RewardScale
from popart.torch.checks import is_dense
from popart.torch.statistics import check_rule


class PopArtPolicy(BasePolicy):
    """The base of these policies: it stores the rule, and saves it with the policy."""

    art: Rule[Any]

    def __init__(self, *args: Any, art: Rule[Any] | None = None, **settings: Any) -> None:
        if art is None:
            warnings.warn(
                f"{type(self).__name__} is used without an algorithm of popart.sb3, such as PopArtPPO: only "
                "these update its statistics. It can predict, but must not be trained",
                stacklevel=2,
            )
        self.art = Moments() if art is None else art
        check_rule(self.art)
        if is_dense(self.art):
            raise ValueError(f"art is {art!r}; it must measure single numbers, as Moments does")
        super().__init__(*args, **settings)

    def _get_constructor_parameters(self) -> dict[str, Any]:
        return {**super()._get_constructor_parameters(), "art": self.art}


class PopArtActorCriticPolicy(PopArtPolicy, common.ActorCriticPolicy):
    """The `MlpPolicy` of PPO and A2C, with values in the units of returns."""

    value_net: LastLayer

    def _build(self, lr_schedule: Any) -> None:
        super()._build(lr_schedule)
        self.value_net = LastLayer.from_linear(self.value_net, self.art)  # pyright: ignore[reportArgumentType]


class PopArtActorCriticCnnPolicy(PopArtActorCriticPolicy, common.ActorCriticCnnPolicy):
    """The `CnnPolicy` of PPO and A2C."""


class PopArtMultiInputActorCriticPolicy(PopArtActorCriticPolicy, common.MultiInputActorCriticPolicy):
    """The `MultiInputPolicy` of PPO and A2C."""


class PopArtDQNPolicy(PopArtPolicy, dqn.DQNPolicy):
    """The `MlpPolicy` of DQN."""

    q_net: PopArtQNetwork
    q_net_target: PopArtQNetwork

    def make_q_net(self) -> PopArtQNetwork:
        """Make the online or the target network, with its own features extractor."""
        settings = self._update_features_extractor(self.net_args, features_extractor=None)
        return PopArtQNetwork(**settings, art=self.art).to(self.device)


class PopArtDQNCnnPolicy(PopArtDQNPolicy, dqn.CnnPolicy):
    """The `CnnPolicy` of DQN."""


class PopArtDQNMultiInputPolicy(PopArtDQNPolicy, dqn.MultiInputPolicy):
    """The `MultiInputPolicy` of DQN."""


class PopArtCriticPolicy(PopArtPolicy):
    """The base of the policies of SAC and TD3."""

    critic_kwargs: dict[str, Any]
    critic: PopArtCritic
    critic_target: PopArtCritic

    def make_critic(self, features_extractor: Any = None) -> PopArtCritic:
        """Make the online or the target critics."""
        settings = self._update_features_extractor(self.critic_kwargs, features_extractor)
        return PopArtCritic(**settings, art=self.art).to(self.device)


class PopArtSACPolicy(PopArtCriticPolicy, sac.SACPolicy):
    """The `MlpPolicy` of SAC, which also measures rewards: their size is the unit of the entropy."""

    critic: PopArtCritic
    critic_target: PopArtCritic

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.reward_scale = RewardScale(self.art)


class PopArtSACCnnPolicy(PopArtSACPolicy, sac.CnnPolicy):
    """The `CnnPolicy` of SAC."""


class PopArtSACMultiInputPolicy(PopArtSACPolicy, sac.MultiInputPolicy):
    """The `MultiInputPolicy` of SAC."""


class PopArtTD3Policy(PopArtCriticPolicy, td3.TD3Policy):
    """The `MlpPolicy` of TD3."""

    critic: PopArtCritic
    critic_target: PopArtCritic


class PopArtTD3CnnPolicy(PopArtTD3Policy, td3.CnnPolicy):
    """The `CnnPolicy` of TD3."""


class PopArtTD3MultiInputPolicy(PopArtTD3Policy, td3.MultiInputPolicy):
    """The `MultiInputPolicy` of TD3."""
