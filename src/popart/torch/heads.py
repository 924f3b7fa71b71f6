"""Linear layers with Pop-Art for the end of a network: `PopArt` and `DuelingPopArt`."""

import math
from typing import Any, Literal, Self

import torch
import torch.distributed as dist
from torch import Tensor, nn

from popart.rules import Rule
from popart.torch import checks, order
from popart.torch.base import Head, Layer, apply_linear, without_autocast
from popart.torch.units import NormalizedUnits


class LinearHead(Head):
    """The base of heads with one linear layer, of outputs or of several heads of outputs."""

    weight: nn.Parameter
    bias: nn.Parameter | None
    _is_identity = False

    def __init__(
        self,
        in_features: int,
        out_features: int,
        art: Rule[Any] | None = None,
        *,
        beta: float | None = None,
        per_output: bool = False,
        heads: int | None = None,
        bias: bool | Literal["shared"] = True,
        process_group: dist.ProcessGroup | bool | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        art = checks.chosen_rule(art, beta)
        checks.warn_of_beta(art)
        in_features = checks.size("in_features", in_features)
        out_features = checks.size("out_features", out_features)
        lead = () if heads is None else (checks.size("heads", heads),)
        per_output = per_output or checks.is_dense(art)
        _check_bias(bias, per_output)
        weight = torch.empty(*lead, out_features, in_features, device=device, dtype=dtype)
        shape = (*lead, out_features) if per_output else lead
        super().__init__(art if bias else checks.without_shift(art), shape, weight)
        self.in_features, self.out_features = in_features, out_features
        self.heads, self.per_output = lead[0] if lead else None, per_output
        self.weight = nn.Parameter(weight)
        outputs = 1 if bias == "shared" else out_features
        self.register_parameter("bias", nn.Parameter(weight.new_empty(*lead, outputs)) if bias else None)
        self._add_units()
        self.reset_parameters()
        self._join(process_group)

    def reset_parameters(self) -> None:
        """Draw weights and bias from U(±1/√in_features), as `torch.nn.Linear` does; forget all targets.

        A head that was made by `identity` gets W = I and b = 0 again.
        """
        bound = 1 / math.sqrt(self.in_features)
        with torch.no_grad():
            if self._is_identity:
                self.weight.copy_(torch.eye(self.in_features))
            else:
                self.weight.uniform_(-bound, bound)
            if self.bias is not None:
                self.bias.zero_() if self._is_identity else self.bias.uniform_(-bound, bound)
        super().reset_parameters()

    @classmethod
    def from_linear(
        cls,
        layer: nn.Linear,
        art: Rule[Any] | None = None,
        *,
        beta: float | None = None,
        keep: bool = False,
        **settings: Any,
    ) -> Self:
        """Make a head with the parameters of a linear layer.

        They are the same objects, so that an optimizer of the layer also trains the head.

        By default the head is like a new one: its output is 0 until the first targets, which are adopted.
        With `keep=True` the outputs are those of the layer from the beginning, and are preserved by the
        first update too. That is for layers that are trained already, to targets of this size: in a layer
        whose outputs are much larger than its targets, preserved outputs are errors of many standard
        deviations, and SGD diverges. With it, the size of targets matters: rewards × 2ᵏ no longer give
        the same training.
        """
        checks.check_linear("layer", layer)
        if settings.get("heads") is not None:
            raise ValueError(f"heads is {settings['heads']}; a linear layer becomes one head, without heads=")
        head = cls(
            layer.in_features,
            layer.out_features,
            checks.kept(checks.chosen_rule(art, beta), keep),
            bias=layer.bias is not None,
            device=layer.weight.device,
            dtype=layer.weight.dtype,
            **settings,
        )
        head._parameters.update(weight=layer._parameters["weight"], bias=layer._parameters["bias"])
        return head.train(layer.training)

    @classmethod
    def identity(
        cls,
        features: int,
        art: Rule[Any] | None = None,
        *,
        beta: float | None = None,
        keep: bool = False,
        **settings: Any,
    ) -> Self:
        """Make the square layer W = I, b = 0, to be put on top of any model.

        By default the output is 0 until the first targets. With `keep=True` the outputs are those of the
        model from the beginning: for models that are trained already (see `from_linear`).
        """
        head = cls(features, features, checks.kept(checks.chosen_rule(art, beta), keep), **settings)
        head._is_identity = True
        head.reset_parameters()
        return head

    def _chosen(self, outputs: Tensor, index: Any) -> Tensor:
        """Return the chosen output, or head, of each row."""
        return checks.chosen(outputs, index, -1 if self.heads is None else -2)

    def _choices(self) -> int:
        return self.out_features if self.heads is None else self.heads

    def _layers(self) -> list[Layer]:
        return [Layer(*checks.owned(self))]

    def _which(self, index: Tensor | None, targets: Tensor, batched: bool = False) -> Tensor | None:
        if index is not None and self.heads is None and checks.is_dense(self.art):
            raise ValueError(
                "index is given, but these outputs are measured together; give targets of all of them"
            )
        return super()._which(index, targets, batched)

    def extra_repr(self) -> str:
        """Return the settings."""
        bias = False if self.bias is None else True if self.bias.shape[-1] == self.out_features else "shared"
        heads = "" if self.heads is None else f", heads={self.heads}"
        return (
            f"{self.in_features}, {self.out_features}, art={self.art}, per_output={self.per_output}"
            f"{heads}, bias={bias!r}"
        )


class PopArt(LinearHead, NormalizedUnits):
    r"""A linear layer whose outputs are in the targets' own units, $\Sigma(W h + b) + \mu$ (Eq. 2).

    It takes the place of the last `torch.nn.Linear`:

        head = PopArt(512, 18)
        y = rewards + discount * target_network(next_frames).amax(1)  # outputs are in true units
        loss = head.loss(h, y, index=action, optimizer=optimizer)

    The last line is short for

        y = head.update(y, index=action, optimizer=optimizer)  # ART, POP; normalised targets
        loss = (head.normalized(h, index=action) - y).square().mean()

    Before the first update the output is 0. The first targets are adopted: weights stay, and outputs
    change to the units of these targets. From then on updates preserve all outputs.

    A target network may be copied in any way. `copy.deepcopy`, `load_state_dict`, copies of `parameters()`
    and `polyak_` are exact. Averages of `parameters()`, and `torch.optim.swa_utils.AveragedModel`, differ
    from the average of the functions to second order in the difference of scales.

    Args:
        in_features: The number of features.
        out_features: The number of outputs, per head.
        art: The rule that measures targets; `Moments()` by default.
        beta: The step size of the statistics, short for `art=Moments(beta)`.
        per_output: Whether each output has its own scale and shift. `Covariance` implies it.
        heads: The number of heads with their own statistics, such as tasks or an ensemble: outputs are
            `(*batch, heads, out_features)` and targets `(*batch, heads)`, or `(*batch,)` with `index`.
        bias: Whether there is a bias, or 'shared' for one that all outputs of a head have in common.
            Without one the shift is fixed at 0.
        process_group: The replicas that see parts of one batch; True for all.
        device: The device of parameters and statistics.
        dtype: The type of the parameters. Statistics, scale, shift and outputs are never in less than
            float32.
    """

    def normalized(self, h: Tensor, *, index: Tensor | None = None) -> Tensor:
        """Return the outputs in normalised units, $g = W h + b$, to be compared with normalised targets.

        `(*batch, out_features)` or `(*batch, heads, out_features)`; with `index`, `(*batch,)`, of one output
        or head for each row of h.
        """
        g = self._linear(h)
        return g if index is None else self._chosen(g, index)

    def forward(self, h: Tensor, *, index: Tensor | None = None) -> Tensor:
        """Return the outputs in the targets' own units."""
        if self._answers_normalized:
            return self.normalized(h, index=index)
        outputs = self._denormalized(self._linear(h))
        return outputs if index is None else self._chosen(outputs, index)

    def _linear(self, h: Tensor) -> Tensor:
        own: Any = self._parameters  # entries of this take a tenth of the time of a module's attributes
        layer = (
            (own["weight"], own["bias"]) if "weight" in own and "bias" in own else (self.weight, self.bias)
        )
        g = apply_linear(h, *layer)
        if g.requires_grad:
            order.watch(self, g, h)
        return g

    def to_linear(self) -> nn.Linear:
        """Return a plain linear layer with the same outputs, with scale and shift in its weights."""
        if self.heads is not None:
            raise ValueError(f"heads is {self.heads}; only a head without several can be one torch.nn.Linear")
        return self._folded(self.weight, self.bias)

    def _map(self, g: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
        if not self._shape:
            return torch.addcmul(shift, g, scale)
        if scale.ndim > shift.ndim:
            with without_autocast(g):
                return (scale @ g[..., None])[..., 0] + shift
        return torch.addcmul(self._over_outputs(shift), g, self._over_outputs(scale))

    def _over_outputs(self, x: Any) -> Any:
        if self.heads is None or self.per_output:
            return x
        return x[..., None]

    def _outputs_shape(self, h: Tensor, index: Tensor | None) -> tuple[int, ...]:
        batch = tuple(h.shape[:-1])
        if index is None:
            return (*batch, *self.weight.shape[:-1])
        return batch if self.heads is None else (*batch, self.out_features)

    def _update_outputs(
        self, y: Tensor, *, mask: Any, weights: Any, index: Tensor | None, **settings: Any
    ) -> Tensor:
        """Update with targets of the outputs' shape; outputs that share a statistic are part of its batch."""
        if self.heads is None or self.per_output:
            return self.update(y, mask=mask, weights=weights, index=index, **settings)
        mask, weights = (x if x is None else x.movedim(-1, 0) for x in (mask, weights))
        if index is not None:
            index = checks.checked_index(index, self.heads, tuple(y.shape[:-1]), "the batch has shape")
            index = index.expand(y.shape[-1], *index.shape)
        t = self.update(y.movedim(-1, 0), mask=mask, weights=weights, index=index, **settings)
        return t.movedim(0, -1)


class DuelingPopArt(NormalizedUnits):
    r"""Dueling streams (Wang et al., 2016) with Pop-Art: $\Sigma(V + A - \bar A) + \mu$.

    $V$ and $A$ are linear layers of one output and of one per action, with a normalisation that all
    actions share. Both are rescaled; the shift goes to $V$, because in $A - \bar A$ it would cancel.
    The arguments are those of `PopArt`.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        art: Rule[Any] | None = None,
        *,
        beta: float | None = None,
        process_group: dist.ProcessGroup | bool | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        art = checks.chosen_rule(art, beta)
        checks.warn_of_beta(art)
        in_features = checks.size("in_features", in_features)
        out_features = checks.size("out_features", out_features)
        if checks.is_dense(art):
            raise ValueError(f"art is {art!r}; all outputs of dueling streams share one scale and shift")
        value = nn.Linear(in_features, 1, device=device, dtype=dtype)
        super().__init__(art, (), value.weight)
        self.in_features, self.out_features = in_features, out_features
        self.value = value
        self.advantage = nn.Linear(in_features, out_features, device=device, dtype=dtype)
        self._add_units()
        self._join(process_group)

    def reset_parameters(self) -> None:
        """Draw weights and biases as `torch.nn.Linear` does; forget all targets."""
        self.value.reset_parameters()
        self.advantage.reset_parameters()
        super().reset_parameters()

    @classmethod
    def from_linear(
        cls,
        value: nn.Linear,
        advantage: nn.Linear,
        art: Rule[Any] | None = None,
        *,
        beta: float | None = None,
        keep: bool = False,
        **settings: Any,
    ) -> Self:
        """Make a head with the parameters of two linear layers; `keep` is as in `PopArt.from_linear`."""
        checks.check_linear("value", value)
        checks.check_linear("advantage", advantage)
        if value.out_features != 1 or value.bias is None:
            raise ValueError(f"value is {value}; it must have one output, and a bias to take the shift")
        head = cls(
            value.in_features,
            advantage.out_features,
            checks.kept(checks.chosen_rule(art, beta), keep),
            device=value.weight.device,
            dtype=value.weight.dtype,
            **settings,
        )
        head.value, head.advantage = value, advantage
        return head.train(value.training)

    def normalized(
        self, h: Tensor, h_advantage: Tensor | None = None, *, index: Tensor | None = None
    ) -> Tensor:
        """Return the outputs in normalised units, of features that the streams share or of one of each."""
        return self._chosen(self._streams(h, h_advantage), index)

    def forward(self, h: Tensor, h_advantage: Tensor | None = None, *, index: Tensor | None = None) -> Tensor:
        """Return the outputs in the targets' own units."""
        if self._answers_normalized:
            return self.normalized(h, h_advantage, index=index)
        return self._chosen(self._denormalized(self._streams(h, h_advantage)), index)

    def to_linear(self) -> nn.Linear:
        """Return a plain linear layer with the same outputs, of features that the streams share."""
        (W_v, b_v, _), (W, b, _) = self._layers()
        assert b_v is not None
        bias = b_v.expand(len(W)) if b is None else b_v + b - b.mean()
        return self._folded(W_v + W - W.mean(0), bias)

    def _streams(self, h: Tensor, h_advantage: Tensor | None) -> Tensor:
        value, advantage = self.value, self.advantage
        v = apply_linear(h, value.weight, value.bias)
        a = apply_linear(h if h_advantage is None else h_advantage, advantage.weight, advantage.bias)
        g = v + a - a.mean(-1, keepdim=True)
        if g.requires_grad:
            order.watch(self, g, h)
        return g

    def _chosen(self, outputs: Tensor, index: Any) -> Tensor:
        return outputs if index is None else checks.chosen(outputs, index, -1)

    def _choices(self) -> int:
        return self.out_features

    def _outputs_shape(self, h: Tensor, index: Tensor | None) -> tuple[int, ...]:
        batch = tuple(h.shape[:-1])
        return batch if index is not None else (*batch, self.out_features)

    def _layers(self) -> list[Layer]:
        return [Layer(*checks.owned(self.value)), Layer(*checks.owned(self.advantage), False)]

    def extra_repr(self) -> str:
        """Return the settings."""
        return f"{self.in_features}, {self.out_features}, art={self.art}"


def _check_bias(bias: bool | Literal["shared"], per_output: bool) -> None:
    if bias not in (True, False, "shared"):
        raise ValueError(f"bias is {bias!r}; it may be True, False or 'shared'")
    if bias == "shared" and per_output:
        raise ValueError(
            "bias is 'shared' and statistics are per output; one bias cannot make up for several shifts"
        )
