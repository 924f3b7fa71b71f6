"""Atari is played as the paper says, compared with an emulator that is stepped frame by frame."""

import threading
import zlib
from collections import Counter
from functools import cache
from typing import Any

import ale_py
import numpy as np
import psutil
import pytest
from ale_py import roms

from popart.lab.envs.atari import Atari, without_overflow
from popart.lab.envs.timestep import Scores, TimeStep
from tests.lab.envs.playing import assert_same, play, random_actions, stacked

shares_breakout = pytest.mark.xdist_group("breakout")
"""Tests that share the fixture `alone`."""

LUMA = np.array([0.299, 0.587, 0.114])

ROUNDING = 0.51
"""Largest difference between a number and a whole number that it was rounded to, in single precision."""


@cache
def averages(size: int, smaller: int = 84) -> np.ndarray:
    """Return a matrix that averages over areas, which may end within a pixel."""
    edges = np.arange(smaller + 1)[:, None] * size / smaller
    return np.diff(np.clip(edges - np.arange(size), 0, 1), axis=0) * smaller / size


def resized(screen: np.ndarray) -> np.ndarray:
    return averages(screen.shape[0]) @ screen @ averages(screen.shape[1]).T


def is_shown(screen: np.ndarray, shown: np.ndarray) -> bool:
    return abs(resized(screen) - shown).max() < ROUNDING


class Plain:
    """An emulator that is stepped frame by frame, in colours."""

    def __init__(self, game: str, seed: int) -> None:
        self.ale = ale_py.ALEInterface()
        self.ale.setLoggerMode(ale_py.LoggerMode.Error)
        self.ale.setInt("random_seed", seed)
        self.ale.setFloat("repeat_action_probability", 0.0)
        self.ale.loadROM(roms.get_rom_path(game))  # pyright: ignore[reportArgumentType, reportCallIssue]
        self.actions = self.ale.getMinimalActionSet()
        self.ale.reset_game()

    def screen(self) -> np.ndarray:
        """Return the brightness of each pixel."""
        return np.rint(self.ale.getScreenRGB() @ LUMA)

    def idle(self, frames: int) -> list[np.ndarray]:
        """Return the screens of some frames of no-ops."""
        screens = []
        for _ in range(frames):
            screens.append(self.screen())
            self.ale.act(0)
        return screens

    def reset(self, shown: np.ndarray) -> None:
        """Start an episode, with no-ops until its screen is the one that is shown."""
        self.ale.reset_game()
        for _ in range(31):
            if is_shown(self.screen(), shown):
                return
            self.ale.act(0)
        pytest.fail("no first observation looks like that")

    def step(self, action: int) -> tuple[list[np.ndarray], list[int]]:
        """Return the last two screens and all rewards of four frames, or fewer if the game is over."""
        screens, rewards = [], []
        while len(rewards) < 4 and not self.ale.game_over():
            rewards.append(self.ale.act(self.actions[action]))
            if len(rewards) > 2:
                screens.append(self.screen())
        return screens, rewards


@pytest.mark.parametrize(("game", "seed"), [("asterix", 5), ("riverraid", 6), ("skiing", 7)])
def test_steps_equal_those_of_an_emulator_that_is_stepped_frame_by_frame(game: str, seed: int) -> None:
    """Asterix ends once; in River Raid one can fire; in Skiing each frame has a reward."""
    plain, games = Plain(game, seed), Atari(game, 1, 1)
    actions = random_actions(320, 1, actions=len(plain.actions))
    seen = play(games, seed, actions)
    assert seen.observation.dtype == np.uint8
    assert seen.observation.shape == (321, 1, 84, 84)
    seen_of_one = TimeStep(*(x[:, 0] for x in seen))
    found: Counter[str] = Counter()
    lives = 0
    for t, now in enumerate(TimeStep(*x) for x in zip(*seen_of_one, strict=True)):
        if now.first:
            plain.reset(now.observation)
            assert (now.reward, now.terminal, now.last) == (0, False, False)
        else:
            screens, rewards = plain.step(int(actions[t - 1, 0]))
            over, lost = plain.ale.game_over(), plain.ale.lives() < lives
            assert (now.reward, now.terminal, now.last) == (sum(rewards), over or lost, over)
            if not over:  # what is shown then is up to the emulator; nothing comes after it
                assert is_shown(np.maximum(*screens), now.observation)
                found["blended"] += not is_shown(screens[-1], now.observation)
            found["lost"] += lost
            found["beyond 1"] += abs(sum(rewards)) > 1
            found["summed"] += sum(map(bool, rewards)) > 1
        found["episodes"] += now.first
        lives = plain.ale.lives()
    assert found["blended"] > 0
    assert found["beyond 1"] > 0
    assert found["episodes"] == (2 if game == "asterix" else 1)
    assert (found["lost"] > 0) == (game != "skiing")
    assert (found["summed"] > 0) == (game == "skiing")


