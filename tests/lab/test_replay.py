"""The replay gathers what a plain record of everything has."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from popart.lab.dqn import replay
from popart.lab.dqn.replay import Replay, Seen, Transitions


class Step(NamedTuple):
    """One moment of one environment, in a plain list. Frames are numbered from 1, over all environments."""

    frame: int
    start: bool
    last: bool
    action: int = -1
    reward: float = 0.0
    terminal: bool = False


class World:
    """Random episodes with ends, cuts, lost lives, and restarts of everything."""

    def __init__(self, environments: int, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.frames = 0
        self.history: list[list[Step]] = [[] for _ in range(environments)]

    def step(self, restart: bool) -> Seen:
        seen = []
        for history in self.history:
            before = history[-1] if history else None
            if restart and before:
                history[-1] = before._replace(last=True)
            start = before is None or before.last or restart
            acted = before is not None and not start
            reward = float(self.rng.normal()) if acted else 0.0
            ends = acted and self.rng.random() < 0.15
            terminal = acted and (self.rng.random() < 0.1 or (ends and self.rng.random() < 0.5))
            if before is not None and acted:
                history[-1] = before._replace(reward=reward, terminal=terminal)
            self.frames += 1
            history.append(Step(self.frames, start, ends))
            seen.append((self.frames, reward, terminal, start, ends))
        return Seen(*map(np.array, zip(*seen, strict=True)))

    def act(self) -> np.ndarray:
        actions = self.rng.integers(0, 5, len(self.history))
        for history, action in zip(self.history, actions, strict=True):
            history[-1] = history[-1]._replace(action=int(action))
        return actions

    def stack(self, environment: int, at: int, stacked: int) -> list[int]:
        """The frames of the episode up to this moment, 0 before its start."""
        frames: list[int] = []
        for step in reversed(self.history[environment][: at + 1]):
            frames.insert(0, step.frame)
            if step.start or len(frames) == stacked:
                break
        return [0] * (stacked - len(frames)) + frames

    def transitions(self, slots: int, stacked: int) -> dict[tuple[int, ...], tuple[object, ...]]:
        """All that may be sampled: by its stack, what else there is to know."""
        found = {}
        for e, history in enumerate(self.history):
            oldest = max(0, len(history) - slots) + stacked - 1
            for t in range(oldest, len(history) - 1):
                step = history[t]
                if not step.last:
                    later = tuple(self.stack(e, t + 1, stacked))
                    key = tuple(self.stack(e, t, stacked))
                    found[key] = (step.action, np.float32(step.reward), step.terminal, later)
        return found


def play(environments: int, slots: int, steps: int, seed: int, restarts: bool = True) -> tuple[World, Replay]:
    """Environments write in two groups, one after the other."""
    world = World(environments, seed)
    memory = replay.init(environments, slots, (), jnp.int32)
    groups = [g for g in (slice(0, environments // 2), slice(environments // 2, None)) if g.stop != 0]
    for t in range(steps):
        restart = restarts and t > 0 and world.rng.random() < 0.05
        if restart:
            memory = replay.interrupt(memory)
        seen, action = world.step(restart), world.act()
        for group in groups:
            mine = jax.tree.map(lambda x, group=group: jnp.asarray(x[group]), seen)
            memory = replay.insert(memory, mine, group.start)
            memory = replay.record(memory, jnp.asarray(action[group]), group.start)
    return world, memory


@pytest.mark.parametrize("stacked", [1, 2, 4])
@pytest.mark.parametrize(
    ("environments", "slots", "steps"), [(1, 50, 30), (3, 20, 19), (3, 20, 20), (3, 20, 21), (4, 16, 137)]
)
def test_samples_are_exactly_what_a_plain_record_allows(
    environments: int, slots: int, steps: int, stacked: int
) -> None:
    world, memory = play(environments, slots, steps, seed=slots + steps)
    allowed = world.transitions(slots, stacked)
    batch = jax.tree.map(np.asarray, replay.sample(memory, jax.random.key(0), 4000, stacked))
    seen = set()
    for i in np.flatnonzero(batch.weight):
        key, later = tuple(batch.observation[i].tolist()), tuple(batch.later[i].tolist())
        found = int(batch.action[i]), np.float32(batch.reward[i]), bool(batch.terminal[i]), later
        assert allowed[key] == found
        seen.add(key)
    assert seen == set(allowed)
    assert batch.weight.mean() > 0.9


def test_what_was_not_written_has_no_weight() -> None:
    """Of two environments, one has not filled a stack yet."""
    memory = replay.init(2, 20, (), jnp.int32)
    for i in range(10):
        for first in (0, 1) if i < 3 else (0,):
            seen = Seen(
                np.array([i + 1]), np.ones(1), np.array([False]), np.array([i == 0]), np.array([False])
            )
            memory = replay.insert(memory, jax.tree.map(jnp.asarray, seen), first)
            memory = replay.record(memory, jnp.zeros(1, jnp.int32), first)
    batch = replay.sample(memory, jax.random.key(0), 500, 4)
    fine = np.asarray(batch.weight) > 0
    assert 0.7 < fine.mean() < 1
    assert np.asarray(batch.reward)[fine].all()
    assert np.asarray(batch.observation)[fine].all()


def test_samples_are_uniform() -> None:
    world, memory = play(3, 40, 100, seed=1)
    allowed = world.transitions(40, 4)
    batch = replay.sample(memory, jax.random.key(1), 20_000, 4)
    fine = np.asarray(batch.weight) > 0
    _, counts = np.unique(np.asarray(batch.observation)[fine], axis=0, return_counts=True)
    expected = fine.sum() / len(allowed)
    assert len(counts) == len(allowed)
    assert abs(counts / expected - 1).max() < 5 / np.sqrt(expected)


@pytest.mark.parametrize("stacked", [1, 3, 4])
def test_the_newest_stack_is_what_an_environment_shows(stacked: int) -> None:
    for steps in (1, 2, 5, 33):
        world, memory = play(4, 12, steps, seed=steps)
        expected = [world.stack(e, steps - 1, stacked) for e in range(4)]
        np.testing.assert_array_equal(replay.newest(memory, stacked), expected)


def test_frames_keep_their_shape_and_type() -> None:
    memory = replay.init(2, 10, (84, 84), jnp.uint8)
    zeros = np.zeros(2)
    for i in range(6):
        frame = np.full((2, 84, 84), i + 1, np.uint8)
        seen = Seen(frame, zeros, zeros > 0, start=zeros == i, last=zeros > 0)
        memory = replay.record(
            replay.insert(memory, jax.tree.map(jnp.asarray, seen)), jnp.zeros(2, jnp.int32)
        )
    assert memory.observation.dtype == jnp.uint8
    assert replay.newest(memory, 4).shape == (2, 84, 84, 4)
    np.testing.assert_array_equal(replay.newest(memory, 4)[0, 5, 7], [3, 4, 5, 6])
    batch = replay.sample(memory, jax.random.key(0), 5, 4)
    assert batch.observation.shape == batch.later.shape == (5, 84, 84, 4)


def test_a_cut_bootstraps_from_the_last_observation_and_an_end_does_not() -> None:
    """Frames 1 2 3 | 4 5: the first episode is cut after 3."""
    memory = replay.init(1, 10, (), jnp.int32)
    for frame, start, last in (
        (1, True, False),
        (2, False, False),
        (3, False, True),
        (4, True, False),
        (5, False, False),
    ):
        flags = (np.array([x]) for x in (False, start, last))
        terminal, start_, last_ = flags
        seen = Seen(np.array([frame]), np.array([float(frame)]), terminal, start_, last_)
        memory = replay.record(
            replay.insert(memory, jax.tree.map(jnp.asarray, seen)), jnp.zeros(1, jnp.int32)
        )
    batch: Transitions = replay.sample(memory, jax.random.key(0), 500, 2)
    fine = np.asarray(batch.weight) > 0
    pairs = {
        (tuple(x), tuple(x_later), float(r))
        for x, x_later, r in zip(
            *(np.asarray(field)[fine] for field in (batch.observation, batch.later, batch.reward)),
            strict=True,
        )
    }
    assert pairs == {((1, 2), (2, 3), 3.0), ((0, 4), (4, 5), 5.0)}
