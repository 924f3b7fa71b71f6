"""Checks of settings; errors name the setting, its value and the allowed values."""

import difflib
import math
from collections.abc import Collection, Iterable

SMALLEST, LARGEST = 2.0**-126, 2.0**127
"""Range of the positive numbers that float32 holds with full precision."""


class LabError(Exception):
    """An error that the user can correct; the message says how."""


def check_names(setting: str, names: Collection[str], allowed: Iterable[str]) -> None:
    """Check that each name is allowed, and none is given twice."""
    allowed = list(allowed)
    if not names:
        raise ValueError(f"{setting} is empty; give at least one of {', '.join(allowed)}")
    for name in names:
        if name not in allowed:
            raise ValueError(
                f"{setting} has {name!r}{nearest(name, allowed)} It may have {', '.join(allowed)}"
            )
    check_unique(setting, names)


def nearest(name: str, allowed: Iterable[str]) -> str:
    """Return the end of a sentence about a name that is not allowed, with a suggestion if there is one."""
    near = difflib.get_close_matches(name, list(allowed), 1)
    return f"; did you mean {near[0]!r}?" if near else "."


def check_grid(setting: str, values: Collection[float], most: float = math.inf) -> None:
    """Check that values are positive, finite, at most `most`, and none is given twice."""
    end = "inf)" if math.isinf(most) else f"{most:g}]"
    if not values:
        raise ValueError(f"{setting} is empty; give at least one value in (0, {end}")
    for value in values:
        if not (0 < value <= most and value < math.inf):
            raise ValueError(f"{setting} has {value!r}; values must be in (0, {end}")
    check_unique(setting, values)


MOST = 2**31 - 1
"""The largest number that a counter of the programs holds."""


def check_whole(setting: str, value: int, least: int, multiple: int = 1, most: int = MOST) -> None:
    """Check that a whole number is large enough and not too large, and a multiple of another."""
    if value < least or value % multiple:
        what = f"a multiple of {multiple}, {least} or more" if multiple > 1 else f"{least} or more"
        raise ValueError(f"{setting} is {value!r}; it must be {what}")
    if value > most:
        raise ValueError(f"{setting} is {value!r}; it must be {most} or less")


def check_seed(seed: int) -> None:
    """Check that JAX takes the random seed."""
    if not 0 <= seed < 2**32:
        raise ValueError(f"seed is {seed!r}; it must be from 0 to {2**32 - 1}")


def check_between(setting: str, value: float, least: float, most: float) -> None:
    """Check that a value is in a closed interval."""
    if not least <= value <= most:
        raise ValueError(f"{setting} is {value!r}; it must be between {least:g} and {most:g}")


def check_positive(setting: str, value: float) -> None:
    """Check that a value is positive, and neither 0 nor infinite in single precision."""
    if not 0 < value < math.inf:
        raise ValueError(f"{setting} is {value!r}; it must be positive and finite")
    if not SMALLEST <= value <= LARGEST:
        raise ValueError(
            f"{setting} is {value!r}; it must be from {SMALLEST:.3g} to {LARGEST:.3g}, as float32"
        )


def check_unique(setting: str, values: Collection[object]) -> None:
    """Check that no value is given twice."""
    twice = next((v for v in values if list(values).count(v) > 1), None)
    if twice is not None:
        raise ValueError(f"{setting} has {twice!r} more than once")
