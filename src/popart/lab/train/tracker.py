"""What consumes the turns of a training loop. Trackers do not know each other."""

from typing import Any, Protocol

from popart.lab.train.loop import Turn


class Tracker(Protocol):
    """Looks at each turn. Of a failed member it records nothing more."""

    def step(self, turn: Turn) -> None: ...

    def close(self) -> None: ...


class Saved(Protocol):
    """Something whose state is part of every member's checkpoint, as JSON."""

    def notes(self, member: int) -> dict[str, Any]: ...

    def restore(self, member: int, notes: dict[str, Any]) -> None: ...


def crossed(before: int, now: int, every: int) -> bool:
    """Return whether a multiple of `every` lies between two counts; never, if `every` is 0."""
    return every > 0 and now // every > before // every
