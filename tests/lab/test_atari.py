"""Atari is played as the paper says, by emulators that are not asked how they do it."""

import os
import threading
import zlib
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import ale_py
import jax
import jax.numpy as jnp
import numpy as np
import psutil
import pytest
from ale_py import roms

from popart.lab.atari.environment import Atari, unwrap
from popart.lab.atari.games import scores
from popart.lab.dqn import replay
from popart.lab.dqn.replay import Replay, Seen
from popart.lab.environments import Scores
from popart.lab.machine import giving_way

LUMA = np.array([0.299, 0.587, 0.114])

ROUNDING = 0.51
"""How far a whole number is from what it was rounded from, and a little for single precision."""

NICENESS = os.getpriority(os.PRIO_PROCESS, 0) if hasattr(os, "getpriority") else 0
"""Before any test."""


def play(games: Atari, seed: int, actions: np.ndarray) -> Seen:
    """All that is seen, (steps + 1, environments, ...), when it is acted like this."""
    games.start(seed)
    seen = [games.receive()]
    for action in actions:
        games.send(action)
        seen.append(games.receive())
    return Seen(*map(np.stack, zip(*seen, strict=True)))


def at_random(steps: int, environments: int, actions: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, actions, (steps, environments), np.int32)


def assert_same(a: Seen, b: Seen) -> None:
    for name, x, y in zip(Seen._fields, a, b, strict=True):
        np.testing.assert_array_equal(x, y, name)


@cache
def averages(size: int, smaller: int = 84) -> np.ndarray:
    """A matrix that averages over areas, which may end within a pixel."""
    edges = np.arange(smaller + 1)[:, None] * size / smaller
    return np.diff(np.clip(edges - np.arange(size), 0, 1), axis=0) * smaller / size


def resized(screen: np.ndarray) -> np.ndarray:
    return averages(screen.shape[0]) @ screen @ averages(screen.shape[1]).T


def is_shown(screen: np.ndarray, shown: np.ndarray) -> bool:
    return abs(resized(screen) - shown).max() < ROUNDING


class Plain:
    """A game frame by frame, in colours."""

    def __init__(self, game: str, seed: int) -> None:
        self.ale = ale_py.ALEInterface()
        self.ale.setLoggerMode(ale_py.LoggerMode.Error)
        self.ale.setInt("random_seed", seed)
        self.ale.setFloat("repeat_action_probability", 0.0)
        self.ale.loadROM(roms.get_rom_path(game))  # pyright: ignore[reportArgumentType, reportCallIssue]
        self.actions = self.ale.getMinimalActionSet()
        self.ale.reset_game()

    def screen(self) -> np.ndarray:
        """How bright it is."""
        return np.rint(self.ale.getScreenRGB() @ LUMA)

    def idle(self, frames: int) -> list[np.ndarray]:
        """Screens from now on, if nothing is done."""
        screens = []
        for _ in range(frames):
            screens.append(self.screen())
            self.ale.act(0)
        return screens

    def start(self, shown: np.ndarray) -> None:
        """A new episode, and nothing is done until its screen is the one that is shown."""
        self.ale.reset_game()
        for _ in range(31):
            if is_shown(self.screen(), shown):
                return
            self.ale.act(0)
        pytest.fail("no first observation looks like that")

    def step(self, action: int) -> tuple[list[np.ndarray], list[int]]:
        """The last two screens and all rewards of four frames, or of those until the game is over."""
        screens, rewards = [], []
        while len(rewards) < 4 and not self.ale.game_over():
            rewards.append(self.ale.act(self.actions[action]))
            if len(rewards) > 2:
                screens.append(self.screen())
        return screens, rewards