def test_episodes_begin_with_0_to_30_no_ops() -> None:
    """In River Raid no two of the first frames look the same."""
    idle = np.stack([resized(screen) for screen in Plain("riverraid", 0).idle(45)])
    seen = play(Atari("riverraid", 4, 1, episode_frames=4), 0, np.zeros((127, 4), np.int32))
    np.testing.assert_array_equal(seen.first, np.repeat(np.arange(128)[:, None] % 2 == 0, 4, 1))
    found = [
        np.flatnonzero(abs(idle - shown).max((1, 2)) < ROUNDING).tolist()
        for shown in seen.observation[seen.first]
    ]
    counts = Counter(frames for (frames,) in found)
    assert set(counts) == set(range(31))
    assert max(counts.values()) < 3 * 256 / 31


def test_no_fire_is_pressed_before_an_episode() -> None:
    """In Breakout nothing moves before."""
    seen = play(Atari("breakout", 2, 1), 0, np.zeros((60, 2), np.int32))
    np.testing.assert_array_equal(seen.observation, np.broadcast_to(seen.observation[:1], (61, 2, 84, 84)))


ENVIRONMENTS, SEED = 4, 3


@pytest.fixture(scope="module")
def actions() -> np.ndarray:
    return random_actions(600, ENVIRONMENTS, actions=4)


@pytest.fixture(scope="module")
def alone(actions: np.ndarray) -> list[TimeStep]:
    """Breakout, one environment at a time."""
    games = Atari("breakout", 1)
    return [play(games, SEED + i, actions[:, i : i + 1]) for i in range(ENVIRONMENTS)]


def joined(alone: list[TimeStep]) -> TimeStep:
    """Return single environments side by side."""
    return TimeStep(*(np.concatenate(x, 1) for x in zip(*alone, strict=True)))


@shares_breakout
def test_environments_that_play_together_play_as_they_do_alone(
    alone: list[TimeStep], actions: np.ndarray
) -> None:
    assert_same(play(Atari("breakout", ENVIRONMENTS), SEED, actions), joined(alone))


def test_what_was_received_does_not_change_while_the_game_continues() -> None:
    """It is read when the next step may have been played already."""
    games = Atari("breakout", 4, 1)
    games.reset(0)
    shown = []
    for action in random_actions(60, 4, actions=4):
        seen = games.receive()
        shown.append((seen, TimeStep(*map(np.copy, seen))))
        games.send(action)
    games.receive()
    games.close()
    assert len({zlib.crc32(seen.observation.tobytes()) for seen, _ in shown}) > 30
    for seen, then in shown:
        assert_same(seen, then)


@shares_breakout
def test_after_a_last_observation_comes_a_first_one_and_nothing_else(alone: list[TimeStep]) -> None:
    seen = joined(alone)
    assert (seen.last.sum(0) >= 2).all()
    np.testing.assert_array_equal(seen.first[1:], seen.last[:-1])
    assert seen.first[0].all()
    assert not (seen.first & (seen.last | seen.terminal)).any()
    assert not seen.reward[seen.first].any()


@shares_breakout
def test_a_lost_life_is_terminal_in_training_only_and_the_game_continues(
    alone: list[TimeStep], actions: np.ndarray
) -> None:
    training, evaluation = alone[0], play(Atari("breakout", 1, life_loss=False), SEED, actions[:, :1])
    assert_same(training._replace(terminal=evaluation.terminal), evaluation)
    np.testing.assert_array_equal(evaluation.terminal, evaluation.last)
    assert training.terminal[training.last].all()
    lives = np.diff(np.cumsum(training.terminal)[np.flatnonzero(training.last)], prepend=0)
    np.testing.assert_array_equal(lives, 5)


