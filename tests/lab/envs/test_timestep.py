"""Scores of episodes, and seeds derived from others."""

import numpy as np

from popart.lab.envs.timestep import Scores, TimeStep, derived_seed


def test_scores_are_sums_from_the_first_to_the_last_step() -> None:
    """Two environments; a lost life ends no episode, and an interrupted episode is forgotten."""
    table = [  # reward, terminal, first, last of each; scores of the episodes that ended
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
    for *each, scores in table:
        reward, *flags = np.array(each).T
        terminal, first, last = (flag.astype(bool) for flag in flags)
        ended = adding.add(TimeStep(np.zeros(2), reward.astype(np.float32), terminal, first, last))
        assert adding.now[ended].tolist() == scores
    assert adding.now.tolist() == [0, 6]


def test_scores_have_the_shape_of_the_environments() -> None:
    adding = Scores((2, 3))
    no, reward = np.zeros((2, 3), bool), np.arange(6).reshape(2, 3)
    last = reward == 4
    assert adding.add(TimeStep(no, reward, no, no, last)).tolist() == last.tolist()
    assert adding.now.tolist() == reward.tolist()


def test_derived_seeds_differ_and_fit_a_signed_integer() -> None:
    seeds = [derived_seed(a, b) for a in (0, 1, 2**32 - 1) for b in range(100)]
    assert len(set(seeds)) == 300
    assert all(0 <= seed < 2**31 for seed in seeds)
    assert derived_seed(0, 1) == derived_seed(0, 1) != derived_seed(1, 0)
