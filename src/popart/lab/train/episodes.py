"""Episodes of a trained agent, and their scores."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from threading import Event

import jax
import numpy as np

from popart.lab.dqn import acting, replay
from popart.lab.dqn.config import AgentConfig
from popart.lab.dqn.learner import Policy, values
from popart.lab.dqn.networks import Network, Params
from popart.lab.dqn.replay import Replay
from popart.lab.envs.timestep import Environments, Scores, TimeStep
from popart.lab.progress import Advance


@dataclass
class Player:
    """A policy that plays some environments, with a replay buffer that is just long enough for stacks."""

    network: Network
    environments: Environments
    policy: Policy
    epsilon: float
    seed: int

    def __post_init__(self) -> None:
        games = self.environments
        spec = games.spec
        self.memory = replay.init(games.number, spec.stack_size + 1, spec.shape, spec.dtype)
        self.key = jax.random.key(self.seed)
        self.action = np.zeros(games.number, np.int32)
        games.reset(self.seed)

    def step(self) -> TimeStep:
        """Return the current time step of the environments, and act on it."""
        seen = self.environments.receive()
        self.memory, self.key, action = _observe(
            self.network,
            self.environments.spec.stack_size,
            self.memory,
            self.key,
            self.policy.params,
            self.epsilon,
            seen,
        )
        self.action = np.asarray(action)
        self.environments.send(self.action)
        return seen

    def values(self, config: AgentConfig) -> np.ndarray:
        """Return Q of the newest observations in the units of the rewards, (environments, actions)."""
        return np.asarray(
            _values(config, self.network, self.environments.spec.stack_size, self.policy, self.memory)
        )


class FirstEpisodes:
    """Scores of the first episode in each of a player's environments.

    Only the first episodes count, because among all that end within a given time short ones are too frequent.
    """

    def __init__(self, player: Player, rewards: Counter[float] | None = None) -> None:
        """Play with a player; `rewards` counts how often each reward other than 0 was received."""
        self.player, self.rewards, number = player, rewards, player.environments.number
        self.scores, self.over = np.zeros(number), np.zeros(number, bool)
        self._now = Scores(number)

    def step(self) -> int:
        """Play a step, and return how many of the episodes ended."""
        seen = self.player.step()
        self._now.add(seen)
        if self.rewards is not None:
            received = np.asarray(seen.reward, float)[~self.over]
            self.rewards.update(received[received != 0].tolist())
        self.scores = np.where(self.over, self.scores, self._now.now)
        ended = np.asarray(seen.last) & ~self.over
        self.over |= ended
        if self.over.all():
            self.player.environments.receive()
        return int(ended.sum())


def first_episodes(
    players: Sequence[Player],
    advance: Advance | None = None,
    stop: Event | None = None,
    rewards: Counter[float] | None = None,
) -> list[float] | None:
    """Return the score of the first episode in each environment of each player; None if interrupted.

    A player stops when all of its episodes are over, so that the last ones do not wait for others. `rewards`
    counts how often each reward other than 0 was received in these episodes.
    """
    episodes = [FirstEpisodes(player, rewards) for player in players]
    playing, frames = episodes, 0
    while playing:
        if stop and stop.is_set():
            return None
        ended = sum(each.step() for each in playing)
        frames += players[0].environments.spec.frames_per_step
        if advance:
            advance(ended, f"frame {frames:,}")
        playing = [each for each in playing if not each.over.all()]
    return [score for each in episodes for score in each.scores.tolist()]


@partial(jax.jit, static_argnums=(0, 1), donate_argnums=2)
def _observe(
    network: Network,
    stack_size: int,
    memory: Replay,
    key: jax.Array,
    params: Params,
    epsilon: float,
    seen: TimeStep,
) -> tuple[Replay, jax.Array, jax.Array]:
    key, now = jax.random.split(key)
    memory, action = acting.observe(network, params, memory, seen, epsilon, now, stack_size)
    return memory, key, action


@partial(jax.jit, static_argnums=(0, 1, 2))
def _values(
    config: AgentConfig, network: Network, stack_size: int, policy: Policy, memory: Replay
) -> jax.Array:
    return values(config, network, policy.params, policy.statistics, replay.newest(memory, stack_size))
