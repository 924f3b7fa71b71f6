r"""Eager updates on a CPU, where calls cost more than arithmetic: the method with Python's numbers.

This is `Moments` for one statistic of float32, written again for the usual update: targets are finite, some
were seen before, and the scale changes by less than a third. Every other update takes the general path. The
equations and the precision are those of `popart.moments` in NumPy.
"""

import math
import weakref
from collections.abc import Sequence
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor
from torch.autograd.graph import increment_version
from torch.optim.optimizer import Optimizer

from popart.moments import EPS, Moments, equation_4
from popart.rules import COUNT_MAX
from popart.torch import optimizers
from popart.torch.checks import is_transformed
from popart.torch.optimizers import Rescaled

FEW = 128
"""Number of targets up to which Python's lists are quicker than arrays."""

HUGE = 2.0**100
"""Standard deviation of targets from which differences of two of them may overflow."""

_ONE = torch.ones((), dtype=torch.float32, device="cpu")
"""A tensor of 1: adding a multiple of it takes half the time of adding a number."""


class Near(NamedTuple):
    """A change by a factor near 1, as most are: one call for all tensors, and one for each bias."""

    less_1: float
    """F - 1."""

    moved: float

    def apply_(self, rescaled: Sequence[Rescaled], moved: Sequence[Tensor]) -> None:
        self.apply_to_(_repeated(rescaled, moved), moved)

    def apply_to_(self, tensors: list[Tensor], moved: Sequence[Tensor]) -> None:
        """Multiply each tensor by F as often as it is in the list, and move the biases."""
        if tensors:
            torch._foreach_add_(tensors, tensors, alpha=self.less_1)  # pyright: ignore[reportPrivateImportUsage]
        for bias in moved:
            bias.add_(_ONE, alpha=self.moved)


def _repeated(rescaled: Sequence[Rescaled], moved: Sequence[Tensor]) -> list[Tensor]:
    """Return all tensors, those that are multiplied by F² twice; on a CPU they are changed one by one."""
    return [*moved, *(x for x, power, _ in rescaled for _ in range(power))]


class Cache:
    """Tensors that an update reads and writes, looked up once. Copies of the head have None instead."""

    __slots__ = ("affected", "art", "layers", "parameters", "pointers", "registered", "tensors", "views")

    def __init__(self, head: Any) -> None:
        self.art, self.layers = head.art, head._layers()
        self.parameters = [x for layer in self.layers for x in layer[:2] if x is not None]
        found = [(place.values, [*place.values()]) for place in head._registries()]
        self.registered = [(values, [*map(id, held)], held) for values, held in found]
        own = head._parameters
        self.tensors = own["scale"], own["shift"], *head._raw_state()
        self.pointers = [x.data_ptr() for x in self.tensors]
        self.views: list[Any] = [memoryview(x.detach().numpy().reshape(-1)) for x in self.tensors]
        self.affected: Any = type(None), "reset", [], None

    @classmethod
    def of(cls, head: Any) -> Self | None:
        """Return the cache of a head if these functions apply to it, as it was or made anew."""
        cache, art = head._cache, head.art
        if cache is not None and cache.art is art and cache._is_current():
            return cache
        if type(art) is not Moments or not isinstance(art.beta, float) or art != Moments(art.beta, art.std):
            return None
        moments = head._raw_state().moments
        if art.beta >= 1 or moments.ndim != 1 or moments.dtype is not torch.float32 or not moments.is_cpu:
            return None
        used = [moments, head.scale, *(x for layer in head._layers() for x in layer[:2] if x is not None)]
        if head._group is not None or any(x.dtype.itemsize < 4 or x.is_inference() for x in used):
            return None
        head._cache = cache = cls(head)
        return cache

    def _is_current(self) -> bool:
        """Return whether the head's tensors and their memory are still the same."""
        for values, ids, _ in self.registered:
            if [*map(id, values())] != ids:
                return False
        (a, b, c, d), at = self.tensors, self.pointers
        same = a.data_ptr() == at[0] and b.data_ptr() == at[1]
        return same and c.data_ptr() == at[2] and d.data_ptr() == at[3]

    def affected_by(self, head: Any, optimizer: Optimizer | None, how: optimizers.StateChange) -> Any:
        """Return the arguments of `Near.apply_to_`, which are found again after a change of optimizer."""
        held, how_before, state, affected = self.affected
        if held() is optimizer and how == how_before != "reset" and state == self._state_of(optimizer):
            return affected
        if optimizer is not None:
            optimizers.check(optimizer, self.parameters, how)
        rescaled, moved = head._affected(self.layers, optimizer, how)
        affected = _repeated(rescaled, moved), moved
        held = type(None) if optimizer is None else weakref.ref(optimizer)
        self.affected = held, how, self._state_of(optimizer), affected
        return affected

    def _state_of(self, optimizer: Optimizer | None) -> list[int]:
        """Return the identities of the optimizer's state of the head's parameters."""
        if optimizer is None:
            return []
        return [id(x) for parameter in self.parameters for x in optimizer.state.get(parameter, {}).values()]

    def __reduce__(self) -> Any:
        return type(None), ()