@pytest.mark.parametrize(("game", "seed"), [("asterix", 5), ("riverraid", 6), ("skiing", 7)])
def test_it_is_what_a_plain_emulator_makes_of_the_protocol(game: str, seed: int) -> None:
    """Asterix is over a few times; in River Raid one can fire; in Skiing each frame has a reward."""
    plain, games = Plain(game, seed), Atari(game, 1, 1)
    actions = at_random(320, 1, len(plain.actions))
    seen = play(games, seed, actions)
    assert seen.observation.dtype == np.uint8
    assert seen.observation.shape == (321, 1, 84, 84)
    seen_of_one = Seen(*(x[:, 0] for x in seen))
    found: Counter[str] = Counter()
    lives = 0
    for t, now in enumerate(Seen(*x) for x in zip(*seen_of_one, strict=True)):
        if now.start:
            plain.start(now.observation)
            assert (now.reward, now.terminal, now.last) == (0, False, False)
        else:
            screens, rewards = plain.step(int(actions[t - 1, 0]))
            over, lost = plain.ale.game_over(), plain.ale.lives() < lives
            assert (now.reward, now.terminal, now.last) == (sum(rewards), over or lost, over)
            if not over:  # nothing comes after it, and what is shown then is the emulator's affair
                assert is_shown(np.maximum(*screens), now.observation)
                found["blended"] += not is_shown(screens[-1], now.observation)
            found["lost"] += lost
            found["beyond 1"] += abs(sum(rewards)) > 1
            found["summed"] += sum(map(bool, rewards)) > 1
        found["starts"] += now.start
        lives = plain.ale.lives()
    assert found["blended"] > 0
    assert found["beyond 1"] > 0
    assert found["starts"] == (2 if game == "asterix" else 1)
    assert (found["lost"] > 0) == (game != "skiing")
    assert (found["summed"] > 0) == (game == "skiing")


def test_before_an_episode_nothing_is_done_for_up_to_30_frames() -> None:
    """In River Raid no two of the first frames look the same."""
    idle = np.stack([resized(screen) for screen in Plain("riverraid", 0).idle(45)])
    seen = play(Atari("riverraid", 4, 1, episode=4), 0, np.zeros((127, 4), np.int32))
    np.testing.assert_array_equal(seen.start, np.repeat(np.arange(128)[:, None] % 2 == 0, 4, 1))
    found = [
        np.flatnonzero(abs(idle - shown).max((1, 2)) < ROUNDING).tolist()
        for shown in seen.observation[seen.start]
    ]
    counts = Counter(frames for (frames,) in found)
    assert set(counts) == set(range(31))
    assert max(counts.values()) < 3 * 256 / 31


def test_nobody_fires_before_an_episode() -> None:
    """In Breakout nothing moves before."""
    seen = play(Atari("breakout", 2, 1), 0, np.zeros((60, 2), np.int32))
    np.testing.assert_array_equal(seen.observation, np.broadcast_to(seen.observation[:1], (61, 2, 84, 84)))


GROUP, GROUPS, SEED, STEPS, SLOTS = 2, 2, 3, 600, 450


@pytest.fixture(scope="module")
def actions() -> np.ndarray:
    return at_random(STEPS, GROUP * GROUPS, 4)


@pytest.fixture(scope="module")
def alone(actions: np.ndarray) -> list[Seen]:
    """Breakout, one environment at a time."""
    games = Atari("breakout", 1)
    return [play(games, SEED + i, actions[:, i : i + 1]) for i in range(GROUP * GROUPS)]


def checksums(seen: Seen) -> Seen:
    """With a number in place of each observation."""
    numbers = np.array([zlib.crc32(x) for x in seen.observation.reshape(-1, 84 * 84)], np.uint32)
    return seen._replace(observation=numbers.view(np.int32).reshape(seen.start.shape))


insert, record = jax.jit(replay.insert), jax.jit(replay.record)


def remember(memory: Replay, seen: Seen, action: np.ndarray, first: int = 0) -> Replay:
    return record(insert(memory, seen, first), jnp.asarray(action), first)


def transitions(memory: Replay) -> set[tuple[Any, ...]]:
    """All that can be sampled."""
    batch = replay.sample(memory, jax.random.key(0), 30 * memory.action.size, 4)
    fine = np.flatnonzero(batch.weight)
    fields = (np.asarray(x)[fine].tolist() for x in batch[:-1])
    return {
        (tuple(stack), action, reward, terminal, tuple(later))
        for stack, action, reward, terminal, later in zip(*fields, strict=True)
    }


