"""Running statistics as buffers of a module, saved, moved and copied together with it."""

import dataclasses
import json
from collections.abc import Callable
from typing import Any, Self

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor

from popart.affine import Affine
from popart.rules import Rule
from popart.torch.replicas import Group

OVERWRITES_EARLY = torch.__version__ < "2.13"
"""Whether the compiler, on a CPU, may write the new statistics before the head has read the old ones.

In PyTorch 2.11 it does, and the head is then not rescaled; in 2.13, and on GPUs, it does not.
"""


class Statistics(nn.Module):
    """A rule (how targets are measured) and its state.

    The state stays in float32 or better when the module is converted to half precision. Checkpoints
    carry the state and the settings that outputs depend on; one without a state, or with other settings, is
    refused.
    """

    _kind = "Statistics"
    """A name for how outputs are computed; a checkpoint of another kind is refused."""

    def __init__(self, art: Rule[Any], shape: tuple[int, ...], like: Tensor) -> None:
        super().__init__()
        check_rule(art)
        self.art = art
        self._shape = shape
        state = art.init(shape, like=like)
        self._state_type = type(state)
        self._state_names = [_buffer_name(art, field) for field in state._fields]
        self._full_precision = list(self._state_names)
        for name, x in zip(self._state_names, state, strict=True):
            self.register_buffer(name, x.clone())
        self._group: Group | None = None

    def reset_parameters(self) -> None:
        """Forget all targets."""
        like = next(x for x in self._raw_state() if x.is_floating_point())
        with torch.no_grad():
            self._set_state(self.art.init(self._shape, like=like))

    def _join(self, process_group: dist.ProcessGroup | bool | None) -> None:
        """Share statistics with the replicas of a group, after a check that their settings agree."""
        if process_group:
            self._group = Group(None if process_group is True else process_group)
            self._group.check_agreement(repr(self))

    @property
    def state(self) -> Any:
        """Return a copy of the statistics, as the rule stores them."""
        return self._state_type(*(x.clone() for x in self._raw_state()))

    def _raw_state(self) -> Any:
        buffers = self._buffers
        return self._state_type(*(buffers[name] for name in self._state_names))

    def _measured(self) -> Affine:
        """Return the normalisation by the statistics; it may share memory with them."""
        return self.art.affine(self._raw_state())

    def _set_state(self, state: Any) -> None:
        for name, x in zip(self._state_names, state, strict=True):
            if isinstance(x, np.ndarray):
                np.copyto(self._buffers[name].numpy(), x)  # pyright: ignore[reportOptionalMemberAccess]
            elif OVERWRITES_EARLY and torch.compiler.is_compiling() and x.device.type == "cpu":
                setattr(self, name, x)
            else:
                getattr(self, name).copy_(x)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Convert or move the module, and undo conversions to half precision of the statistics."""
        before = {name: getattr(self, name).detach() for name in self._full_precision}
        super()._apply(fn, recurse)
        for name, x in before.items():
            converted = getattr(self, name)
            if converted.is_floating_point() and converted.dtype.itemsize < 4:
                converted.data = x.to(converted.device)
        return self

    def _settings(self) -> dict[str, Any]:
        """Return the settings that outputs depend on: all but the step size."""
        names = [field.name for field in dataclasses.fields(self.art) if field.name != "beta"]
        return {"kind": self._kind, **{name: getattr(self.art, name) for name in names}}

    def get_extra_state(self) -> Tensor:
        """Return the settings for `state_dict`, as a tensor of the characters of a JSON text.

        Every file format has tensors. Characters are integers of 32 bits, so that the average of several
        checkpoints, whose sum may be taken first, is the same text.
        """
        text = json.dumps(self._settings(), default=_plain)
        return torch.tensor([*map(ord, text)], dtype=torch.int32, device="cpu")

    def set_extra_state(self, state: Tensor) -> None:
        """Do nothing: the settings of a checkpoint are compared with those of this module, not loaded."""

    def _load_from_state_dict(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, state_dict: dict[str, Any], prefix: str, local_metadata: dict[str, Any], *rest: Any
    ) -> None:
        """Refuse a checkpoint without these statistics, also where `strict=False` would let it pass."""
        super()._load_from_state_dict(state_dict, prefix, local_metadata, *rest)
        errors: list[str] = rest[-1]
        name = prefix.rstrip(".") or type(self).__name__
        absent = [name for name in self._state_names if prefix + name not in state_dict]
        if absent:
            errors.append(
                f"{name} needs {', '.join(absent)}, which the checkpoint does not have: the statistics of "
                f"{self.art!r}, without which its weights mean nothing. If it was saved from a plain linear "
                "layer, load it into one and make the head with from_linear(layer, keep=True), which keeps "
                "its outputs; if from a head with another rule, make this one with that rule"
            )
        text: Tensor | None = state_dict.get(f"{prefix}_extra_state")
        if text is None:  # a checkpoint of an older version
            missing: list[str] = rest[1]
            missing[:] = [name for name in missing if name != f"{prefix}_extra_state"]
            return
        saved, mine = _read(text), _read(self.get_extra_state())
        if saved is None or mine is None:
            return
        differ = sorted(key for key in saved.keys() | mine.keys() if saved.get(key) != mine.get(key))
        if differ:
            errors.append(
                f"{name} was saved with {_listed(saved, differ)} and is loaded with {_listed(mine, differ)}; "
                f"outputs would change. Make it with the settings of the checkpoint (it has art={self.art!r})"
            )


def check_rule(art: Rule[Any]) -> None:
    """Raise unless `art` is a rule."""
    if not isinstance(art, Rule):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"art is {art!r}; it must be a rule, such as popart.Moments()")


def _buffer_name(art: Rule[Any], field: str) -> str:
    """Name the buffer after its rule, so that the state of one rule is not loaded into another."""
    return f"{type(art).__name__.lower()}_{field}"


def _plain(value: Any) -> Any:
    """Convert a setting for JSON: a number of NumPy's to one of Python's, anything else to text."""
    return value.item() if isinstance(value, np.generic) else repr(value)


def _read(text: Tensor) -> dict[str, Any] | None:
    """Return the settings of a checkpoint, also after an average that rounded its characters.

    Return None if there are none: tensors on the device "meta" and in `FakeTensorMode` have no values, and
    some programs put random numbers into all tensors of a checkpoint.
    """
    if text.is_meta or isinstance(text, FakeTensor):
        return None
    try:
        found = json.loads("".join(chr(round(x)) for x in text.flatten().tolist()))
    except (ValueError, OverflowError):
        return None
    return found if isinstance(found, dict) else None


def _listed(settings: dict[str, Any], names: list[str]) -> str:
    return ", ".join(f"{name}={settings.get(name, 'nothing')}" for name in names)
