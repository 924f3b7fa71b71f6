r"""Gradients that are normalised: Normalized SGD (Algorithm 2) and Deep Pop-Art (appendix)."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function

from popart.affine import Affine
from popart.deep import step_targets
from popart.moments import Moments
from popart.rules import Rule
from popart.torch import order
from popart.torch.base import features_for, without_autocast
from popart.torch.checks import warn_of_beta, without_shift
from popart.torch.heads import LinearHead
from popart.torch.statistics import Statistics


class NormalizedLinear(LinearHead):
    r"""A linear layer for Normalized SGD (Algorithm 2): its outputs $W h + b$ are not normalised.

    Targets are not normalised either. Only the gradient that goes to the layers below is normalised:
    $(\Sigma^{-1} W)^\top \Sigma^{-1} \delta$ instead of $W^\top \delta$. W and b have their usual gradients.
    With SGD on the squared loss $\frac12 \|W h + b - Y\|^2$ it learns the same as Pop-Art
    (Proposition 3), for a dense $\Sigma$ as well:

        layer = NormalizedLinear(64, 1, art)
        layer.update(y)
        loss = (layer(h) - y).square().sum() / 2

    While no spread is known the layers below do not learn. The arguments are those of `PopArt`, without
    several heads.
    """

    _kind = "NormalizedLinear"

    def __init__(self, *arguments: Any, heads: None = None, **settings: Any) -> None:
        if heads is not None:
            raise ValueError(f"heads is {heads!r}; make one layer for each")
        super().__init__(*arguments, **settings)

    def forward(self, h: Tensor, *, index: Tensor | None = None) -> Tensor:
        """Return the outputs, which are in the targets' own units."""
        f = _linear(h, self.weight, self.bias, self._units().scale)
        if f.requires_grad:
            order.watch(self, f, h)
        return f if index is None else self._chosen(f, index)

    def normalized(self, h: Tensor, *, index: Tensor | None = None) -> Tensor:
        """Return the outputs in normalised units."""
        return self.normalize(self.forward(h, index=index), index=index)


class _NormalizedLinear(Function):
    @staticmethod
    def forward(ctx: Any, h: Tensor, W: Tensor, b: Tensor | None, scale: Tensor) -> Tensor:
        ctx.save_for_backward(h, W, scale)
        ctx.bias_size = None if b is None else len(b)
        return nn.functional.linear(h, W) if b is None else nn.functional.linear(h, W) + b

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor | None, None]:
        (delta,) = gradients
        h, W, scale = ctx.saved_tensors
        by_scale = Affine(scale, scale.new_zeros(scale.shape[: 1 if scale.ndim == 2 else scale.ndim]))
        each = delta.reshape(-1, delta.shape[-1])
        with without_autocast(h):
            down = by_scale.normalize(delta) @ by_scale.normalize(W.T).T
            dW = each.T @ h.reshape(-1, h.shape[-1])
        total = each.sum(0)
        shared = ctx.bias_size is not None and ctx.bias_size != len(total)
        return (
            down,
            dW,
            None if ctx.bias_size is None else total.sum(0, keepdim=True) if shared else total,
            None,
        )


def _linear(h: Tensor, W: Tensor, b: Tensor | None, scale: Tensor) -> Tensor:
    """Apply a layer in its own precision, at least in float32: outputs are in the targets' units."""
    h, wide = features_for(W, h), torch.promote_types(W.dtype, torch.float32)
    with without_autocast(h):
        return _NormalizedLinear.apply(h.to(wide), W.to(wide), None if b is None else b.to(wide), scale)  # pyright: ignore


class NormalizeGradient(Statistics):
    r"""An identity whose backward pass normalises the gradient: Deep Pop-Art for several sources.

    Put one on the output of each branch, so that no source dominates the others, and one where the branches
    join, so that their sum is not too large. (If it were below a head, this head would still get the
    original gradient.)

        h = meet(trunk(x))
        loss = loss_a(first(head_a(h))) + loss_b(second(head_b(h)))

    Gradients are divided by the root of their running second moment, the present gradient included, and
    multiplied by `weight`, the importance of this source. They are not shifted, so that a gradient of 0
    stays 0. (A mean over n losses makes gradients of 1/n; `weight=1/n` restores that.)

    Args:
        weight: Size of the normalised gradient: the root mean square over all its elements. Default 1.
        art: The rule that measures gradients, one without a shift; by default `Moments(1e-2)` of gradients
            and their negatives.
    """

    def __init__(self, weight: float = 1.0, art: Rule[Any] | None = None) -> None:
        art = without_shift(Moments(1e-2)) if art is None else art
        warn_of_beta(art)
        super().__init__(art, (), torch.zeros(()))
        self.weight = weight

    def forward(self, x: Tensor) -> Tensor:
        """Return x itself."""
        return _normalize_gradient(x, self)

    @torch.no_grad()
    def _backward(self, gradient: Tensor) -> Tensor:
        self._set_state(self.art.update(self._raw_state(), gradient, across=self._group))
        return (self.weight * self._measured().normalize(gradient)).to(gradient.dtype)

    def extra_repr(self) -> str:
        """Return the settings."""
        return f"weight={self.weight}, art={self.art}"


class _NormalizeGradient(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, module: NormalizeGradient) -> Tensor:
        ctx.module = module
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return ctx.module._backward(gradients[0]), None


def _normalize_gradient(x: Tensor, module: NormalizeGradient) -> Tensor:
    return _NormalizeGradient.apply(x, module)  # pyright: ignore


def backpropagated_targets(
    loss: Callable[[Tensor], Tensor], z: Tensor, step: float = 1.0
) -> tuple[Tensor, Tensor]:
    r"""Targets for a layer from the loss above it, $Y = z - \eta \nabla_z L$, and the losses.

    `loss` gives one loss for each row of z, or their sum. It is differentiated: parameters that it uses
    get their gradients, as from `backward()`. Then the layer is a Pop-Art head:

        z = head(h)
        targets, losses = backpropagated_targets(lambda z: cross_entropy(z, labels, reduction="none"), z)
        targets = head.update(targets)
        loss = (head.normalized(h) - targets).square().sum(-1).mean()

    """
    with torch.enable_grad():
        z = z.detach().requires_grad_()
        losses = loss(z)
        losses.sum().backward()
    assert z.grad is not None
    return step_targets(z.detach(), z.grad, step), losses.detach()
