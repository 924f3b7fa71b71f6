"""Trackers consume the turns of a training loop. They do not know each other."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from popart.lab.train.config import Member
from popart.lab.train.loop import Turn


class Tracker(Protocol):
    """Looks at each turn. Nothing more is recorded about a failed member."""

    def step(self, turn: Turn) -> None: ...

    def close(self) -> None: ...


class Saved(Protocol):
    """Something whose state is part of every member's checkpoint, as JSON."""

    def notes(self, member: int) -> dict[str, Any]: ...

    def restore(self, member: int, notes: dict[str, Any]) -> None: ...


class FailureTracker:
    """Calls `failed` with the name of a member and the reason as soon as it fails, once."""

    def __init__(self, members: Sequence[Member], failed: Callable[[str, str], None]) -> None:
        self._members, self._failed = members, failed
        self._told = set[int]()

    def step(self, turn: Turn) -> None:
        for member in turn.failures.keys() - self._told:
            self._told.add(member)
            self._failed(self._members[member].name, turn.failures[member])

    def close(self) -> None:
        pass


def ignore(name: str, reason: str) -> None:
    """Do nothing about a member that failed."""


def crossed(before: int, now: int, every: int) -> bool:
    """Return whether a multiple of `every` lies between two counts; never, if `every` is 0."""
    return every > 0 and now // every > before // every
