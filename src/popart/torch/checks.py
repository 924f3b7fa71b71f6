"""Checks and conversions of the arguments of heads."""

import dataclasses
import operator
import warnings
from numbers import Real
from typing import Any

import torch
from torch import Tensor, nn

from popart.moments import Moments
from popart.rules import Rule
from popart.steps import constant, debiased
from popart.torch.statistics import check_rule


def is_eager(x: Tensor) -> bool:
    """Return whether x has values here, outside of compilers, traces and transforms."""
    return not (torch.compiler.is_compiling() or torch._C._get_tracing_state() or is_transformed(x))


def is_eager_cpu(x: Tensor) -> bool:
    """Return whether the values of x can be read here without a wait for a device."""
    return x.device.type == "cpu" and is_eager(x)


def is_transformed(x: Tensor) -> bool:
    """Return whether x is inside of `torch.func.vmap`, `grad` or the like."""
    return torch._C._functorch.is_functorch_wrapped_tensor(x)  # pyright: ignore


def chosen_rule(art: Rule[Any] | None, beta: float | None) -> Rule[Any]:
    """Return the rule of a head, from `art` or from the shorthand `beta`."""
    if art is not None and beta is not None:
        raise ValueError(
            f"art is {art!r} and beta is {beta!r}; give one of them: beta is short for Moments(beta)"
        )
    if art is None:
        art = Moments() if beta is None else Moments(beta)
    check_rule(art)
    return art


def warn_of_beta(art: Rule[Any]) -> None:
    """Warn of a step size above 0.5: other libraries ask for 1 - β, the part of the statistics to keep."""
    step = getattr(art, "beta", None)
    step = step.beta if isinstance(step, (constant, debiased)) else step
    if isinstance(step, Real) and 0.5 < float(step) < 1:
        beta = float(step)
        warnings.warn(
            f"beta is {beta:g}: each update forgets {beta:.1%} of all earlier targets. TorchRL and others "
            f"give the part that is kept; here write beta={1 - beta:.3g} for it",
            stacklevel=3,
        )


def kept(art: Rule[Any], keep: bool) -> Rule[Any]:
    """Return the rule, with its option `keep` if this is True."""
    return dataclasses.replace(art, keep=True) if keep else art


def without_shift(art: Rule[Any]) -> Rule[Any]:
    """Return the rule for a layer without a bias: its shift is 0."""
    return dataclasses.replace(art, symmetric=True) if art.has_shift else art


def is_dense(art: Rule[Any]) -> bool:
    """Return whether all outputs are measured together, with a dense scale."""
    return art.event_axes > 0


def size(name: str, value: Any) -> int:
    """Return a positive integer, of any type that is one (NumPy's too)."""
    try:
        number = operator.index(value)
    except TypeError:
        number = 0
    if number < 1:
        raise ValueError(f"{name} is {value!r}; it must be a positive integer")
    return number


def check_linear(name: str, layer: nn.Module) -> None:
    """Raise unless the layer is a plain `torch.nn.Linear`."""
    if not isinstance(layer, nn.Linear) or type(layer).forward is not nn.Linear.forward:
        raise TypeError(
            f"{name} is a {type(layer).__name__}; only the outputs of a torch.nn.Linear can be preserved. "
            "For any other model put PopArt.identity(outputs) on top of it"
        )
    owned(layer)


def owned(layer: nn.Module) -> tuple[Any, Any]:
    """Return weight and bias of a layer; raise if they are computed from other parameters."""
    own = layer._parameters
    if "weight" in own and "bias" in own:
        return own["weight"], own["bias"]
    raise ValueError(
        f"{type(layer).__name__} has a parametrized weight or bias (by weight_norm, spectral_norm or the "
        "like), which cannot be rescaled in place. Remove the parametrization, or keep it on a "
        "layer below and put PopArt.identity(outputs) on top"
    )


def checked_index(index: Any, n: int, batch: tuple[int, ...], what: str) -> Tensor:
    """Return the index as integers of 64 bits, after a check of its shape, type and (on a CPU) range."""
    index = _index_of(index, batch, what)
    _check_range(index, n)
    return index.long()


def chosen(outputs: Tensor, index: Any, axis: int) -> Tensor:
    """Return the outputs that an index chooses along an axis, one for each row.

    Numbers out of range raise everywhere, because `gather` refuses them.
    """
    batch, rest = tuple(outputs.shape[:axis]), tuple(outputs.shape[axis:])[1:]
    index = _index_of(index, batch, "the batch has shape").long()
    places = index.reshape(*batch, 1, *(1,) * len(rest)).expand(*batch, 1, *rest)
    try:
        return outputs.gather(axis, places).squeeze(axis)
    except RuntimeError:
        _check_range(index, outputs.shape[axis])
        raise


def _index_of(index: Any, batch: tuple[int, ...], what: str) -> Tensor:
    index = torch.as_tensor(index)
    if index.dtype == torch.bool or index.is_floating_point() or index.is_complex():
        raise ValueError(f"index has dtype {index.dtype}; it must be of integers")
    if tuple(index.shape) != batch:
        raise ValueError(f"index has shape {tuple(index.shape)}; {what} {batch}")
    return index


def _check_range(index: Tensor, n: int) -> None:
    if is_eager_cpu(index) and index.numel():
        low, high = (int(x) for x in index.aminmax())
        if low < 0 or high >= n:
            raise ValueError(f"index reaches from {low} to {high}; it must be from 0 to {n - 1}")
