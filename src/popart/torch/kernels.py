r"""Eager updates on a device, where every operation starts a kernel: the method in few operations.

This is `Moments` for one statistic, written again for PyTorch's eager mode on GPUs. The general code computes
the same in three times as many operations. Numbers are combined in double precision, and nothing waits for
the device.

With $\bar Y$ and v the mean and the variance of a batch, Eq. 4 interpolates both statistics. The variance
also grows by a product: the distance of the new mean from the old one times that from the batch's:

$$\mu_t = (1 - \beta) \mu + \beta \bar Y \qquad
  \sigma_t^2 = (1 - \beta) \sigma^2 + \beta v + (\mu_t - \mu)(\bar Y - \mu_t)$$

Nothing in it cancels. Numbers that take the same operation are rows of one small array, so that one kernel
serves them all.
"""

import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import threshold

from popart.moments import EPS, Moments, MomentsState
from popart.rules import COUNT_MAX, Rule
from popart.torch.checks import is_eager
from popart.torch.optimizers import Rescaled


class Constants(NamedTuple):
    """Numbers of a step size, stored on a device so that they can be read without a copy."""

    log: Tensor
    """ln(1 - β)."""

    first: Tensor
    """(1 - β) - 1, computed as for all later steps, so that the first step is exactly 1."""

    eps: Tensor
    zero: Tensor
    one: Tensor
    floor: Tensor
    """Factors of mean and deviation in the lower bound of the scale: (2⁻²³, 1)."""


class LayerUpdate(NamedTuple):
    """The change of the layer after an update, and the normalised targets."""

    factor: Tensor
    moved: Tensor
    targets: Tensor

    def apply_(self, rescaled: Sequence[Rescaled], moved: Sequence[Tensor]) -> None:
        for power in {power for _, power, _ in rescaled}:
            tensors = [x for x, each, _ in rescaled if each == power]
            factor = self.factor if power == 1 else self.factor.square()  # no scalar, which would be rounded
            torch._foreach_mul_(tensors, [factor] * len(tensors))  # pyright: ignore[reportPrivateImportUsage]
        for bias in moved:
            torch.addcmul(self.moved, bias, self.factor, out=bias)


def constants(art: Rule[Any], state: Any, y: Tensor) -> Constants | None:
    """Return the constants if these functions apply: to `Moments` of one statistic with plain settings."""
    if not is_eager(y) or type(art) is not Moments or not isinstance(art.beta, float):
        return None
    if art != Moments(art.beta, art.std):
        return None
    if art.beta >= 1 or state.moments.dtype != torch.float32 or state.moments.ndim != 1 or not y.numel():
        return None
    if not y.is_floating_point() or y.dtype.itemsize > 4 or y.device != state.moments.device:
        return None
    if y.device.type == "mps":
        return None
    found = _CONSTANTS.get((art.beta, y.device))
    if found is None and not (y.is_cuda and torch.cuda.is_current_stream_capturing()):
        found = _CONSTANTS[art.beta, y.device] = _constants(art.beta, y.device)
    return found


_CONSTANTS: dict[tuple[float, torch.device], Constants] = {}
"""Not filled while a CUDA graph is captured, because they outlive its memory."""


def _constants(beta: float, device: torch.device) -> Constants:
    full = functools.partial(torch.full, (1,), dtype=torch.float64, device=device)
    log, eps, one = full(math.log1p(-beta)), full(EPS), full(1.0)
    return Constants(log, log.expm1(), eps, full(0.0), one, torch.cat((eps, one)).float())


def update_(
    art: Moments, state: MomentsState, units: tuple[Tensor, Tensor], y: Tensor, of: Constants
) -> LayerUpdate:
    """Update a state, scale and shift in place with targets; return the change of the layer."""
    counts, moments = state
    seen = counts[:1] > 0
    absorb_(state, y.reshape(-1), of)
    mu, unit = moments[:1], _unit(art, moments, of)
    factor = threshold(torch.addcdiv(of.zero, units[0], unit), 0.0, 1.0)
    less = torch.addcdiv(of.zero, mu, unit, value=-1)
    moved = torch.addcdiv(less, torch.where(seen, units[1], mu), unit)
    targets = torch.addcdiv(less, y, unit, out=torch.empty_like(y, dtype=moments.dtype))
    torch.nan_to_num(unit[0], posinf=0.0, out=units[0])
    units[1].copy_(moments[0])
    return LayerUpdate(factor, moved, targets)


def _unit(art: Moments, moments: Tensor, of: Constants) -> Tensor:
    """Return the scale, or infinity while there is no spread: whatever is divided by it is 0."""
    both = moments[:2] * of.floor
    threshold(both[1:], 0.0, math.inf, inplace=True)
    unit = torch.linalg.vector_norm(both, math.inf, keepdim=True)
    return unit if art.std == 1 else unit / art.std


def absorb_(state: MomentsState, y: Tensor, of: Constants) -> None:
    """Update the moments with a batch, in place (Eq. 4); targets that are not finite are counted."""
    counts, moments = state
    rows = torch.empty(3, 2, dtype=of.eps.dtype, device=y.device)
    before, new, batch = rows
    torch.addcmul(moments[:2], moments[2:], of.eps, out=before)
    n = _measure(y, batch)
    rows[::2, 1].square_()
    batch[1:].div_(n)
    beta = of.first / torch.addcmul(of.log, counts[:1], of.log).expm1_()
    torch.lerp(before, batch, beta, out=new)
    moved, left = torch.diff(rows[:, 0]).split(1)
    new[1:].addcmul_(moved, left)
    has_targets = n > 0
    new = torch.where(has_targets, new, before)
    new[1:].sqrt_()
    moments[:2].copy_(new)
    torch.addr(moments[:2, None], new, of.one, beta=-1 / EPS, alpha=1 / EPS, out=moments[2:, None])
    counts.clamp_(max=COUNT_MAX - len(y))
    counts[:1].add_(has_targets)
    counts[1:].add_(len(y) - n)


def _measure(y: Tensor, into: Tensor) -> Tensor:
    """Write the mean of the finite targets and the norm of their deviations; return their number.

    They are counted with integers, because a sum of booleans converts them first, with a kernel of its own.
    """
    known = y.nan_to_num(0.0, 0.0, 0.0)
    finite = torch.eq(known, y, out=torch.empty_like(y, dtype=torch.int64))
    n = finite.sum()
    mean = torch.div(known.sum(0, keepdim=True, dtype=into.dtype), n, out=into[:1])
    d = torch.addcmul(known, finite, mean, value=-1)
    torch.linalg.vector_norm(d, keepdim=True, out=into[1:])
    return n