def test_environments_that_take_turns_are_so_many_that_play_alone(
    alone: list[Seen], actions: np.ndarray
) -> None:
    """In groups as in training, each a step ahead while another is looked at."""
    groups = [Atari("breakout", GROUP) for _ in range(GROUPS)]
    memory = replay.init(GROUP * GROUPS, SLOTS, (), jnp.int32)
    found: list[list[Seen]] = [[] for _ in groups]
    for i, games in enumerate(groups):
        games.start(SEED + i * GROUP)
    for t in range(STEPS + 1):
        for i, games in enumerate(groups):
            first, seen = i * GROUP, games.receive()
            action = actions[t % STEPS, first : first + GROUP]
            memory = remember(memory, checksums(seen), action, first)
            found[i].append(seen)
            games.send(action)
    together = [Seen(*map(np.stack, zip(*seen, strict=True))) for seen in found]
    assert_same(Seen(*(np.concatenate(x, 1) for x in zip(*together, strict=True))), joined(alone))

    expected = set[tuple[Any, ...]]()
    for i, seen in enumerate(alone):
        mine, plain = replay.init(1, SLOTS, (), jnp.int32), checksums(seen)
        for t in range(STEPS + 1):
            mine = remember(mine, Seen(*(x[t] for x in plain)), actions[t % STEPS, i : i + 1])
        expected |= transitions(mine)
    assert transitions(memory) == expected
    assert {terminal for _, _, _, terminal, _ in expected} == {False, True}


def joined(alone: list[Seen]) -> Seen:
    """As if they had played together."""
    return Seen(*(np.concatenate(x, 1) for x in zip(*alone, strict=True)))


def test_what_was_seen_stays_while_the_game_goes_on() -> None:
    """It is read when the next step may have been played already."""
    games = Atari("breakout", 4, 1)
    games.start(0)
    shown = []
    for action in at_random(60, 4, 4):
        seen = games.receive()
        shown.append((seen, Seen(*map(np.copy, seen))))
        games.send(action)
    games.receive()
    games.close()
    assert len({zlib.crc32(seen.observation.tobytes()) for seen, _ in shown}) > 30
    for seen, then in shown:
        assert_same(seen, then)


def test_after_an_end_there_is_a_start_and_nothing_else(alone: list[Seen]) -> None:
    seen = joined(alone)
    assert (seen.last.sum(0) >= 2).all()
    np.testing.assert_array_equal(seen.start[1:], seen.last[:-1])
    assert seen.start[0].all()
    assert not (seen.start & (seen.last | seen.terminal)).any()
    assert not seen.reward[seen.start].any()


def test_a_lost_life_is_terminal_in_training_only_and_the_game_goes_on(
    alone: list[Seen], actions: np.ndarray
) -> None:
    training, evaluation = alone[0], play(Atari("breakout", 1, life_loss=False), SEED, actions[:, :1])
    assert_same(training._replace(terminal=evaluation.terminal), evaluation)
    np.testing.assert_array_equal(evaluation.terminal, evaluation.last)
    assert training.terminal[training.last].all()
    lives = np.diff(np.cumsum(training.terminal)[np.flatnonzero(training.last)], prepend=0)
    np.testing.assert_array_equal(lives, 5)


def test_a_start_with_fewer_lives_than_the_end_before_has_lost_none() -> None:
    """Demon Attack says that it has one life until its first frame, and then four."""
    plain = Plain("demon_attack", 0)
    assert plain.ale.lives() == 1
    plain.ale.act(0)
    assert plain.ale.lives() == 4
    seen = play(Atari("demon_attack", 4, 1, episode=4), 0, np.zeros((47, 4), np.int32))
    assert not seen.terminal.any()


