"""The loss of normalised outputs and targets, without masked targets and those that are not finite."""

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from popart.batches import FLOAT32_MAX
from popart.torch.checks import is_eager_cpu

Loss = Callable[..., Tensor]
"""A function of outputs and targets, such as those in `torch.nn.functional`."""


def like_targets(x: Any, y: Tensor) -> Tensor:
    """Return a mask or weights of shape `(*batch,)` or that of y in the shape of y."""
    x = torch.as_tensor(x, device=y.device)
    return x.reshape(*x.shape, *(1,) * (y.ndim - x.ndim)).expand(y.shape)


def are_finite(y: Tensor, like: Tensor) -> Tensor:
    """Return which targets are finite in the precision of the statistics."""
    return y.isfinite() if y.dtype.itemsize <= like.dtype.itemsize else y.abs() <= FLOAT32_MAX


def mean_loss(loss: Loss, g: Tensor, t: Tensor, counted: Tensor, weights: Any) -> Tensor:
    """Return the weighted mean of the losses that count; the others have no gradient, not even NaN."""
    g = g.to(torch.promote_types(g.dtype, torch.float32))
    all_count = weights is None and is_eager_cpu(counted) and counted.numel() > 0 and bool(counted.all())
    each = _each(loss, g, (t if all_count else torch.where(counted, t, 0.0)).to(g.dtype))
    if each.shape != g.shape:
        raise ValueError(
            f"loss returned shape {tuple(each.shape)} for outputs of shape {tuple(g.shape)}; it must return "
            "one loss per element, as with reduction='none'"
        )
    if all_count:  # the same number in fewer operations
        return each.mean()
    w = counted.to(each.dtype)
    if weights is not None:
        w = w * like_targets(weights, t)
    return (torch.where(counted, each, 0.0) * w).sum() / w.sum().clamp(torch.finfo(w.dtype).tiny)


def _each(loss: Loss, g: Tensor, t: Tensor) -> Tensor:
    return loss(g, t, reduction="none") if loss is mse_loss or _reduces(loss) else loss(g, t)


def _reduces(loss: Loss) -> bool:
    if isinstance(loss, nn.Module):
        return False
    return "reduction" in inspect.signature(loss).parameters
