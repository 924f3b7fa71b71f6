"""Heads for alternatives to Pop-Art: settings, and pure functions of a last layer's parameters.

`Linear` and `Categorical` have the same methods, so that an agent can use either. Call `normalized` and
`loss` with the new head that `step` returns.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp

from popart.affine import Affine, change_of
from popart.alternatives import Histogram, HLGauss, Transform
from popart.alternatives.supports import SLACK, following, interpolation
from popart.alternatives.transforms import IDENTITY
from popart.jax import heads
from popart.jax.heads import Axis, Step
from popart.rules import Fixed, Rule

Array = Any
Tree = Any

NO_TARGETS_MEASURED, DEFAULT_BINS = Fixed(), HLGauss()


class Head(Protocol):
    """The interface between an agent and its last layer."""

    @property
    def art(self) -> Rule[Any]:
        """The rule that measures targets."""
        ...

    @property
    def width(self) -> int:
        """Number of units of the layer for each output."""
        ...

    def init(self, head: Tree) -> Any:
        """Return the state before the first target."""
        ...

    def step(self, state: Any, head: Tree, targets: Array, **options: Any) -> Step:
        """Return the state and the head after a batch of targets, and the normalised targets."""
        ...

    def normalized(self, head: Tree, h: Array, *, index: Array = None) -> Array:
        """Return outputs in normalised units."""
        ...

    def values(self, state: Any, head: Tree, h: Array, *, index: Array = None) -> Array:
        """Return outputs in the targets' own units."""
        ...

    def loss(self, head: Tree, h: Array, targets: Array, *, index: Array = None) -> Array:
        """Return the loss of each output, for normalised targets."""
        ...

    def affine(self, state: Any) -> Affine:
        """Return scale and shift."""
        ...


def half_square(error: Array) -> Array:
    """Return half of the square, whose gradient is the error."""
    return error**2 / 2


@dataclass(frozen=True)
class Linear:
    r"""A linear layer whose outputs are $T^{-1}(\Sigma(W h + b) + \mu)$.

    The defaults are Pop-Art with a rule; `preserve=False` is Art without Pop. With `art=popart.Fixed()` it is
    a fixed transform alone, or, without one, a plain linear layer.

    It cannot be free of scale with a transform other than the identity.

    Args:
        art: the rule that measures (transformed) targets.
        transform: the transform of targets.
        preserve: False leaves the layer as it is when its units change, so that all outputs change.
        cost: the loss of an error in normalised units.
    """

    art: Rule[Any]
    transform: Transform = IDENTITY
    preserve: bool = True
    cost: Callable[[Array], Array] = half_square

    @property
    def width(self) -> int:
        return 1

    def init(self, head: Tree) -> Any:
        return heads.init(self.art, head)

    def step(self, state: Any, head: Tree, targets: Array, **options: Any) -> Step:
        """Update statistics and head; see `popart.jax.step` for the options."""
        found = heads.step(self.art, state, head, self.transform.apply(targets), **options)
        if self.preserve:
            return found
        layers, leaves, _ = heads.open_head(head)
        units = heads.over_outputs(self.art.affine(found.state), leaves, layers)
        return found._replace(head=head, change=change_of(units, units))

    def normalized(self, head: Tree, h: Array, *, index: Array = None) -> Array:
        return heads.normalized(head, h, index=index)

    def values(self, state: Any, head: Tree, h: Array, *, index: Array = None) -> Array:
        return self.transform.invert(heads.values(self.art, state, head, h, index=index))

    def loss(self, head: Tree, h: Array, targets: Array, *, index: Array = None) -> Array:
        return self.cost(self.normalized(head, h, index=index) - targets)

    def affine(self, state: Any) -> Affine:
        return self.art.affine(state)


class BinsState(NamedTuple):
    """The statistics of targets, and the scale and shift of the bins."""

    statistics: Any
    scale: Array
    shift: Array


