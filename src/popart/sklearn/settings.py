"""Checks of the estimator's settings, with errors in the words of scikit-learn."""

import math
from collections.abc import Callable, Iterable
from numbers import Integral, Real
from typing import Any

import numpy as np

from popart.sklearn.network import ACTIVATIONS

Check = tuple[str, Callable[[Any], bool]]


def _is_bool(x: Any) -> bool:
    return isinstance(x, (bool, np.bool_))


def _is_integer(x: Any, least: int) -> bool:
    return isinstance(x, Integral) and not _is_bool(x) and int(x) >= least


def _is_real(x: Any) -> bool:
    return isinstance(x, Real) and not _is_bool(x)


def _is_sizes(x: Any) -> bool:
    return _is_integer(x, 1) or (isinstance(x, Iterable) and all(_is_integer(size, 1) for size in x))


BOOLEAN: Check = ("True or False", _is_bool)
NOT_NEGATIVE: Check = ("a number in [0, inf)", lambda x: _is_real(x) and 0 <= x < math.inf)
POSITIVE: Check = ("a number in (0, inf)", lambda x: _is_real(x) and 0 < x < math.inf)
DECAY: Check = ("a number in [0, 1)", lambda x: _is_real(x) and 0 <= x < 1)

CHECKS: dict[str, Check] = {
    "hidden_layer_sizes": ("an integer of at least 1, or a sequence of them", _is_sizes),
    "activation": (f"one of {sorted(ACTIVATIONS)}", lambda x: isinstance(x, str) and x in ACTIVATIONS),
    "beta": ("a number in (0, 1]", lambda x: _is_real(x) and 0 < x <= 1),
    "max_norm": (
        "a number in (0, inf), or None for no limit",
        lambda x: x is None or (_is_real(x) and 0 < x < math.inf),
    ),
    "alpha": NOT_NEGATIVE,
    "batch_size": (
        "an integer of at least 1, or 'auto'",
        lambda x: _is_integer(x, 1) or (isinstance(x, str) and x == "auto"),
    ),
    "learning_rate_init": POSITIVE,
    "max_iter": ("an integer of at least 1", lambda x: _is_integer(x, 1)),
    "shuffle": BOOLEAN,
    "tol": NOT_NEGATIVE,
    "verbose": (
        "True, False or an integer of at least 0",
        lambda x: _is_bool(x) or _is_integer(x, 0),
    ),
    "warm_start": BOOLEAN,
    "early_stopping": BOOLEAN,
    "validation_fraction": ("a number in (0, 1)", lambda x: _is_real(x) and 0 < x < 1),
    "beta_1": DECAY,
    "beta_2": DECAY,
    "epsilon": POSITIVE,
    "n_iter_no_change": (
        "an integer of at least 1, or infinity",
        lambda x: _is_integer(x, 1) or (_is_real(x) and x == math.inf),
    ),
}
"""Allowed values of each setting, in words and as a test. scikit-learn checks `random_state`."""


def check_settings(estimator: Any) -> None:
    """Raise ValueError if a setting is not allowed."""
    for name, (allowed, is_allowed) in CHECKS.items():
        value = getattr(estimator, name)
        if not is_allowed(value):
            raise ValueError(
                f"The {name!r} parameter of {type(estimator).__name__} must be {allowed}. "
                f"Got {value!r} instead."
            )


def layer_sizes(hidden: Any) -> tuple[int, ...]:
    """Return the sizes of the hidden layers as a tuple."""
    return (int(hidden),) if isinstance(hidden, Integral) else tuple(map(int, hidden))
