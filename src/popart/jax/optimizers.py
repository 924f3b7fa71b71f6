"""Optax transformations: moments that follow the units of a head, and Normalized SGD (Algorithm 2).

Pop-Art changes the units of a head's gradients from one update to the next. Moments of gradients in
the old units are made into what they would have been had every gradient been in the new ones: averages
of gradients are multiplied by F, averages of their squares by F², steps that have no unit by nothing.
"""

import functools
from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
import optax

from popart._arrays import divide
from popart.affine import Affine, Change
from popart.jax.heads import Tree, layers_of

Moments = Literal["rescale", "keep", "reset"]
Where = Callable[[Tree], Tree]

POWERS: dict[str, dict[str, int]] = {
    "MultiStepsState": {"acc_grads": 1},
    "TraceState": {"trace": 1},
    "EmaState": {"ema": 1},
    "ScaleByAdamState": {"mu": 1, "nu": 2},
    "ScaleByAmsgradState": {"mu": 1, "nu": 2, "nu_max": 2},
    "ScaleByBeliefState": {"mu": 1, "nu": 2},
    "ScaleByRmsState": {"nu": 2},
    "ScaleByRmsWithCountState": {"nu": 2},
    "ScaleByRStdDevState": {"mu": 1, "nu": 2},
    "ScaleByRStdDevWithCountState": {"mu": 1, "nu": 2},
    "ScaleByRssState": {"sum_of_squares": 2},
    "ScaleByLionState": {"mu": 1},
}
"""The power of the gradients' unit in each of the moments that these transformations keep.

Those that are called `ScaleBy...` divide gradients by their size: what comes after them in a chain, such as
the momentum of RMSProp, remembers steps that have no unit.
"""


def rescale_moments(
    inner: optax.GradientTransformation, head: Where, moments: Moments = "rescale"
) -> optax.GradientTransformationExtraArgs:
    """An optimizer whose memory of a head's gradients follows their units.

        optimizer = rescale_moments(optax.adam(1e-3), head=lambda params: params["head"])
        state, head, y, change = popart.jax.step(art, state, params["head"], targets)
        ...
        updates, opt_state = optimizer.update(gradients, opt_state, params, change=change)

    Args:
        inner: any chain of Optax's SGD, momentum, Adam, AdamW, AMSGrad, AdaBelief, RMSProp (centred or
            not) and AdaGrad.
        head: where in the parameters the head is.
        moments: 'rescale' into the new units; 'keep' or 'reset', for which any optimizer will do.
    """
    if moments not in ("rescale", "keep", "reset"):
        raise ValueError(f"moments is {moments!r}; it may be 'rescale', 'keep' or 'reset'")
    inner = optax.with_extra_args_support(inner)

    def update(
        updates: Tree, state: Any, params: Tree = None, *, change: Change | None = None, **extra: Any
    ) -> tuple[Tree, Any]:
        if change is None:
            raise ValueError("change is missing; give update(..., change=change) what popart.jax.step gave")
        if moments != "keep":
            state = _Follow(updates, head, change, moments).through(state)
        return inner.update(updates, state, params, **extra)

    return optax.GradientTransformationExtraArgs(inner.init, update)


class _Follow:
    """A walk through the states of a chain, in its order, with a head's moments rescaled on the way."""

    def __init__(self, updates: Tree, head: Where, change: Change, moments: Moments) -> None:
        paths = [path for path, _ in jax.tree_util.tree_leaves_with_path(updates)]
        marks = head(jax.tree.unflatten(jax.tree.structure(updates), range(len(paths))))
        at = jax.tree.leaves(marks)
        self.rescale: dict[Any, Callable[..., Any]] = {}
        for layer in layers_of(marks):
            self.rescale[paths[at[layer.weight]]] = functools.partial(change.rescale, layout=layer.layout)
            if layer.bias is not None:
                self.rescale[paths[at[layer.bias]]] = change.rescale_bias
        self.moments = moments
        self.has_unit = True

    def through(self, state: Any) -> Any:
        if isinstance(state, dict):
            return {key: self._apart(value) for key, value in state.items()}
        if not hasattr(state, "_fields"):
            return tuple(map(self.through, state)) if isinstance(state, tuple) else state
        kind = type(state).__name__
        powers = POWERS.get(kind, {})
        moved = {name: self._moved(getattr(state, name), power) for name, power in powers.items()}
        self.has_unit = self.has_unit and not (powers and kind.startswith("ScaleBy"))
        for name in state._fields:
            if name not in powers:
                part = getattr(state, name)
                if self._is_a_moment(part) and self.moments == "rescale":
                    raise ValueError(_unknown(kind, name))
                moved[name] = self._moved(part, 0) if self._is_a_moment(part) else self.through(part)
        return type(state)(**moved)

    def _apart(self, state: Any) -> Any:
        """A branch: what its transformations do to units is not known to the next."""
        before = self.has_unit
        state, self.has_unit = self.through(state), before
        return state

    def _is_a_moment(self, part: Any) -> bool:
        return any(path in self.rescale for path, _ in jax.tree_util.tree_leaves_with_path(part))

    def _moved(self, moment: Tree, power: int) -> Tree:
        def moved(path: Any, x: Any) -> Any:
            if path not in self.rescale:
                return x
            if self.moments == "reset":
                return jnp.zeros_like(x)
            return self.rescale[path](x, power=power) if self.has_unit else x

        return jax.tree_util.tree_map_with_path(moved, moment)


def _unknown(kind: str, name: str) -> str:
    known = ", ".join(POWERS)
    return (
        f"inner has a {kind}, whose {name!r} has unknown units; known are {known}. "
        "Choose moments='keep' or 'reset'"
    )


def normalized_sgd(
    learning_rate: optax.ScalarOrSchedule, head: Where
) -> optax.GradientTransformationExtraArgs:
    r"""Normalized SGD (Algorithm 2) for a scale that all outputs share.

    Gradients are of the squared loss in the targets' own units. The layers below the head take steps
    that are divided by $\sigma^2$, the head takes plain ones:

        updates, opt_state = optimizer.update(gradients, opt_state, params, affine=art.affine(state))

    A scale per output or a dense one cannot be divided out after back-propagation; for these, and for
    targets so large or small that $\sigma^2$ overflows, use `normalized_linear` with plain SGD.

    Args:
        learning_rate: a number or a schedule.
        head: where in the parameters the head is.
    """
    plain = optax.with_extra_args_support(optax.sgd(learning_rate))

    def update(
        updates: Tree, state: Any, params: Tree = None, *, affine: Affine | None = None, **extra: Any
    ) -> tuple[Tree, Any]:
        if affine is None:
            raise ValueError("affine is missing; give update(..., affine=art.affine(state))")
        if affine.scale.ndim:
            raise ValueError(
                f"affine.scale has shape {affine.scale.shape}; it must be one number. For a scale per output "
                "use popart.jax.normalized_linear"
            )
        leaves, treedef = jax.tree.flatten(updates)
        top = jax.tree.leaves(head(jax.tree.unflatten(treedef, range(len(leaves)))))
        sigma = affine.scale
        scaled = [x if i in top else divide(divide(x, sigma), sigma) for i, x in enumerate(leaves)]
        return plain.update(jax.tree.unflatten(treedef, scaled), state, params, **extra)

    return optax.GradientTransformationExtraArgs(plain.init, update)
