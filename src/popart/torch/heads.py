"""The last layer of a network, with Pop-Art: `PopArt`, `DuelingPopArt`, and averages of two."""

import math
from typing import Any, Literal, NamedTuple, Self

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

from popart.affine import Affine, Change, change_of
from popart.moments import Covariance, Moments
from popart.rules import Kept, Rule, Symmetric
from popart.torch import optimizers
from popart.torch.statistics import Statistics, check_rule


class Layer(NamedTuple):
    """Parameters that POP rescales; the shift goes into one bias only."""

    weight: Tensor
    bias: Tensor | None
    takes_shift: bool = True


class Head(Statistics):
    """What all heads share: ART and POP, normalisation, averages of two, and a check of the order."""

    def _layers(self) -> list[Layer]:
        raise NotImplementedError

    def _over_outputs(self, affine: Affine) -> Affine:
        """The normalisation, shaped to broadcast with the outputs and not with the targets."""
        return affine

    @torch.no_grad()
    def update(
        self,
        targets: Tensor,
        *,
        mask: Tensor | None = None,
        weights: Tensor | None = None,
        index: Tensor | None = None,
        optimizer: Optimizer | None = None,
        moments: optimizers.Moments = "rescale",
    ) -> Tensor:
        """ART, then POP: take in a batch of targets, rescale the head in place, normalise the targets.

        Call it once per batch, after the targets are known and before the outputs that are compared
        with them are computed. No output changes.

        Args:
            targets: in their own units, `(*batch, *shape)` for statistics of this shape.
            mask: which targets count, `(*batch,)`.
            weights: how much each counts, `(*batch,)`.
            index: which output (or head) each target is of, `(*batch,)`, for targets of the chosen
                actions or tasks only. Statistics that all outputs share do not depend on it.
            optimizer: the optimizer that trains this head, for what it remembers of old gradients.
            moments: what becomes of that: 'rescale' into the new units, 'keep' or 'reset'.
        """
        if optimizer is not None:
            parameters = [p for layer in self._layers() for p in layer[:2] if p is not None]
            optimizers.check(optimizer, parameters, moments)
        targets = targets.detach()
        with torch.autocast(targets.device.type, enabled=False):
            which = self._statistic_of(index, targets)
            state = self._absorbed(targets, mask=mask, weights=weights, index=which)
            self._preserve(self.affine, self.art.affine(state), optimizer, moments)
            self._set_state(state)
            return self.normalize(targets, index=index)

    def _change(self, old: Affine, new: Affine, adopt: bool = True) -> Change:
        """What a change of the normalisation does to the layers."""
        return change_of(self._over_outputs(old), self._over_outputs(new), adopt=adopt)

    def _preserve(
        self, old: Affine, new: Affine, optimizer: Optimizer | None, moments: optimizers.Moments
    ) -> None:
        change = self._change(old, new)
        for weight, bias, takes_shift in self._layers():
            weight.copy_(change.rescale(weight))
            if bias is not None:
                bias.copy_(change.rescale_bias(bias, shift=takes_shift))
            if optimizer is None or moments == "keep":
                continue
            optimizers.adjust(optimizer, weight, change.rescale, moments)
            if bias is not None:
                optimizers.adjust(optimizer, bias, change.rescale_bias, moments)

    def normalize(self, targets: Tensor, *, index: Tensor | None = None) -> Tensor:
        """Targets in normalised units, for the loss."""
        return self._affine_at(index, targets).normalize(targets)

    def denormalize(self, outputs: Tensor, *, index: Tensor | None = None) -> Tensor:
        """What `normalize` gave, or should have given, in the targets' own units."""
        return self._affine_at(index, outputs).denormalize(outputs)

    def _affine_at(self, index: Tensor | None, targets: Tensor) -> Affine:
        which = self._statistic_of(index, targets)
        return self.affine if which is None else self.affine.select(which)

    def _statistic_of(self, index: Tensor | None, targets: Tensor) -> Tensor | None:
        """Which statistics each target is of; None where all outputs share them."""
        if index is not None and index.shape != targets.shape:
            raise ValueError(
                f"index has shape {tuple(index.shape)}; targets have shape {tuple(targets.shape)}"
            )
        return None

    @torch.no_grad()
    def polyak_(self, online: Self, tau: float) -> None:
        r"""Make this head $(1 - \tau)$ times itself plus $\tau$ times another, as functions.

        The average is taken in the targets' units: the mean of two normalised layers belongs to
        neither when their statistics differ. The result has the statistics of `online`; where that
        knows no spread, its function is a constant and so is the result.
        """
        if not 0 <= tau <= 1:
            raise ValueError(f"tau is {tau!r}; it must be in [0, 1]")
        if type(self) is not type(online) or self.extra_repr() != online.extra_repr():
            raise ValueError(f"online is {online}; a head can only be averaged with its like, {self}")
        change = self._change(self.affine, online.affine, adopt=False)
        for (weight, bias, takes_shift), (w, b, _) in zip(self._layers(), online._layers(), strict=True):
            weight.copy_(torch.lerp(change.rescale(weight), w, tau))
            if bias is not None and b is not None:
                bias.copy_(torch.lerp(change.rescale_bias(bias, shift=takes_shift), b, tau))
        self._set_state(online.state)

    def _linear(self, h: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """The layer in its own precision, also under autocast."""
        if h.shape[-1] != weight.shape[-1]:
            raise ValueError(
                f"h has shape {tuple(h.shape)}; its last axis must be of {weight.shape[-1]} features"
            )
        with torch.autocast(h.device.type, enabled=False):
            h = h.to(weight.dtype)
            if weight.ndim == 2 and (bias is None or len(bias) == len(weight)):
                return nn.functional.linear(h, weight, bias)
            g = nn.functional.linear(h, weight.flatten(0, -2)).unflatten(-1, weight.shape[:-1])
            return g if bias is None else g + bias

    def _watched(self, g: Tensor) -> Tensor:
        """Have the backward pass check that the head was not rescaled after this output was computed."""
        if g.requires_grad and not torch.compiler.is_compiling() and not _is_transformed(g):
            weight = self._layers()[0].weight
            version = weight._version
            g.register_hook(lambda _: _check_version(weight, version))
        return g


def _is_transformed(x: Tensor) -> bool:
    return torch._C._functorch.is_functorch_wrapped_tensor(x)  # pyright: ignore


def _check_version(weight: Tensor, version: int) -> None:
    if weight._version != version:
        raise RuntimeError(
            "the head was changed after these outputs were computed, by update() or by an optimizer: they "
            "may be in old units and their targets in new ones; call update(targets) first, then "
            "normalized(h), then backward()"
        )


class PopArt(Head):
    r"""A linear layer whose outputs are in the targets' own units, $\Sigma(W h + b) + \mu$ (Eq. 2).

    It takes the place of the last `torch.nn.Linear`:

        head = PopArt(512, 18)
        y = rewards + discount * target_network(next_frames).amax(1)  # outputs are in true units
        y = head.update(y, optimizer=optimizer)                       # ART, POP; normalised targets
        loss = (head.normalized(h, index=action) - y).square().mean()

    Before any target the output is 0, and the first targets are adopted without a change of the
    weights; with `art=Kept(...)` outputs are those of the layer from the start.

    Args:
        in_features: the number of features.
        out_features: the number of outputs, per head.
        art: how targets are measured.
        per_output: one normalisation per output, not one for all. `Covariance` implies it.
        heads: how many heads, each with its own statistics, such as tasks or an ensemble: outputs are
            `(*batch, heads, out_features)` and targets `(*batch, heads)`, or `(*batch,)` with `index`.
        bias: whether there is one, or 'shared' for one that all outputs of a head have in common.
            Without one the shift is fixed at 0 and `art` becomes `Symmetric(art)`.
        process_group: the replicas that see parts of one batch; True for all.
        device: where parameters and statistics are.
        dtype: of the parameters. Statistics are never in less than float32.
    """

    weight: nn.Parameter
    bias: nn.Parameter | None

    def __init__(
        self,
        in_features: int,
        out_features: int,
        art: Rule[Any, Any] = Moments(),
        *,
        per_output: bool = False,
        heads: int | None = None,
        bias: bool | Literal["shared"] = True,
        process_group: dist.ProcessGroup | bool | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        check_rule(art)
        _check_size("in_features", in_features)
        _check_size("out_features", out_features)
        if heads is not None:
            _check_size("heads", heads)
        if bias not in (True, False, "shared"):
            raise ValueError(f"bias is {bias!r}; it may be True, False or 'shared'")
        per_output = per_output or _is_dense(art)
        if bias == "shared" and per_output:
            raise ValueError(
                "bias is 'shared' and statistics are per output; one bias cannot make up for several shifts"
            )
        lead = () if heads is None else (heads,)
        weight = torch.empty(*lead, out_features, in_features, device=device, dtype=dtype)
        art = art if bias else _without_shift(art)
        shape = (*lead, out_features) if per_output else lead
        super().__init__(art, shape, weight)
        self.in_features, self.out_features = in_features, out_features
        self.heads, self.per_output = heads, per_output
        self.weight = nn.Parameter(weight)
        if bias:
            outputs = 1 if bias == "shared" else out_features
            self.bias = nn.Parameter(weight.new_empty(*lead, outputs))
        else:
            self.register_parameter("bias", None)
        self.reset_parameters()
        self._join(process_group)

    def reset_parameters(self) -> None:
        """Draw weights and bias from U(±1/√in_features), as `torch.nn.Linear` does."""
        bound = 1 / math.sqrt(self.in_features)
        for parameter in self.parameters(recurse=False):
            nn.init.uniform_(parameter, -bound, bound)

    @classmethod
    def from_linear(
        cls,
        layer: nn.Linear,
        art: Rule[Any, Any] = Moments(),
        *,
        keep: bool = True,
        **settings: Any,
    ) -> Self:
        """A head with the parameters of a linear layer, and its outputs.

        The parameters are the same objects, so that an optimizer that holds them goes on to.
        """
        _check_linear("layer", layer)
        head = cls(
            layer.in_features,
            layer.out_features,
            Kept(art) if keep else art,
            bias=layer.bias is not None,
            device=layer.weight.device,
            dtype=layer.weight.dtype,
            **settings,
        )
        head._parameters.update(weight=layer._parameters["weight"], bias=layer._parameters["bias"])
        return head

    @classmethod
    def identity(
        cls, features: int, art: Rule[Any, Any] = Moments(), *, keep: bool = True, **settings: Any
    ) -> Self:
        """The square layer W = I, b = 0, to be put on top of any model without a change of its outputs."""
        head = cls(features, features, Kept(art) if keep else art, **settings)
        with torch.no_grad():
            head.weight.copy_(torch.eye(features))
            if head.bias is not None:
                head.bias.zero_()
        return head

    def normalized(self, h: Tensor, *, index: Tensor | None = None) -> Tensor:
        """The outputs in normalised units, $g = W h + b$: what the loss compares with normalised targets.

        `(*batch, out_features)` or `(*batch, heads, out_features)`; with `index`, `(*batch,)`, of one output
        or head for each row of h.
        """
        g = self._linear(h, self.weight, self.bias)
        return self._watched(g if index is None else self._chosen(g, index))

    def forward(self, h: Tensor, *, index: Tensor | None = None) -> Tensor:
        """The outputs in the targets' own units."""
        g = self.normalized(h, index=index)
        affine = self._over_outputs(self.affine)
        if index is not None and affine.shift.ndim:
            affine = affine.select(index)
        return affine.denormalize(g)

    def _chosen(self, g: Tensor, index: Tensor) -> Tensor:
        lead = g.shape[:-1] if self.heads is None else g.shape[:-2]
        if index.shape != lead:
            raise ValueError(f"index has shape {tuple(index.shape)}; the batch has shape {tuple(lead)}")
        if self.heads is None:
            return g.take_along_dim(index[..., None], -1)[..., 0]
        return g.take_along_dim(index[..., None, None], -2)[..., 0, :]

    def _layers(self) -> list[Layer]:
        return [Layer(self.weight, self.bias)]

    def _over_outputs(self, affine: Affine) -> Affine:
        if self.heads is None or self.per_output:
            return affine
        return Affine(*(x[..., None] for x in affine))

    def _statistic_of(self, index: Tensor | None, targets: Tensor) -> Tensor | None:
        if index is not None and self.heads is None and _is_dense(self.art):
            raise ValueError(
                "index is given, but these outputs are measured together; give targets of all of them"
            )
        if self.heads is not None or self.per_output:
            return index
        return super()._statistic_of(index, targets)

    def extra_repr(self) -> str:
        """The settings."""
        bias = False if self.bias is None else True if self.bias.shape[-1] == self.out_features else "shared"
        heads = "" if self.heads is None else f", heads={self.heads}"
        return (
            f"{self.in_features}, {self.out_features}, art={self.art}, per_output={self.per_output}"
            f"{heads}, bias={bias!r}"
        )


class DuelingPopArt(Head):
    r"""Dueling streams (Wang et al., 2016) with Pop-Art: $\Sigma(V + A - \bar A) + \mu$.

    $V$ and $A$ are linear layers of one output and of one per action, with a normalisation that all
    actions share. Both are rescaled; the shift goes to $V$, because in $A - \bar A$ it would cancel.
    The arguments are those of `PopArt`.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        art: Rule[Any, Any] = Moments(),
        *,
        process_group: dist.ProcessGroup | bool | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        check_rule(art)
        _check_size("in_features", in_features)
        _check_size("out_features", out_features)
        if _is_dense(art):
            raise ValueError(f"art is {art!r}; all outputs of dueling streams share one scale and shift")
        value = nn.Linear(in_features, 1, device=device, dtype=dtype)
        super().__init__(art, (), value.weight)
        self.in_features, self.out_features = in_features, out_features
        self.value = value
        self.advantage = nn.Linear(in_features, out_features, device=device, dtype=dtype)
        self._join(process_group)

    @classmethod
    def from_linear(
        cls,
        value: nn.Linear,
        advantage: nn.Linear,
        art: Rule[Any, Any] = Moments(),
        *,
        keep: bool = True,
        **settings: Any,
    ) -> Self:
        """A head with the parameters of two linear layers, and their outputs."""
        _check_linear("value", value)
        _check_linear("advantage", advantage)
        if value.out_features != 1 or value.bias is None:
            raise ValueError(f"value is {value}; it must have one output, and a bias to take the shift")
        weight = value.weight
        head = cls(
            value.in_features,
            advantage.out_features,
            Kept(art) if keep else art,
            device=weight.device,
            dtype=weight.dtype,
            **settings,
        )
        head.value, head.advantage = value, advantage
        return head

    def normalized(
        self, h: Tensor, h_advantage: Tensor | None = None, *, index: Tensor | None = None
    ) -> Tensor:
        """The outputs in normalised units, of features that the streams share or of one of each."""
        v = self._linear(h, self.value.weight, self.value.bias)
        a = self._linear(
            h if h_advantage is None else h_advantage, self.advantage.weight, self.advantage.bias
        )
        g = v + a - a.mean(-1, keepdim=True)
        return self._watched(g if index is None else g.take_along_dim(index[..., None], -1)[..., 0])

    def forward(self, h: Tensor, h_advantage: Tensor | None = None, *, index: Tensor | None = None) -> Tensor:
        """The outputs in the targets' own units."""
        return self.affine.denormalize(self.normalized(h, h_advantage, index=index))

    def _layers(self) -> list[Layer]:
        value, advantage = self.value, self.advantage
        return [Layer(value.weight, value.bias), Layer(advantage.weight, advantage.bias, False)]

    def extra_repr(self) -> str:
        """The settings."""
        return f"{self.in_features}, {self.out_features}, art={self.art}"


@torch.no_grad()
def polyak_(target: nn.Module, online: nn.Module, tau: float) -> None:
    """Move a target network towards the online one: heads as functions, other parameters as they are.

    Buffers other than a head's are copied.
    """
    if not 0 <= tau <= 1:
        raise ValueError(f"tau is {tau!r}; it must be in [0, 1]")
    mine, theirs = _parts(target), _parts(online)
    kinds = [{name: type(part).__name__ for name, part in parts.items()} for parts in (mine, theirs)]
    if kinds[0] != kinds[1]:
        apart = dict(kinds[0].items() ^ kinds[1].items())
        raise ValueError(
            f"target and online differ in {', '.join(map(repr, apart))}; they must be of one kind"
        )
    for name, part in mine.items():
        other: Any = theirs[name]
        if isinstance(part, Head):
            part.polyak_(other, tau)
        elif isinstance(part, nn.Parameter):
            part.lerp_(other, tau)
        else:
            part.copy_(other)


def _parts(module: nn.Module) -> dict[str, Head | Tensor]:
    """The heads of a network, and its parameters and buffers outside of heads, each once."""
    heads = {name: part for name, part in module.named_modules() if isinstance(part, Head)}
    inside = tuple(f"{name}." if name else "" for name in heads)
    rest = (*module.named_parameters(), *module.named_buffers())
    return {**heads, **{name: x for name, x in rest if not name.startswith(inside)}}


def _check_size(name: str, size: int) -> None:
    if not isinstance(size, int) or size < 1:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ValueError(f"{name} is {size!r}; it must be a positive integer")


def _check_linear(name: str, layer: nn.Module) -> None:
    if not isinstance(layer, nn.Linear):
        raise TypeError(
            f"{name} is a {type(layer).__name__}; only the outputs of a torch.nn.Linear can be preserved. "
            "For any other model put PopArt.identity(outputs) on top of it"
        )


def _is_dense(art: Rule[Any, Any]) -> bool:
    inner = getattr(art, "rule", None)
    return isinstance(art, Covariance) if inner is None else _is_dense(inner)


def _without_shift(art: Rule[Any, Any]) -> Rule[Any, Any]:
    if isinstance(art, Kept):
        return Kept(_without_shift(art.rule))
    return Symmetric(art) if art.has_shift else art