def update(head: Any, y: Any, optimizer: Optimizer | None, how: optimizers.StateChange) -> Tensor | None:
    """Update a head and return normalised targets; or return None, and change nothing, for other updates."""
    if type(y) is not Tensor or y.dtype is not torch.float32 or not y.is_cpu or torch.compiler.is_compiling():
        return None
    cache = None if torch._C._get_tracing_state() or is_transformed(y) else Cache.of(head)
    if cache is None:
        return None
    affected = cache.affected_by(head, optimizer, how)
    scale, shift, counts, moments = cache.views
    old, count, (beta, s) = scale[0], counts[0], (cache.art.beta, cache.art.std)
    mu, sigma, mu_carry, sigma_carry = moments.tolist()
    if not 0 < count < COUNT_MAX or shift[0] != mu or not _scale(s, mu, sigma) == old > 0:
        return None
    mean, std = _measured(y)
    beta = min(beta / -math.expm1((count + 1.0) * math.log1p(-beta)), 1.0)
    before = mu + EPS * mu_carry, sigma + EPS * sigma_carry
    new_mu, new_sigma = equation_4(*before, mean, std, beta, math.sqrt)
    if not (abs(new_sigma - sigma) <= new_sigma / 3 and EPS * abs(new_mu) < new_sigma < HUGE > std):
        return None
    counts[0] = count + 1
    moments[0], moments[1] = new_mu, new_sigma
    shift[0], rounded = moments[0], moments[1]
    moments[2], moments[3] = (new_mu - moments[0]) / EPS, (new_sigma - rounded) / EPS
    new = scale[0] = _scale(s, moments[0], rounded)
    grad = torch.is_grad_enabled()
    torch._C._set_grad_enabled(False)
    try:
        Near((old - new) / new, (mu - shift[0]) / new).apply_to_(*affected)
        increment_version(cache.tensors[:2])
        return y.sub(cache.tensors[1]).div_(cache.tensors[0])
    finally:
        torch._C._set_grad_enabled(grad)


def _measured(y: Tensor) -> tuple[float, float]:
    """Return mean and standard deviation of targets; NaN if there are none, or some are not finite."""
    if y.numel() > FEW:
        values = y.detach().double().reshape(-1)  # NumPy's threads would compete with PyTorch's
        if not torch.dot(values, values) < math.inf:
            return math.nan, math.nan
        mean = float(values.mean())
        values -= mean
        return mean, math.sqrt(torch.dot(values, values) / len(values))
    some = y.tolist() if y.ndim == 1 else y.reshape(-1).tolist()
    n = len(some)
    if not n:
        return math.nan, math.nan
    mean = sum(some) / n
    return mean, math.dist(some, [mean] * n) / math.sqrt(n)


def _scale(std: float, mu: float, sigma: float) -> float:
    """Return the scale, which is never below the last bit of the shift."""
    scale = max(sigma, EPS * abs(mu)) if sigma > 0 else 0.0
    return scale if std == 1 else float(np.float32(scale) / std)