def test_an_action_upon_an_end_is_ignored() -> None:
    """Asterix looks different after each number of no-ops, and after each action."""
    games = Atari("asterix", 1)
    actions = at_random(320, 1, 9)
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
def test_a_time_limit_cuts_and_is_not_terminal(frames: int, steps: int) -> None:
    actions = np.ones((3 * (steps + 1), 2), np.int32)
    seen = play(Atari("freeway", 2, 1, episode=frames), 0, actions)
    t = np.repeat(np.arange(len(seen.start))[:, None] % (steps + 1), 2, 1)
    np.testing.assert_array_equal(seen.last, t == steps)
    np.testing.assert_array_equal(seen.start, t == 0)
    assert not seen.terminal.any()


def test_sticky_actions_are_repeated_now_and_then() -> None:
    """Where that is always so, the first no-op is."""
    actions = at_random(60, 2, 18)
    never, sometimes, again, always = (
        play(Atari("riverraid", 2, 1, sticky=p), 0, actions) for p in (0.0, 0.25, 0.25, 1.0)
    )
    plain = Atari("riverraid", 2, 1)
    assert_same(play(plain, 0, actions), never)
    assert_same(play(plain, 0, 0 * actions), always)
    assert_same(sometimes, again)
    for other in (never, always):
        assert (sometimes.observation != other.observation).any((0, 2, 3)).all()


def test_closed_environments_take_no_threads() -> None:
    before = threads()
    games = Atari("pong", 4, 2)
    games.start(0)
    games.send(np.zeros(4, np.int32))
    assert threads() >= before + 2
    games.close()
    assert threads() <= before


def threads() -> int:
    return psutil.Process().num_threads()


def test_a_seed_is_all_that_chance_depends_on() -> None:
    actions = np.ones((5, 3), np.int32)
    one, two = (Atari("riverraid", 3, threads) for threads in (1, 2))
    first = play(one, 0, actions)
    assert_same(play(two, 0, actions), first)
    play(one, 7, actions)
    assert_same(play(one, 0, actions), first)
    others = play(one, 1000, actions)
    starts = [x.tobytes() for x in (*first.observation[0], *others.observation[0])]
    assert len(set(starts)) > 3


def test_any_seed_will_do() -> None:
    games = Atari("freeway", 2, 1)
    for seed in (2**31 - 1, 2**32, 10**30):
        games.start(seed)
        first = games.receive().observation
        games.start(seed)
        np.testing.assert_array_equal(games.receive().observation, first)


def test_whoever_starts_anew_does_not_see_what_was_under_way() -> None:
    games = Atari("riverraid", 3)
    actions = at_random(5, 3, len(games.names))
    expected = play(games, 0, actions)
    for _ in range(3):
        games.send(actions[0])
        assert_same(play(games, 0, actions), expected)


def test_observations_stay_as_they_were() -> None:
    games = Atari("riverraid", 2)
    games.start(0)
    seen = [games.receive()]
    copies = [Seen(*map(np.copy, seen[0]))]
    for _ in range(10):
        games.send(np.ones(2, np.int32))
        seen.append(games.receive())
        copies.append(Seen(*map(np.copy, seen[-1])))
    for a, b in zip(seen, copies, strict=True):
        assert_same(a, b)


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
def test_a_wrap_is_undone_and_all_else_is_left(reward: float, expected: float) -> None:
    found = unwrap(np.array([reward, 3, reward], np.float32))
    assert found.dtype == np.float32
    assert found.tolist() == [expected, 3, expected]


def test_the_score_of_asterix_wraps_around_and_is_unwrapped() -> None:
    plain = Plain("asterix", 0)
    for byte, digits in ((0x5E, 0x99), (0x5F, 0x99), (0x60, 0x50)):
        plain.ale.setRAM(byte, digits)
    assert plain.ale.act(0) == 999_950
    rewards = (sum(plain.step(action)[1]) for action in at_random(200, 1, len(plain.actions))[:, 0])
    reward = next(filter(None, rewards))
    assert reward == -999_950
    assert unwrap(np.array([reward], np.float32)) == [50]


