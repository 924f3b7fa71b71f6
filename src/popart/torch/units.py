"""Layers that compute in normalised units, rescaled so that no output changes (POP)."""

import contextlib
import functools
import warnings
from collections.abc import Callable, Iterator
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss
from torch.optim.optimizer import Optimizer

from popart.affine import Affine, Change, change_of, limited
from popart.torch import checks, optimizers, order
from popart.torch.base import Head, Layer, as_numpy
from popart.torch.losses import Loss, like_targets, mean_loss

CALLS_WITHOUT_UPDATE = 1000
"""Forward passes of a head that was never updated after which it warns, once."""


class NormalizedUnits(Head):
    """A head whose layers compute in normalised units, and which are rescaled to preserve outputs."""

    _answers_normalized = False
    _calls = 0

    def normalized(self, h: Tensor, *, index: Tensor | None = None) -> Tensor:
        """Return the outputs in normalised units, for the loss."""
        raise NotImplementedError

    @contextlib.contextmanager
    def in_normalized_units(self) -> Iterator[Self]:
        """Make `forward` answer in normalised units, for frameworks that compute the loss themselves.

            y = head.update(y)
            with head.in_normalized_units():
                loss = framework.loss(network, y)

        As always the update comes first.
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
        moments: optimizers.Moments = "rescale",
        loss: Loss = mse_loss,
    ) -> Tensor:
        """Update with targets, normalise them, and return the mean loss of the outputs, in the right order.

        Targets that are masked or not finite are left out, of the statistics and of the loss. Without
        any other target the loss is 0.

        Args:
            h: Features; a tuple of two for dueling streams that do not share them.
            y: Targets in their own units, of the shape of the outputs: `(*batch, outputs)`, or
                `(*batch,)` with `index`. Heads of one output each may leave out its axis.
            index: The output (or head) that each target is of, `(*batch,)`.
            mask: The targets that count, `(*batch,)` or the shape of y.
            weights: The weight of each target in the statistics and in the mean, of the same shapes.
            optimizer: As in `update`.
            moments: As in `update`.
            loss: A function of outputs and targets that gives one loss per number; `reduction="none"` is
                passed to those that know it, such as `torch.nn.functional.huber_loss`.
        """
        y = self._as_tensor(y).detach()
        features = h if isinstance(h, tuple) else (h,)
        self._check_comparable(self._outputs_shape(features[0], index), tuple(y.shape))
        if not self._shape:
            mask, weights = (x if x is None else like_targets(x, y) for x in (mask, weights))
        t = self.update(y, mask=mask, weights=weights, index=index, optimizer=optimizer, moments=moments)
        g = self.normalized(*features, index=index)
        return mean_loss(loss, g.reshape(y.shape), t, self._counted(y, mask), weights)

    def _outputs_shape(self, h: Tensor, index: Tensor | None) -> tuple[int, ...]:
        raise NotImplementedError

    def _check_comparable(self, outputs: tuple[int, ...], targets: tuple[int, ...]) -> None:
        if outputs != targets and (not self._shape or outputs != (*targets, 1)):
            raise ValueError(
                f"y has shape {targets} and the outputs have shape {outputs}; they must be the same. Give "
                f"index= for targets of chosen outputs, or y[:, None] for a single output"
            )

    def _counted(self, y: Tensor, mask: Any) -> Tensor:
        """Return which targets count: those that are finite, and in the mask."""
        finite = y.isfinite()
        if checks.is_dense(self.art):
            finite = finite.all(-1, keepdim=True).expand(y.shape)
        return finite if mask is None else finite & like_targets(mask, y).bool()

    def _denormalized(self, g: Tensor) -> Tensor:
        """Return all normalised outputs in the targets' own units."""
        scale, shift = self.scale, self.shift
        if scale.requires_grad or shift.requires_grad:
            scale, shift = scale.detach(), shift.detach()
        if g.dtype.itemsize < 4:
            g = g.to(scale.dtype)
        if not torch.compiler.is_compiling() and self._calls < CALLS_WITHOUT_UPDATE:
            self._count_call()
        return self._map(g, scale, shift)

    def _map(self, g: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
        return torch.addcmul(shift, g, scale)

    def _count_call(self) -> None:
        """Count calls outside of compilers and CUDA graphs; the last that is counted waits for the device."""
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

    def _watched(self, g: Tensor) -> Tensor:
        if g.requires_grad:
            order.watch(self, g, self.scale)
        return g

    def _preserve(
        self,
        layers: list[Layer],
        old: Affine,
        new: Affine,
        optimizer: Optimizer | None = None,
        moments: optimizers.Moments = "keep",
        adopt: bool = True,
        max_norm: float | None = None,
    ) -> None:
        """Rescale the layers, and the optimizer's state of them, so that no output changes (Prop. 1)."""
        old, new = (Affine(*map(self._over_outputs, affine)) for affine in (old, new))
        change = change_of(old, new, adopt=adopt)
        if max_norm is not None:
            weights = [x if isinstance(change.moved, Tensor) else as_numpy(x) for x, *_ in layers]
            change = limited(change, [(x, "out_in") for x in weights], max_norm)
        rescale_ = _rescaler(change, layers[0].weight)
        for weight, bias, takes_shift in layers:
            for parameter, is_bias in ((weight, False), (bias, True)):
                if parameter is not None:
                    rescale_(parameter, 1, is_bias)
                    if optimizer is not None and moments != "keep":
                        convert_ = functools.partial(rescale_, is_bias=is_bias)
                        optimizers.adjust(optimizer, parameter, convert_, moments == "reset")
            if bias is not None and takes_shift:
                moved = change.moved
                bias.add_(float(moved) if isinstance(moved, np.generic) else torch.as_tensor(moved))

    def _over_outputs(self, x: Any) -> Any:
        """Return scale or shift in a shape that broadcasts with the outputs and not with the targets."""
        return x

    def _folded(self, weight: Tensor, bias: Tensor | None) -> nn.Linear:
        """Return a linear layer with the units of the targets in its weights."""
        scale, shift = (x.detach() for x in (self.scale, self.shift))
        W = weight.detach().to(scale.dtype)
        W = scale @ W if scale.ndim == 2 else scale[..., None] * W
        layer = nn.Linear(W.shape[1], W.shape[0], bias=bias is not None, device=W.device, dtype=W.dtype)
        with torch.no_grad():
            layer.weight.copy_(W)
            if bias is not None:
                layer.bias.copy_(self._map(bias.detach().to(scale.dtype).expand(len(W)), scale, shift))
        return layer.train(self.training)


def _rescaler(change: Change, like: Tensor) -> Callable[..., None]:
    """Return a function that multiplies a weight, a bias or an optimizer's state of it in place by F.

    Where F is near 1, as it is in most updates, and is an array of NumPy, that is one operation.
    """
    if isinstance(change.factor, Tensor):
        return functools.partial(_rescale_, change)
    dense = change.factor.ndim > change.moved.ndim
    if dense or like.dtype.itemsize < 4 or not (change.factor == 1).all():
        return functools.partial(_rescale_, Change(*map(torch.as_tensor, change)))
    rest = torch.from_numpy(change.rest) if change.rest.ndim else float(change.rest)
    return functools.partial(_rescale_near_, rest)


def _rescale_(change: Change, x: Tensor, power: int, is_bias: bool) -> None:
    rescale = change.rescale_bias if is_bias else change.rescale
    x.copy_(rescale(x.float() if x.dtype.itemsize < 4 else x, power=power))


def _rescale_near_(less_1: Any, x: Tensor, power: int, is_bias: bool) -> None:
    """Multiply x by F or F², of which `less_1` is F - 1."""
    by = less_1 if power == 1 else less_1 * (2 + less_1)
    if isinstance(by, float):
        x.add_(x, alpha=by)
    else:
        x.addcmul_(x, by if is_bias else by[..., None])
