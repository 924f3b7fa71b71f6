"""Small games (gymnax), compiled: as pure functions, as environments of one game, and as a suite."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import gymnax
import jax
import jax.numpy as jnp
import numpy as np

from popart.lab.envs.timestep import Spec, TimeStep
from popart.lab.lanes import mapped


class World(NamedTuple):
    """The state of each environment; `last` where its episode is over."""

    state: Any
    last: jax.Array


@dataclass(frozen=True)
class Game:
    """Several environments of a game. The action after an episode's last observation resets it."""

    name: str

    @property
    def _game(self) -> tuple[Any, Any]:
        return gymnax.make(self.name)

    @property
    def actions(self) -> int:
        return self._game[0].num_actions

    @property
    def shape(self) -> tuple[int, ...]:
        env, params = self._game
        return tuple(env.observation_space(params).shape)

    @property
    def dtype(self) -> Any:
        """The type in which an observation is stored: all but CartPole's have only zeros and ones."""
        return jnp.float32 if self.name == "CartPole-v1" else jnp.bool_

    def reset(self, key: jax.Array, environments: int) -> tuple[World, TimeStep]:
        env, params = self._game
        observation, state = jax.vmap(env.reset_env, (0, None))(jax.random.split(key, environments), params)
        no, yes = jnp.zeros(environments, bool), jnp.ones(environments, bool)
        return World(state, no), TimeStep(observation, jnp.zeros(environments), no, first=yes, last=no)

    def step(self, world: World, action: jax.Array, key: jax.Array) -> tuple[World, TimeStep]:
        env, params = self._game

        def one(state: Any, last: jax.Array, action: jax.Array, key: jax.Array) -> tuple[World, TimeStep]:
            first, new = env.reset_env(key, params)
            later, state, reward, terminal, _ = env.step_env(key, state, action, params)
            ended = terminal | env.is_truncated(state, params)
            state, observation = jax.tree.map(
                lambda x, y: jnp.where(last, x, y), (new, first), (state, later)
            )
            reward = jnp.where(last, 0.0, reward)
            seen = TimeStep(observation, reward, terminal & ~last, first=last, last=ended & ~last)
            return World(state, ended & ~last), seen

        keys = jax.random.split(key, len(action))
        return jax.vmap(one)(*world, action, keys)


class SmallSuite:
    """One small game played by several agents at once. Its state can be saved."""

    groups = 1

    def __init__(self, game: str, games: int, size: int) -> None:
        self._game, self.size = Game(game), size
        self.spec = Spec(self._game.shape, np.float32, stack_size=1, frames_per_step=1)
        self.actions = games * (self._game.actions,)
        self.overflows = np.zeros(games, int)
        self.failures: dict[int, str] = {}
        self._programs = _programs(self._game, games, size)
        reset, _ = self._programs
        self._now = reset(jax.random.split(jax.random.key(0), games))

    def reset(self, game: int, seeds: Sequence[int]) -> None:
        (seed,) = seeds
        new = _programs(self._game, 1, self.size)[0](jax.random.key(seed)[None])
        self._set(game, jax.tree.map(lambda x: x[0], new))

    def receive(self, group: int) -> TimeStep:
        return jax.tree.map(np.asarray, self._now[1])

    def send(self, group: int, action: np.ndarray) -> None:
        world, _, key = self._now
        self._now = self._programs[1](world, jnp.asarray(action), key)

    def stop(self, game: int) -> None:
        """Do nothing: all games are one program."""

    def state(self, game: int) -> list[Any]:
        world, seen, key = jax.tree.map(lambda x: x[game], self._now)
        return jax.tree.leaves((world, seen, jax.random.key_data(key)))

    def restore(self, game: int, state: list[Any]) -> None:
        *leaves, key = state
        structure = jax.tree.structure(self._now)
        self._set(game, jax.tree.unflatten(structure, [*leaves, jax.random.wrap_key_data(key)]))

    def _set(self, game: int, new: Any) -> None:
        self._now = jax.tree.map(lambda all_, one: all_.at[game].set(one), self._now, new)

    def close(self) -> None:
        pass


class SmallGames:
    """Several environments of a small game."""

    def __init__(self, game: str, number: int) -> None:
        self._suite = SmallSuite(game, 1, number)
        self.number, self.spec, (self.actions,) = number, self._suite.spec, self._suite.actions
        self.overflows = 0

    def reset(self, seed: int) -> None:
        self._suite.reset(0, [seed])

    def receive(self) -> TimeStep:
        return TimeStep(*(x[0] for x in self._suite.receive(0)))

    def send(self, action: np.ndarray) -> None:
        self._suite.send(0, action[None])

    def close(self) -> None:
        pass


@lru_cache
def _programs(game: Game, games: int, size: int) -> tuple[Any, Any]:
    """Compile reset and step of several games with `size` environments each."""

    def reset(key: jax.Array) -> tuple[World, TimeStep, jax.Array]:
        key, first = jax.random.split(key)
        return (*game.reset(first, size), key)

    def step(world: World, action: jax.Array, key: jax.Array) -> tuple[World, TimeStep, jax.Array]:
        key, moving = jax.random.split(key)
        return (*game.step(world, action, moving), key)

    return jax.jit(mapped(reset, games, (0,))), jax.jit(mapped(step, games, (0, 0, 0)))
