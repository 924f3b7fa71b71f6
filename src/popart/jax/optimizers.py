"""Optimizers of Optax whose state follows the units of a head, and Normalized SGD (Algorithm 2).

Pop-Art changes the units of a head's gradients from one update to the next. Averages of gradients in
the old units are rescaled to the values that they would have if every gradient had been in the new units:
averages and maxima of gradients by F, averages of their squares by F². Steps that have no unit stay.
"""

import functools
import types
from collections.abc import Callable, Iterator
from typing import Any, Literal

import jax
import jax.numpy as jnp
import optax

from popart.affine import Affine, Change
from popart.jax.heads import Tree, layers_of
from popart.numerics import divide

StateChange = Literal["rescale", "keep", "reset"]
Where = Callable[[Tree], Tree]

POWERS: dict[str, dict[str, int]] = {
    "MultiStepsState": {"acc_grads": 1},
    "ApplyEvery": {"grad_acc": 1},
    "TraceState": {"trace": 1},
    "EmaState": {"ema": 1},
    "ZeroNansState": {"found_nan": 0},
    "ScaleByOptimisticGradientState": {"previous_gradient": 1},
    "ScaleByAdamState": {"mu": 1, "nu": 2},
    "ScaleByAmsgradState": {"mu": 1, "nu": 2, "nu_max": 2},
    "ScaleByAdanState": {"m": 1, "v": 1, "n": 2, "g": 1},
    "ScaleByBeliefState": {"mu": 1, "nu": 2},
    "ScaleByRmsState": {"nu": 2},
    "ScaleByRmsWithCountState": {"nu": 2},
    "ScaleByRStdDevState": {"mu": 1, "nu": 2},
    "ScaleByRStdDevWithCountState": {"mu": 1, "nu": 2},
    "ScaleByRssState": {"sum_of_squares": 2},
    "ScaleByAdaDeltaState": {"e_g": 2, "e_x": 0},
    "ScaleByLionState": {"mu": 1},
    "ScaleByRpropState": {"step_sizes": 0, "prev_updates": 0},
}
"""The power of the gradients' unit in each moment of Optax's states."""

KEEPS_UNIT = {"ScaleByOptimisticGradientState"}
"""The other `ScaleBy...` divide gradients by their size. Transformations after them in a chain, such as the
momentum of RMSProp, remember steps that have no unit."""

ADAM_POWERS = {
    "adamax": {"mu": 1, "nu": 1},  # nu is a maximum of |gradient|
    "adopt": {"mu": 0, "nu": 2},  # mu is an average of gradients that were divided by their size
    "adam": POWERS["ScaleByAdamState"],
}
"""Powers in a `ScaleByAdamState`, which Optax uses for three kinds of averages."""

MAKERS = {
    "adamax": "adamax adamaxw scale_by_adamax",
    "adopt": "adopt adoptw scale_by_adopt",
    "adam": "adam adamw lamb nadam nadamw optimistic_adam optimistic_adam_v2 radam yogi scale_by_adam "
    "scale_by_radam scale_by_yogi",
}
"""The functions of Optax that make transformations with each of them."""

MISSING: Any = object()
"""The value of `change` where it was forgotten, which is not the same as None."""

NORMALIZES_WITHOUT_STATE = {"normalize_by_update_norm", "scale_by_sign", "scale_by_trust_ratio"}
REMEMBERS = {"apply_every", "ema", "trace"}


def rescale_optimizer(
    inner: optax.GradientTransformation, head: Where, optimizer_state: StateChange = "rescale"
) -> optax.GradientTransformationExtraArgs:
    """Return an optimizer whose state of a head follows the units of the head.

        optimizer = rescale_optimizer(optax.adam(1e-3), head=lambda params: params["head"])
        state, head, y, change = popart.jax.step(art, state, params["head"], targets)
        ...
        updates, opt_state = optimizer.update(gradients, opt_state, params, change=change)

    Where several gradient steps follow one `step`, as in PPO, give `change=change` to the first and
    `change=None` to the others.

    Optimizers whose state cannot be rescaled are refused by `init`: LBFGS, Adafactor, SM3, NovoGrad,
    LARS, Lookahead and all optimizers that are not Optax's.

    Args:
        inner: any chain of Optax's SGD, momentum, Adam and its variants (AdamW, NAdam, RAdam, AMSGrad,
            Adamax, AdaBelief, Yogi, Adan, ADOPT), RMSProp (centred or not), AdaGrad, AdaDelta, Lion, Rprop,
            sign SGD, optimistic gradient descent, gradient accumulation and clipping.
        head: a function that returns the head from the parameters.
        optimizer_state: 'rescale' to the new units; 'keep', or 'reset' to the initial values, with any
            optimizer.
    """
    if optimizer_state not in ("rescale", "keep", "reset"):
        raise ValueError(f"optimizer_state is {optimizer_state!r}; it may be 'rescale', 'keep' or 'reset'")
    names = list(_names(inner))
    inner = optax.with_extra_args_support(inner)

    def init(params: Tree) -> Any:
        state = inner.init(params)
        _refuse_lookahead(state)
        if optimizer_state == "rescale":
            _refuse_momentum_of_normalized_steps(names)
            _Follow(params, head, None, optimizer_state, names).through(state, state)
        return state

    def update(
        updates: Tree, state: Any, params: Tree = None, *, change: Change | None = MISSING, **extra: Any
    ) -> tuple[Tree, Any]:
        if change is MISSING:
            raise ValueError(
                "change is missing; call update(..., change=change) with the change that popart.jax.step "
                "returned, or None if the head was not updated since the last call"
            )
        if change is not None and optimizer_state != "keep":
            fresh = inner.init(updates if params is None else params) if optimizer_state == "reset" else state
            state = _Follow(updates, head, change, optimizer_state, names).through(state, fresh)
        return inner.update(updates, state, params, **extra)

    return optax.GradientTransformationExtraArgs(init, update)