def test_a_reset_to_fewer_lives_is_no_lost_life() -> None:
    """Demon Attack reports one life until its first frame, and then four."""
    plain = Plain("demon_attack", 0)
    assert plain.ale.lives() == 1
    plain.ale.act(0)
    assert plain.ale.lives() == 4
    seen = play(Atari("demon_attack", 4, 1, episode_frames=4), 0, np.zeros((47, 4), np.int32))
    assert not seen.terminal.any()


def test_the_action_after_a_last_observation_is_ignored() -> None:
    """Asterix looks different after each number of no-ops, and after each action."""
    games = Atari("asterix", 1)
    actions = random_actions(320, 1, actions=9)
    seen = play(games, 5, actions)
    (end,) = np.flatnonzero(seen.last)[:1]
    for other in (1, 4):
        changed = actions.copy()
        changed[end] = (actions[end] + other) % 9
        assert_same(play(games, 5, changed), seen)
    changed = actions.copy()
    changed[end + 1] = (actions[end + 1] + 1) % 9
    assert (play(games, 5, changed).observation != seen.observation).any()


@pytest.mark.parametrize(("frames", "steps"), [(40, 10), (42, 11)])
def test_a_time_limit_truncates_and_is_not_terminal(frames: int, steps: int) -> None:
    actions = np.ones((3 * (steps + 1), 2), np.int32)
    seen = play(Atari("freeway", 2, 1, episode_frames=frames), 0, actions)
    t = np.repeat(np.arange(len(seen.first))[:, None] % (steps + 1), 2, 1)
    np.testing.assert_array_equal(seen.last, t == steps)
    np.testing.assert_array_equal(seen.first, t == 0)
    assert not seen.terminal.any()


def test_sticky_actions_are_repeated_with_their_probability() -> None:
    """With probability 1, the no-op before the first action is repeated forever."""
    actions = random_actions(60, 2, actions=18)
    never, sometimes, again, always = (
        play(Atari("riverraid", 2, 1, sticky=p), 0, actions) for p in (0.0, 0.25, 0.25, 1.0)
    )
    plain = Atari("riverraid", 2, 1)
    assert_same(play(plain, 0, actions), never)
    assert_same(play(plain, 0, 0 * actions), always)
    assert_same(sometimes, again)
    for other in (never, always):
        assert (sometimes.observation != other.observation).any((0, 2, 3)).all()


def test_closed_environments_leave_no_threads() -> None:
    before = number_of_threads()
    games = Atari("pong", 4, 2)
    games.reset(0)
    games.send(np.zeros(4, np.int32))
    assert number_of_threads() >= before + 2
    games.close()
    assert number_of_threads() <= before


def number_of_threads() -> int:
    return psutil.Process().num_threads()


def test_chance_depends_on_the_seed_alone() -> None:
    actions = np.ones((5, 3), np.int32)
    one, two = (Atari("riverraid", 3, threads) for threads in (1, 2))
    first = play(one, 0, actions)
    assert_same(play(two, 0, actions), first)
    play(one, 7, actions)
    assert_same(play(one, 0, actions), first)
    others = play(one, 1000, actions)
    shown = [x.tobytes() for x in (*first.observation[0], *others.observation[0])]
    assert len(set(shown)) > 3


def test_seeds_may_be_of_any_size() -> None:
    games = Atari("freeway", 2, 1)
    for seed in (2**31 - 1, 2**32, 10**30):
        games.reset(seed)
        first = games.receive().observation
        games.reset(seed)
        np.testing.assert_array_equal(games.receive().observation, first)


def test_a_reset_discards_the_step_in_progress() -> None:
    games = Atari("riverraid", 3)
    actions = random_actions(5, 3, actions=len(games.names))
    expected = play(games, 0, actions)
    for _ in range(3):
        games.send(actions[0])
        assert_same(play(games, 0, actions), expected)


