"""Pop-Art for TorchRL: a `ValueNorm` that preserves the critic's outputs, and PPO losses that use it.

TorchRL's PPO losses run the critic before they call their `ValueNorm`. But a head must be updated before the
outputs of the loss are computed. So the losses here separate the two: call `PopArtValueNorm.update` once per
rollout, after the advantages, and then train for as many epochs as needed.
"""

# pyright: basic

from typing import Any

import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModule, dispatch
from torch import Tensor
from torch.optim.optimizer import Optimizer
from torchrl.modules import ValueNorm
from torchrl.objectives import ClipPPOLoss, KLPENPPOLoss, PPOLoss
from torchrl.objectives.common import AUTO_LOSS_MASK_KEYS
from torchrl.objectives.multiagent import MAPPOLoss

from popart.torch import PopArt
from popart.torch.optimizers import StateChange

__all__ = [
    "PopArtClipPPOLoss",
    "PopArtKLPENPPOLoss",
    "PopArtMAPPOLoss",
    "PopArtPPOLoss",
    "PopArtValueNorm",
]


class PopArtValueNorm(ValueNorm):
    """A `ValueNorm` that rescales the critic's head with every update, so that no value changes.

        head = PopArt(64, 1)
        critic = ValueOperator(nn.Sequential(body, head), in_keys=["observation"])
        norm = PopArtValueNorm(head, optimizer)
        loss = PopArtClipPPOLoss(actor, critic, value_norm=norm, advantage_norm=norm)

        data = gae(data)  # values, advantages and targets in true units
        norm.update(data["value_target"])  # once per rollout

    The statistics are buffers of the head, and part of the `state_dict` of the critic and of the loss. This
    object has no statistics of its own.

    Args:
        head: The last layer of the critic.
        optimizer: The optimizer that trains the head, whose state is rescaled with it. It is also an
            attribute, for an optimizer that is made later.
        optimizer_state: Change of the optimizer's state: 'rescale', 'keep' or 'reset', as in `PopArt.update`.
        max_norm: A limit of the norm of an output's weights, as in `PopArt.update`.
    """

    head: PopArt

    def __init__(
        self,
        head: PopArt,
        optimizer: Optimizer | None = None,
        *,
        optimizer_state: StateChange = "rescale",
        max_norm: float | None = None,
    ) -> None:
        if not isinstance(head, PopArt) or head.heads is not None:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"head is {head}; it must be a popart.torch.PopArt without several heads")
        super().__init__(shape=head.out_features, epsilon=0.0)
        vars(self)["head"] = head  # as a submodule, the loss would hold its parameters twice
        self.optimizer, self.max_norm = optimizer, max_norm
        self.optimizer_state: StateChange = optimizer_state

    def update(self, value_target: Tensor) -> None:
        """Update the statistics with value targets in true units, and rescale the head.

        Call it once per rollout, after the advantages are computed and before the loss.
        """
        self._check_trailing_shape(value_target)
        self.head.update(
            value_target,
            optimizer=self.optimizer,
            optimizer_state=self.optimizer_state,
            max_norm=self.max_norm,
        )

    def normalize(self, value_target: Tensor) -> Tensor:
        """Return targets or stored values in normalised units."""
        if value_target.requires_grad:
            raise RuntimeError(
                "value_target requires gradients: the loss ran the critic in true units and normalises its "
                "values afterwards, as MAPPOLoss does. Use a loss of popart.torchrl, such as PopArtMAPPOLoss"
            )
        return self.head.normalize(value_target)

    def denormalize(self, normalised_value: Tensor) -> Tensor:
        """Return normalised values in true units; the inverse of `normalize`."""
        return self.head.denormalize(normalised_value)

    def scale(self) -> Tensor:
        """Return σ, by which `normalize` divides; infinite without a spread, so that all is 0."""
        sigma = self.head.sigma
        return torch.where(sigma > 0, sigma, torch.inf)


