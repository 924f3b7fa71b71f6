r"""Eager updates on a device, where every operation starts a kernel: the method in few operations.

This is `Moments` for one statistic, written again for PyTorch's eager mode on GPUs. The general code computes
the same in three times as many operations. Numbers are combined in double precision, and nothing waits for
the device.

With d the deviations of the targets from an origin o, $m_1$ and $m_2$ the means of $d$ and $d^2$, and
$o = \mu$, Eq. 4 is

$$\mu_t = o + \beta m_1 \qquad \sigma_t^2 = (1 - \beta) \sigma^2 + \beta m_2 - (\beta m_1)^2$$

For $\beta < 1$ this difference does not cancel. The first targets have $\beta = 1$; their origin is one of
themselves, so that their deviations are not large beside their spread.
"""

import functools
import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from popart.moments import EPS, Moments, MomentsState
from popart.rules import COUNT_MAX, Rule
from popart.torch.checks import is_eager


class Constants(NamedTuple):
    """Numbers of a step size, stored on a device so that they can be read without a copy."""

    log: Tensor
    """ln(1 - β)."""

    first: Tensor
    """(1 - β) - 1, computed as for all later steps, so that the first step is exactly 1."""

    eps: Tensor
    infinity: Tensor
    floor: Tensor
    """What mean and deviation are multiplied by for the least scale: (2⁻²³, 1)."""


class Step(NamedTuple):
    """The result of an update: the normalisation, the change of the layer, and the normalised targets."""

    scale: Tensor
    shift: Tensor
    factor: Tensor
    moved: Tensor
    targets: Tensor

    def rescale_(self, x: Tensor, power: int, is_bias: bool) -> None:
        """Multiply a weight, a bias or an optimizer's state of it in place by F or F²."""
        torch.mul(x, self.factor if power == 1 else self.factor.square(), out=x)

    def move_(self, bias: Tensor) -> None:
        """Change a bias to what preserves outputs, $F b + moved$, in place."""
        torch.addcmul(self.moved, bias, self.factor, out=bias)


def constants(art: Rule[Any], state: Any, y: Tensor) -> Constants | None:
    """Return the constants if these functions apply: to `Moments` of one statistic with plain settings."""
    if type(art) is not Moments or not isinstance(art.beta, float) or art != Moments(art.beta, art.std):
        return None
    if art.beta >= 1 or state.moments.dtype != torch.float32 or state.moments.ndim != 1 or not y.numel():
        return None
    if not y.is_floating_point() or y.dtype.itemsize > 4 or y.device != state.moments.device:
        return None
    if y.device.type == "mps" or not is_eager(y):
        return None
    found = _CONSTANTS.get((art.beta, y.device))
    if found is None and not (y.is_cuda and torch.cuda.is_current_stream_capturing()):
        found = _CONSTANTS[art.beta, y.device] = _constants(art.beta, y.device)
    return found


_CONSTANTS: dict[tuple[float, torch.device], Constants] = {}
"""Never made while a CUDA graph is captured, whose memory they would outlive."""


def _constants(beta: float, device: torch.device) -> Constants:
    full = functools.partial(torch.full, (1,), dtype=torch.float64, device=device)
    log = full(math.log1p(-beta))
    floor = torch.cat((full(EPS), full(1.0))).float()
    return Constants(log, log.expm1(), full(EPS), full(math.inf), floor)


def update_(
    art: Moments, state: MomentsState, units: tuple[Tensor, Tensor], y: Tensor, of: Constants
) -> Step:
    """Update a state in place with targets, and return what follows from it for scale, shift and layer."""
    counts, moments = state
    seen = counts[:1] > 0
    absorb_(state, y.reshape(-1), seen, of)
    mu, still = moments[:1].double(), moments[1:2] == 0
    scale = torch.linalg.vector_norm(moments[:2] * of.floor, math.inf, keepdim=True)
    if art.std != 1:
        scale /= art.std
    unit = torch.where(still, of.infinity, scale)
    factor = units[0] / unit
    factor += factor == 0
    moved = (torch.where(seen, units[1], mu) - mu) / unit
    targets = torch.div(y - mu, unit, out=torch.empty_like(y))
    return Step(scale.masked_fill_(still, 0.0)[0], moments[0], factor, moved, targets)


def absorb_(state: MomentsState, y: Tensor, seen: Tensor, of: Constants) -> None:
    """Update the moments with a batch, in place (Eq. 4); targets that are not finite are counted."""
    counts, moments = state
    before = torch.addcmul(moments[:2], moments[2:], of.eps)
    some = y.nan_to_num(-math.inf, -math.inf, -math.inf).amax(0, keepdim=True)
    origin = torch.where(seen, before[:1], some)
    off = y - origin
    d = off.nan_to_num(0.0, 0.0, 0.0)
    n = (d == off).sum()
    means, new = torch.empty_like(before), torch.empty_like(before)
    torch.sum(d, 0, out=means[0])
    torch.dot(d, d, out=means[1])
    m1, m2 = means.div_(n).split(1)
    beta = of.first / torch.addcmul(of.log, counts[:1], of.log).expm1_()
    moved = beta * m1
    variance = torch.lerp(before[1:].square(), m2, beta).addcmul_(moved, moved, value=-1)
    torch.add(origin, moved, out=new[:1])
    torch.sqrt(variance, out=new[1:])
    got = n > 0
    new = torch.where(got, new, before)
    moments[:2].copy_(new)
    torch.mul(new.sub_(moments[:2]), 1 / EPS, out=moments[2:])
    counts.clamp_(max=COUNT_MAX - len(y))
    counts[:1].add_(got)
    counts[1:].add_(len(y) - n)
