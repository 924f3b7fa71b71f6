"""The base of all heads: statistics of targets, scale and shift, and averages of two heads."""

import contextlib
import math
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import linear
from torch.optim.optimizer import Optimizer

from popart.affine import Affine
from popart.torch import checks, kernels, numbers, optimizers, order
from popart.torch.statistics import Statistics


class Layer(NamedTuple):
    """Weight and bias that POP rescales, and whether the bias takes the shift."""

    weight: Tensor
    bias: Tensor | None
    takes_shift: bool = True


class LayerChange(Protocol):
    """How layers, and the state that an optimizer has of them, are changed in place to preserve outputs."""

    def apply_(self, rescaled: Sequence[optimizers.Rescaled], moved: Sequence[Tensor]) -> None:
        """Multiply tensors by powers of F, and change the biases in `moved` to F b + the change's `moved`."""
        ...


class Head(Statistics):
    r"""The base of all heads: statistics of targets, the current scale and shift, and averages of two heads.

    `scale` and `shift` ($\Sigma$ and $\mu$) are parameters that are never trained. They are written by
    `update`, and outputs are computed from them. So copies of `parameters()` alone, as many programs make
    for target networks, have the right outputs.
    """

    scale: nn.Parameter
    shift: nn.Parameter
    _cache: numbers.Cache | None = None
    _watched = 0

    def _add_units(self) -> None:
        for name, x in zip(("scale", "shift"), _without_nan(self._measured()), strict=True):
            self.register_parameter(name, nn.Parameter(x.clone(), requires_grad=False))
            self._full_precision.append(name)

    def reset_parameters(self) -> None:
        """Forget all targets; scale and shift are as they were before the first update."""
        super().reset_parameters()
        with torch.no_grad():
            self._set_units(self._measured())

    def _set_units(self, affine: Affine) -> None:
        if isinstance(affine.scale, np.generic):
            self.scale.fill_(float(affine.scale))
            self.shift.fill_(0.0 if math.isnan(affine.shift) else float(affine.shift))
            return
        scale, shift = _without_nan(Affine(*map(torch.as_tensor, affine)))
        self.scale.copy_(scale)
        self.shift.copy_(shift)

    def _units(self) -> Affine:
        """Return scale and shift; gradients do not flow into them."""
        return Affine(self.scale.detach(), self.shift.detach())

    @property
    def affine(self) -> Affine:
        """A copy of the current normalisation."""
        return Affine(self.sigma, self.mu)

    @property
    def mu(self) -> Tensor:
        r"""A copy of the shift $\mu$, for logging."""
        return self.shift.detach().clone()

    @property
    def sigma(self) -> Tensor:
        r"""A copy of the scale $\Sigma$, for logging."""
        return self.scale.detach().clone()

    def _layers(self) -> list[Layer]:
        raise NotImplementedError

    def _registries(self) -> list[dict[str, Any]]:
        """Return the dictionaries in which layers, scale, shift and statistics are registered."""
        inner = [part._parameters for part in self.children()]
        return [self._parameters, self._buffers, *([self._modules, *inner] if inner else [])]

    def _choices(self) -> int:
        """Return the number of outputs, or heads, that `index` chooses from."""
        raise NotImplementedError

    def update(
        self,
        targets: Any,
        *,
        mask: Tensor | None = None,
        weights: Tensor | None = None,
        index: Tensor | None = None,
        optimizer: Optimizer | None = None,
        optimizer_state: optimizers.StateChange = "rescale",
        max_norm: float | None = None,
    ) -> Tensor:
        """Update the statistics with a batch of targets (ART), preserve outputs (POP), normalise the targets.

        Call it once per batch, after the targets are known and before the outputs that are compared
        with them are computed. Before the first update the output is 0. The first targets are adopted:
        weights stay as they are, so that outputs change, to the range of these targets. From then on no
        output changes.

        Args:
            targets: Targets in their own units, `(*batch, *shape)` for statistics of this shape: a tensor,
                a NumPy array or a list. Those that are not finite in the precision of the statistics stay out
                of these and are not finite in the result either, or far too large, or 0 while no spread is
                known: leave them out of the loss with `torch.isfinite(targets.float())`, or use `loss`, which
                does.
            mask: The targets that count, `(*batch,)`.
            weights: The weight of each target in the statistics, `(*batch,)`.
            index: The output (or head) of each target, `(*batch,)`, for targets of the chosen
                actions or tasks only. Statistics that all outputs share do not depend on it. Numbers out of
                range are refused on a CPU.
            optimizer: The optimizer that trains this head, whose state is rescaled with it.
            optimizer_state: Change of that state: 'rescale' to the new units, 'keep' or 'reset'.
            max_norm: A limit of the norm of an output's weights, for targets that may become much smaller:
                beyond it, outputs shrink towards the new mean instead of being preserved.
        """
        y = self._as_tensor(targets)
        which = self._which(index, y, batched=True) if self._shape or index is not None else None
        plain = mask is None and weights is None and which is None and max_norm is None
        if plain and not self._shape:
            found = numbers.update(self, y, optimizer, optimizer_state)
            if found is not None:
                return found
        order.check_traced(self)
        layers, y = self._layers(), y.detach()
        if optimizer is not None:
            optimizers.check(optimizer, [p for layer in layers for p in layer[:2]], optimizer_state)
        with torch.no_grad(), without_autocast(y):
            given: list[Any] = [y, mask, weights, which]
            state = self._raw_state()
            if checks.is_eager_cpu(y) and checks.is_eager_cpu(self.scale):
                given, state = [as_numpy(x) for x in given], type(state)(*map(as_numpy, state))
            if plain and self._group is None and isinstance(given[0], Tensor):
                constants = kernels.constants(self.art, state, y)
                if constants is not None:
                    return self._updated_on_device(layers, state, y, optimizer, optimizer_state, constants)
            return self._updated(layers, state, given, optimizer, optimizer_state, max_norm)

    def _updated(
        self,
        layers: list[Layer],
        state: Any,
        given: list[Any],
        optimizer: Optimizer | None,
        optimizer_state: optimizers.StateChange,
        max_norm: float | None,
    ) -> Tensor:
        """Update with targets, mask, weights and index, as tensors or, in a tenth of the time, in NumPy."""
        y, mask, weights, which = given
        old = self.art.affine(state)
        self._check_units(old)
        new_state = self.art.update(state, y, mask=mask, weights=weights, index=which, across=self._group)
        new = self.art.affine(new_state)
        self._preserve(layers, old, new, optimizer, optimizer_state, max_norm=max_norm)
        self._set_state(new_state)
        self._set_units(new)
        return torch.as_tensor((new if which is None else new.select(which)).normalize(y))

    def _updated_on_device(
        self,
        layers: list[Layer],
        state: Any,
        y: Tensor,
        optimizer: Optimizer | None,
        optimizer_state: optimizers.StateChange,
        constants: kernels.Constants,
    ) -> Tensor:
        """Update one statistic in few operations."""
        step = kernels.update_(self.art, state, self._units(), y, constants)  # pyright: ignore[reportArgumentType]
        step.apply_(*self._affected(layers, optimizer, optimizer_state))
        return step.targets

    def _check_units(self, measured: Affine) -> None:
        """Raise if scale and shift are not those of the statistics (on a CPU; a GPU would have to wait)."""
        if not isinstance(measured.scale, (np.ndarray, np.generic)):
            return
        if isinstance(measured.scale, np.generic) and (self.scale.item(), self.shift.item()) == measured:
            return
        scale, shift = self._units()
        if (scale.numpy() == measured.scale).all() and (shift.numpy() == measured.shift).all():
            return
        theirs = _without_nan(Affine(*map(torch.as_tensor, measured)))
        slack = 1e-3 * float(scale.abs().max())
        if not all(torch.allclose(a, b, 1e-3, slack) for a, b in zip((scale, shift), theirs, strict=True)):
            raise RuntimeError(
                f"scale is {scale.tolist()}, and {theirs[0].tolist()} by the statistics and {self.art!r}, so "
                "that this head can be evaluated but not updated. Either only the parameters of this head "
                "were copied or averaged, not its statistics: update the head that it is a copy of, or copy "
                "it with load_state_dict or copy.deepcopy. Or it was loaded from an old checkpoint, which "
                "does not have the settings of its rule: make the head with those"
            )

    def _preserve(
        self,
        layers: list[Layer],
        old: Affine,
        new: Affine,
        optimizer: Optimizer | None = None,
        optimizer_state: optimizers.StateChange = "keep",
        adopt: bool = True,
        max_norm: float | None = None,
    ) -> None:
        """Change the layers so that outputs stay; nothing by default, for outputs without normalisation."""

    def _affected(
        self, layers: list[Layer], optimizer: Optimizer | None, optimizer_state: optimizers.StateChange
    ) -> optimizers.Affected:
        """Return the tensors of layers and of the optimizer that an update changes; none by default."""
        return [], []

    def normalize(self, targets: Any, *, index: Tensor | None = None) -> Tensor:
        """Return targets in normalised units, for the loss.

        The shapes are those of `update`. Gradients flow through to the targets, for losses that are computed
        from outputs in the targets' units; `update` detaches its targets.
        """
        y = self._as_tensor(targets)
        return self._units_of(self._which(index, y, batched=True)).normalize(y)

    def denormalize(self, outputs: Any, *, index: Tensor | None = None) -> Tensor:
        """Return normalised outputs or targets in the targets' own units; the inverse of `normalize`.

        They have the shape of targets. For several heads with one statistic each it is `(*batch, heads)`;
        `head(h)` has all outputs of these heads in the targets' units.
        """
        g = self._as_tensor(outputs)
        with without_autocast(g):
            return self._units_of(self._which(index, g)).denormalize(g)

    def _as_tensor(self, x: Any) -> Tensor:
        if isinstance(x, Tensor):
            return x
        return torch.as_tensor(x, dtype=self.scale.dtype, device=self.scale.device)

    def _units_of(self, which: Tensor | None) -> Affine:
        scale, shift = self._units()
        return Affine(scale, shift) if which is None else Affine(scale[which], shift[which])

    def _which(self, index: Tensor | None, targets: Tensor, batched: bool = False) -> Tensor | None:
        """Return the number of each target's statistic, after a check of shapes and index.

        None if all targets share one statistic, or if they have an axis with one number for each statistic.
        """
        shape, one = tuple(targets.shape), self._shape
        if index is None:
            if batched and one and shape == one:
                raise ValueError(
                    f"targets have shape {shape}, which may be a batch or one target of all outputs; give "
                    f"index= for a batch, or one target as {(1, *one)}"
                )
            self._check_shape(shape, one, batched)
            return None
        self._check_shape(shape, one[1:], batched)
        batch = shape[: len(shape) - len(one) + 1] if one else shape
        what = "the batch has shape" if one else "targets have shape"
        index = checks.checked_index(index, self._choices(), batch, what)
        return index if one else None

    def _check_shape(self, shape: tuple[int, ...], one: tuple[int, ...], are_targets: bool) -> None:
        if shape[max(len(shape) - len(one), 0) :] != one:
            raise ValueError(
                f"{'targets' if are_targets else 'outputs'} have shape {shape}; these statistics measure "
                f"targets of shape (*batch{''.join(f', {size}' for size in one)})"
            )

    @torch.no_grad()
    def polyak_(self, online: Self, tau: float) -> None:
        r"""Make this head $(1 - \tau)$ times itself plus $\tau$ times another, as functions.

        The average is taken in the targets' units and is exact. (Averages of `parameters()`, scale and
        shift included, differ from it by $\tau (1 - \tau)$ times the product of the differences of
        scales and of weights.) The result has the statistics of `online`; where `online` has no spread, its
        function is a constant and so is the result.
        """
        check_tau(tau)
        if type(self) is not type(online) or self.extra_repr() != online.extra_repr():
            raise ValueError(
                f"online is {online}; a head can only be averaged with its like, {self}{unwrapping(online)}"
            )
        self._preserve(self._layers(), self._units(), online._units(), adopt=False)
        for mine, theirs in zip(self._layers(), online._layers(), strict=True):
            for x, y in zip(mine[:2], theirs[:2], strict=True):
                if x is not None and y is not None:
                    x.copy_(y) if tau == 1 else x.lerp_(y, tau)  # x may be infinite
        self._set_state(online._raw_state())
        self._set_units(online._units())

    def _load_from_state_dict(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, state_dict: dict[str, Any], prefix: str, *rest: Any
    ) -> None:
        """Load scale and shift; derive them from the statistics if an older checkpoint lacks them."""
        super()._load_from_state_dict(state_dict, prefix, *rest)
        missing: list[str] = rest[2]
        absent = [prefix + name for name in ("scale", "shift") if prefix + name not in state_dict]
        if absent:
            missing[:] = [name for name in missing if name not in absent]
            with torch.no_grad():
                self._set_units(self._measured())