class _PopArtCritic:
    """A PPO loss whose critic, targets and value clipping are in normalised units.

    If the data has no advantage, the loss estimates it, and in training mode updates `value_norm` with the
    targets of this estimate before it runs the critic. Otherwise updates are the caller's.
    """

    def __init__(
        self,
        actor_network: Any,
        critic_network: TensorDictModule,
        *,
        value_norm: PopArtValueNorm,
        **settings: Any,
    ) -> None:
        if all(part is not value_norm.head for part in critic_network.modules()):
            raise ValueError(
                f"value_norm has the head {value_norm.head}, which is not a part of critic_network"
            )
        super().__init__(actor_network, critic_network, **settings)  # pyright: ignore[reportCallIssue]
        self.popart = value_norm

    @dispatch  # pyright: ignore[reportArgumentType]
    def forward(self: Any, tensordict: TensorDictBase) -> TensorDictBase:
        """Return the losses of PPO."""
        if tensordict.get(self.tensor_keys.advantage, None) is None:
            tensordict = self._with_advantage(tensordict.clone(False))
        return super().forward(tensordict)  # pyright: ignore[reportAttributeAccessIssue]

    def _with_advantage(self: Any, tensordict: TensorDictBase) -> TensorDictBase:
        params = self.target_critic_network_params
        self.value_estimator(tensordict, params=params, target_params=params)
        if self.training:
            y = tensordict.get(self.tensor_keys.value_target)
            self.popart.update(y[_valid(tensordict, self.loss_mask_key, y)])
        return tensordict

    def loss_critic(self: Any, tensordict: TensorDictBase) -> tuple[Any, ...]:
        """Return the critic's loss in normalised units, and the other results that PPO reports."""
        tensordict = tensordict.clone(False)
        for key in (self.tensor_keys.value_target, self.tensor_keys.value):
            y = tensordict.get(key, None)
            if y is not None:
                tensordict.set(key, self.popart.normalize(y))
        with self.popart.head.in_normalized_units():
            return super().loss_critic(tensordict)  # pyright: ignore[reportAttributeAccessIssue]

    def _apply(self: Any, fn: Any) -> Any:
        """Convert or move the loss; the critic then shares its new buffers, which are the statistics."""
        super()._apply(fn)  # pyright: ignore[reportAttributeAccessIssue]
        if self.functional:
            self.critic_network_params.to_module(self.critic_network)
        return self


def _valid(tensordict: TensorDictBase, key: Any, y: Tensor) -> Tensor:
    """Return which rows of the targets y are valid, by the masks that TorchRL's losses look at."""
    valid = torch.ones(y.shape[:-1], dtype=torch.bool, device=y.device)
    for name in AUTO_LOSS_MASK_KEYS if key == "auto" else () if key is None else (key,):
        mask = tensordict.get(name, None)
        if mask is not None:
            valid &= mask.bool().reshape(y.shape[:-1])
    return valid


class PopArtPPOLoss(_PopArtCritic, PPOLoss):
    """`torchrl.objectives.PPOLoss` with Pop-Art in its critic; `value_norm` is a `PopArtValueNorm`."""


class PopArtClipPPOLoss(_PopArtCritic, ClipPPOLoss):
    """`torchrl.objectives.ClipPPOLoss` with Pop-Art in its critic; `value_norm` is a `PopArtValueNorm`."""


class PopArtKLPENPPOLoss(_PopArtCritic, KLPENPPOLoss):
    """`torchrl.objectives.KLPENPPOLoss` with Pop-Art in its critic; `value_norm` is a `PopArtValueNorm`."""


class PopArtMAPPOLoss(_PopArtCritic, MAPPOLoss):
    """`torchrl.objectives.multiagent.MAPPOLoss` with a `PopArtValueNorm`, whose outputs are preserved.

    The critic's last layer must be the head, such as `nn.Sequential(MultiAgentMLP(...), PopArt(64, 1))`.
    """
