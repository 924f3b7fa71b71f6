"""Heads for alternatives to Pop-Art, with the methods of `popart.torch.PopArt`."""

from typing import Any, Self

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

from popart.affine import Affine
from popart.alternatives import Histogram, HLGauss, Transform
from popart.alternatives.supports import SLACK, following, interpolation
from popart.rules import Fixed, Rule
from popart.torch import checks, optimizers
from popart.torch.base import Layer, apply_linear, without_autocast
from popart.torch.heads import PopArt
from popart.torch.losses import are_finite, like_targets
from popart.torch.statistics import Statistics


class Art(PopArt):
    """Pop-Art with POP switched off: targets are normalised, and nothing preserves outputs.

    This is the "value normalisation" of MAPPO (Yu et al., 2021, arXiv 2103.01955) and the paper's *Art*. It
    has the arguments and methods of `PopArt`.

    It cannot preserve what was learned: every update of the statistics changes all outputs, and with them
    bootstrapped targets. While the size of targets does not change it is as good as Pop-Art or better
    (docs/explanation/which-normalisation.md).
    """

    _averaging = False

    def _affected(
        self, layers: list[Layer], optimizer: Optimizer | None, optimizer_state: optimizers.StateChange
    ) -> optimizers.Affected:
        return super()._affected(layers, optimizer, optimizer_state) if self._averaging else ([], [])

    def polyak_(self, online: Self, tau: float) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Average two heads as functions, as `PopArt` does."""
        self._averaging = True
        try:
            super().polyak_(online, tau)
        finally:
            self._averaging = False


class Transformed(PopArt):
    r"""A head whose targets are transformed before they are measured: $T^{-1}(\Sigma(W h + b) + \mu)$.

    With the default rule, `popart.Fixed()`, it is the fixed transform alone, as published: `H()` of R2D2 or
    `Symlog()` of DreamerV3. With any other rule, the transformed targets are normalised too, and outputs
    preserved. The other arguments are those of `PopArt`.

    It cannot be free of scale: a transform that depends on the size of targets is not. `polyak_` averages
    outputs before the inverse of the transform.

    Args:
        in_features: The number of features.
        out_features: The number of outputs, per head.
        transform: The transform of targets.
        art: The rule that measures transformed targets.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        art: Rule[Any] | None = None,
        *,
        transform: Transform,
        **settings: Any,
    ) -> None:
        if art is None and settings.get("beta") is None:
            art = Fixed()
        super().__init__(in_features, out_features, art, **settings)
        self.transform = transform

    def update(self, targets: Any, **settings: Any) -> Tensor:
        """Update as `PopArt` does, with the transformed targets."""
        return super().update(self.transform.apply(self._as_tensor(targets)), **settings)

    def forward(self, h: Tensor, *, index: Tensor | None = None) -> Tensor:
        """Return the outputs in the targets' own units."""
        outputs = super().forward(h, index=index)
        return outputs if self._answers_normalized else self.transform.invert(outputs)

    def normalize(self, targets: Any, *, index: Tensor | None = None) -> Tensor:
        """Return targets in normalised units, for the loss."""
        return super().normalize(self.transform.apply(self._as_tensor(targets)), index=index)

    def denormalize(self, outputs: Any, *, index: Tensor | None = None) -> Tensor:
        """Return normalised outputs or targets in the targets' own units; the inverse of `normalize`."""
        return self.transform.invert(super().denormalize(outputs, index=index))

    def to_linear(self) -> nn.Linear:
        """Refuse: a transform is not linear."""
        raise ValueError(f"transform is {self.transform}; outputs are not those of a torch.nn.Linear")

    def _settings(self) -> dict[str, Any]:
        return {**super()._settings(), "transform": self.transform}

    def extra_repr(self) -> str:
        """Return the settings."""
        return f"{super().extra_repr()}, transform={self.transform}"


