"""Statistics as buffers of a module: they travel with `state_dict`, `.to()`, `deepcopy` and DDP."""

from collections.abc import Callable
from typing import Any, Self

import torch
import torch.distributed as dist
from torch import Tensor, nn

from popart.affine import Affine
from popart.rules import Rule
from popart.torch.replicas import Group

OVERWRITES_EARLY = torch.__version__ < "2.13"
"""Whether the compiler may, on a CPU, write the new statistics before the head has read the old ones.

It does in PyTorch 2.11, where the head is then not rescaled; not in 2.13, nor on GPUs.
"""


class Statistics(nn.Module):
    """A rule and its state.

    The state is in no less than float32 whatever the module is converted to, and no checkpoint without
    it is accepted.
    """

    def __init__(self, art: Rule[Any, Any], shape: tuple[int, ...], like: Tensor) -> None:
        super().__init__()
        check_rule(art)
        self.art = art
        state = art.init(shape, like=like)
        self._state_type = type(state)
        self._state_names = [_buffer_name(art, field) for field in state._fields]
        for name, x in zip(self._state_names, state, strict=True):
            self.register_buffer(name, x.clone())
        self._group: Group | None = None

    def _join(self, process_group: dist.ProcessGroup | bool | None) -> None:
        """Act as one with the replicas of a group, if these have the same settings."""
        if process_group:
            self._group = Group(None if process_group is True else process_group)
            self._group.check_agreement(repr(self))

    @property
    def state(self) -> Any:
        """The statistics, as the rule has them."""
        return self._state_type(*(getattr(self, name) for name in self._state_names))

    @property
    def affine(self) -> Affine:
        """The normalisation, as of the last update."""
        return self.art.affine(self.state)

    def _absorbed(self, targets: Tensor, **which: Tensor | None) -> Any:
        """The state after a batch, of which each replica has a part."""
        state = self.state
        summary = self.art.summarize(state, targets, **which)
        if self._group is not None:
            summary = self.art.merge(self._group.gather(summary))
        return self.art.absorb(state, summary)

    def _set_state(self, state: Any) -> None:
        for name, x in zip(self._state_names, state, strict=True):
            if OVERWRITES_EARLY and torch.compiler.is_compiling() and x.device.type == "cpu":
                setattr(self, name, x)
            else:
                getattr(self, name).copy_(x)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        before = {name: getattr(self, name) for name in self._state_names}
        super()._apply(fn, recurse)
        for name, x in before.items():
            y = getattr(self, name)
            if y.is_floating_point() and y.dtype.itemsize < 4:
                setattr(self, name, x.to(y.device))
        return self

    def _load_from_state_dict(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, state_dict: dict[str, Any], prefix: str, *rest: Any
    ) -> None:
        """Refuse what has no statistics, also where `strict=False` would let it pass."""
        super()._load_from_state_dict(state_dict, prefix, *rest)
        missing = [name for name in self._state_names if prefix + name not in state_dict]
        if missing:
            errors: list[str] = rest[-1]
            errors.append(
                f"{prefix.rstrip('.') or type(self).__name__} needs {', '.join(missing)}, which the "
                f"checkpoint does not have: the statistics of {self.art!r}, without which its weights mean "
                "nothing. If it was saved from a plain linear layer, load it into one and make the head "
                "with from_linear(layer), which keeps its outputs; if from a head with another rule, make "
                "this one with that rule"
            )


def check_rule(art: Rule[Any, Any]) -> None:
    if not isinstance(art, Rule):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"art is {art!r}; it must be a rule, such as popart.Moments()")


def _buffer_name(art: Rule[Any, Any], field: str) -> str:
    """One that says of which rule it is, so that a state of one rule is not loaded into another."""
    name = type(art).__name__.lower()
    inner = getattr(art, "rule", None)
    return f"{name}_{field if inner is None else _buffer_name(inner, field)}"