@dataclass(frozen=True)
class Categorical:
    r"""A layer of `bins` logits per output, whose outputs are the means of softmaxes over the bins.

    Its parameters are those of one linear layer with `outputs * bins` numbers, as in `popart.jax.init`; give
    it weights of 0 at first, as DreamerV3 does. With the default rule the support is fixed, as published.
    With any other rule the bins are in normalised units, and logits are interpolated when scale or shift
    have changed by more than `slack`.

    `popart.torch.alternatives.Categorical` says what it cannot do.

    Args:
        outputs: the number of outputs.
        histogram: the bins, and how targets become distributions over them.
        art: the rule that measures targets.
        slack: change of the statistics, relative to the scale, after which the bins follow.
    """

    outputs: int
    histogram: Histogram = DEFAULT_BINS
    art: Rule[Any] = NO_TARGETS_MEASURED
    slack: float = SLACK

    @property
    def width(self) -> int:
        return self.histogram.bins

    def init(self, head: Tree) -> BinsState:
        like = jax.tree.leaves(head)[0]
        state = self.art.init((), like=like)
        scale, shift = self.art.affine(state)
        return BinsState(state, scale, jnp.where(jnp.isnan(shift), 0.0, shift))

    def step(
        self,
        state: BinsState,
        head: Tree,
        targets: Array,
        axis_name: Any = None,
        *,
        mask: Array = None,
        weights: Array = None,
        **_: Any,
    ) -> Step:
        """Return the state and the head after a batch of targets, and the normalised targets.

        Other options of `popart.jax.step` have no effect here. The `change` is that of no change: the
        optimizer's state stays as it is.
        """
        targets = jax.lax.stop_gradient(targets)
        across = None if axis_name is None else Axis(axis_name)
        statistics = self.art.update(state.statistics, targets, mask=mask, weights=weights, across=across)
        old = Affine(state.scale, state.shift)
        new, moved = following(old, self.art.affine(statistics), self.slack)
        if not isinstance(self.art, Fixed):
            head = self._interpolated(head, interpolation(self.histogram, old, new), moved)
        return Step(BinsState(statistics, *new), head, new.normalize(targets), change_of(new, new))

    def normalized(self, head: Tree, h: Array, *, index: Array = None) -> Array:
        return self.histogram.decode(jax.nn.softmax(self.logits(head, h, index=index)))

    def values(self, state: BinsState, head: Tree, h: Array, *, index: Array = None) -> Array:
        return state.scale * self.normalized(head, h, index=index) + state.shift

    def loss(self, head: Tree, h: Array, targets: Array, *, index: Array = None) -> Array:
        logits = self.logits(head, h, index=index)
        return -(self.histogram.encode(targets) * jax.nn.log_softmax(logits)).sum(-1)

    def affine(self, state: BinsState) -> Affine:
        return Affine(state.scale, state.shift)

    def logits(self, head: Tree, h: Array, *, index: Array = None) -> Array:
        """Return the logits of the bins, `(*batch, outputs, bins)`, or `(*batch, bins)` with `index`."""
        flat = heads.normalized(head, h)
        logits = flat.reshape(*flat.shape[:-1], self.outputs, self.histogram.bins)
        return logits if index is None else heads.chosen(logits, index)

    def _interpolated(self, head: Tree, A: Array, moved: Array) -> Tree:
        (layer, *_), leaves, treedef = heads.open_head(head)

        def mix(x: Array) -> Array:
            """Mix the bins, which are on the last axis."""
            bins = x.reshape(*x.shape[:-1], self.outputs, self.histogram.bins)
            mixed = jnp.einsum("...i,ji->...j", bins, A, precision="highest").reshape(x.shape)
            return jnp.where(moved, mixed, x)

        W = leaves[layer.weight]
        leaves[layer.weight] = mix(W) if layer.layout == "in_out" else mix(W.T).T
        if layer.bias is not None:
            leaves[layer.bias] = mix(leaves[layer.bias])
        return jax.tree.unflatten(treedef, leaves)