@pytest.mark.parametrize("undo", [False, True])
def test_wraps_are_counted_and_undone_only_if_asked_for(undo: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The vector environment does not let scores be set: they are changed on their way."""
    games = Atari("freeway", 3, 1, undo_wraps=undo)
    receive = games._env.recv
    rewards = iter([[0, -999_850, 0], [5, -30_000, 7], [-99_400, -999_950, 1]])

    def changed() -> Any:
        observation, reward, *rest = receive()
        return observation, np.array(next(rewards), reward.dtype), *rest

    monkeypatch.setattr(games._env, "recv", changed)
    seen = play(games, 0, np.zeros((3, 3), np.int32))
    assert games.wraps == 3
    expected = [[0, 150, 0], [5, -30_000, 7], [600, 50, 1]]
    if not undo:
        expected = [[0, -999_850, 0], [5, -30_000, 7], [-99_400, -999_950, 1]]
    assert seen.reward[1:].tolist() == expected
    assert seen.reward.dtype == np.float32


def test_all_57_games_are_there() -> None:
    games = [score.game for score in scores()]
    assert len(set(games)) == 57
    for game in games:
        assert roms.get_rom_path(game) is not None


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
def test_actions_are_those_that_do_something(game: str, names: str) -> None:
    games = Atari(game, 1, 1)
    assert games.names == names.split()
    assert games.network("float32").actions == len(games.names)


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="threads have no niceness of their own")
def test_threads_of_emulators_give_way_and_no_others_do() -> None:
    done = threading.Event()
    before, within, after = (threading.Thread(target=done.wait, daemon=True) for _ in range(3))
    before.start()
    with giving_way():
        within.start()
    after.start()
    try:
        found = [os.getpriority(os.PRIO_PROCESS, x.native_id or 0) for x in (before, within, after)]
    finally:
        done.set()
    assert found == [NICENESS, max(NICENESS, 10), NICENESS]
    threads = set(os.listdir("/proc/self/task"))
    games = Atari("pong", 2, 2)
    emulators = set(os.listdir("/proc/self/task")) - threads
    assert emulators
    assert {os.getpriority(os.PRIO_PROCESS, int(x)) for x in emulators} == {max(NICENESS, 10)}
    assert os.getpriority(os.PRIO_PROCESS, 0) == NICENESS
    games.close()


def test_scores_are_sums_from_start_to_last() -> None:
    """Two environments; a lost life is no end, and what an unfinished episode had is forgotten at a start."""
    table = [  # reward, terminal, start, last: of each
        ((0, 0, 1, 0), (0, 0, 1, 0), []),
        ((2, 1, 0, 0), (-1, 0, 0, 0), []),
        ((3, 0, 0, 0), (-2, 0, 0, 1), [-3]),
        ((5, 1, 0, 1), (0, 0, 1, 0), [10]),
        ((0, 0, 1, 0), (7, 0, 0, 0), []),
        ((1, 0, 0, 1), (1, 1, 0, 1), [1, 8]),
        ((0, 0, 1, 0), (0, 0, 1, 0), []),
        ((4, 0, 0, 0), (6, 0, 0, 0), []),
        ((0, 0, 1, 0), (0, 0, 0, 1), [6]),
    ]
    adding = Scores(2)
    for *each, ended in table:
        reward, *flags = np.array(each).T
        terminal, start, last = (flag.astype(bool) for flag in flags)
        seen = Seen(np.zeros(2), reward.astype(np.float32), terminal, start, last)
        assert adding.add(seen) == ended
    assert adding.now.tolist() == [0, 6]


def test_scores_are_those_of_whole_episodes(alone: list[Seen]) -> None:
    seen = joined(alone)
    adding, found = Scores(len(alone)), Counter[float]()
    for now in zip(*seen, strict=True):
        found.update(adding.add(Seen(*now)))
    expected = Counter[float]()
    for reward, last in zip(seen.reward.T, seen.last.T, strict=True):
        expected.update(float(x.sum()) for x in np.split(reward, np.flatnonzero(last) + 1)[:-1])
    assert found == expected
    assert sum(found.values()) > 4
