"""Time steps of environments, and two interfaces: one game, or a suite of games that play together."""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

Array = Any
"""A NumPy or JAX array."""


class TimeStep(NamedTuple):
    """The result of a step: an observation, and the reward and the end that the last action led to.

    - terminal: the last action ended the episode (in training on Atari: or lost a life). No later
      reward counts for it. False for an episode that was truncated by a time limit.
    - first: the observation is the first one of an episode.
    - last: the observation is the last one of an episode. The next action is ignored and resets the
      environment.
    """

    observation: Array
    reward: Array
    terminal: Array
    first: Array
    last: Array


class Spec(NamedTuple):
    """The format of observations, and how many game frames one step takes."""

    shape: tuple[int, ...]
    dtype: Any
    stack_size: int
    """Consecutive observations that an agent sees at a time."""

    frames_per_step: int


class Environments(Protocol):
    """Several environments of one game that play at the same time.

    `send` starts a step of all of them and `receive` waits for it, so that other work fits in between.
    """

    number: int
    spec: Spec
    actions: int
    overflows: int
    """Rewards so far that a score overflow made wrong."""

    def reset(self, seed: int) -> None:
        """Start new episodes; the next `receive` returns their first observations."""
        ...

    def receive(self) -> TimeStep: ...

    def send(self, action: np.ndarray) -> None: ...

    def close(self) -> None: ...


class Suite(Protocol):
    """Several games with equally many environments each, in groups that take turns.

    Arrays are `(games, size, ...)`, for the environments of one group.
    """

    spec: Spec
    groups: int
    size: int
    """Environments per game and group."""

    failures: dict[int, str]
    """Games whose environments failed, with the reason. Their last time steps are repeated."""

    @property
    def actions(self) -> tuple[int, ...]:
        """The number of actions of each game."""
        ...

    @property
    def overflows(self) -> np.ndarray:
        """Score overflows of each game so far, `(games,)`."""
        ...

    def reset(self, game: int, seeds: Sequence[int]) -> None:
        """Start new episodes of one game, with a seed for each group."""
        ...

    def receive(self, group: int) -> TimeStep: ...

    def send(self, group: int, action: np.ndarray) -> None: ...

    def stop(self, game: int) -> None:
        """Stop playing a game; its last time step is repeated."""
        ...

    def close(self) -> None: ...


@runtime_checkable
class SavableSuite(Suite, Protocol):
    """A suite whose environments can be saved and restored."""

    def state(self, game: int) -> list[Array]:
        """Return the state of one game after `send`, as a list of arrays."""
        ...

    def restore(self, game: int, state: list[Array]) -> None: ...


class Scores:
    """The sum of rewards so far in the current episode of each environment."""

    def __init__(self, shape: int | tuple[int, ...]) -> None:
        self.now = np.zeros(shape)

    def add(self, seen: TimeStep) -> np.ndarray:
        """Add rewards, and return where an episode ended."""
        self.now = np.where(seen.first, 0.0, self.now) + seen.reward
        return np.asarray(seen.last)


def derived_seed(*numbers: int) -> int:
    """Return a seed for a list of numbers, such as the seed of a run and the number of a group."""
    return int(np.random.SeedSequence(numbers).generate_state(1)[0] >> 1)