@pytest.mark.parametrize(
    ("reward", "expected"),
    [
        (50 - 999_900, 150),
        (0 - 999_950, 50),
        (100 - 99_500, 600),
        (0 - 99_999, 1),
        (0 - 999_999, 1),
        (0, 0),
        (1, 1),
        (120_000, 120_000),
        (-1, -1),
        (-7, -7),  # four frames of Skiing
        (-9_000, -9_000),
        (-30_000, -30_000),
    ],
)
def test_a_score_overflow_is_corrected_and_no_other_reward_is(reward: float, expected: float) -> None:
    found = without_overflow(np.array([reward, 3, reward], np.float32))
    assert found.dtype == np.float32
    assert found.tolist() == [expected, 3, expected]


def test_the_score_of_asterix_overflows_and_is_corrected() -> None:
    plain = Plain("asterix", 0)
    for byte, digits in ((0x5E, 0x99), (0x5F, 0x99), (0x60, 0x50)):
        plain.ale.setRAM(byte, digits)
    assert plain.ale.act(0) == 999_950
    rewards = (sum(plain.step(action)[1]) for action in random_actions(200, actions=len(plain.actions)))
    reward = next(filter(None, rewards))
    assert reward == -999_950
    assert without_overflow(np.array([reward], np.float32)) == [50]


@pytest.mark.parametrize("undo", [False, True])
def test_score_overflows_are_counted_and_corrected_only_with_the_option(
    undo: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The vector environment does not let scores be set, so its rewards are replaced."""
    games = Atari("freeway", 3, 1, undo_overflow=undo)
    receive = games._env.recv
    rewards = iter([[0, -999_850, 0], [5, -30_000, 7], [-99_400, -999_950, 1]])

    def changed() -> Any:
        observation, reward, *rest = receive()
        return observation, np.array(next(rewards), reward.dtype), *rest

    monkeypatch.setattr(games._env, "recv", changed)
    seen = play(games, 0, np.zeros((3, 3), np.int32))
    assert games.overflows == 3
    expected = [[0, 150, 0], [5, -30_000, 7], [600, 50, 1]]
    if not undo:
        expected = [[0, -999_850, 0], [5, -30_000, 7], [-99_400, -999_950, 1]]
    assert seen.reward[1:].tolist() == expected
    assert seen.reward.dtype == np.float32


@pytest.mark.parametrize(
    ("game", "names"),
    [
        ("breakout", "NOOP FIRE RIGHT LEFT"),
        ("freeway", "NOOP UP DOWN"),
        ("pong", "NOOP FIRE RIGHT LEFT RIGHTFIRE LEFTFIRE"),
        ("ms_pacman", "NOOP UP RIGHT LEFT DOWN UPRIGHT UPLEFT DOWNRIGHT DOWNLEFT"),
        ("surround", "NOOP UP RIGHT LEFT DOWN"),
        ("defender", " ".join(ale_py.Action.__members__)),
    ],
)
def test_the_actions_are_the_minimal_set_of_the_game(game: str, names: str) -> None:
    games = Atari(game, 1, 1)
    assert games.names == names.split()
    assert games.actions == len(games.names)


@shares_breakout
def test_scores_are_sums_over_whole_episodes(alone: list[TimeStep]) -> None:
    seen = joined(alone)
    adding, found = Scores(len(alone)), Counter[float]()
    for now in zip(*seen, strict=True):
        ended = adding.add(TimeStep(*now))
        found.update(adding.now[ended].tolist())
    expected = Counter[float]()
    for reward, last in zip(seen.reward.T, seen.last.T, strict=True):
        expected.update(float(x.sum()) for x in np.split(reward, np.flatnonzero(last) + 1)[:-1])
    assert found == expected
    assert sum(found.values()) > 4


def test_environments_may_be_stepped_by_another_thread_than_the_one_that_waits() -> None:
    """In training, a thread sends the actions as soon as the device has chosen them."""
    games = Atari("riverraid", 2)
    actions = random_actions(20, 2, actions=18)
    expected = play(games, 0, actions)
    games.reset(0)
    seen = [games.receive()]
    for action in actions:
        sender = threading.Thread(target=games.send, args=(action,))
        sender.start()
        sender.join()
        seen.append(games.receive())
    assert_same(stacked(seen), expected)
