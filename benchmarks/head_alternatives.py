"""The heads of `popart.torch.alternatives`, and other rules, in the training step of `benchmarks/head.py`.

They are trained with `head.loss`, which also leaves out what is not finite, and so is Pop-Art here once more.
"""

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import popart
from popart.alternatives import H, HLGauss, PercentileSpan, ReturnScaling, Symlog, TwoHot
from popart.torch import PopArt
from popart.torch.alternatives import Art, Categorical, Transformed

MOMENTS = popart.Moments(beta=1e-4)
BINS = HLGauss(-4, 4, 51, Symlog())

HEADS: dict[str, Callable[[int, int], Any]] = {
    "popart, head.loss": lambda n, k: PopArt(n, k, MOMENTS),
    "Art without Pop": lambda n, k: Art(n, k, MOMENTS),
    "scale only": lambda n, k: PopArt(n, k, popart.Moments(1e-4, symmetric=True)),
    "return-based scaling": lambda n, k: PopArt(n, k, ReturnScaling()),
    "percentile span": lambda n, k: PopArt(n, k, PercentileSpan()),
    "h(x)": lambda n, k: Transformed(n, k, transform=H()),
    "symlog": lambda n, k: Transformed(n, k, transform=Symlog()),
    "two-hot, 255 bins": lambda n, k: Categorical(n, k, TwoHot()),
    "HL-Gauss, 51 bins": lambda n, k: Categorical(n, k, HLGauss()),
    "HL-Gauss, 51 normalised bins": lambda n, k: Categorical(n, k, BINS, MOMENTS),
}


def loss_of(stack: int, discount: float, body: nn.Module, head: Any) -> Callable[..., Tensor]:
    """Return the loss of a step of Double Q-learning, with an update of the head."""
    by_returns = isinstance(head.art, ReturnScaling)
    first = torch.randn(32, 3) if by_returns else torch.randn(32)
    head.update(first.to(head.weight.device))  # a target network's head has seen targets
    old_body, old_head = copy.deepcopy(body), copy.deepcopy(head)

    def loss(frames: Tensor, actions: Tensor, rewards: Tensor, at: Tensor, optimizer: Any) -> Tensor:
        seen = frames[at[:, None] + torch.arange(stack + 1, device=at.device)]
        s, s_next, a, r = seen[:, :-1], seen[:, 1:], actions[at + stack - 1], rewards[at + stack - 1]
        with torch.no_grad():
            best = head.normalized(body(s_next)).argmax(1, keepdim=True)
            y = r + discount * old_head(old_body(s_next)).gather(1, best)[:, 0]
        if not by_returns:
            return head.loss(body(s), y, index=a, optimizer=optimizer)
        measured = torch.stack((r, torch.full_like(r, discount), y), -1)
        y = head.update(measured, optimizer=optimizer)[:, -1]
        return (head.normalized(body(s), index=a) - y).square().mean()

    return loss
