"""The leaves of nested results of any framework, as NumPy arrays with names."""

import dataclasses
import fnmatch
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, cast

import numpy as np

from popart._arrays import is_torch, namespace

Tree = Any
"""Arrays and numbers in dicts, lists, tuples, dataclasses, modules, or any pytree of JAX."""

Leaves = str | Iterable[str] | Callable[[str], bool]
"""Names of leaves, patterns such as `"critic.*"`, or a function that says whether a name is meant."""


class Leaf(NamedTuple):
    """A copy of an array, its dtype by name, and the spacing of floats of this dtype at 1."""

    values: np.ndarray[Any, Any]
    dtype: str
    eps: float


Snapshot = dict[str, Leaf]


def snapshot(tree: Tree) -> Snapshot:
    """Return copies of all leaves of a tree, by their names."""
    return dict(_leaves(tree, ""))


def _leaves(tree: Tree, path: str) -> Iterator[tuple[str, Leaf]]:
    """Yield the leaves of a tree, with their names."""
    if tree is None:
        return
    children = _children(tree)
    if children is None:
        yield path, _leaf(tree, path)
        return
    for name, child in children:
        yield from _leaves(child, f"{path}.{name}" if path else str(name))


def _children(tree: Tree) -> Iterable[tuple[Any, Any]] | None:
    """Return the named parts of a tree, or None if it is a leaf."""
    if isinstance(tree, Mapping):
        return cast(Mapping[Any, Any], tree).items()
    fields = getattr(tree, "_fields", None)
    if isinstance(tree, tuple) and fields:
        return zip(fields, cast(Iterable[Any], tree), strict=True)
    if isinstance(tree, (list, tuple)):
        parts = list(cast(Iterable[Any], tree))
        return None if parts and all(isinstance(x, (bool, int, float)) for x in parts) else enumerate(parts)
    if isinstance(tree, (bool, int, float, complex, str)) or hasattr(tree, "dtype"):
        return None
    if hasattr(tree, "state_dict"):
        return _children(tree.state_dict())
    if dataclasses.is_dataclass(tree):
        return [(field.name, getattr(tree, field.name)) for field in dataclasses.fields(tree)]
    return _pytree_children(tree)


def _pytree_children(tree: Tree) -> Iterable[tuple[Any, Any]] | None:
    """Return the leaves of a pytree that is registered with JAX, if JAX is in use."""
    jax = sys.modules.get("jax")
    if jax is None:
        return None
    found = jax.tree_util.tree_leaves_with_path(tree)
    if len(found) == 1 and found[0][1] is tree:
        return None
    return [(jax.tree_util.keystr(path, simple=True, separator="."), leaf) for path, leaf in found]


def _leaf(x: Any, path: str) -> Leaf:
    leaf = as_leaf(x)
    if leaf.values.dtype.kind not in "biufcSU":
        raise TypeError(
            f"train returned an object of type {type(x).__name__} at {path or 'the top'!r}; it may return "
            "arrays, numbers and strings in dicts, lists, tuples, dataclasses, modules and pytrees"
        )
    return leaf


def as_leaf(x: Any) -> Leaf:
    """Copy an array of any framework; half precisions are converted to float32, which loses nothing."""
    dtype = str(getattr(x, "dtype", type(x).__name__))
    if dtype.startswith("key<"):
        x = sys.modules["jax"].random.key_data(x)
    xp = namespace(x)
    if is_torch(xp):
        is_inexact = x.dtype.is_floating_point or x.dtype.is_complex
        eps = float(xp.finfo(x.dtype).eps) if is_inexact else 0.0
        x = x.detach().cpu()
        x = (x.float() if x.dtype.is_floating_point and x.dtype.itemsize < 4 else x).numpy()
    else:
        x = np.asarray(x)
        is_extension = x.dtype.kind == "V" and "ml_dtypes" in sys.modules
        finfo = sys.modules["ml_dtypes"].finfo if is_extension else np.finfo
        eps = float(finfo(x.dtype).eps) if is_extension or x.dtype.kind in "fc" else 0.0
        x = x.astype(np.float32) if is_extension else x
    return Leaf(x.copy(), dtype, eps)


def chooser(names: Leaves) -> Callable[[str], bool]:
    """Return a function that says whether a leaf is among those named."""
    given = listed(names)
    return given if callable(given) else lambda name: any(matches(name, pattern) for pattern in given)


def listed(names: Leaves) -> tuple[str, ...] | Callable[[str], bool]:
    """Return one or several names as a tuple, and a function as it is."""
    return names if callable(names) else (names,) if isinstance(names, str) else tuple(names)


def matches(name: str, pattern: str) -> bool:
    """Return whether a leaf's name, or its end after a dot, fits a pattern."""
    return fnmatch.fnmatchcase(name, pattern) or fnmatch.fnmatchcase(name, f"*.{pattern}")
