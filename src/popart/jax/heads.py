r"""The last layer of a network with Pop-Art, as pure functions of its parameters.

A head is a pytree with a weight and perhaps a bias, found by the names that libraries give them:
`kernel` and `bias` (Flax), `w` and `b` (Haiku), both `(in, out)`; `weight` and `bias` (Equinox),
`(out, in)`. A leading axis, as `vmap` gives, means several heads, each with its statistics. A head
with parts `value` and `advantage` has dueling streams.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.core import Tracer

from popart._arrays import Array, PerTarget, Targets, values_of
from popart.affine import Affine, Change, Layout, change_of, limited
from popart.batches import checked_index
from popart.rules import Rule

Tree = Any

FEW = 128
"""Number of targets up to which the small part of a step is compiled as a program of its own on a CPU."""


class Step(NamedTuple):
    """The result of `step`: the new state and head, normalised targets, and the change of the units."""

    state: Any
    head: Tree
    targets: Array
    change: Change


def init(art: Rule[Any], head: Tree, *, per_output: bool = False) -> Any:
    """Return the statistics before any target: one for all outputs (of each head), or one per output."""
    layers = layers_of(head)
    per_output = per_output or art.event_axes > 0
    if per_output and len(layers) > 1:
        raise ValueError("per_output is True; all outputs of dueling streams share one scale and shift")
    weight = jax.tree.leaves(head)[layers[0].weight]
    shape = (*weight.shape[:-2], outputs_of(weight, layers[0])) if per_output else weight.shape[:-2]
    return art.init(shape, like=weight)


def step(
    art: Rule[Any],
    state: Any,
    head: Tree,
    targets: Targets,
    axis_name: Any = None,
    *,
    mask: PerTarget | None = None,
    weights: PerTarget | None = None,
    index: PerTarget | None = None,
    max_norm: float | None = None,
) -> Step:
    """Update statistics (ART) and head (POP) with a batch of targets, and normalise the targets.

    Before the first targets all outputs are 0, and the first targets set scale and shift. From then on no
    output changes, unless `max_norm` is reached. The loss compares normalised targets with the outputs of the
    *new* head, and its gradient goes to the new head. No gradient goes through the targets, which may be
    bootstrapped.

        state, head, y, change = popart.jax.step(art, state, head, targets)

    Args:
        art: the rule that measures targets; `popart.Fixed()` is for a comparison without Pop-Art.
        state: from `init`, or from the last step.
        head: the parameters of the last layer.
        targets: in their own units, `(*batch, *shape)` for statistics of this shape.
        axis_name: the axis, or axes, over which replicas see parts of one batch.
        mask: the targets that count, `(*batch,)`.
        weights: the weight of each target in the statistics, `(*batch,)`.
        index: the output (or head) of each target, `(*batch,)`. Statistics that all outputs share do not
            depend on it.
        max_norm: preserve outputs only while this does not make the norm of an output's weights larger than
            `max_norm`. For targets that may become much smaller; the guide recommends 3. `None` sets no
            limit.
    """
    layers, leaves, treedef = open_head(head)
    _check_bias(art, layers)
    targets = jax.lax.stop_gradient(targets)
    across = None if axis_name is None else Axis(axis_name)

    def small(state: Any, biases: list[Array], y: Array, mask: Array, weights: Array, index: Array) -> Any:
        """Return all results but the weights and the targets, which may be large."""
        old = art.affine(state)
        if index is None:
            _check_batch(jnp.shape(y), old.shift.shape)
        elif not old.shift.ndim:
            checked_index(index, jnp.shape(y), _choices(leaves[layers[-1].weight], layers[-1]), old.shift)
            index = None
        state = art.update(state, y, mask=mask, weights=weights, index=index, across=across)
        new = art.affine(state)
        units = over_outputs(old, leaves, layers), over_outputs(new, leaves, layers)
        change = change_of(*units)
        if max_norm is not None:
            weights = [(leaves[layer.weight], layer.layout) for layer in layers]
            change = limited(change, *units, weights, max_norm)
        return state, _rescaled_biases(biases, layers, change), new, change

    biases = [leaves[layer.bias] for layer in layers if layer.bias is not None]
    given = state, biases, targets, mask, weights, index
    few = jnp.size(targets) <= FEW and index is None
    run = at_once if few and axis_name is None and max_norm is None else lambda f, *given: f(*given)
    state, biases, new, change = run(small, *given)
    head = jax.tree.unflatten(treedef, _rescaled_weights(leaves, layers, change, biases))
    affine = new if index is None or not new.shift.ndim else Affine(*(_taken(x, index) for x in new))
    return Step(state, head, affine.normalize(targets), change)


def at_once(f: Callable[..., Any], state: Any, biases: list[Array], *given: Any) -> Any:
    """Call f, which returns a new state and biases first, as a program of its own in compiled code on a CPU.

    There, to judge by timings, XLA schedules operations one by one if a program has a large array, and this
    takes longer than arithmetic on a few numbers. The branch of a conditional is a program of its own. With
    more than `FEW` targets this is slower, not faster.
    """
    arrays = jax.tree.leaves((state, biases, given))
    compiled = any(isinstance(x, Tracer) for x in arrays) and jax.default_backend() == "cpu"
    if not compiled or not all(isinstance(x, jax.Array) for x in arrays):
        return f(state, biases, *given)
    shapes = jax.eval_shape(f, state, biases, *given)
    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes[2:])
    is_count = state[0].reshape(-1)[0] >= 0  # always true, which the compiler does not know
    return jax.lax.cond(is_count, f, lambda *given: (*given[:2], *zeros), state, biases, *given)


def normalized(head: Tree, h: Array, *, index: PerTarget | None = None) -> Targets:
    """Return the outputs in normalised units, $g = W h + b$: `(*batch, out)`, or `(*batch, heads, out)`.

    With `index`, `(*batch,)`, the result has one output or head for each row of h.
    """
    layers, leaves, _ = open_head(head)
    first, *rest = (_linear(leaves, layer, h) for layer in layers)
    g = first if not rest else first + rest[0] - rest[0].mean(-1, keepdims=True)
    return g if index is None else chosen(g, index)


def values(art: Rule[Any], state: Any, head: Tree, h: Array, *, index: PerTarget | None = None) -> Targets:
    r"""Return the outputs in the targets' own units, $\Sigma(W h + b) + \mu$ (Eq. 2), or one per row of h.

    Before the first target they are 0. While all targets are equal, the outputs are equal to them.
    """
    layers, leaves, _ = open_head(head)
    f = over_outputs(art.affine(state), leaves, layers).denormalize(normalized(head, h))
    return f if index is None else chosen(f, index)


def chosen(g: Array, index: Array) -> Array:
    """Return the output or head that an index chooses in each row; NaN where there is none."""
    axis = index.ndim
    places = _without_negatives(index, g.shape[axis]).reshape(index.shape + (1,) * (g.ndim - axis))
    return jnp.take_along_axis(g, places, axis, mode="fill").squeeze(axis)


def _taken(statistic: Array, index: Array) -> Array:
    """Return the statistic of each task in an index; NaN where there is no such task."""
    return statistic.at[_without_negatives(index, len(statistic))].get(mode="fill", fill_value=jnp.nan)


def _without_negatives(index: Array, n: int) -> Array:
    """Return the index with n, which is out of range, for negative numbers: JAX would count from the end."""
    return jnp.where(index < 0, n, index)


def polyak(
    art: Rule[Any], target: tuple[Any, Tree], online: tuple[Any, Tree], tau: float | Array
) -> tuple[Any, Tree]:
    r"""Return $(1 - \tau)$ times one head plus $\tau$ times another, as functions in the targets' units.

    Each argument is a pair of state and head, and so is the result, which has the statistics of `online`.
    Where `online` has no spread its function is a constant, and so is the result.
    """
    known = values_of(tau)
    if known is not None and not 0 <= known <= 1:
        raise ValueError(f"tau is {tau!r}; it must be in [0, 1]")
    (mine, head), (theirs, other) = target, online
    layers, leaves, treedef = open_head(head)
    affines = (over_outputs(art.affine(state), leaves, layers) for state in (mine, theirs))
    moved = rescaled(leaves, layers, change_of(*affines, adopt=False))
    averaged = [
        jnp.where(jnp.asarray(tau) == 1, y, (1 - tau) * x + tau * y)  # x may be infinite
        for x, y in zip(moved, jax.tree.leaves(other), strict=True)
    ]
    return theirs, jax.tree.unflatten(treedef, averaged)


@dataclass(frozen=True)
class Axis:
    """Replicas along a named axis, or several."""

    name: Any

    def sum(self, x: Array) -> Array:
        return jax.lax.psum(x, self.name)

    def max(self, x: Array) -> Array:
        return jax.lax.pmax(x, self.name)

    def gather(self, x: Array) -> Array:
        return jax.lax.all_gather(x, self.name)


def outputs_of(weight: Array, layer: "Layer") -> int:
    """Return the number of outputs of a layer, per head."""
    return weight.shape[-1] if layer.layout == "in_out" else weight.shape[-2]


def _choices(weight: Array, layer: "Layer") -> int:
    """Return the number of heads, if there are several, or of outputs: what an index chooses from."""
    return weight.shape[0] if weight.ndim == 3 else outputs_of(weight, layer)


class Layer(NamedTuple):
    """The places of the weight and the bias of a linear layer among the leaves of a tree."""

    weight: int
    bias: int | None
    layout: Layout
    takes_shift: bool = True


def open_head(head: Tree) -> tuple[list[Layer], list[Array], Any]:
    leaves, treedef = jax.tree.flatten(head)
    layers = layers_of(head)
    for layer in layers:
        W = leaves[layer.weight]
        if W.ndim not in (2, 3):
            raise TypeError(
                f"head has a weight of shape {W.shape}; only a linear layer's outputs can be preserved"
            )
        if not jnp.issubdtype(W.dtype, jnp.floating):
            raise TypeError(
                f"head has a weight of dtype {W.dtype}; it must be of floats, which can be rescaled"
            )
        allowed = [(*W.shape[:-2], outputs) for outputs in (outputs_of(W, layer), 1)]
        if layer.bias is not None and jnp.shape(leaves[layer.bias]) not in allowed:
            raise TypeError(
                f"head has a bias of shape {jnp.shape(leaves[layer.bias])} and a weight of shape {W.shape}; "
                f"the bias must have shape {allowed[0]}, or {allowed[1]} for one that outputs share"
            )
    return layers, leaves, treedef


def _check_bias(art: Rule[Any], layers: list[Layer]) -> None:
    if layers[0].bias is None and art.has_shift:
        raise ValueError(
            f"head has no bias, and art is {art!r}, which has a shift that only a bias can make up for; "
            "give it symmetric=True"
        )


def _check_batch(shape: tuple[int, ...], one: tuple[int, ...]) -> None:
    if one and shape == one:
        raise ValueError(
            f"targets have shape {shape}, which may be a batch or one target of all outputs; give "
            f"index= for a batch, or one target as {(1, *one)}"
        )


def layers_of(head: Tree) -> list[Layer]:
    """Return the linear layers of a head: one, or a value and an advantage stream."""
    found: dict[tuple[str, ...], dict[str, int]] = {}
    for i, (path, _) in enumerate(jax.tree_util.tree_leaves_with_path(head)):
        names = tuple(
            str(getattr(key, "key", getattr(key, "name", getattr(key, "idx", key)))) for key in path
        )
        at = next((n for n, name in enumerate(names) if name in _NAMES), None)
        if at is None:
            raise TypeError(_not_a_head(head))
        found.setdefault(names[:at], {})[names[at]] = i
    layers = {where: _layer(head, parts) for where, parts in found.items()}
    if len(layers) == 1:
        return list(layers.values())
    streams = {where[-1] if where else "": layer for where, layer in layers.items()}
    if sorted(streams) != ["advantage", "value"] or len(layers) != 2:
        raise TypeError(_not_a_head(head))
    return [streams["value"], streams["advantage"]._replace(takes_shift=False)]


_LAYOUTS: dict[str, tuple[str, Layout]] = {
    "kernel": ("bias", "in_out"),
    "w": ("b", "in_out"),
    "weight": ("bias", "out_in"),
}
_NAMES = {*_LAYOUTS, "bias", "b"}


def _layer(head: Tree, parts: dict[str, int]) -> Layer:
    for weight, (bias, layout) in _LAYOUTS.items():
        if weight in parts and not parts.keys() - {weight, bias}:
            return Layer(parts[weight], parts.get(bias), layout)
    raise TypeError(_not_a_head(head))


def _not_a_head(head: Tree) -> str:
    shown = jax.tree.map(lambda x: getattr(x, "shape", x), head)
    return (
        f"head is {shown}; it must be the parameters of one linear layer: kernel and bias (Flax), w and b "
        "(Haiku), weight and bias (Equinox), or a 'value' and an 'advantage' of these"
    )


def _linear(leaves: list[Array], layer: Layer, h: Array) -> Array:
    W = leaves[layer.weight]
    W = W if layer.layout == "in_out" else jnp.swapaxes(W, -1, -2)
    if h.shape[-1] != W.shape[-2]:
        raise ValueError(f"h has shape {h.shape}; its last axis must be of {W.shape[-2]} features")
    kind = "...i,kio->...ko" if W.ndim == 3 else "...i,io->...o"
    g = jnp.einsum(kind, h, W, precision="highest")  # on GPUs the default has ten bits
    return g if layer.bias is None else g + leaves[layer.bias]


def over_outputs(affine: Affine, leaves: list[Array], layers: list[Layer]) -> Affine:
    """Return the normalisation, shaped to broadcast with the outputs: one per head has no axis of outputs."""
    if affine.shift.ndim and affine.shift.ndim == leaves[layers[0].weight].ndim - 2:
        return Affine(*(x[..., None] for x in affine))
    return affine


def rescaled(leaves: list[Array], layers: list[Layer], change: Change) -> list[Array]:
    """Return the leaves of a head after its normalisation changed."""
    biases = [leaves[layer.bias] for layer in layers if layer.bias is not None]
    return _rescaled_weights(leaves, layers, change, _rescaled_biases(biases, layers, change))


def _rescaled_biases(biases: list[Array], layers: list[Layer], change: Change) -> list[Array]:
    takes_shift = [layer.takes_shift for layer in layers if layer.bias is not None]
    return [change.rescale_bias(b, shift=shift) for b, shift in zip(biases, takes_shift, strict=True)]


def _rescaled_weights(
    leaves: list[Array], layers: list[Layer], change: Change, biases: list[Array]
) -> list[Array]:
    leaves, rest = list(leaves), iter(biases)
    for layer in layers:
        leaves[layer.weight] = change.rescale(leaves[layer.weight], layout=layer.layout)
        if layer.bias is not None:
            leaves[layer.bias] = next(rest)
    return leaves
