"""Atari as the paper plays it: every fourth frame, grey, 84 x 84, up to 30 no-ops, at most 30 minutes."""

from typing import Any

import numpy as np
from ale_py.vector_env import AtariVectorEnv

from popart.lab.dqn.networks import Nature
from popart.lab.dqn.replay import Seen
from popart.lab.machine import cores, giving_way

NO_OPS = 30
EPISODE = 108_000
"""Frames: 30 minutes."""

WRAPPED = -50_000
"""No game takes away as much at a time: a score below went past its last digit and began again at 0."""


class Atari:
    """Several environments of one game. Emulators do not tell their state: they can only start anew.

    Args:
        game: its name in ALE, such as ms_pacman.
        number: how many environments.
        threads: that emulate; by default one per core.
        sticky: the probability that the last action is repeated instead of the one that was chosen.
        life_loss: whether nothing that comes after the loss of a life counts (in training).
        undo_wraps: whether the reward of a score that wrapped around is what it would have been.
        episode: frames after which an episode is cut.
    """

    shape: tuple[int, ...] = (84, 84)
    dtype = np.uint8
    stacked = 4
    frames = 4

    def __init__(
        self,
        game: str,
        number: int,
        threads: int | None = None,
        *,
        sticky: float = 0.0,
        life_loss: bool = True,
        undo_wraps: bool = False,
        episode: int = EPISODE,
        **screen: Any,
    ) -> None:
        with giving_way():
            self._env = AtariVectorEnv(
                game,
                number,
                num_threads=min(threads or cores(), number),
                max_num_frames_per_episode=episode,
                repeat_action_probability=sticky,
                reward_clipping=False,
                use_fire_reset=False,
                noop_max=NO_OPS + 1,  # it has this many or fewer, without this many itself
                stack_num=1,
                **screen,
            )
        self.number = number
        self.names = [action.name for action in self._env.ale.get_action_set()]
        self.wraps = 0
        self._life_loss, self._undo_wraps = life_loss, undo_wraps
        self._first: Seen | None = None
        self._under_way = False
        self._over = np.zeros(number, bool)
        self._lives = np.zeros(number, np.int32)

    def start(self, seed: int) -> None:
        if self._under_way:  # or it would be taken for what comes of the reset
            self._receive()
        observation, info = self._env.reset(seed=seed % (2**31 - self.number))  # each has its own, a C int
        no = np.zeros(self.number, bool)
        self._over, self._lives = no, info["lives"]
        self._first = Seen(observation[:, 0], np.zeros(self.number, np.float32), no, start=~no, last=no)

    def receive(self) -> Seen:
        if self._first is not None:
            first, self._first = self._first, None
            return first
        observation, reward, ended, cut, info = self._receive()
        start, lives = self._over, info["lives"]
        lost = (lives < self._lives) & self._life_loss
        self._over, self._lives = (ended | cut) & ~start, lives
        reward = self._unwrapped(reward.astype(np.float32))
        return Seen(observation[:, 0], reward, (ended | lost) & ~start, start, self._over)

    def _receive(self) -> Any:
        self._under_way = False
        return self._env.recv()

    def _unwrapped(self, reward: np.ndarray) -> np.ndarray:
        wrapped = reward < WRAPPED
        if not wrapped.any():
            return reward
        self.wraps += int(wrapped.sum())
        return unwrap(reward) if self._undo_wraps else reward

    def send(self, action: np.ndarray) -> None:
        self._env.send(action)
        self._under_way = True

    def network(self, dtype: str) -> Nature:
        return Nature(len(self.names), dtype)

    def close(self) -> None:
        del self._env  # its own `close` leaves threads and memory as they are


def unwrap(reward: np.ndarray) -> np.ndarray:
    """Rewards as they would be if scores had more digits: from 999,900 to 50 is 150, not -999,850."""
    digits = 10.0 ** np.ceil(np.log10(np.maximum(-reward, 1)))
    return np.where(reward < WRAPPED, reward + digits, reward).astype(np.float32)