class _Follow:
    """A walk through the states of a chain, in its order, that rescales or resets those of a head."""

    def __init__(
        self, params: Tree, head: Where, change: Change | None, optimizer_state: StateChange, names: list[str]
    ) -> None:
        paths = [path for path, _ in jax.tree_util.tree_leaves_with_path(params)]
        marks = head(jax.tree.unflatten(jax.tree.structure(params), range(len(paths))))
        at = jax.tree.leaves(marks)
        self.rescale: dict[Any, Callable[..., Any]] = {}
        for layer in layers_of(marks):
            self.rescale[paths[at[layer.weight]]] = (
                functools.partial(change.rescale, layout=layer.layout) if change is not None else _unchanged
            )
            if layer.bias is not None:
                self.rescale[paths[at[layer.bias]]] = (
                    change.rescale_bias if change is not None else _unchanged
                )
        self.optimizer_state = optimizer_state
        self.names = names
        self.without_unit: set[Any] = set()

    def through(self, state: Any, fresh: Any) -> Any:
        """Return the state with that of the head rescaled, or replaced by those of `fresh`."""
        if isinstance(state, dict):
            self._check_order(state)
            return {key: self.through(value, fresh[key]) for key, value in state.items()}
        if hasattr(state, "_fields"):
            return self._through_fields(state, fresh)
        if isinstance(state, tuple | list):
            return type(state)(map(self.through, state, fresh))
        if self.optimizer_state == "rescale" and self._holds_a_moment(state):
            raise ValueError(_unknown(type(state).__name__, "state"))
        return state

    def _through_fields(self, state: Any, fresh: Any) -> Any:
        kind, powers = type(state).__name__, self._powers(state)
        parts = {name: (getattr(state, name), getattr(fresh, name)) for name in state._fields}
        for name in powers:
            if _is_packed(parts[name][0]):
                raise ValueError(_packed(kind, name, parts[name][0]))
        moved = {name: self._moved(*parts[name], power) for name, power in powers.items()}
        if kind.startswith("ScaleBy") and kind not in KEEPS_UNIT:
            for name in powers:
                self.without_unit.update(path for path, _ in _leaves(parts[name][0]))
        for name, (part, new) in parts.items():
            if name in powers:
                continue
            if kind == "PartitionState" and isinstance(part, dict):  # its keys are labels
                moved[name] = {key: self.through(value, new[key]) for key, value in part.items()}
            elif name.startswith("hyperparams"):
                moved[name] = part
            elif self._is_a_moment(part):
                if self.optimizer_state == "rescale":
                    raise ValueError(_unknown(kind, name))
                moved[name] = self._moved(part, new, 0)
            elif _is_packed(part) and (kind in POWERS or self.optimizer_state == "rescale"):
                raise ValueError(_packed(kind, name, part))
            else:
                moved[name] = self.through(part, new)
        return type(state)(**moved)

    def _powers(self, state: Any) -> dict[str, int]:
        kind = type(state).__name__
        if (
            kind not in POWERS
            or type(state).__module__.split(".")[0] != "optax"
            or self.optimizer_state == "reset"
        ):
            return {}
        return self._adam_powers() if kind == "ScaleByAdamState" else POWERS[kind]

    def _adam_powers(self) -> dict[str, int]:
        found = [kind for kind, makers in MAKERS.items() if {*makers.split()} & {*self.names}]
        if len(found) > 1:
            raise ValueError(
                f"inner combines {' and '.join(found)}, whose states have the same type, ScaleByAdamState, "
                "but other units; choose one of them, or optimizer_state='keep' or 'reset'"
            )
        return ADAM_POWERS[found[0] if found else "adam"]

    def _check_order(self, state: dict[Any, Any]) -> None:
        """Refuse a named chain whose order matters: it is lost when JAX sorts the keys of its state."""
        holding = [key for key, value in state.items() if self._holds_a_moment(value)]
        if self.optimizer_state == "rescale" and len(holding) > 1:
            raise ValueError(
                f"inner is a named_chain in which {holding} remember gradients, and their order is not known "
                "from the state; use optax.chain, or optimizer_state='keep' or 'reset'"
            )

    def _is_a_moment(self, part: Any) -> bool:
        return any(self._at(path) is not None for path, _ in _leaves(part))

    def _holds_a_moment(self, state: Any) -> bool:
        return any(
            self._at(path[start:]) is not None for path, _ in _leaves(state) for start in range(len(path))
        )

    def _at(self, path: Any) -> Any:
        """Return the path of the head's parameter that a path leads to or into, or None."""
        return next((of for of in self.rescale if path[: len(of)] == of), None)

    def _moved(self, moment: Tree, fresh: Tree, power: int) -> Tree:
        def moved(path: Any, x: Any, new: Any) -> Any:
            if self._at(path) is None:
                return x
            if self.optimizer_state == "reset":
                return new
            return self.rescale[path](x, power=power) if power and path not in self.without_unit else x

        return jax.tree_util.tree_map_with_path(moved, moment, fresh)


