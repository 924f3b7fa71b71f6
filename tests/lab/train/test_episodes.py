"""Evaluations count the first episode of each environment, and play no more than these."""

from threading import Event

import jax
import numpy as np
import pytest

from popart.lab.dqn.learner import Policy
from popart.lab.dqn.networks import network_for
from popart.lab.envs.small import SmallGames
from popart.lab.envs.timestep import TimeStep
from popart.lab.train.episodes import Player, first_episodes

NETWORK = network_for((4,), 2)
POLICY = Policy(NETWORK.init(jax.random.key(3)), None)

pytestmark = pytest.mark.xdist_group("cartpole")


def player(seed: int, kind: type[Player] = Player) -> Player:
    """A player of CartPole, whose episodes are of very different lengths, which are their scores."""
    return kind(NETWORK, SmallGames("CartPole-v1", 4), POLICY, 0.5, seed)


def test_an_evaluation_counts_the_first_episode_of_each_environment() -> None:
    found = first_episodes([player(7)])
    again = player(7)
    lengths, over = np.zeros(4), np.zeros(4, bool)
    while not over.all():
        seen = again.step()
        lengths += np.where(over, 0, seen.reward)
        over |= np.asarray(seen.last)
    assert found == lengths.tolist()
    assert len(set(lengths)) > 2


def test_players_whose_episodes_are_over_play_no_more() -> None:
    stepped = [0, 0, 0]

    class Counting(Player):
        def step(self) -> TimeStep:
            stepped[self.seed] += 1
            return super().step()

    ended: list[float] = []

    def advance(amount: float, doing: object = None) -> None:
        ended.append(amount)

    together = first_episodes([player(seed, Counting) for seed in range(3)], advance)
    assert together
    longest = np.max(np.reshape(together, (3, 4)), axis=1)
    assert stepped == (longest + 1).tolist()  # the first observation has no reward
    assert len(set(stepped)) == 3
    assert sum(ended) == 12
    for seed, scores in enumerate(np.reshape(together, (3, 4)).tolist()):
        assert first_episodes([player(seed)]) == scores


def test_an_interrupted_evaluation_has_no_score() -> None:
    stop = Event()
    stop.set()
    assert first_episodes([player(0)], stop=stop) is None
