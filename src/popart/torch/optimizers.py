"""The state that an optimizer keeps of a layer, rescaled together with the layer.

Pop-Art changes the units of a head's gradients from one update to the next. Averages of gradients in the
old units are converted to what they would be if every gradient had been in the new units: averages of
gradients are multiplied by F, averages of their squares by F²; averages of steps have no unit and stay.
"""

from collections.abc import Sequence
from typing import Literal
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, optim
from torch.optim.optimizer import Optimizer

StateChange = Literal["rescale", "keep", "reset"]

Rescaled = tuple[Tensor, int, bool]
"""A tensor to multiply by a power of F, this power (1 or 2), and whether the tensor belongs to a bias."""

Affected = tuple[list[Rescaled], list[Tensor]]
"""What an update changes in place: tensors to multiply, and biases to multiply and move."""

POWERS: dict[type[Optimizer], dict[str, int]] = {
    optim.SGD: {"momentum_buffer": 1},
    optim.Adam: {"exp_avg": 1, "exp_avg_sq": 2, "max_exp_avg_sq": 2},
    optim.AdamW: {"exp_avg": 1, "exp_avg_sq": 2, "max_exp_avg_sq": 2},
    optim.NAdam: {"exp_avg": 1, "exp_avg_sq": 2},
    optim.RAdam: {"exp_avg": 1, "exp_avg_sq": 2},
    optim.Adamax: {"exp_avg": 1, "exp_inf": 1},
    optim.Adagrad: {"sum": 2},
    optim.RMSprop: {"grad_avg": 1, "square_avg": 2, "momentum_buffer": 0},
}
"""The power of the gradients' unit in each tensor that these optimizers keep of a parameter."""

_CHECKED: WeakKeyDictionary[Optimizer, set[tuple[str | int, ...]]] = WeakKeyDictionary()
"""What `check` has accepted for each optimizer: the setting, and the identities of the parameters."""


def rescaled(optimizer: Optimizer, weight: Tensor, bias: Tensor | None, reset: bool) -> list[Rescaled]:
    """Return the optimizer's state of a layer that has to be converted; set all of it to 0 with `reset`."""
    powers = _powers(type(optimizer))
    found: list[Rescaled] = []
    for parameter in (weight,) if bias is None else (weight, bias):
        for name, x in optimizer.state.get(parameter, {}).items():
            if not isinstance(x, Tensor) or not x.ndim:
                continue
            if reset:
                x.zero_()
            elif name not in powers:
                raise _unknown(optimizer, repr(name))
            elif powers[name]:
                found.append((x, powers[name], parameter is bias))
    return found


def check(optimizer: Optimizer, parameters: Sequence[Tensor | None], optimizer_state: StateChange) -> None:
    """Raise unless the optimizer holds these parameters and its state can be converted."""
    known = isinstance(optimizer, Optimizer) and not torch.compiler.is_compiling()  # pyright: ignore[reportUnnecessaryIsInstance]
    accepted, key = _CHECKED.get(optimizer) if known else None, (optimizer_state, *map(id, parameters))
    if accepted is None or key not in accepted:
        _check(optimizer, parameters, optimizer_state)
        if known:
            _CHECKED.setdefault(optimizer, set()).add(key)


def _check(optimizer: Optimizer, parameters: Sequence[Tensor | None], optimizer_state: StateChange) -> None:
    if optimizer_state not in ("rescale", "keep", "reset"):
        raise ValueError(f"optimizer_state is {optimizer_state!r}; it may be 'rescale', 'keep' or 'reset'")
    if not isinstance(optimizer, Optimizer):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(
            f"optimizer is of type {type(optimizer).__name__}; it must be a torch.optim.Optimizer"
        )
    held = {id(p) for group in optimizer.param_groups for p in group["params"]}
    if any(p is not None and id(p) not in held for p in parameters):
        raise ValueError(
            f"optimizer ({type(optimizer).__name__}) does not hold this head's parameters; give the one "
            "that trains them, or none"
        )
    _check_type(optimizer, optimizer_state)


def _check_type(optimizer: Optimizer, optimizer_state: StateChange) -> None:
    if optimizer_state != "keep" and isinstance(optimizer, optim.LBFGS):
        raise ValueError(
            "optimizer is an LBFGS, whose state is of all parameters together and has unknown units. Choose "
            "optimizer_state='keep', or another optimizer"
        )
    if optimizer_state == "rescale" and not isinstance(optimizer, tuple(POWERS)):
        raise _unknown(optimizer, "state")


def _powers(kind: type[Optimizer]) -> dict[str, int]:
    """Return the powers of an optimizer's state by name; none for an unknown optimizer."""
    if kind in POWERS:
        return POWERS[kind]
    return {
        name: power for known, of in POWERS.items() if issubclass(kind, known) for name, power in of.items()
    }


def _unknown(optimizer: Optimizer, what: str) -> ValueError:
    inner = getattr(optimizer, "optimizer", None)
    wraps = isinstance(inner, Optimizer)
    return ValueError(
        f"optimizer is of type {type(optimizer).__name__}, whose {what} has unknown units; known are "
        f"{', '.join(kind.__name__ for kind in POWERS)}. "
        + ("It wraps another: pass its .optimizer" if wraps else "Choose optimizer_state='keep' or 'reset'")
    )
