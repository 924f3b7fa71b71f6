"""Evaluations count the first episode of each environment, and no more than these are played."""

import jax
import numpy as np

from popart.lab.dqn.replay import Seen
from popart.lab.train import Train
from popart.lab.train.playing import Player, Policy, first_episodes, make

CARTPOLE = Train("cartpole", device="cpu")


def test_evaluation_takes_the_first_episode_of_each_environment() -> None:
    """CartPole's are of very different lengths, which are their scores."""
    games = make(CARTPOLE, 8, training=False)
    network = games.network("float32")
    policy = Policy(network.init(jax.random.key(3)), None)
    found = first_episodes([Player(network, games, policy, 0.5, seed=7)])
    again = Player(network, games, policy, 0.5, seed=7)
    lengths, over = np.zeros(8), np.zeros(8, bool)
    while not over.all():
        seen = again.step()
        lengths += np.where(over, 0, seen.reward)
        over |= np.asarray(seen.last)
    assert found == lengths.tolist()
    assert len(set(lengths)) > 3


def test_a_group_whose_episodes_are_over_plays_no_more() -> None:
    network = make(CARTPOLE, 1, training=False).network("float32")
    policy, stepped = Policy(network.init(jax.random.key(3)), None), [0, 0, 0]

    class Counting(Player):
        def step(self) -> Seen:
            stepped[self.seed] += 1
            return super().step()

    players = [Counting(network, make(CARTPOLE, 2, training=False), policy, 0.5, seed) for seed in range(3)]
    ended: list[float] = []

    def advance(amount: float, doing: str | None = None) -> None:
        ended.append(amount)

    together = first_episodes(players, advance)
    assert together
    longest = np.max(np.reshape(together, (3, 2)), axis=1)
    assert stepped == (longest + 1).tolist()  # what is seen first has no reward
    assert len(set(stepped)) == 3
    assert sum(ended) == 6
    for player, scores in zip(players, np.reshape(together, (3, 2)).tolist(), strict=True):
        assert first_episodes([Player(network, player.environments, policy, 0.5, player.seed)]) == scores
