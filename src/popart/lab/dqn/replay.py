"""What was seen, in a ring of single frames on the device; stacks are made when they are needed.

Environments that are next to each other write one slot at a time, together: all of them, or a group. A slot
has what was seen, what was done then, and, as soon as the next slot is written, what came of it. A frame is
stored once, however many stacks it is in.

After the last observation of an episode there is no action: its slot is there for the sake of the
transition before it, which bootstraps from it if the episode was only cut, and is never sampled itself.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

Array = Any
"""JAX's or NumPy's."""

Index = int | jax.Array


class Seen(NamedTuple):
    """What all environments show after a step: an observation, and what came of the last action.

    - start: the observation is the first one of an episode
    - last: it is the last one: the next action is ignored, and starts a new episode
    - terminal: nothing that comes later counts for the last action (an end, or in training a lost life; not
      a cut by a time limit)
    """

    observation: Array
    reward: Array
    terminal: Array
    start: Array
    last: Array


class Replay(NamedTuple):
    """Arrays of (environments, slots, ...), and how many slots each environment ever wrote."""

    observation: jax.Array
    action: jax.Array
    reward: jax.Array
    terminal: jax.Array
    start: jax.Array
    last: jax.Array
    written: jax.Array

    @property
    def slots(self) -> int:
        return self.action.shape[1]


class Transitions(NamedTuple):
    """A batch. Where `weight` is 0 there was none to be had."""

    observation: jax.Array
    action: jax.Array
    reward: jax.Array
    terminal: jax.Array
    later: jax.Array
    weight: jax.Array


def init(environments: int, slots: int, shape: tuple[int, ...], dtype: Any) -> Replay:
    def zeros(*more: int, dtype: Any) -> jax.Array:
        return jnp.zeros((environments, slots, *more), dtype)

    observation, action = zeros(*shape, dtype=dtype), zeros(dtype=jnp.int32)
    terminal, start, last = (zeros(dtype=bool) for _ in range(3))  # apart, so that all can be donated
    reward, written = zeros(dtype=jnp.float32), jnp.zeros(environments, jnp.int32)
    return Replay(observation, action, reward, terminal, start, last, written)


def insert(replay: Replay, seen: Seen, first: Index = 0) -> Replay:
    """Write a slot, and into the one before what came of its action, for environments from `first` on."""
    now = replay.written[first]
    return replay._replace(
        observation=_put(replay.observation, seen.observation, first, now),
        start=_put(replay.start, seen.start, first, now),
        last=_put(replay.last, seen.last, first, now),
        reward=_put(replay.reward, seen.reward, first, now - 1),
        terminal=_put(replay.terminal, seen.terminal, first, now - 1),
        written=jax.lax.dynamic_update_slice(
            replay.written, jnp.full(len(seen.start), now + 1, jnp.int32), (first,)
        ),
    )


def record(replay: Replay, action: jax.Array, first: Index = 0) -> Replay:
    """Write what is done upon the newest observations of environments from `first` on."""
    return replay._replace(action=_put(replay.action, action, first, replay.written[first] - 1))


def interrupt(replay: Replay) -> Replay:
    """Forget what was done last: the environments start anew, and nothing will come of it."""
    at = jnp.arange(len(replay.action)), (replay.written - 1) % replay.slots
    return replay._replace(last=replay.last.at[at].set(True))


def _put(ring: jax.Array, values: jax.Array, first: Index, slot: jax.Array) -> jax.Array:
    at = first, slot % ring.shape[1], *(0 for _ in ring.shape[2:])
    return jax.lax.dynamic_update_slice(ring, values[:, None].astype(ring.dtype), at)


def newest(replay: Replay, stacked: int, first: Index = 0, environments: int | None = None) -> jax.Array:
    """The stack of what environments from `first` on show now, (environments, *shape, stacked)."""
    environment = first + jnp.arange(environments or len(replay.action))
    return _stack(replay, environment, replay.written[environment] - 1, stacked)


def sample(replay: Replay, key: jax.Array, batch: int, stacked: int) -> Transitions:
    """Transitions drawn uniformly from all whose stacks are still there.

    The few slots without an action are drawn again, twice; a third time they get a weight of 0, as do all
    of an environment that has not filled a stack yet.
    """
    environment, slot = _draw(replay, key, (3, batch), stacked)
    fine = ~replay.last[environment, slot % replay.slots] & (slot < replay.written[environment] - 1)
    chosen = jnp.argmax(fine, 0)[None]
    environment, slot, fine = (jnp.take_along_axis(x, chosen, 0)[0] for x in (environment, slot, fine))
    at = environment, slot % replay.slots
    return Transitions(
        _stack(replay, environment, slot, stacked),
        replay.action[at],
        replay.reward[at],
        replay.terminal[at],
        _stack(replay, environment, slot + 1, stacked),
        fine.astype(jnp.float32),
    )


def _draw(
    replay: Replay, key: jax.Array, shape: tuple[int, ...], stacked: int
) -> tuple[jax.Array, jax.Array]:
    """Environments, and slots counted from the first ever written."""
    who, when = jax.random.split(key)
    environment = jax.random.randint(who, shape, 0, len(replay.action))
    newest = replay.written[environment] - 1
    oldest = jnp.maximum(newest - replay.slots, -1) + stacked
    return environment, jax.random.randint(when, shape, oldest, newest)


def _stack(replay: Replay, environment: jax.Array, slot: jax.Array, stacked: int) -> jax.Array:
    """The observations up to a slot, oldest first along the last axis; 0 from before the episode."""
    slots = (slot[:, None] - jnp.arange(stacked)[::-1]) % replay.slots
    at = environment[:, None], slots
    starts = replay.start[at][:, 1:]
    later = jnp.flip(jnp.cumsum(jnp.flip(starts, 1), 1), 1)
    same = jnp.concatenate((later == 0, jnp.ones((len(slot), 1), bool)), 1)
    frames = replay.observation[at]
    frames = jnp.where(same.reshape(*same.shape, *(1,) * (frames.ndim - 2)), frames, 0)
    return jnp.moveaxis(frames, 1, -1)
