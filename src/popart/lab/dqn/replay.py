"""What was seen, in a ring of single frames on the device; stacks are made when they are needed.

All environments write one slot at a time, together. A slot has what was seen, what was done then, and, as
soon as the next slot is written, what came of it. A frame is stored once, however many stacks it is in.

After the last observation of an episode there is no action: its slot is there for the sake of the
transition before it, which bootstraps from it if the episode was only cut, and is never sampled itself.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

Array = Any
"""JAX's or NumPy's."""


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
    """Arrays of (environments, slots, ...), and how many slots were ever written."""

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
    reward, written = zeros(dtype=jnp.float32), jnp.zeros((), jnp.int32)
    return Replay(observation, action, reward, terminal, start, last, written)


def insert(replay: Replay, seen: Seen) -> Replay:
    """Write a slot, and into the one before what came of its action."""
    now, before = replay.written % replay.slots, (replay.written - 1) % replay.slots
    return replay._replace(
        observation=replay.observation.at[:, now].set(seen.observation),
        start=replay.start.at[:, now].set(seen.start),
        last=replay.last.at[:, now].set(seen.last),
        reward=replay.reward.at[:, before].set(seen.reward),
        terminal=replay.terminal.at[:, before].set(seen.terminal),
        written=replay.written + 1,
    )


def record(replay: Replay, action: jax.Array) -> Replay:
    """Write what is done upon the newest observation."""
    now = (replay.written - 1) % replay.slots
    return replay._replace(action=replay.action.at[:, now].set(action))


def interrupt(replay: Replay) -> Replay:
    """Forget what was done last: the environments start anew, and nothing will come of it."""
    now = (replay.written - 1) % replay.slots
    return replay._replace(last=replay.last.at[:, now].set(True))


def newest(replay: Replay, stacked: int) -> jax.Array:
    """The stack of what each environment shows now, (environments, *shape, stacked)."""
    environments = jnp.arange(len(replay.action))
    slots = jnp.broadcast_to(replay.written - 1, environments.shape)
    return _stack(replay, environments, slots, stacked)


def sample(replay: Replay, key: jax.Array, batch: int, stacked: int) -> Transitions:
    """Transitions drawn uniformly from all whose stacks are still there.

    The few slots without an action are drawn again, twice; a third time they get a weight of 0.
    """
    environment, slot = _draw(replay, key, (3, batch), stacked)
    fine = ~replay.last[environment, slot % replay.slots]
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
    newest = replay.written - 1
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
