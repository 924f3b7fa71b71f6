"""Small games: episodes, resets, rewards and time limits; and several agents that play at once."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from popart.lab.envs.games import SMALL
from popart.lab.envs.small import Game, SmallGames, SmallSuite
from popart.lab.envs.timestep import SavableSuite, TimeStep


@pytest.mark.parametrize("name", [game.name for game in SMALL.values()])
def test_episodes_end_once_and_are_reset(name: str) -> None:
    game = Game(name)
    world, seen = game.reset(jax.random.key(0), 4)
    assert seen.observation.shape == (4, *game.shape)
    assert seen.first.all()
    assert not seen.last.any()

    @jax.jit
    def play(carry: Any, key: jax.Array) -> Any:
        world, _ = carry
        choose, move = jax.random.split(key)
        carry = game.step(world, jax.random.randint(choose, (4,), 0, game.actions), move)
        return carry, carry[1]

    steps = 6000 if name == "Freeway-MinAtar" else 600  # its episodes have a fixed length
    _, record = jax.lax.scan(play, (world, seen), jax.random.split(jax.random.key(1), steps))
    last, first = np.asarray(record.last), np.asarray(record.first)
    assert last.sum() > 4
    np.testing.assert_array_equal(first[1:], last[:-1])
    assert not (last & first).any()
    assert not np.asarray(record.reward)[first].any()
    assert not np.asarray(record.terminal)[first].any()


def test_catch_ends_after_nine_steps_with_a_reward_of_one() -> None:
    """Its board has ten rows: the first observation, eight falls, and the end."""
    game = Game("Catch-bsuite")
    world, _ = game.reset(jax.random.key(0), 1)
    step = jax.jit(game.step)
    rewards, lasts = [], []
    for i in range(20):
        world, seen = step(world, jnp.ones(1, int), jax.random.key(i))
        rewards.append(float(seen.reward[0]))
        lasts.append(bool(seen.last[0]))
    ends = np.flatnonzero(lasts)
    assert list(ends) == [8, 18]
    assert {abs(rewards[i]) for i in ends} == {1.0}
    assert all(rewards[i] == 0 for i in range(20) if i not in ends)


def test_a_time_limit_truncates_and_does_not_terminate() -> None:
    """A pole that is balanced for 500 steps."""
    game = Game("CartPole-v1")
    world, seen = game.reset(jax.random.key(3), 1)
    step = jax.jit(game.step)
    for _ in range(502):
        x, speed, angle, turn = seen.observation[0]
        action = (angle + 0.5 * turn + 0.05 * speed + 0.02 * x > 0)[None].astype(int)
        world, seen = step(world, action, jax.random.key(0))
        if seen.last[0]:
            break
    assert seen.last[0]
    assert not seen.terminal[0]


GAMES, SIZE, STEPS = 3, 4, 25


@pytest.fixture(scope="module")
def suite() -> SmallSuite:
    return SmallSuite("Catch-bsuite", GAMES, SIZE)


def play(suite: SmallSuite, actions: np.ndarray) -> TimeStep:
    """Return what is shown in some steps, (steps, games, environments, ...)."""
    seen = []
    for action in actions:
        seen.append(suite.receive(0))
        suite.send(0, action)
    return TimeStep(*map(np.stack, zip(*seen, strict=True)))


def actions(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 3, (STEPS, GAMES, SIZE), np.int32)


def test_each_game_of_a_suite_is_played_as_in_a_suite_of_one(suite: SmallSuite) -> None:
    for game in range(GAMES):
        suite.reset(game, [10 + game])
    together = play(suite, actions())
    assert together.last.any(0).all()
    assert len({x.tobytes() for x in together.observation[0].reshape(GAMES * SIZE, -1)}) > 2
    for game in range(GAMES):
        alone = SmallSuite("Catch-bsuite", 1, SIZE)
        alone.reset(0, [10 + game])
        expected = play(alone, actions()[:, game : game + 1])
        for x, y in zip(together, expected, strict=True):
            np.testing.assert_array_equal(x[:, game : game + 1], y)
    assert suite.actions == GAMES * (3,)


def test_environments_of_one_game_are_a_suite_of_one() -> None:
    games, alone = SmallGames("Catch-bsuite", SIZE), SmallSuite("Catch-bsuite", 1, SIZE)
    games.reset(5)
    alone.reset(0, [5])
    for action in actions()[:, 0]:
        jax.tree.map(
            np.testing.assert_array_equal, games.receive(), TimeStep(*(x[0] for x in alone.receive(0)))
        )
        games.send(action)
        alone.send(0, action[None])
    assert (games.number, games.actions, games.spec) == (SIZE, 3, alone.spec)


def test_a_saved_game_continues_in_any_place_of_any_suite(suite: SmallSuite) -> None:
    suite.reset(1, [7])
    play(suite, actions(1))
    saved = suite.state(1)
    assert isinstance(suite, SavableSuite)
    expected = play(suite, actions(2))
    suite.restore(2, saved)
    for place, other in ((2, suite), (0, SmallSuite("Catch-bsuite", 1, SIZE))):
        other.restore(place, saved)
        chosen = np.repeat(actions(2)[:, 1:2], len(other.actions), 1)
        found = play(other, chosen)
        for x, y in zip(found, expected, strict=True):
            np.testing.assert_array_equal(x[:, place], y[:, 1])


def test_a_reset_of_one_game_leaves_the_others_as_they_are(suite: SmallSuite) -> None:
    before = jax.tree.map(np.asarray, suite.state(0))
    suite.reset(1, [3])
    first = suite.receive(0)
    assert first.first[1].all()
    suite.reset(2, [3])
    np.testing.assert_array_equal(suite.receive(0).observation[1], suite.receive(0).observation[2])
    jax.tree.map(np.testing.assert_array_equal, suite.state(0), before)
