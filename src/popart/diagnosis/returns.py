"""Discounted returns of a stream of rewards."""

import numpy as np

from popart.diagnosis.measures import Floats


def discounted_returns(rewards: Floats, discount: float, ends: Floats | None = None) -> Floats:
    """Return G_t = R_t + γ G_{t+1}, where G_{t+1} is 0 after the end of an episode and after the last reward.

    The first axis is time; other axes are independent streams.
    """
    if not 0 <= discount <= 1:
        raise ValueError(f"discount is {discount!r}; it must be in [0, 1]")
    factors = np.full(rewards.shape, discount) if ends is None else discount * (ends == 0)
    returns = np.empty_like(rewards)
    if rewards.ndim == 1:  # Python's numbers are ten times as fast as NumPy's
        total, all_rewards, all_factors = 0.0, rewards.tolist(), factors.tolist()
        for t in range(len(all_rewards) - 1, -1, -1):
            total = all_rewards[t] = all_rewards[t] + all_factors[t] * total
        return np.array(all_rewards)
    following = np.zeros(rewards.shape[1:])
    for t in range(len(rewards) - 1, -1, -1):
        following = returns[t] = rewards[t] + factors[t] * following
    return returns
