"""`popart scale`: its settings."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from popart.lab.checks import MOST, check_grid, check_names, check_whole
from popart.lab.envs.games import GAMES, small_names

PAPER_GAMES = ("cartpole", "catch", "breakout", "space_invaders")

METHODS = {
    "unclipped": "Double DQN",
    "clipped": "with clipping",
    "popart": "with Pop-Art",
    "unclipped_adam": "Double DQN, Adam",
    "popart_adam": "with Pop-Art, Adam",
    "art": "Art without Pop",
    "scale_only": "scale only",
    "vecnormalize": "VecNormalize",
    "return_scaling": "return-based scaling",
    "percentile_span": "percentile span",
    "h": "h(x)",
    "symlog": "symlog",
    "two_hot": "two-hot, symlog bins",
    "hl_gauss": "HL-Gauss",
    "adaptive_bins": "HL-Gauss, normalised bins",
}
"""The label of each method; a file of the same name in `popart.lab.dqn.methods` defines it."""

AGENTS = ("unclipped", "clipped", "popart")
"""The methods of the paper's comparison."""

CASES = {
    "steady": "rewards as they are",
    "grows": "rewards grow by 10⁴ in the middle of training",
    "shrinks": "rewards shrink by 10⁴ in the middle of training",
    "rare": "one reward in a hundred is 1,000 times as large",
    "constant": "in the first half of training every reward is 1",
}
"""Cases: how rewards change, apart from their scale (`cases.change`)."""

SCALES = tuple(10.0**k for k in range(-8, 9, 4))

RATE = 1e-3
RATES = (1e-4, 3e-4, RATE, 3e-3, 1e-2)
"""The learning rate of all methods, and those to choose from with `--tuned`."""

TUNING_SEEDS = 3
"""Random seeds with which the learning rate is chosen; they differ from those of the results."""


def best_rate(rows: Sequence[Mapping[str, Any]]) -> float:
    """Return the learning rate with the highest mean return."""
    returns: dict[float, list[float]] = {}
    for row in rows:
        returns.setdefault(float(row["rate"]), []).append(float(row["return"]))
    return max(returns, key=lambda rate: sum(returns[rate]) / len(returns[rate]))


QUICK = {"games": ("catch",), "scales": (1e-8, 1.0, 1e8), "seeds": 1, "steps": 20_000}
"""Fewer steps than Catch needs would show which methods are slow at the common learning rate, and no more."""

_Scales = Annotated[
    tuple[float, ...], tyro.conf.arg(help_behavior_hint="(default: 10^-8, 10^-4, 1, 10^4, 10^8)")
]

_Methods = Annotated[
    tuple[str, ...],
    tyro.conf.arg(
        help="Methods to compare, or all. "
        + "; ".join(f"{name}: {label}" for name, label in METHODS.items())
        + ". docs/explanation/which-normalisation.md describes them."
    ),
]


@dataclass(frozen=True)
class Scale:
    """Train agents on small games with rewards multiplied by very different scales.

    Double DQN without clipping, with clipping and with Pop-Art learns each game at each scale, always with
    the same hyperparameters. Of these three, only the one with Pop-Art learns at all scales. --methods all
    compares other methods for rewards of unknown size, too.
    """

    games: tuple[str, ...] = PAPER_GAMES
    """Games to play: cartpole, catch, and MinAtar's breakout, space_invaders, asterix and freeway, also with
    their names in popart train, such as minatar_breakout."""

    methods: _Methods = AGENTS
    """Methods to compare, or all; see `METHODS`."""

    scales: _Scales = SCALES
    """Factors by which rewards are multiplied."""

    cases: tuple[str, ...] = ("steady",)
    """How rewards change. steady: they do not; grows, shrinks: by 10⁴ in the middle of training; rare: one in
    a hundred is 1,000 times as large; constant: all are 1 in the first half of training."""

    seeds: int = 3
    """Number of random seeds for each game, method and scale."""

    steps: Annotated[
        int | None,
        tyro.conf.arg(
            help_behavior_hint="(default: as many as the game needs, 20,000 to 50,000)", metavar="INT"
        ),
    ] = None
    """Environment steps of each agent."""

    tuned: bool = False
    """Also train each method with the learning rate of --rates that is best for it at a scale of 1 with
    three other random seeds, if that is not 0.001."""

    rates: tuple[float, ...] = RATES
    """Learning rates to choose from with --tuned."""

    quick: bool = False
    """Take a first look, with other defaults: catch alone, 20,000 steps, the scales 10^-8, 1 and 10^8, and
    one random seed."""

    seed: int = 0
    """The first random seed."""

    out: Path = Path("runs/scale")
    """Run folder. An interrupted run in it is resumed."""

    def __post_init__(self) -> None:
        if self.methods == ("all",):
            object.__setattr__(self, "methods", tuple(METHODS))
        for name, value in QUICK.items() if self.quick else ():
            if getattr(self, name) == getattr(Scale, name):
                object.__setattr__(self, name, value)
        object.__setattr__(self, "games", small_names(self.games))
        check_names("games", self.games, GAMES)
        check_names("methods", self.methods, METHODS)
        check_grid("scales", self.scales)
        check_names("cases", self.cases, CASES)
        check_grid("rates", self.rates)
        if self.rates != RATES and not self.tuned:
            raise ValueError(f"rates is {self.rates}, and --tuned is not given, which chooses from them")
        check_whole("seeds", self.seeds, 1)
        check_whole("seed", self.seed, 0, most=MOST - self.seeds - TUNING_SEEDS)
        if self.steps is not None:
            check_whole("steps", self.steps, 2000)

    def steps_of(self, game: str) -> int:
        return self.steps or GAMES[game].steps

    def run(self) -> Path:
        from popart.lab.experiments.reward_scale.run import run

        return run(self)
