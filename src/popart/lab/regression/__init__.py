"""Section 3 and Fig. 1a: what rare large targets do to online learning."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from popart.lab.checks import check_grid, check_names, check_seed, check_whole
from popart.lab.regression.methods import METHODS

SMOOTH = 10
"""How many consecutive samples are one point of a curve."""

GRID = tuple(10 ** (k / 2) for k in range(-10, 1))
"""The paper's step sizes: 10^-5, 10^-4.5, ..., 1."""

_Grid = Annotated[tuple[float, ...], tyro.conf.arg(help_behavior_hint="(default: 10^-5, 10^-4.5, ..., 1)")]


@dataclass(frozen=True)
class Regression:
    """Learn integers from their binary digits, with a rare large one in between (Section 3, Fig. 1a).

    Every step size of the grid is tried for every method, and the best one is shown. The default is
    everything; the paper's three curves alone are --methods sgd art popart.
    """

    methods: tuple[str, ...] = tuple(METHODS)
    """Which to compare: sgd, art or popart as in the paper; with -rmsprop; art or popart with our
    -adopting start, or by -percentiles, -expectiles or -extremes instead of mean and variance."""

    alphas: _Grid = GRID
    """Step sizes of the network to try."""

    betas: _Grid = GRID
    """Step sizes of the statistics to try."""

    samples: int = 5000
    """How many samples a run learns from; every 1000th is the large one."""

    repetitions: int = 50
    """How many runs, with other data and other initial weights, each setting gets."""

    seed: int = 0
    """The same seed gives the same results, to the bit, on the same machine."""

    out: Path = Path("runs/regression")
    """The run's folder. If it holds part of this run, that is gone on with."""

    def __post_init__(self) -> None:
        check_names("methods", self.methods, METHODS)
        check_grid("alphas", self.alphas)
        check_grid("betas", self.betas, 1)
        check_whole("samples", self.samples, SMOOTH, SMOOTH)
        check_whole("repetitions", self.repetitions, 1)
        check_seed(self.seed)

    def run(self) -> Path:
        from popart.lab.regression.experiment import run

        return run(self)