def apply_linear(h: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Apply a layer in its own precision, also under autocast."""
    if h.dtype is weight.dtype and weight.ndim == 2 and not torch._C._is_any_autocast_enabled():
        try:
            return linear(h, weight, bias)
        except RuntimeError:
            _check_features(h, weight)
            raise
    h = features_for(weight, h)
    with without_autocast(h):
        if weight.ndim == 2:
            return linear(h, weight, bias)
        g = linear(h, weight.flatten(0, -2)).unflatten(-1, weight.shape[:-1])
        return g if bias is None else g + bias


def features_for(weight: Tensor, h: Tensor) -> Tensor:
    """Return features in the precision of a layer, after a check of their number and precision."""
    if not torch._C._get_tracing_state():
        _check_features(h, weight)
    return h if h.dtype is weight.dtype else _promoted(h, weight)


def _check_features(h: Tensor, weight: Tensor) -> None:
    if h.shape[-1] != weight.shape[-1]:
        raise ValueError(
            f"h has shape {tuple(h.shape)}; its last axis must be of {weight.shape[-1]} features"
        )


def without_autocast(x: Tensor) -> Any:
    """Return a context in which operations have the precision of their arguments."""
    if not torch._C._is_any_autocast_enabled():
        return contextlib.nullcontext()
    return torch.autocast(x.device.type, enabled=False)


def _promoted(h: Tensor, weight: Tensor) -> Tensor:
    """Return features in the precision of the layer, if that loses none."""
    if torch.promote_types(h.dtype, weight.dtype) != weight.dtype:
        raise TypeError(
            f"h is of {h.dtype} and the head of {weight.dtype}; convert the head with .to({h.dtype}), or h"
        )
    return h.to(weight.dtype)


def check_tau(tau: float) -> None:
    """Raise unless tau is in [0, 1]."""
    if not 0 <= tau <= 1:
        raise ValueError(f"tau is {tau!r}; it must be in [0, 1]")


def unwrapping(*modules: Any) -> str:
    """Return a hint for modules that wrap another, as `torch.compile` and data parallelism do."""
    for module in modules:
        for attribute in ("_orig_mod", "module"):
            if isinstance(getattr(module, attribute, None), nn.Module):
                return f". A {type(module).__name__} wraps the network: pass its .{attribute}"
    return ""


def as_numpy(x: Any) -> Any:
    """Return a tensor on the CPU as an array of the same memory, if NumPy knows its dtype."""
    if not isinstance(x, Tensor):
        return x
    x = x.detach()
    return (x.float() if x.dtype is torch.bfloat16 else x).numpy()


def _without_nan(affine: Affine) -> tuple[Tensor, Tensor]:
    """Return scale and shift, 0 where no target was seen."""
    return affine.scale, affine.shift.nan_to_num()
