"""The training loop: the paper's sequence of steps and updates, and what it stores."""

from pathlib import Path

import numpy as np
import pytest

from popart.lab.dqn.learner import Metrics
from popart.lab.envs.atari import Atari
from popart.lab.envs.timestep import derived_seed
from popart.lab.train.loop import Loop
from tests.lab.envs.playing import play
from tests.lab.examples import ASTERIX, CATCH, training


@pytest.mark.xdist_group("atari")
def test_one_environment_follows_the_sequence_of_the_paper(tmp_path: Path) -> None:
    """An update after every fourth step, a copy after every few updates, each step with all before it."""
    steps, copies, before = [], [], (0, np.zeros(()))
    with training(
        ASTERIX.changed(num_envs=1, groups=1, warm_up=20, copy_every=12, frames=240), tmp_path / "one"
    ) as loop:
        assert loop.suite.groups == 1
        for turn in loop.turns():
            updates, head = (
                int(turn.counts.updates[0]),
                np.array(loop.fleet.learner.target_params["head"]["w"]),
            )
            if updates > before[0]:
                steps.append(int(turn.counts.steps[0]))
            if turn.counts.turns[0] and (before[1] != head).any():
                copies.append(updates)
            before = updates, head
        assert int(loop.fleet.memory.written[0, 0]) == int(loop.counts.turns[0]) == 61
        (member,) = loop.members
        epsilon = member.schedule.epsilon_at(loop.fleet.acting.steps[0])
        assert float(epsilon) == pytest.approx(1 - 0.99 * 41 / 100)
    assert steps == list(range(24, 61, 4))
    assert copies == [3, 6, 9]


@pytest.mark.xdist_group("atari")
def test_each_environment_plays_and_stores_what_it_plays_alone(trained_loop: Loop) -> None:
    """Groups play while others wait for their actions, and the replay buffer has all of it in order."""
    memory, counts = trained_loop.fleet.memory, trained_loop.counts
    written = int(memory.written[0, 0])
    observation, action, reward, terminal, first, last = (np.asarray(x)[0, :, :written] for x in memory[:6])
    assert written == counts.turns[0] < memory.action.shape[2]
    assert counts.frames[0] == 4 * (~first).sum()
    assert counts.episodes[0] == last.sum()
    for environment in range(4):  # one in each of four groups
        alone = play(Atari("asterix", 1, 1), derived_seed(0, 0, environment), action[environment, :-1, None])
        np.testing.assert_array_equal(observation[environment], alone.observation[:, 0])
        np.testing.assert_array_equal(first[environment], alone.first[:, 0])
        np.testing.assert_array_equal(last[environment], alone.last[:, 0])
        np.testing.assert_array_equal(reward[environment, :-1], alone.reward[1:, 0])
        np.testing.assert_array_equal(terminal[environment, :-1], alone.terminal[1:, 0])
    assert terminal.any()
    assert reward.any()


@pytest.mark.xdist_group("catch")
def test_nothing_is_learned_before_each_environment_has_a_transition(tmp_path: Path) -> None:
    """A transition needs a full stack of observations, and one observation after it."""
    with training(CATCH.changed(warm_up=0), tmp_path / "run") as loop:
        turn = next(turn for turn in loop.turns() if turn.counts.updates.any())
        metrics = np.concatenate([np.asarray(metrics)[0] for _, metrics in turn.metrics], 1)
        assert turn.counts.steps.tolist() == [3 * 16]
    assert (Metrics(*metrics).gradient_norm > 0).all()


@pytest.mark.xdist_group("catch")
def test_the_loop_yields_once_before_the_first_turn_and_then_after_each(tmp_path: Path) -> None:
    with training(CATCH.changed(frames=160), tmp_path / "run") as loop:
        counted = [
            (int(turn.counts.turns[0]), int(turn.counts.frames[0]), bool(turn.active[0]))
            for turn in loop.turns()
        ]
    assert counted[0] == (0, 0, True)
    assert counted[-1][1:] == (160, False)
    assert [turns for turns, _, _ in counted] == list(range(len(counted)))
