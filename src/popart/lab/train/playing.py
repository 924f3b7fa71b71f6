"""Agents that were trained, and how well they play."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from threading import Event
from typing import Any, NamedTuple

import jax
import numpy as np

from popart.lab.dqn import agent, replay
from popart.lab.dqn.learner import Settings, values
from popart.lab.dqn.networks import Network, Params
from popart.lab.dqn.replay import Replay, Seen
from popart.lab.environments import Environments, Scores
from popart.lab.progress import Advance
from popart.lab.train import SMALL, Train


def make(
    settings: Train, number: int, threads: int | None = None, *, training: bool, **options: Any
) -> Environments:
    """Environments of the game that the settings ask for, to train in or to evaluate in."""
    if not settings.is_atari:
        from popart.lab.scale.environment import SmallGame

        return SmallGame(SMALL[settings.game].name, number)
    from popart.lab.atari.environment import Atari

    return Atari(
        settings.game,
        number,
        threads,
        sticky=settings.sticky,
        undo_wraps=settings.undo_wraps,
        life_loss=training,
        **options,
    )


def seed(*of: int) -> int:
    """A seed for each list of numbers, such as a run's seed and a group's number."""
    return int(np.random.SeedSequence(of).generate_state(1)[0] >> 1)


class Policy(NamedTuple):
    """What plays: parameters, and the statistics that they are normalised with."""

    params: Params
    statistics: Any


@dataclass
class Player:
    """A policy in some environments, with a memory that is just long enough."""

    network: Network
    environments: Environments
    policy: Policy
    epsilon: float
    seed: int

    def __post_init__(self) -> None:
        games = self.environments
        self.memory = replay.init(games.number, games.stacked + 1, games.shape, games.dtype)
        self.key = jax.random.key(self.seed)
        self.action = np.zeros(games.number, np.int32)
        games.start(self.seed)

    def step(self) -> Seen:
        """What is seen now. It is acted upon."""
        seen = self.environments.receive()
        self.memory, self.key, action = _observe(
            self.network,
            self.environments.stacked,
            self.memory,
            self.key,
            self.policy.params,
            self.epsilon,
            seen,
        )
        self.action = np.asarray(action)
        self.environments.send(self.action)
        return seen

    def values(self, settings: Settings) -> np.ndarray:
        """Q of what was seen last, in the units of the rewards, (environments, actions)."""
        return np.asarray(
            _values(settings, self.network, self.environments.stacked, self.policy, self.memory)
        )


class FirstEpisodes:
    """The scores so far of the first episode in each of a player's environments.

    First ones, because among those that end within some time short ones are too many.
    """

    def __init__(self, player: Player) -> None:
        self.player, number = player, player.environments.number
        self.scores, self.over = np.zeros(number), np.zeros(number, bool)
        self._now = Scores(number)

    def step(self) -> int:
        """How many of them ended."""
        seen = self.player.step()
        self._now.add(seen)
        self.scores = np.where(self.over, self.scores, self._now.now)
        ended = np.asarray(seen.last) & ~self.over
        self.over |= ended
        if self.over.all():
            self.player.environments.receive()
        return int(ended.sum())


def first_episodes(
    players: Sequence[Player], advance: Advance | None = None, stop: Event | None = None
) -> list[float] | None:
    """The score of the first episode in each environment of each player; None if it was stopped.

    A player stops when all of its episodes are over, so that the last ones need not wait for others.
    """
    episodes = [FirstEpisodes(player) for player in players]
    playing, frames = episodes, 0
    while playing:
        if stop and stop.is_set():
            return None
        ended = sum(each.step() for each in playing)
        frames += players[0].environments.frames
        if advance:
            advance(ended, f"frame {frames:,}")
        playing = [each for each in playing if not each.over.all()]
    return [score for each in episodes for score in each.scores.tolist()]


@partial(jax.jit, static_argnums=(0, 1), donate_argnums=2)
def _observe(
    network: Network,
    stacked: int,
    memory: Replay,
    key: jax.Array,
    params: Params,
    epsilon: float,
    seen: Seen,
) -> tuple[Replay, jax.Array, jax.Array]:
    key, now = jax.random.split(key)
    memory, action = agent.observe(network, params, memory, seen, epsilon, now, stacked)
    return memory, key, action


@partial(jax.jit, static_argnums=(0, 1, 2))
def _values(settings: Settings, network: Network, stacked: int, policy: Policy, memory: Replay) -> jax.Array:
    return values(settings, network, policy.params, policy.statistics, replay.newest(memory, stacked))
