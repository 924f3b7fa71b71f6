"""Layers that compute in normalised units, rescaled so that no output changes (POP)."""

import contextlib
import warnings
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss
from torch.optim.optimizer import Optimizer

from popart.affine import Affine, Change, change_of, limited
from popart.torch import checks, optimizers, order
from popart.torch.base import Head, Layer, LayerChange, as_numpy, without_autocast
from popart.torch.losses import Loss, are_finite, like_targets, mean_loss
from popart.torch.numbers import Near

CALLS_WITHOUT_UPDATE = 1000
"""Number of forward passes without any update after which a head warns, once."""


class NormalizedUnits(Head):
    """A head whose layers compute in normalised units, and are rescaled to preserve outputs."""

    heads: int | None = None
    _kind = "PopArt"
    _answers_normalized = False
    _calls = 0

    def normalized(self, h: Tensor, *, index: Tensor | None = None) -> Tensor:
        """Return the outputs in normalised units, for the loss."""
        raise NotImplementedError

    @contextlib.contextmanager
    def in_normalized_units(self) -> Iterator[Self]:
        """Make `forward` return normalised outputs, for frameworks that compute the loss themselves.

            y = head.update(y)
            with head.in_normalized_units():
                loss = framework.loss(network, y)

        Call `update` first, as always.
        """
        before = self._answers_normalized
        self._answers_normalized = True
        try:
            yield self
        finally:
            self._answers_normalized = before

    def loss(
        self,
        h: Tensor | tuple[Tensor, ...],
        y: Any,
        *,
        index: Tensor | None = None,
        mask: Tensor | None = None,
        weights: Tensor | None = None,
        optimizer: Optimizer | None = None,
        optimizer_state: optimizers.StateChange = "rescale",
        max_norm: float | None = None,
        loss: Loss = mse_loss,
    ) -> Tensor:
        """Update with targets, normalise them, and return the mean loss of the outputs, in the right order.

        Targets that are masked or not finite are left out, of the statistics and of the loss. If none is
        left, the loss is 0.

        Args:
            h: Features; a tuple of two for dueling streams that do not share them.
            y: Targets in their own units, of the shape of the outputs: `(*batch, outputs)`, or
                `(*batch,)` with `index`; of several heads `(*batch, heads, outputs)`, or
                `(*batch, outputs)` with `index`. Several heads of one output each may leave out its axis.
            index: The output (or head) that each target is of, `(*batch,)`.
            mask: The targets that count, `(*batch,)` or the shape of y.
            weights: The weight of each target in the statistics and in the mean, of the same shapes.
            optimizer: As in `update`.
            optimizer_state: As in `update`.
            max_norm: As in `update`.
            loss: A function of outputs and targets that returns one loss per element; `reduction="none"` is
                passed to functions that have this option, such as `torch.nn.functional.huber_loss`.
        """
        y = self._as_tensor(y).detach()
        features = h if isinstance(h, tuple) else (h,)
        y = self._like_outputs(y, self._outputs_shape(features[0], index))
        if not checks.is_dense(self.art):
            mask, weights = (x if x is None else like_targets(x, y) for x in (mask, weights))
        t = self._update_outputs(
            y,
            mask=mask,
            weights=weights,
            index=index,
            optimizer=optimizer,
            optimizer_state=optimizer_state,
            max_norm=max_norm,
        )
        g = self.normalized(*features, index=index)
        return mean_loss(loss, g, t, self._counted(y, mask), weights)

    def _outputs_shape(self, h: Tensor, index: Tensor | None) -> tuple[int, ...]:
        raise NotImplementedError

    def _like_outputs(self, y: Tensor, outputs: tuple[int, ...]) -> Tensor:
        """Return targets in the shape of the outputs; several heads of one output may leave out its axis."""
        shape = tuple(y.shape)
        if shape == outputs:
            return y
        if self.heads is not None and outputs == (*shape, 1):
            return y[..., None]
        raise ValueError(
            f"y has shape {shape} and the outputs have shape {outputs}; they must be the same. "
            + (
                "Give index= for targets of chosen outputs, or y[:, None] for a single output"
                if self.heads is None
                else "For a target of one output of a head, update and choose this output from normalized(h) "
                "yourself, as in docs/how-to/several-tasks.md"
            )
        )

    def _update_outputs(self, y: Tensor, **settings: Any) -> Tensor:
        """Update with targets of the shape of the outputs."""
        return self.update(y, **settings)

    def _counted(self, y: Tensor, mask: Any) -> Tensor:
        """Return a mask of the targets that count: finite ones that are not masked."""
        finite = are_finite(y, self.scale)
        if checks.is_dense(self.art):
            finite = finite.all(-1, keepdim=True).expand(y.shape)
        return finite if mask is None else finite & like_targets(mask, y).bool()

    def _denormalized(self, g: Tensor) -> Tensor:
        """Return all normalised outputs in the targets' own units."""
        own: Any = self._parameters
        scale, shift = (own["scale"], own["shift"]) if "scale" in own else (self.scale, self.shift)
        if scale.requires_grad or shift.requires_grad:
            scale, shift = scale.detach(), shift.detach()
        if g.dtype is not scale.dtype and g.dtype.itemsize < 4:
            g = g.to(scale.dtype)
        if not torch.compiler.is_compiling() and self._calls < CALLS_WITHOUT_UPDATE:
            self._count_call()
        outputs = self._map(g, scale, shift) if self._shape else torch.addcmul(shift, g, scale)
        if outputs.requires_grad:
            order.watch(self, outputs, g)
        return outputs

    def _map(self, g: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
        return torch.addcmul(shift, g, scale)

    def _count_call(self) -> None:
        """Count calls outside of compilers and CUDA graphs; the last counted call waits for the device."""
        scale, shift = self.scale, self.shift
        if not checks.is_eager(scale) or (scale.is_cuda and torch.cuda.is_current_stream_capturing()):
            return
        self._calls += 1
        if self._calls == CALLS_WITHOUT_UPDATE and not scale.any() and not shift.any():
            warnings.warn(
                f"this head was called {self._calls} times and never updated, so that all its outputs are 0: "
                "call update(targets) before each training step",
                stacklevel=5,
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
        """Rescale the layers, and the optimizer's state of them, so that no output changes (Prop. 1)."""
        if self._shape:
            old, new = (Affine(*map(self._over_outputs, affine)) for affine in (old, new))
        change = change_of(old, new, adopt=adopt)
        if max_norm is not None:
            weights = [x if isinstance(change.moved, Tensor) else as_numpy(x) for x, *_ in layers]
            change = limited(change, old, new, [(x, "out_in") for x in weights], max_norm)
        affected = self._affected(layers, optimizer, optimizer_state)
        _layer_change(change, layers[0].weight).apply_(*affected)

    def _affected(
        self, layers: list[Layer], optimizer: Optimizer | None, optimizer_state: optimizers.StateChange
    ) -> optimizers.Affected:
        rescaled: list[optimizers.Rescaled] = []
        moved: list[Tensor] = []
        for weight, bias, takes_shift in layers:
            rescaled.append((weight, 1, False))
            if bias is not None and takes_shift:
                moved.append(bias)
            elif bias is not None:
                rescaled.append((bias, 1, True))
            if optimizer is not None and optimizer_state != "keep":
                rescaled += optimizers.rescaled(optimizer, weight, bias, optimizer_state == "reset")
        return rescaled, moved

    def _over_outputs(self, x: Any) -> Any:
        """Return scale or shift in a shape that broadcasts with the outputs and not with the targets."""
        return x

    def _folded(self, weight: Tensor, bias: Tensor | None) -> nn.Linear:
        """Return a linear layer with the units of the targets in its weights."""
        scale, shift = (x.detach() for x in (self.scale, self.shift))
        W = weight.detach().to(scale.dtype)
        with without_autocast(W):
            W = scale @ W if scale.ndim == 2 else scale[..., None] * W
        layer = nn.Linear(W.shape[1], W.shape[0], bias=bias is not None, device=W.device, dtype=W.dtype)
        with torch.no_grad():
            layer.weight.copy_(W)
            if bias is not None:
                layer.bias.copy_(self._map(bias.detach().to(scale.dtype).expand(len(W)), scale, shift))
        return layer.train(self.training)


def _layer_change(change: Change, like: Tensor) -> LayerChange:
    """Return the change for layers of tensors, from one that is computed in NumPy or PyTorch."""
    if isinstance(change.factor, np.generic) and change.factor == 1 and like.dtype.itemsize >= 4:
        return Near(float(change.rest), float(change.moved))
    return Far(Change(*map(torch.as_tensor, change)))


class Far(NamedTuple):
    """A change of any size, for all updates but the most frequent ones."""

    change: Change

    def apply_(self, rescaled: Sequence[optimizers.Rescaled], moved: Sequence[Tensor]) -> None:
        for x, power, is_bias in (*rescaled, *((bias, 1, True) for bias in moved)):
            rescale = self.change.rescale_bias if is_bias else self.change.rescale
            x.copy_(rescale(x.float() if x.dtype.itemsize < 4 else x, power=power))
        for bias in moved:
            bias.add_(self.change.moved)
