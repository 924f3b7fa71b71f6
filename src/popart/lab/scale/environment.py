"""Small games for whoever plays them from outside."""

import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from popart.lab.dqn.networks import MLP
from popart.lab.dqn.replay import Seen
from popart.lab.scale.games import Game, World


class SmallGame:
    """Several environments of a small game, whose state can be saved."""

    stacked = 1
    frames = 1
    wraps = 0

    def __init__(self, game: str, number: int) -> None:
        self.number, self._game = number, Game(game)
        self.shape, self.dtype = self._game.shape, np.float32
        self._now: tuple[World, Seen, jax.Array]

    def start(self, seed: int) -> None:
        key, first = jax.random.split(jax.random.key(seed))
        self._now = (*_reset(self._game, self.number, first), key)

    def receive(self) -> Seen:
        return jax.tree.map(np.asarray, self._now[1])

    def send(self, action: np.ndarray) -> None:
        world, _, key = self._now
        self._now = _step(self._game, world, jnp.asarray(action), key)

    def network(self, dtype: str) -> MLP:
        return MLP(math.prod(self.shape), self._game.actions)

    def state(self) -> Any:
        world, seen, key = self._now
        return world, seen, jax.random.key_data(key)

    def restore(self, state: Any) -> None:
        world, seen, key = state
        self._now = world, seen, jax.random.wrap_key_data(key)

    def close(self) -> None:
        pass


@partial(jax.jit, static_argnums=(0, 1))
def _reset(game: Game, number: int, key: jax.Array) -> tuple[World, Seen]:
    return game.reset(key, number)


@partial(jax.jit, static_argnums=0)
def _step(game: Game, world: World, action: jax.Array, key: jax.Array) -> tuple[World, Seen, jax.Array]:
    key, moving = jax.random.split(key)
    return (*game.step(world, action, moving), key)
