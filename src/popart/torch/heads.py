"""The last layer of a network, with Pop-Art: `PopArt`, `DuelingPopArt`, and averages of two."""

import math
from collections.abc import Callable, Iterator
from typing import Any, Literal, NamedTuple, Self

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.optimizer import Optimizer

from popart.affine import Affine, change_of
from popart.moments import Covariance, Moments
from popart.rules import Fixed, Rule, Symmetric
from popart.torch import optimizers
from popart.torch.replicas import Group


class Layer(NamedTuple):
    """Parameters that POP rescales; the shift goes into one bias only."""

    weight: nn.Parameter
    bias: nn.Parameter | None
    takes_shift: bool = True


class Head(nn.Module):
    """What all heads share: statistics as buffers, ART, POP, and what a checkpoint must have."""

    def __init__(
        self,
        art: Rule[Any, Any],
        shape: tuple[int, ...],
        like: Tensor,
        *,
        keep: bool,
        process_group: dist.ProcessGroup | bool | None,
    ) -> None:
        super().__init__()
        if not isinstance(art, Rule):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"art is {art!r}; it must be a rule, such as popart.Moments()")
        self.art = art
        state = art.init(shape, like=like)
        self._state_type = type(state)
        self._state_names = [_buffer_name(art, field) for field in state._fields]
        for name, x in zip(self._state_names, state, strict=True):
            self.register_buffer(name, x.clone())
        self.register_buffer("keep", torch.tensor(keep, device=like.device))
        self._group = None
        if process_group:
            self._group = Group(None if process_group is True else process_group)
            self._group.check_agreement(self.extra_repr())

    def _layers(self) -> list[Layer]:
        raise NotImplementedError

    def _over_outputs(self, affine: Affine) -> Affine:
        """The normalisation, shaped to broadcast with the outputs and not with the targets."""
        return affine

    @property
    def state(self) -> Any:
        """The statistics, as the rule has them."""
        return self._state_type(*(getattr(self, name) for name in self._state_names))

    @property
    def affine(self) -> Affine:
        """The normalisation of targets, as of the last update."""
        return self._affine_of(self.state)

    def _affine_of(self, state: Any) -> Affine:
        affine = self.art.affine(state)
        kept = affine.or_identity()
        return Affine(*(torch.where(self.keep, a, b) for a, b in zip(kept, affine, strict=True)))

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
            parameters = [p for layer in self._layers() for p in layer[:2] if isinstance(p, nn.Parameter)]
            optimizers.check(optimizer, parameters, moments)
        with torch.autocast(targets.device.type, enabled=False):
            state, old = self.state, self.affine
            which = self._statistic_of(index, targets)
            summary = self.art.summarize(state, targets, mask=mask, weights=weights, index=which)
            if self._group is not None:
                summary = self.art.merge(self._group.gather(summary))
            state = self.art.absorb(state, summary)
            self._preserve(old, self._affine_of(state), optimizer, moments)
            for name, x in zip(self._state_names, state, strict=True):
                getattr(self, name).copy_(x)
            return self.normalize(targets, index=index)

    def _preserve(
        self, old: Affine, new: Affine, optimizer: Optimizer | None, moments: optimizers.Moments
    ) -> None:
        change = change_of(self._over_outputs(old), self._over_outputs(new))
        for weight, bias, takes_shift in self._layers():
            weight.copy_(change.rescale(weight))
            if bias is not None:
                bias.copy_(change.rescale_bias(bias, shift=takes_shift))
            if optimizer is not None and moments != "keep":
                for parameter in (weight, bias):
                    if parameter is not None:
                        optimizers.adjust(optimizer, parameter, change, moments)

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
        return index

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
        mine, theirs = self._over_outputs(self.affine), self._over_outputs(online.affine)
        change = change_of(mine, theirs, adopt=False)
        for (weight, bias, takes_shift), (w, b, _) in zip(self._layers(), online._layers(), strict=True):
            weight.copy_(torch.lerp(change.rescale(weight), w, tau))
            if bias is not None and b is not None:
                bias.copy_(torch.lerp(change.rescale_bias(bias, shift=takes_shift), b, tau))
        for name in ("keep", *self._state_names):
            getattr(self, name).copy_(getattr(online, name))

    def _linear(self, h: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """The layer in its own precision, also under autocast."""
        if h.shape[-1] != weight.shape[-1]:
            raise ValueError(
                f"h has shape {tuple(h.shape)}; its last axis must be of {weight.shape[-1]} features"
            )
        with torch.autocast(h.device.type, enabled=False):
            h = h.to(weight.dtype)
            if weight.ndim == 2 and (bias is None or len(bias) == len(weight)):
                return F.linear(h, weight, bias)
            g = F.linear(h, weight.flatten(0, -2)).unflatten(-1, weight.shape[:-1])
            return g if bias is None else g + bias

    def _watched(self, g: Tensor) -> Tensor:
        """Have the backward pass check that the head was not rescaled after this output was computed."""
        if g.requires_grad and not torch.compiler.is_compiling() and not _is_transformed(g):
            weight = self._layers()[0].weight
            version = weight._version
            g.register_hook(lambda _: _check_version(weight, version))
        return g

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Convert everything but the statistics to half precision, where that is asked for."""
        before = {name: getattr(self, name) for name in self._state_names}
        super()._apply(fn, recurse)
        for name, x in before.items():
            y = getattr(self, name)
            if y.is_floating_point() and y.dtype.itemsize < 4:
                setattr(self, name, x.to(y.device))
        return self

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *rest: Any, **named: Any
    ) -> None:
        """Refuse what has no statistics, also where `strict=False` would let it pass."""
        wanted = [prefix + name for name in ("keep", *self._state_names)]
        missing = [name for name in wanted if name not in state_dict]
        super()._load_from_state_dict(state_dict, prefix, *rest, **named)
        if missing:
            errors = named.get("error_msgs", rest[-1] if rest else None)
            errors.append(
                f"the checkpoint has no {', '.join(missing)}: statistics of {self.art!r} without which the "
                "weights mean nothing. If it is of a plain linear layer, load it into that and use "
                f"{type(self).__name__}.from_linear(layer), which keeps its outputs; if of another rule, "
                "make the head with that rule"
            )


def _buffer_name(art: Rule[Any, Any], field: str) -> str:
    """One that says of which rule it is, so that a state of one rule is not loaded into another."""
    inner = f"symmetric_{type(art.rule).__name__}" if isinstance(art, Symmetric) else type(art).__name__
    return f"{inner.lower()}_{field}"


def _is_transformed(x: Tensor) -> bool:
    return torch._C._functorch.is_functorch_wrapped_tensor(x)  # pyright: ignore


def _check_version(weight: Tensor, version: int) -> None:
    if weight._version != version:
        raise RuntimeError(
            "the head was rescaled after these outputs were computed, so they are in old units and their "
            "targets in new ones: call update(targets) first, then normalized(h), then backward()"
        )


class PopArt(Head):
    r"""A linear layer whose outputs are in the targets' own units, $\Sigma(W h + b) + \mu$ (Eq. 2).

    It takes the place of the last `torch.nn.Linear`:

        head = PopArt(512, 18)
        y = rewards + discount * target_network(next_frames).amax(1)  # outputs are in true units
        y = head.update(y, optimizer=optimizer)                       # ART, POP; normalised targets
        loss = (head.normalized(h, index=action) - y).square().mean()

    Before any target the output is 0, and the first targets are adopted without a change of the
    weights, unless `keep` is set.

    Args:
        in_features: the number of features.
        out_features: the number of outputs, per head.
        art: how targets are measured.
        per_output: one normalisation per output, not one for all. `Covariance` implies it.
        heads: how many heads, each with its own statistics, such as tasks or an ensemble: outputs are
            `(*batch, heads, out_features)` and targets `(*batch, heads)`, or `(*batch,)` with `index`.
        bias: whether there is one, or 'shared' for one that all outputs of a head have in common.
            Without one the shift is fixed at 0 and `art` becomes `Symmetric(art)`.
        keep: keep the outputs of the layer as it is from the start, as a trained network needs.
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
        art: Rule[Any, Any] = Moments(),  # noqa: B008
        *,
        per_output: bool = False,
        heads: int | None = None,
        bias: bool | Literal["shared"] = True,
        keep: bool = False,
        process_group: dist.ProcessGroup | bool | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
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
        self.in_features, self.out_features = in_features, out_features
        self.heads, self.per_output = heads, per_output
        art = art if bias else _without_shift(art)
        shape = (*lead, out_features) if per_output else lead
        super().__init__(art, shape, weight, keep=keep, process_group=process_group)
        self.weight = nn.Parameter(weight)
        if bias:
            outputs = 1 if bias == "shared" else out_features
            self.bias = nn.Parameter(weight.new_empty(*lead, outputs))
        else:
            self.register_parameter("bias", None)
        self.reset_parameters()

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
        **settings: Any,  # noqa: B008
    ) -> Self:
        """A head with the parameters of a linear layer, and its outputs.

        The parameters are the same objects, so that an optimizer that holds them goes on to.
        """
        _check_linear("layer", layer)
        head = cls(
            layer.in_features,
            layer.out_features,
            art,
            bias=layer.bias is not None,
            keep=keep,
            device=layer.weight.device,
            dtype=layer.weight.dtype,
            **settings,
        )
        head.weight, head.bias = layer.weight, layer.bias
        return head

    @classmethod
    def identity(
        cls, features: int, art: Rule[Any, Any] = Moments(), *, keep: bool = True, **settings: Any
    ) -> Self:  # noqa: B008
        """The square layer W = I, b = 0, to be put on top of any model without a change of its outputs."""
        head = cls(features, features, art, keep=keep, **settings)
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
        if index is None or self.heads is not None or self.per_output:
            return index
        if index.shape != targets.shape:
            raise ValueError(
                f"index has shape {tuple(index.shape)}; targets have shape {tuple(targets.shape)}"
            )
        return None

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
        art: Rule[Any, Any] = Moments(),  # noqa: B008
        *,
        keep: bool = False,
        process_group: dist.ProcessGroup | bool | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        _check_size("in_features", in_features)
        _check_size("out_features", out_features)
        if _is_dense(art):
            raise ValueError(f"art is {art!r}; all outputs of dueling streams share one scale and shift")
        value = nn.Linear(in_features, 1, device=device, dtype=dtype)
        self.in_features, self.out_features = in_features, out_features
        super().__init__(art, (), value.weight, keep=keep, process_group=process_group)
        self.value = value
        self.advantage = nn.Linear(in_features, out_features, device=device, dtype=dtype)

    @classmethod
    def from_linear(
        cls,
        value: nn.Linear,
        advantage: nn.Linear,
        art: Rule[Any, Any] = Moments(),  # noqa: B008
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
            art,
            keep=keep,
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

    def _statistic_of(self, index: Tensor | None, targets: Tensor) -> None:
        return None

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
    pairs = list(zip(_parts(target), _parts(online), strict=True))
    for (name, mine), (other, theirs) in pairs:
        if name != other or type(mine) is not type(theirs):
            raise ValueError(f"target has {name!r} where online has {other!r}; they must be of one kind")
    for (_, mine), (_, theirs) in pairs:
        if isinstance(mine, Head) and isinstance(theirs, Head):
            mine.polyak_(theirs, tau)
        elif isinstance(mine, nn.Parameter):
            mine.lerp_(theirs, tau)  # pyright: ignore
        else:
            mine.copy_(theirs)  # pyright: ignore


def _parts(module: nn.Module, prefix: str = "") -> Iterator[tuple[str, Head | Tensor]]:
    """The heads of a network, and its parameters and buffers that are outside of heads."""
    if isinstance(module, Head):
        yield prefix, module
        return
    for name, x in (
        *module.named_parameters(prefix, recurse=False),
        *module.named_buffers(prefix, recurse=False),
    ):
        yield name, x
    for name, child in module.named_children():
        yield from _parts(child, f"{prefix}.{name}" if prefix else name)


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
    return isinstance(art, Covariance) or (isinstance(art, Symmetric) and isinstance(art.rule, Covariance))


def _without_shift(art: Rule[Any, Any]) -> Rule[Any, Any]:
    if isinstance(art, Symmetric) or (isinstance(art, Fixed) and not any(_flat(art.shift))):
        return art
    return Symmetric(art)


def _flat(shift: float | tuple[float, ...]) -> tuple[float, ...]:
    return shift if isinstance(shift, tuple) else (shift,)
