"""Averages of two networks with heads, for target networks."""

from typing import Any

import torch
from torch import Tensor, nn

from popart.torch.base import Head, check_tau, unwrapping


@torch.no_grad()
def polyak_(target: nn.Module, online: nn.Module, tau: float) -> None:
    """Move a target network towards the online one: heads as functions, other parameters by their values.

    Buffers other than a head's are copied. Averages of `parameters()` by other programs are right to second
    order in the difference of scales; this one is exact.
    """
    check_tau(tau)
    mine, theirs = _parts(target), _parts(online)
    kinds = [{name: type(part).__name__ for name, part in parts.items()} for parts in (mine, theirs)]
    if kinds[0] != kinds[1]:
        apart = dict(kinds[0].items() ^ kinds[1].items())
        raise ValueError(
            f"target and online differ in {', '.join(map(repr, apart))}; they must be of one kind"
            f"{unwrapping(target, online)}"
        )
    for name, part in mine.items():
        other: Any = theirs[name]
        if isinstance(part, Head):
            part.polyak_(other, tau)
        elif isinstance(part, nn.Parameter):
            part.lerp_(other, tau)
        else:
            part.copy_(other)


def _parts(module: nn.Module) -> dict[str, Head | Tensor]:
    """Return the heads of a network, and its parameters and buffers outside of heads, each once."""
    heads = {name: part for name, part in module.named_modules() if isinstance(part, Head)}
    inside = tuple(f"{name}." if name else "" for name in heads)
    rest = (*module.named_parameters(), *module.named_buffers())
    return {**heads, **{name: x for name, x in rest if not name.startswith(inside)}}
