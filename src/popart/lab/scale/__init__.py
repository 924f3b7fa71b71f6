"""The point of the paper on small games: returns do not depend on the size of rewards."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, NamedTuple

import tyro

from popart.lab.checks import check_grid, check_names, check_seed, check_whole


class Small(NamedTuple):
    """A small game: its name in gymnax, what to call it, and how many steps an agent needs to learn it."""

    name: str
    label: str
    steps: int


GAMES = {
    "cartpole": Small("CartPole-v1", "CartPole", 50_000),
    "catch": Small("Catch-bsuite", "Catch", 20_000),
    "breakout": Small("Breakout-MinAtar", "Breakout (MinAtar)", 30_000),
    "space_invaders": Small("SpaceInvaders-MinAtar", "Space Invaders (MinAtar)", 30_000),
}

AGENTS = {"unclipped": "Double DQN", "clipped": "with clipping", "popart": "with Pop-Art"}

SCALES = tuple(10.0**k for k in range(-8, 9, 4))

_Scales = Annotated[
    tuple[float, ...], tyro.conf.arg(help_behavior_hint="(default: 10^-8, 10^-4, 1, 10^4, 10^8)")
]


@dataclass(frozen=True)
class Scale:
    """Double DQN with and without Pop-Art, and with clipping, on small games with rewards of any size.

    The same agent with the same settings learns each game with its rewards multiplied by each of the
    scales. Without Pop-Art it learns at some of them; with it, at all.
    """

    games: tuple[str, ...] = tuple(GAMES)
    """Which to play: cartpole, catch, breakout, space_invaders."""

    agents: tuple[str, ...] = tuple(AGENTS)
    """unclipped: Double DQN on true rewards; clipped: rewards and errors clipped to [-1, 1]; popart: on true
    rewards, with Pop-Art."""

    scales: _Scales = SCALES
    """By what rewards are multiplied."""

    seeds: int = 3
    """How many agents learn in each case."""

    steps: int | None = None
    """How many steps each agent plays; by default as many as the game needs."""

    seed: int = 0
    """The first of the seeds."""

    out: Path = Path("runs/scale")
    """The run's folder. If it holds part of this run, that is gone on with."""

    def __post_init__(self) -> None:
        check_names("games", self.games, GAMES)
        check_names("agents", self.agents, AGENTS)
        check_grid("scales", self.scales)
        check_whole("seeds", self.seeds, 1)
        check_seed(self.seed)
        if self.steps is not None:
            check_whole("steps", self.steps, 2000)

    def steps_of(self, game: str) -> int:
        return self.steps or GAMES[game].steps

    def run(self) -> Path:
        from popart.lab.scale.experiment import run

        return run(self)
