"""Networks with Pop-Art: last layers, Q-networks, critics; and the scale of rewards."""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from stable_baselines3.common.policies import ContinuousCritic
from stable_baselines3.common.sb2_compat.rmsprop_tf_like import RMSpropTFLike
from stable_baselines3.dqn.policies import QNetwork
from torch import Tensor
from torch.optim import RMSprop
from torch.optim.optimizer import Optimizer

from popart.rules import Rule
from popart.torch import PopArt
from popart.torch.base import Head, Layer
from popart.torch.checks import without_shift
from popart.torch.optimizers import POWERS
from popart.torch.units import CALLS_WITHOUT_UPDATE

POWERS[RMSpropTFLike] = POWERS[RMSprop]


class LastLayer(PopArt):
    """A head that does not warn when it is called often before its first update.

    Values are predicted for a whole rollout before the first update, and the target network of DQN is
    called for thousands of steps before it is copied.
    """

    _calls = CALLS_WITHOUT_UPDATE

    def learn(self, targets: Any, optimizer: Optimizer) -> Tensor:
        """Update with targets; the state of an optimizer of unknown kind is left as it is."""
        known = isinstance(optimizer, tuple(POWERS))
        return self.update(targets, optimizer=optimizer, optimizer_state="rescale" if known else "keep")


def replace_last_layer(network: Any, art: Rule[Any]) -> None:
    """Put a head with the same parameters in place of the last layer of a `torch.nn.Sequential`."""
    network[-1] = LastLayer.from_linear(network[-1], art)


class PopArtQNetwork(QNetwork):
    """The Q-network of DQN with one normalisation for all actions; outputs are in the units of returns."""

    def __init__(self, *args: Any, art: Rule[Any], **settings: Any) -> None:
        super().__init__(*args, **settings)
        replace_last_layer(self.q_net, art)

    @property
    def head(self) -> LastLayer:
        """The last layer."""
        return self.q_net[-1]  # pyright: ignore[reportReturnType]

    def normalized(self, obs: Any) -> Tensor:
        """Return the Q-values in normalised units."""
        with self.head.in_normalized_units():
            return self(obs)

    def _predict(self, observation: Any, deterministic: bool = True) -> Tensor:
        """Return the greedy actions; normalised values have the same order and no rounding by the shift."""
        return self.normalized(observation).argmax(dim=1).reshape(-1)

    def _get_constructor_parameters(self) -> dict[str, Any]:
        return {**super()._get_constructor_parameters(), "art": self.head.art}


class PopArtCritic(ContinuousCritic):
    """The critics of SAC and TD3, each with a head; outputs are in the units of returns.

    All critics have the same targets and therefore, bit for bit, the same statistics. So the least of
    their normalised outputs is that of the least value.
    """

    def __init__(self, *args: Any, art: Rule[Any], **settings: Any) -> None:
        super().__init__(*args, **settings)
        for q_net in self.q_networks:
            replace_last_layer(q_net, art)

    @property
    def heads(self) -> list[LastLayer]:
        """The last layers of the critics."""
        return [q_net[-1] for q_net in self.q_networks]  # pyright: ignore[reportIndexIssue]

    def update(self, targets: Tensor, optimizer: Optimizer) -> Tensor:
        """Update the statistics with targets, preserve all outputs, and return the targets normalised."""
        normalized = [head.learn(targets, optimizer) for head in self.heads]
        return normalized[0]

    @contextlib.contextmanager
    def in_normalized_units(self) -> Iterator[None]:
        """Make `forward` and `q1_forward` return normalised outputs."""
        with contextlib.ExitStack() as stack:
            for head in self.heads:
                stack.enter_context(head.in_normalized_units())
            yield


class RewardScale(Head):
    """The size of rewards, without a shift: with `Moments`, their root mean square."""

    def __init__(self, art: Rule[Any]) -> None:
        super().__init__(without_shift(art), (), torch.zeros(()))
        self._add_units()

    def _layers(self) -> list[Layer]:
        return []
