"""What an optimizer remembers of a layer, and what becomes of it when the layer is rescaled.

Pop-Art changes the units of a head's gradients from one update to the next. Moments of gradients in
the old units are made into what they would have been had every gradient been in the new ones: averages
of gradients are multiplied by F, averages of their squares by F², steps that have no unit by nothing.
"""

from collections.abc import Callable
from typing import Literal

from torch import Tensor, optim
from torch.optim.optimizer import Optimizer

Moments = Literal["rescale", "keep", "reset"]

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


def adjust(optimizer: Optimizer, parameter: Tensor, rescale: Callable[..., Tensor], moments: Moments) -> None:
    """Bring what the optimizer remembers of a parameter into the new units, in place."""
    for name, moment in _remembered(optimizer, parameter).items():
        if moments == "reset":
            moment.zero_()
        elif power := _power(optimizer, name):
            moment.copy_(rescale(moment, power=power))


def check(optimizer: Optimizer, parameters: list[Tensor], moments: Moments) -> None:
    """Whether the optimizer holds these parameters, and its moments are known."""
    if moments not in ("rescale", "keep", "reset"):
        raise ValueError(f"moments is {moments!r}; it may be 'rescale', 'keep' or 'reset'")
    if not isinstance(optimizer, Optimizer):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(
            f"optimizer is of type {type(optimizer).__name__}; it must be a torch.optim.Optimizer"
        )
    held = {id(p) for group in optimizer.param_groups for p in group["params"]}
    if any(id(p) not in held for p in parameters):
        raise ValueError(
            f"optimizer ({type(optimizer).__name__}) does not hold this head's parameters; give the one "
            "that trains them, or none"
        )
    if moments == "rescale":
        for parameter in parameters:
            for name in _remembered(optimizer, parameter):
                _power(optimizer, name)


def _remembered(optimizer: Optimizer, parameter: Tensor) -> dict[str, Tensor]:
    state = optimizer.state.get(parameter, {})
    return {
        name: x
        for name, x in state.items()
        if isinstance(x, Tensor) and x.shape == parameter.shape and x.ndim
    }


def _power(optimizer: Optimizer, name: str) -> int:
    for kind, powers in POWERS.items():
        if isinstance(optimizer, kind) and name in powers:
            return powers[name]
    raise ValueError(
        f"optimizer is a {type(optimizer).__name__}, whose {name!r} has unknown units; known are "
        f"{', '.join(kind.__name__ for kind in POWERS)}. Choose moments='keep' or 'reset'"
    )
