"""`popart scale`: its settings."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from popart.lab.checks import MOST, check_grid, check_names, check_whole
from popart.lab.envs.games import SMALL

GAMES = {name.removeprefix("minatar_"): game for name, game in SMALL.items()}

AGENTS = {"unclipped": "Double DQN", "clipped": "with clipping", "popart": "with Pop-Art"}

SCALES = tuple(10.0**k for k in range(-8, 9, 4))

_Scales = Annotated[
    tuple[float, ...], tyro.conf.arg(help_behavior_hint="(default: 10^-8, 10^-4, 1, 10^4, 10^8)")
]


@dataclass(frozen=True)
class Scale:
    """Train agents on small games with rewards multiplied by very different scales.

    Double DQN without clipping, with clipping and with Pop-Art learns each game at each scale, always with
    the same hyperparameters. Only with Pop-Art does it learn at all scales.
    """

    games: tuple[str, ...] = tuple(GAMES)
    """Games to play: cartpole, catch, breakout, space_invaders."""

    agents: tuple[str, ...] = tuple(AGENTS)
    """Agents to train. unclipped: Double DQN on unclipped rewards; clipped: rewards and errors clipped to
    [-1, 1]; popart: Double DQN on unclipped rewards with Pop-Art."""

    scales: _Scales = SCALES
    """Factors by which rewards are multiplied."""

    seeds: int = 3
    """Number of random seeds for each game, agent and scale."""

    steps: int | None = None
    """Environment steps of each agent. By default as many as the game needs, 20,000 to 50,000."""

    seed: int = 0
    """The first random seed."""

    out: Path = Path("runs/scale")
    """Run folder. An interrupted run in it is resumed."""

    def __post_init__(self) -> None:
        check_names("games", self.games, GAMES)
        check_names("agents", self.agents, AGENTS)
        check_grid("scales", self.scales)
        check_whole("seeds", self.seeds, 1)
        check_whole("seed", self.seed, 0, most=MOST - self.seeds)
        if self.steps is not None:
            check_whole("steps", self.steps, 2000)

    def steps_of(self, game: str) -> int:
        return self.steps or GAMES[game].steps

    def run(self) -> Path:
        from popart.lab.experiments.reward_scale.run import run

        return run(self)
