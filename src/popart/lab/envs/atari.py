"""Atari as the paper plays it: every fourth frame, grey, 84 x 84, up to 30 no-ops, at most 30 minutes."""

from typing import Any

import numpy as np
from ale_py.vector_env import AtariVectorEnv

from popart.lab.envs.timestep import Spec, TimeStep
from popart.lab.machine import cores, low_priority_threads

NO_OPS = 30
EPISODE_FRAMES = 108_000
"""The longest episode: 30 minutes."""

OVERFLOW = -50_000
"""No game takes away this many points at once: a reward below it means that the score overflowed to 0."""

SPEC = Spec((84, 84), np.uint8, stack_size=4, frames_per_step=4)


class Atari:
    """Several environments of one game in this process. Emulators cannot be saved, only reset.

    Args:
        game: its name in ALE, such as ms_pacman.
        number: number of environments.
        threads: number of threads that emulate; default: one per core.
        sticky: probability that the last action is repeated instead of the chosen one.
        life_loss: whether the loss of a life is terminal (in training).
        undo_overflow: whether the reward of a score overflow is corrected.
        episode_frames: frames after which an episode is truncated.
    """

    spec = SPEC

    def __init__(
        self,
        game: str,
        number: int,
        threads: int | None = None,
        *,
        sticky: float = 0.0,
        life_loss: bool = True,
        undo_overflow: bool = False,
        episode_frames: int = EPISODE_FRAMES,
        **screen: Any,
    ) -> None:
        with low_priority_threads():
            self._env = AtariVectorEnv(
                game,
                number,
                num_threads=min(threads or cores(), number),
                max_num_frames_per_episode=episode_frames,
                repeat_action_probability=sticky,
                reward_clipping=False,
                use_fire_reset=False,
                noop_max=NO_OPS + 1,  # exclusive
                stack_num=1,
                **screen,
            )
        self.number = number
        self.names = [action.name for action in self._env.ale.get_action_set()]
        self.actions = len(self.names)
        self.overflows = 0
        self._life_loss, self._undo_overflow = life_loss, undo_overflow
        self._first: TimeStep | None = None
        self._stepping = False
        self._last = np.zeros(number, bool)
        self._lives = np.zeros(number, np.int32)

    def reset(self, seed: int) -> None:
        if self._stepping:  # its result would be mistaken for that of the reset
            self._receive()
        seed %= 2**31 - self.number  # the i-th has seed + i, which must fit a C int
        observation, info = self._env.reset(seed=seed)
        no = np.zeros(self.number, bool)
        self._last, self._lives = no, info["lives"]
        self._first = TimeStep(observation[:, 0], np.zeros(self.number, np.float32), no, first=~no, last=no)

    def receive(self) -> TimeStep:
        if self._first is not None:
            first, self._first = self._first, None
            return first
        observation, reward, terminated, truncated, info = self._receive()
        first, lives = self._last, info["lives"]
        lost = (lives < self._lives) & self._life_loss
        self._last, self._lives = (terminated | truncated) & ~first, lives
        reward = self._checked(reward.astype(np.float32))
        return TimeStep(observation[:, 0], reward, (terminated | lost) & ~first, first, self._last)

    def _receive(self) -> Any:
        self._stepping = False
        return self._env.recv()

    def _checked(self, reward: np.ndarray) -> np.ndarray:
        overflow = reward < OVERFLOW
        if not overflow.any():
            return reward
        self.overflows += int(overflow.sum())
        return without_overflow(reward) if self._undo_overflow else reward

    def send(self, action: np.ndarray) -> None:
        self._env.send(action)
        self._stepping = True

    def close(self) -> None:
        del self._env  # its own `close` keeps threads and memory


def without_overflow(reward: np.ndarray) -> np.ndarray:
    """Correct rewards of score overflows: from 999,900 to 50 is 150, not -999,850."""
    digits = 10.0 ** np.ceil(np.log10(np.maximum(-reward, 1)))
    return np.where(reward < OVERFLOW, reward + digits, reward).astype(np.float32)
