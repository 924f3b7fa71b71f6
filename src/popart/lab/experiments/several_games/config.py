"""`popart tasks`: its settings."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from popart.lab.checks import MOST, check_names, check_positive, check_whole
from popart.lab.envs.games import GAMES, small_names

METHODS = {
    "unclipped": "Double DQN",
    "clipped": "with clipping",
    "symlog": "symlog",
    "vecnormalize": "VecNormalize per game",
    "art": "Art without Pop, per game",
    "one_statistic": "Pop-Art, one statistic",
    "popart": "Pop-Art, one per game",
}
"""The label of each method; but for `one_statistic` they are those of `popart scale`."""

REFERENCES = {"alone": "a network per game", "random": "random play"}
"""The label of each reference: Pop-Art with a network of its own for each game, and random actions."""

LABELS = METHODS | REFERENCES

QUICK = {"games": ("catch", "breakout"), "scales": (1.0, 1e4), "seeds": 1, "steps": 8000}

_Scales = Annotated[tuple[float, ...], tyro.conf.arg(help_behavior_hint="(default: 10^-2, 1, 10^2, 10^4)")]


@dataclass(frozen=True)
class Tasks:
    """Train one network on several small games with rewards of very different size.

    All games are learned at the same time, by Double DQN with a common body and an output layer per game.
    Pop-Art with statistics per game (multi-task Pop-Art, arXiv 1809.04474) is compared with one statistic for
    all games, with clipping, with other methods, and with a network for each game alone.
    """

    games: tuple[str, ...] = ("catch", "breakout", "space_invaders", "freeway")
    """Games to play: cartpole, catch, and MinAtar's breakout, space_invaders, asterix and freeway, also with
    their names in popart train, such as minatar_breakout."""

    scales: _Scales = (1e-2, 1.0, 1e2, 1e4)
    """Factors by which rewards are multiplied, one for each game."""

    methods: tuple[str, ...] = tuple(METHODS)
    """Methods to compare, or all. unclipped: Double DQN on unclipped rewards; clipped: rewards and errors
    clipped to [-1, 1]; symlog: transformed targets; vecnormalize: rewards divided by a running statistic of
    their game; art: normalised targets, without preserving outputs; one_statistic: Pop-Art with one scale
    and shift for all games; popart: Pop-Art with a scale and shift for each game."""

    seeds: int = 3
    """Number of random seeds for each method. A run is extended if the same command is given with more."""

    steps: int = 30_000
    """Environment steps of each game."""

    quick: bool = False
    """Take a first look, with other defaults: catch and breakout with scales of 1 and 10^4, 8,000 steps, and
    one random seed."""

    seed: int = 0
    """The first random seed."""

    out: Path = Path("runs/tasks")
    """Run folder. An interrupted run in it is resumed."""

    def __post_init__(self) -> None:
        for name, value in QUICK.items() if self.quick else ():
            if getattr(self, name) == getattr(Tasks, name):
                object.__setattr__(self, name, value)
        object.__setattr__(self, "games", small_names(self.games))
        check_names("games", self.games, GAMES)
        check_names("methods", self.methods, (*METHODS, "all"))
        if "all" in self.methods:
            object.__setattr__(self, "methods", tuple(METHODS))
        for scale in self.scales:
            check_positive("scales", scale)
        if len(self.scales) != len(self.games):
            raise ValueError(
                f"scales has {len(self.scales)} numbers and games has {len(self.games)} names; "
                "give one scale for each game"
            )
        check_whole("seeds", self.seeds, 1)
        check_whole("seed", self.seed, 0, most=MOST - self.seeds)
        check_whole("steps", self.steps, 2000)

    def run(self) -> Path:
        from popart.lab.experiments.several_games.run import run

        return run(self)
