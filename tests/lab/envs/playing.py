"""Play environments with given actions, and compare what they show."""

import numpy as np

from popart.lab.envs.atari import Atari
from popart.lab.envs.timestep import TimeStep


def play(games: Atari, seed: int, actions: np.ndarray) -> TimeStep:
    """Return everything that is shown, (steps + 1, environments, ...), when these actions are taken."""
    games.reset(seed)
    seen = [games.receive()]
    for action in actions:
        games.send(action)
        seen.append(games.receive())
    return stacked(seen)


def stacked(seen: list[TimeStep]) -> TimeStep:
    return TimeStep(*map(np.stack, zip(*seen, strict=True)))


def random_actions(*shape: int, actions: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, actions, shape, np.int32)


def assert_same(a: TimeStep, b: TimeStep) -> None:
    for name, x, y in zip(TimeStep._fields, a, b, strict=True):
        np.testing.assert_array_equal(x, y, name)
