"""The replay buffer samples exactly the transitions that a plain record of everything has."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from popart.lab.dqn import replay
from popart.lab.dqn.replay import Replay

insert, record, interrupt = jax.jit(replay.insert), jax.jit(replay.record), jax.jit(replay.interrupt)
sample, newest = jax.jit(replay.sample, static_argnums=(2, 3)), jax.jit(replay.newest, static_argnums=1)


class Shown(NamedTuple):
    """Observations and results of a step."""

    observation: np.ndarray
    reward: np.ndarray
    terminal: np.ndarray
    first: np.ndarray
    last: np.ndarray


class Step(NamedTuple):
    """One step of one environment. Frames are numbered from 1, over all environments."""

    frame: int
    first: bool
    last: bool
    action: int = -1
    reward: float = 0.0
    terminal: bool = False


class World:
    """Random episodes that terminate, are truncated, lose lives, and are all interrupted now and then."""

    def __init__(self, environments: int, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.frames = 0
        self.history: list[list[Step]] = [[] for _ in range(environments)]

    def step(self, interrupted: bool) -> Shown:
        shown = []
        for history in self.history:
            before = history[-1] if history else None
            if interrupted and before:
                history[-1] = before._replace(last=True)
            first = before is None or before.last or interrupted
            acted = before is not None and not first
            reward = float(self.rng.normal()) if acted else 0.0
            last = acted and self.rng.random() < 0.15
            terminal = acted and (self.rng.random() < 0.1 or (last and self.rng.random() < 0.5))
            if before is not None and acted:
                history[-1] = before._replace(reward=reward, terminal=terminal)
            self.frames += 1
            history.append(Step(self.frames, first, last))
            shown.append((self.frames, reward, terminal, first, last))
        return Shown(*map(np.array, zip(*shown, strict=True)))

    def act(self) -> np.ndarray:
        actions = self.rng.integers(0, 5, len(self.history))
        for history, action in zip(self.history, actions, strict=True):
            history[-1] = history[-1]._replace(action=int(action))
        return actions

    def stack(self, environment: int, at: int, stack_size: int) -> list[int]:
        """Return the frames of the episode up to a step, and 0 for those before its first."""
        frames: list[int] = []
        for step in reversed(self.history[environment][: at + 1]):
            frames.insert(0, step.frame)
            if step.first or len(frames) == stack_size:
                break
        return [0] * (stack_size - len(frames)) + frames

    def transitions(self, slots: int, stack_size: int) -> dict[tuple[int, ...], tuple[object, ...]]:
        """Return all transitions that may be sampled, by their stacks."""
        found = {}
        for e, history in enumerate(self.history):
            oldest = max(0, len(history) - slots) + stack_size - 1
            for t in range(oldest, len(history) - 1):
                step = history[t]
                if not step.last:
                    later = tuple(self.stack(e, t + 1, stack_size))
                    key = tuple(self.stack(e, t, stack_size))
                    found[key] = (step.action, np.float32(step.reward), step.terminal, later)
        return found


def play(environments: int, slots: int, steps: int, seed: int) -> tuple[World, Replay]:
    """Play with environments that write in two groups, one after the other."""
    world = World(environments, seed)
    memory = replay.init(environments, slots, (), jnp.int32)
    groups = [g for g in (slice(0, environments // 2), slice(environments // 2, None)) if g.stop != 0]
    for t in range(steps):
        interrupted = t > 0 and world.rng.random() < 0.05
        if interrupted:
            memory = interrupt(memory)
        shown, action = world.step(interrupted), world.act()
        for group in groups:
            memory = insert(memory, Shown(*(x[group] for x in shown)), group.start)
            memory = record(memory, action[group], group.start)
    return world, memory


def write(memory: Replay, *shown: np.ndarray, first: int = 0) -> Replay:
    """Write a step of all environments, or of those from `first` on, with action 0."""
    return record(insert(memory, Shown(*shown), first), np.zeros(len(shown[0]), np.int32), first)


@pytest.mark.parametrize(
    ("environments", "slots", "steps", "stack_size"),
    [(1, 50, 30, 4), *((3, 20, steps, stack) for steps in (19, 20, 21, 137) for stack in (1, 2, 4))],
)
def test_samples_are_exactly_the_transitions_of_a_plain_record(
    environments: int, slots: int, steps: int, stack_size: int
) -> None:
    world, memory = play(environments, slots, steps, seed=slots + steps)
    allowed = world.transitions(slots, stack_size)
    batch = jax.tree.map(np.asarray, sample(memory, jax.random.key(0), 4000, stack_size))
    sampled = set()
    for i in np.flatnonzero(batch.weight):
        key, later = tuple(batch.observation[i].tolist()), tuple(batch.next_observation[i].tolist())
        found = int(batch.action[i]), np.float32(batch.reward[i]), bool(batch.terminal[i]), later
        assert allowed[key] == found
        sampled.add(key)
    assert sampled == set(allowed)
    assert batch.weight.mean() > 0.9


def test_an_environment_without_a_full_stack_is_sampled_with_weight_0() -> None:
    memory = replay.init(2, 20, (), jnp.int32)
    no = np.array([False])
    for i in range(10):
        for environment in (0, 1) if i < 3 else (0,):
            memory = write(
                memory, np.array([i + 1]), np.ones(1), no, np.array([i == 0]), no, first=environment
            )
    batch = sample(memory, jax.random.key(0), 500, 4)
    fine = np.asarray(batch.weight) > 0
    assert 0.7 < fine.mean() < 1
    assert np.asarray(batch.reward)[fine].all()
    assert np.asarray(batch.observation)[fine].all()


def test_samples_are_uniform() -> None:
    world, memory = play(3, 20, 100, seed=1)
    allowed = world.transitions(20, 4)
    batches = [sample(memory, jax.random.key(seed), 4000, 4) for seed in range(5)]
    stacks = np.concatenate(
        [np.asarray(batch.observation)[np.asarray(batch.weight) > 0] for batch in batches]
    )
    _, counts = np.unique(stacks, axis=0, return_counts=True)
    expected = len(stacks) / len(allowed)
    assert len(counts) == len(allowed)
    assert abs(counts / expected - 1).max() < 5 / np.sqrt(expected)


@pytest.mark.parametrize("stack_size", [1, 2, 4])
def test_the_newest_stack_has_the_last_frames_of_the_episode(stack_size: int) -> None:
    for steps in (1, 2, 5, 53):
        world, memory = play(3, 20, steps, seed=steps)
        expected = [world.stack(e, steps - 1, stack_size) for e in range(3)]
        np.testing.assert_array_equal(newest(memory, stack_size), expected)


def test_observations_keep_their_shape_and_type() -> None:
    memory = replay.init(2, 10, (84, 84), jnp.uint8)
    zeros = np.zeros(2)
    for i in range(6):
        frame = np.full((2, 84, 84), i + 1, np.uint8)
        memory = write(memory, frame, zeros, zeros > 0, zeros == i, zeros > 0)
    assert memory.observation.dtype == jnp.uint8
    assert newest(memory, 4).shape == (2, 84, 84, 4)
    np.testing.assert_array_equal(newest(memory, 4)[0, 5, 7], [3, 4, 5, 6])
    batch = sample(memory, jax.random.key(0), 5, 4)
    assert batch.observation.shape == batch.next_observation.shape == (5, 84, 84, 4)


def test_a_truncated_episode_bootstraps_from_its_last_observation() -> None:
    """Frames 1 2 3 | 4 5: the first episode is truncated after 3. No transition leads from 3 to 4."""
    memory = replay.init(1, 10, (), jnp.int32)
    for frame, first, last in ((1, True, False), (2, False, False), (3, False, True), (4, True, False),
                               (5, False, False)):  # fmt: skip
        flags = (np.array([x]) for x in (False, first, last))
        memory = write(memory, np.array([frame]), np.array([float(frame)]), *flags)
    batch = sample(memory, jax.random.key(0), 500, 2)
    fine = np.asarray(batch.weight) > 0
    fields = (np.asarray(x)[fine].tolist() for x in (batch.observation, batch.next_observation, batch.reward))
    found = {(tuple(now), tuple(later), reward) for now, later, reward in zip(*fields, strict=True)}
    assert found == {((1, 2), (2, 3), 3.0), ((0, 4), (4, 5), 5.0)}
    assert not np.asarray(batch.terminal).any()