def _unchanged(x: Any, *, power: int) -> Any:
    return x


def _leaves(tree: Tree) -> list[tuple[Any, Any]]:
    return jax.tree_util.tree_leaves_with_path(tree)


def _is_packed(part: Any) -> bool:
    """Return whether the state of all parameters is one array, as in `optax.flatten`."""
    return isinstance(part, jax.Array) and part.ndim > 0 and jnp.issubdtype(part.dtype, jnp.floating)


def _names(x: Any, within: tuple[int, ...] = ()) -> Iterator[str]:
    """Yield the names of the functions that a transformation was built with, in the order of a chain.

    A state does not tell which transformation it belongs to: Adam, Adamax and ADOPT have the same type, and
    `scale_by_sign` has none. The names are in the closure of `update`, and in the code of functions that
    build a transformation later (`optax.inject_hyperparams`).
    """
    if id(x) in within:
        return
    within = (*within, id(x))
    if isinstance(x, optax.GradientTransformation):
        yield from _names(x.update, within)
    elif isinstance(x, types.FunctionType):
        yield x.__qualname__.split(".", 1)[0]
        yield from _names_in(x.__code__)
        for cell in x.__closure__ or ():
            yield from _names(cell.cell_contents, within)
    elif isinstance(x, types.MethodType):
        yield from _names(list(vars(x.__self__).values()), within)
    elif isinstance(x, functools.partial):
        yield from _names([x.func, *x.args, *x.keywords.values()], within)
    elif hasattr(x, "__wrapped__"):
        yield from _names(x.__wrapped__, within)
    elif isinstance(x, tuple | list | dict):
        for part in x.values() if isinstance(x, dict) else x:
            yield from _names(part, within)


def _names_in(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for part in code.co_consts:
        if isinstance(part, types.CodeType):
            yield from _names_in(part)


def _refuse_momentum_of_normalized_steps(names: list[str]) -> None:
    for i, name in enumerate(names):
        later = next((after for after in names[i:] if after in REMEMBERS), None)
        if name in NORMALIZES_WITHOUT_STATE and later is not None:
            raise ValueError(
                f"inner has {later} after {name}, which removes the gradients' unit without a state; put "
                f"{later} first, or choose optimizer_state='keep' or 'reset'"
            )


def _refuse_lookahead(state: Any) -> None:
    def is_lookahead(x: Any) -> bool:
        return type(x).__name__ == "LookaheadState"

    if any(map(is_lookahead, jax.tree.leaves(state, is_leaf=is_lookahead))):
        raise ValueError(
            "inner is optax.lookahead, whose slow parameters popart.jax.step does not rescale; use its fast "
            "optimizer alone"
        )


def _packed(kind: str, name: str, part: Any) -> str:
    return (
        f"inner has a {kind}, whose {name!r} is one array of shape {part.shape}; it must be a tree like the "
        "parameters, so that the head's part is known: do not use optax.flatten"
    )


def _unknown(kind: str, name: str) -> str:
    return (
        f"inner has a {kind}, whose {name!r} has unknown units; known are {', '.join(POWERS)}. "
        "Choose optimizer_state='keep' or 'reset'"
    )


def normalized_sgd(
    learning_rate: optax.ScalarOrSchedule, head: Where
) -> optax.GradientTransformationExtraArgs:
    r"""Normalized SGD (Algorithm 2) for a scale that all outputs share.

    Gradients are those of the squared loss in the targets' own units. Steps of the layers below the head
    are divided by $\sigma^2$, those of the head are not:

        updates, opt_state = optimizer.update(gradients, opt_state, params, affine=art.affine(state))

    A scale per output or a dense one cannot be divided out after back-propagation; for these, and for
    targets so large or small that $\sigma^2$ overflows, use `normalized_linear` with plain SGD.

    Args:
        learning_rate: a number or a schedule.
        head: a function that returns the head from the parameters.
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
