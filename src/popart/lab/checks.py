"""Checks of settings, whose errors name the setting, its value and what is allowed."""

import difflib
import math
from collections.abc import Collection, Iterable


class LabError(Exception):
    """Something that the user can mend; the message says how."""


def check_names(setting: str, names: Collection[str], allowed: Iterable[str]) -> None:
    """Each name must be one of these, and none twice."""
    allowed = list(allowed)
    if not names:
        raise ValueError(f"{setting} is empty; give at least one of {', '.join(allowed)}")
    for name in names:
        if name not in allowed:
            raise ValueError(
                f"{setting} has {name!r}{nearest(name, allowed)} It may have {', '.join(allowed)}"
            )
    _check_once(setting, names)


def nearest(name: str, allowed: Iterable[str]) -> str:
    """The end of a sentence about a name that is not allowed."""
    near = difflib.get_close_matches(name, list(allowed), 1)
    return f"; did you mean {near[0]!r}?" if near else "."


def check_grid(setting: str, values: Collection[float], most: float = math.inf) -> None:
    """A grid of step sizes: positive, at most `most`, finite, and none twice."""
    end = "inf)" if math.isinf(most) else f"{most:g}]"
    if not values:
        raise ValueError(f"{setting} is empty; give at least one step size in (0, {end}")
    for value in values:
        if not (0 < value <= most and value < math.inf):
            raise ValueError(f"{setting} has {value!r}; step sizes must be in (0, {end}")
    _check_once(setting, values)


def check_whole(setting: str, value: int, least: int, multiple: int = 1) -> None:
    if value < least or value % multiple:
        what = f"a multiple of {multiple}, {least} or more" if multiple > 1 else f"{least} or more"
        raise ValueError(f"{setting} is {value!r}; it must be {what}")


def check_seed(seed: int) -> None:
    """As many as JAX tells apart."""
    if not 0 <= seed < 2**32:
        raise ValueError(f"seed is {seed!r}; it must be from 0 to {2**32 - 1}")


def check_between(setting: str, value: float, least: float, most: float) -> None:
    if not least <= value <= most:
        raise ValueError(f"{setting} is {value!r}; it must be between {least:g} and {most:g}")


def check_positive(setting: str, value: float) -> None:
    if not 0 < value < math.inf:
        raise ValueError(f"{setting} is {value!r}; it must be more than 0, and finite")


def _check_once(setting: str, values: Collection[object]) -> None:
    twice = next((v for v in values if list(values).count(v) > 1), None)
    if twice is not None:
        raise ValueError(f"{setting} has {twice!r} more than once")
