"""Atari in worker processes plays as in one process, and workers end in time, whatever happens."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager

import numpy as np
import psutil
import pytest

from popart.lab.checks import LabError
from popart.lab.envs.atari import Atari
from popart.lab.envs.timestep import SavableSuite, TimeStep
from popart.lab.envs.workers import AtariSuite
from tests.lab.envs.playing import assert_same, play, random_actions, stacked

GAMES, GROUPS, SIZE, STEPS = ("breakout", "riverraid"), 2, 3, 300
SEEDS = ((5, 2**32 + 7), (10**12, 8))
"""Random seeds of each game, one for each group."""


def processes_below() -> list[psutil.Process]:
    return psutil.Process().children(recursive=True)


@contextmanager
def playing(*games: str, size: int = 1, groups: int = 1) -> Iterator[AtariSuite]:
    """Start a suite with one worker for each environment of a group, and play its first step."""
    with closing(AtariSuite(games, groups, size)) as suite:
        for game in range(len(games)):
            suite.reset(game, groups * [0])
        for group in range(groups):
            step(suite, group)
        yield suite


def step(suite: AtariSuite, group: int = 0) -> TimeStep:
    seen = TimeStep(*map(np.copy, suite.receive(group)))
    suite.send(group, np.zeros(seen.reward.shape, np.int32))
    return seen


def test_workers_play_what_one_process_plays_with_the_same_seeds() -> None:
    """Two games, each in two groups that take turns and in two workers, of one and of two environments."""
    actions = random_actions(STEPS, GROUPS, len(GAMES), SIZE, actions=4)
    found: list[list[TimeStep]] = [[] for _ in range(GROUPS)]
    with closing(AtariSuite(GAMES, GROUPS, SIZE, threads=2, sticky=0.25)) as suite:
        for game, seeds in enumerate(SEEDS):
            suite.reset(game, seeds)
        for t in range(STEPS + 1):
            for group in range(GROUPS):
                found[group].append(TimeStep(*map(np.copy, suite.receive(group))))
                suite.send(group, actions[t % STEPS, group])
        assert [worker.high - worker.low for worker in suite.workers] == [1, 2, 1, 2]
        assert suite.actions == (4, 18)
        assert suite.overflows.tolist() == [0, 0]
        assert not suite.failures
        assert not isinstance(suite, SavableSuite)
    for game, name in enumerate(GAMES):
        alone = Atari(name, SIZE, 1, sticky=0.25)
        for group in range(GROUPS):
            together = TimeStep(*(x[:, game] for x in stacked(found[group])))
            assert_same(together, play(alone, SEEDS[game][group], actions[:, group, game]))
            assert together.reward.any()
            assert name == "riverraid" or together.last.any()


def test_workers_end_when_the_suite_is_closed() -> None:
    before = set(processes_below())
    with playing("pong", "breakout", size=2) as suite:
        assert len(set(processes_below()) - before) == len(suite.workers) >= 2
    assert set(processes_below()) == before


def test_the_number_of_started_environments_is_reported() -> None:
    numbers: list[int] = []
    AtariSuite(("pong",), 2, 3, 1, numbers.append).close()
    assert sum(numbers) == 6


def test_workers_have_a_low_priority() -> None:
    with playing("pong") as suite:
        mine, theirs = (os.getpriority(os.PRIO_PROCESS, pid) for pid in (0, suite.workers[0]._process.pid))
        assert theirs > mine or theirs == 19


PARENT = """
import signal
from popart.lab.envs.workers import AtariSuite
interrupted = []
signal.signal(signal.SIGINT, lambda *_: interrupted.append(1))
suite = AtariSuite(("pong", "breakout"), 1, 1)
suite.reset(0, [0]); suite.reset(1, [0])
print(*(worker._process.pid for worker in suite.workers), flush=True)
steps = 0
while True:
    seen = suite.receive(0)
    suite.send(0, 0 * seen.reward)
    steps += len(interrupted)
    if steps == 50:
        print(suite.failures, flush=True)
"""
"""A process that plays, and after Ctrl-C and 50 more steps prints what failed."""


@contextmanager
def parent() -> Iterator[tuple[subprocess.Popen[str], list[psutil.Process]]]:
    """Start a process that plays, and yield it with its workers."""
    command = [sys.executable, "-c", PARENT]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        try:
            assert process.stdout
            workers = [psutil.Process(int(pid)) for pid in process.stdout.readline().split()]
            assert len(workers) == 2
            yield process, workers
        finally:
            process.kill()


def test_ctrl_c_in_the_terminal_does_not_reach_workers() -> None:
    """A terminal sends it to the whole process group in its foreground."""
    with parent() as (process, workers):
        os.killpg(process.pid, signal.SIGINT)
        assert process.stdout
        assert process.stdout.readline() == "{}\n"
        assert all(worker.is_running() for worker in workers)


def test_workers_end_when_their_parent_is_killed() -> None:
    with parent() as (process, workers):
        assert all(worker.is_running() for worker in workers)
        process.kill()
        _, alive = psutil.wait_procs(workers, timeout=60)
    assert not [worker for worker in alive if worker.status() != psutil.STATUS_ZOMBIE]


def test_a_killed_worker_makes_only_its_game_fail() -> None:
    """The failed game shows what it last showed, and the others continue as if nothing had happened."""
    games, actions = ("pong", "breakout", "freeway"), random_actions(60, 3, 2, actions=3)
    with closing(AtariSuite(games, 1, 2)) as suite:
        for game in range(len(games)):
            suite.reset(game, [game])
        found = []
        for t, action in enumerate(actions):
            if t == 20:
                victim = next(worker for worker in suite.workers if worker.game == 1)
                os.kill(victim._process.pid, signal.SIGKILL)
            found.append(TimeStep(*map(np.copy, suite.receive(0))))
            suite.send(0, action)
        assert suite.failures == {1: "its process ended with status -9"}
    seen = stacked(found)
    for game in (0, 2):
        alone = play(Atari(games[game], 2, 1), game, actions[:-1, game])
        assert_same(TimeStep(*(x[:, game] for x in seen)), alone)
    after = seen.observation[25:, 1]
    np.testing.assert_array_equal(after, np.broadcast_to(after[:1], after.shape))


def test_a_stopped_game_shows_what_it_last_showed() -> None:
    with playing("pong", "freeway") as suite:
        for _ in range(5):
            step(suite)
        suite.stop(0)
        seen = stacked([step(suite) for _ in range(20)]).observation
        assert not suite.failures
    np.testing.assert_array_equal(seen[1:, 0], np.broadcast_to(seen[1, 0], seen[1:, 0].shape))
    assert (seen[1:, 1] != seen[:-1, 1]).any((1, 2, 3)).all()


def test_an_emulator_that_does_not_start_is_named() -> None:
    before = set(processes_below())
    with pytest.raises(LabError, match=r"the emulator of no_such_game did not start: .*no_such_game"):
        AtariSuite(("pong", "no_such_game"), 1, 1)
    assert set(processes_below()) == before
