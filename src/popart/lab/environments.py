"""What all games have in common, for whoever plays them."""

from typing import Any, Protocol, runtime_checkable

import numpy as np

from popart.lab.dqn.networks import Network
from popart.lab.dqn.replay import Seen


class Environments(Protocol):
    """Several environments of a game that play at the same time.

    `send` starts a step of all of them and `receive` waits for it, so that there is time for something else
    in between. The action after an episode's last observation is ignored and starts a new one.
    """

    number: int
    shape: tuple[int, ...]
    dtype: Any
    stacked: int
    """How many observations in a row the agent sees."""

    frames: int
    """Of the game for each step."""

    wraps: int
    """How often a score wrapped around."""

    def start(self, seed: int) -> None:
        """Begin anew; what is then received are first observations."""
        ...

    def receive(self) -> Seen: ...

    def send(self, action: np.ndarray) -> None: ...

    def network(self, dtype: str) -> Network:
        """One that suits the game."""
        ...

    def close(self) -> None: ...


@runtime_checkable
class Lasting(Environments, Protocol):
    """Environments that can be saved."""

    def state(self) -> Any:
        """Where they are after `send`, as arrays."""
        ...

    def restore(self, state: Any) -> None: ...


class Scores:
    """Adds up the rewards of episodes."""

    def __init__(self, environments: int) -> None:
        self.now = np.zeros(environments)

    def add(self, seen: Seen) -> list[float]:
        """The scores of the episodes that ended."""
        self.now = np.where(seen.start, 0.0, self.now) + seen.reward
        return self.now[np.asarray(seen.last)].tolist()
