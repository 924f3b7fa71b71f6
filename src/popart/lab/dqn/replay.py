"""The replay buffer: a ring of single observations on the device. Stacks are built when they are sampled.

A group of neighbouring environments writes one slot at a time. A slot has an observation, the action that was
chosen there and, as soon as the next slot is written, the result of that action. An observation is stored
once, however many stacks it is in.

After the last observation of an episode there is no action. Its slot serves the transition before it, which
bootstraps from it if the episode was truncated, and is never sampled itself.
"""

from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp

Array = Any
"""A JAX or NumPy array."""

Index = int | jax.Array


class Observed(Protocol):
    """Observations and results of a step. Each array has one entry per environment.

    - terminal: no later reward counts for the last action.
    - first: the observation is the first one of an episode.
    - last: it is the last one; the next action is ignored and resets the environment.
    """

    @property
    def observation(self) -> Array: ...
    @property
    def reward(self) -> Array: ...
    @property
    def terminal(self) -> Array: ...
    @property
    def first(self) -> Array: ...
    @property
    def last(self) -> Array: ...


class Replay(NamedTuple):
    """Arrays of (environments, slots, ...), and the number of slots written so far by each environment."""

    observation: jax.Array
    action: jax.Array
    reward: jax.Array
    terminal: jax.Array
    first: jax.Array
    last: jax.Array
    written: jax.Array

    @property
    def slots(self) -> int:
        return self.action.shape[1]


class Transitions(NamedTuple):
    """A batch of transitions. A `weight` of 0 marks an entry for which none could be sampled.

    `task` is the number of each transition's task, if one network learns several.
    """

    observation: jax.Array
    action: jax.Array
    reward: jax.Array
    terminal: jax.Array
    next_observation: jax.Array
    weight: jax.Array
    task: jax.Array | None = None


def init(environments: int, slots: int, shape: tuple[int, ...], dtype: Any) -> Replay:
    def zeros(*more: int, dtype: Any) -> jax.Array:
        return jnp.zeros((environments, slots, *more), dtype)

    observation, action = zeros(*shape, dtype=dtype), zeros(dtype=jnp.int32)
    terminal, start, last = (zeros(dtype=bool) for _ in range(3))  # separate buffers, to donate each
    reward, written = zeros(dtype=jnp.float32), jnp.zeros(environments, jnp.int32)
    return Replay(observation, action, reward, terminal, start, last, written)


def insert(replay: Replay, observed: Observed, first: Index = 0) -> Replay:
    """Write a slot, and into the one before the results of its actions, for environments from `first` on."""
    now = replay.written[first]
    return replay._replace(
        observation=_put(replay.observation, observed.observation, first, now),
        first=_put(replay.first, observed.first, first, now),
        last=_put(replay.last, observed.last, first, now),
        reward=_put(replay.reward, observed.reward, first, now - 1),
        terminal=_put(replay.terminal, observed.terminal, first, now - 1),
        written=jax.lax.dynamic_update_slice(
            replay.written, jnp.full(len(observed.first), now + 1, jnp.int32), (first,)
        ),
    )


def record(replay: Replay, action: jax.Array, first: Index = 0) -> Replay:
    """Write the actions chosen at the newest observations of environments from `first` on."""
    return replay._replace(action=_put(replay.action, action, first, replay.written[first] - 1))


def interrupt(replay: Replay) -> Replay:
    """End the newest episodes: the environments are reset, and the last actions have no result."""
    at = jnp.arange(len(replay.action)), (replay.written - 1) % replay.slots
    return replay._replace(last=replay.last.at[at].set(True))


def _put(ring: jax.Array, values: jax.Array, first: Index, slot: jax.Array) -> jax.Array:
    at = first, slot % ring.shape[1], *(0 for _ in ring.shape[2:])
    return jax.lax.dynamic_update_slice(ring, values[:, None].astype(ring.dtype), at)


def newest(replay: Replay, stack_size: int, first: Index = 0, environments: int | None = None) -> jax.Array:
    """Return the newest stacks of environments from `first` on, (environments, *shape, stack_size)."""
    environment = first + jnp.arange(environments or len(replay.action))
    return _stack(replay, environment, replay.written[environment] - 1, stack_size)


def sample(replay: Replay, key: jax.Array, batch: int, stack_size: int) -> Transitions:
    """Sample transitions uniformly from all whose stacks are still in the buffer.

    The few slots without an action are drawn again, up to twice; then they get a weight of 0, as do all of an
    environment that has not filled a stack yet.
    """
    environment, slot = _draw(replay, key, (3, batch), stack_size)
    fine = ~replay.last[environment, slot % replay.slots] & (slot < replay.written[environment] - 1)
    chosen = jnp.argmax(fine, 0)[None]
    environment, slot, fine = (jnp.take_along_axis(x, chosen, 0)[0] for x in (environment, slot, fine))
    at = environment, slot % replay.slots
    return Transitions(
        _stack(replay, environment, slot, stack_size),
        replay.action[at],
        replay.reward[at],
        replay.terminal[at],
        _stack(replay, environment, slot + 1, stack_size),
        fine.astype(jnp.float32),
    )


def _draw(
    replay: Replay, key: jax.Array, shape: tuple[int, ...], stack_size: int
) -> tuple[jax.Array, jax.Array]:
    """Draw environments, and slots, which are numbered from the first one that was written."""
    who, when = jax.random.split(key)
    environment = jax.random.randint(who, shape, 0, len(replay.action))
    newest = replay.written[environment] - 1
    oldest = jnp.maximum(newest - replay.slots, -1) + stack_size
    return environment, jax.random.randint(when, shape, oldest, newest)


def _stack(replay: Replay, environment: jax.Array, slot: jax.Array, stack_size: int) -> jax.Array:
    """Return the observations up to a slot, oldest first along the last axis; 0 from before the episode."""
    slots = (slot[:, None] - jnp.arange(stack_size)[::-1]) % replay.slots
    at = environment[:, None], slots
    firsts = replay.first[at][:, 1:]
    later = jnp.flip(jnp.cumsum(jnp.flip(firsts, 1), 1), 1)
    same = jnp.concatenate((later == 0, jnp.ones((len(slot), 1), bool)), 1)
    frames = replay.observation[at]
    frames = jnp.where(same.reshape(*same.shape, *(1,) * (frames.ndim - 2)), frames, 0)
    return jnp.moveaxis(frames, 1, -1)
