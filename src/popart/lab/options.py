"""Numbers on the command line; errors say what an option may be."""

from collections.abc import Callable
from typing import Any

from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

KINDS = {int: "a whole number, such as 100_000", float: "a number, such as 0.01"}

NUMBERS = ConstructorRegistry()
"""Rules that read options which are a number, a number or None, or several numbers."""


@NUMBERS.primitive_rule
def number(option: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
    """Return how a number is read, of an option that is one."""
    for kind, what in KINDS.items():
        if option.type in (kind, kind | None):
            return _one(kind, what, optional=option.type is not kind)
        if option.type == tuple[kind, ...]:
            return _several(kind, what)
    return None


def _one(kind: Callable[[str], float], what: str, optional: bool) -> PrimitiveConstructorSpec[float | None]:
    return PrimitiveConstructorSpec(
        nargs=1,
        metavar=kind.__name__.upper(),
        instance_from_str=lambda words: None if optional and words == ["None"] else _read(kind, what, *words),
        is_instance=lambda x: isinstance(x, (int, float)) or (optional and x is None),
        str_from_instance=lambda x: [str(x)],
    )


def _several(kind: Callable[[str], float], what: str) -> PrimitiveConstructorSpec[tuple[float, ...]]:
    name = kind.__name__.upper()
    return PrimitiveConstructorSpec(
        nargs="*",
        metavar=f"[{name} [{name} ...]]",
        instance_from_str=lambda words: tuple(_read(kind, what, word) for word in words),
        is_instance=lambda x: isinstance(x, tuple),
        str_from_instance=lambda x: list(map(str, x)),
    )


def _read(kind: Callable[[str], float], what: str, word: str) -> float:
    try:
        return kind(word)
    except ValueError:
        raise ValueError(f"{word!r} was given; it must be {what}") from None