class Categorical(Statistics):
    r"""A head that classifies targets into bins and whose output is the mean, in the targets' own units.

    Each output has a softmax over the bins of a histogram, trained with the cross-entropy to the distribution
    of the target. Weights are 0 at first, as in DreamerV3.

        head = Categorical(512, 18, TwoHot())  # DreamerV3
        head = Categorical(512, 18, HLGauss(low=-10, high=10))
        head = Categorical(512, 18, HLGauss(low=-8, high=8), art=popart.Moments(1e-3))
        loss = head.loss(h, y, index=action)

    With the default rule, `popart.Fixed()`, the support is fixed, as published. With any other rule the bins
    are in normalised units, so that no range of values has to be known. When scale or shift have moved by
    more than `slack`, bins follow, and their logits are interpolated (`popart.alternatives.supports`).

    It cannot preserve outputs precisely: an interpolation changes them by up to a fraction of a bin, and when
    the scale grows by a large factor at once, most of what was learned is lost. Targets beyond the outer bins
    are put into the outer bins. One scale and shift are shared by all outputs. The optimizer's state of the
    head does not change when bins move.

    Args:
        in_features: The number of features.
        out_features: The number of outputs.
        histogram: The bins, and how targets become distributions over them.
        art: The rule that measures targets.
        slack: Change of the statistics, relative to the scale, after which the bins follow.
        process_group: The replicas among which a batch is divided; True for all.
        device: The device of parameters and statistics.
        dtype: The type of the parameters.
    """

    scale: nn.Parameter
    shift: nn.Parameter
    _kind = "Categorical"

    def __init__(
        self,
        in_features: int,
        out_features: int,
        histogram: Histogram | None = None,
        art: Rule[Any] | None = None,
        *,
        slack: float = SLACK,
        process_group: dist.ProcessGroup | bool | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        self.in_features = checks.size("in_features", in_features)
        self.out_features = checks.size("out_features", out_features)
        art = Fixed() if art is None else art
        checks.warn_of_beta(art)
        histogram = HLGauss() if histogram is None else histogram
        weight = torch.zeros(self.out_features, histogram.bins, self.in_features, device=device, dtype=dtype)
        super().__init__(art, (), weight)
        self.in_features, self.out_features = in_features, out_features
        self.histogram, self.slack = histogram, slack
        self.weight, self.bias = nn.Parameter(weight), nn.Parameter(weight.new_zeros(weight.shape[:2]))
        for name, x in zip(("scale", "shift"), self._measured(), strict=True):
            self.register_parameter(name, nn.Parameter(x.nan_to_num(0.0), requires_grad=False))
            self._full_precision.append(name)
        self._join(process_group)

    def reset_parameters(self) -> None:
        """Set weights and bias to 0, and forget all targets."""
        super().reset_parameters()
        with torch.no_grad():
            self.weight.zero_()
            self.bias.zero_()
            for mine, x in zip((self.scale, self.shift), self._measured(), strict=True):
                mine.copy_(x.nan_to_num(0.0))

    @property
    def affine(self) -> Affine:
        """Return a copy of the scale and shift of the bins."""
        return Affine(self.scale.detach().clone(), self.shift.detach().clone())

    def logits(self, h: Tensor, *, index: Tensor | None = None) -> Tensor:
        """Return the logits of the bins, `(*batch, out_features, bins)`, or `(*batch, bins)` with `index`."""
        logits = apply_linear(h, self.weight, self.bias)
        return logits if index is None else self._chosen(logits, index)

    def normalized(self, h: Tensor, *, index: Tensor | None = None) -> Tensor:
        """Return the mean of each distribution in normalised units, `(*batch, out_features)`."""
        logits = self.logits(h, index=index)
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        return self.histogram.decode(logits.softmax(-1))

    def forward(self, h: Tensor, *, index: Tensor | None = None) -> Tensor:
        """Return the mean of each distribution in the targets' own units."""
        return torch.addcmul(self.shift.detach(), self.normalized(h, index=index), self.scale.detach())

    @torch.no_grad()
    def update(
        self,
        targets: Any,
        *,
        mask: Tensor | None = None,
        weights: Tensor | None = None,
        index: Tensor | None = None,
        optimizer: Optimizer | None = None,
        optimizer_state: optimizers.StateChange = "keep",
    ) -> Tensor:
        """Update the statistics with a batch of targets, let the bins follow, and normalise the targets.

        The arguments are those of `PopArt.update`. All outputs share a scale and shift, whatever the `index`;
        the state of `optimizer` does not change.
        """
        y = torch.as_tensor(targets, device=self.scale.device).detach()
        y = y if y.is_floating_point() else y.to(self.scale.dtype)
        with without_autocast(y):
            state = self.art.update(self._raw_state(), y, mask=mask, weights=weights, across=self._group)
            old = Affine(self.scale.detach(), self.shift.detach())
            new, moved = following(old, self.art.affine(state), self.slack)
            if not checks.is_eager_cpu(moved) or moved:
                self._interpolate(interpolation(self.histogram, old, new), moved)
            self._set_state(state)
            self.scale.copy_(new.scale)
            self.shift.copy_(new.shift)
            return new.normalize(y)

    def _interpolate(self, A: Tensor, moved: Tensor) -> None:
        A = A.to(self.weight.dtype)
        self.weight.copy_(torch.where(moved, A @ self.weight, self.weight))
        self.bias.copy_(torch.where(moved, self.bias @ A.T, self.bias))

    def loss(
        self,
        h: Tensor,
        y: Any,
        *,
        index: Tensor | None = None,
        mask: Tensor | None = None,
        weights: Tensor | None = None,
        optimizer: Optimizer | None = None,
        optimizer_state: optimizers.StateChange = "keep",
    ) -> Tensor:
        """Update with targets and return the mean cross-entropy to their distributions.

        Targets that are masked or not finite are left out. The arguments are those of `PopArt.loss`.
        """
        y = torch.as_tensor(y, device=self.scale.device).detach()
        mask, weights = (x if x is None else like_targets(x, y) for x in (mask, weights))
        t = self.update(
            y, mask=mask, weights=weights, index=index, optimizer=optimizer, optimizer_state=optimizer_state
        )
        logits = self.logits(h, index=index)
        if logits.shape[:-1] != t.shape:
            raise ValueError(
                f"y has shape {tuple(t.shape)} and the outputs have shape {tuple(logits.shape[:-1])}; they "
                "must be the same. Give index= for targets of chosen outputs, or y[:, None] for one output"
            )
        counted = are_finite(y, self.scale)
        counted = counted if mask is None else counted & mask.bool()
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        p = self.histogram.encode(torch.where(counted, t, 0.0).to(logits.dtype))
        each = -(p * logits.log_softmax(-1)).sum(-1)
        w = counted.to(each.dtype) if weights is None else counted * weights
        return (each * w).sum() / w.sum().clamp(torch.finfo(each.dtype).tiny)

    def _chosen(self, logits: Tensor, index: Any) -> Tensor:
        return checks.chosen(logits, index, -2)

    def _settings(self) -> dict[str, Any]:
        return {**super()._settings(), "histogram": self.histogram}

    def extra_repr(self) -> str:
        """Return the settings."""
        return (
            f"{self.in_features}, {self.out_features}, {self.histogram}, art={self.art}, slack={self.slack}"
        )
