"""A check that `update` is called before the outputs of the loss are computed.

In eager mode the backward pass of outputs checks that the head was not updated since. Where features require
gradients PyTorch does so itself, because the gradient of the features needs the weights as they were. It
cannot say what to do about it, so that the first outputs of a head are checked here too. In a function
that `torch.compile` traces, `update` raises if outputs with gradients were computed before it. Where
outputs are compiled apart from the update, PyTorch's own check raises, if the features require gradients
or the outputs are in the targets' units. There is no error for normalised outputs of other features.
"""

import functools
import weakref
from typing import Any

import torch
from torch import Tensor, nn
from torch._guards import TracingContext

from popart.torch.checks import is_transformed

MESSAGE = (
    "the head was updated after these outputs were computed: they belong to the old scale and shift, and "
    "their targets to the new ones. Call update(targets) first, then compute outputs, then call backward(). "
    "The method loss(h, targets) of a Pop-Art head does it in this order"
)

FIRST = 100
"""Outputs of a head that are checked here although PyTorch checks them, for the sake of the message."""

_TRACED: weakref.WeakKeyDictionary[TracingContext, set[int]] = weakref.WeakKeyDictionary()
"""The heads, by id, whose outputs each trace has computed with gradients."""


def watch(head: Any, g: Tensor, h: Tensor) -> None:
    """Have the backward pass of the outputs g, or the compiler, check that no update comes in between."""
    if torch.compiler.is_compiling():
        _note_outputs(id(head))
    elif not h.requires_grad or head._watched < FIRST:
        node, scale = g.grad_fn, head.scale
        head.__dict__["_watched"] = head._watched + 1
        if node is not None and not is_transformed(g):
            node.register_prehook(functools.partial(_check, scale, scale._version))


def check_traced(head: nn.Module) -> None:
    """Raise while a compiler traces an update that comes after outputs with gradients."""
    if torch.compiler.is_compiling():
        _check_outputs(id(head))


def _check(scale: Tensor, version: int, gradients: Any) -> None:
    if scale._version != version:
        raise RuntimeError(MESSAGE)


@torch.compiler.assume_constant_result
def _note_outputs(head: int) -> bool:
    trace = TracingContext.try_get()
    if trace is not None:
        _TRACED.setdefault(trace, set()).add(head)
    return True


@torch.compiler.assume_constant_result
def _check_outputs(head: int) -> bool:
    trace = TracingContext.try_get()
    if trace is not None and head in _TRACED.get(trace, ()):
        raise RuntimeError(MESSAGE)
    return True
