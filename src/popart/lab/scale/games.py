"""Small games that are compiled with the agent (gymnax), as the agent sees them."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import gymnax
import jax
import jax.numpy as jnp

from popart.lab.dqn.replay import Seen


class World(NamedTuple):
    """Where each environment is; `last` where its episode is over."""

    state: Any
    last: jax.Array


@dataclass(frozen=True)
class Game:
    """Several environments of a game. The action after an episode's last observation starts a new one."""

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

    def reset(self, key: jax.Array, environments: int) -> tuple[World, Seen]:
        env, params = self._game
        observation, state = jax.vmap(env.reset_env, (0, None))(jax.random.split(key, environments), params)
        no, yes = jnp.zeros(environments, bool), jnp.ones(environments, bool)
        return World(state, no), Seen(observation, jnp.zeros(environments), no, start=yes, last=no)

    def step(self, world: World, action: jax.Array, key: jax.Array) -> tuple[World, Seen]:
        env, params = self._game

        def one(state: Any, last: jax.Array, action: jax.Array, key: jax.Array) -> tuple[World, Seen]:
            first, new = env.reset_env(key, params)
            later, state, reward, terminal, _ = env.step_env(key, state, action, params)
            ended = terminal | env.is_truncated(state, params)
            state, observation = jax.tree.map(
                lambda x, y: jnp.where(last, x, y), (new, first), (state, later)
            )
            reward = jnp.where(last, 0.0, reward)
            seen = Seen(observation, reward, terminal & ~last, start=last, last=ended & ~last)
            return World(state, ended & ~last), seen

        keys = jax.random.split(key, len(action))
        return jax.vmap(one)(*world, action, keys)
