"""`popart regression`: its settings."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from popart.lab.checks import check_grid, check_names, check_seed, check_whole
from popart.lab.experiments.regression.methods import METHODS

SMOOTH = 10
"""Consecutive samples that become one point of a learning curve."""

GRID = tuple(10 ** (k / 2) for k in range(-10, 1))
"""The paper's grid of learning rates and step sizes: 10^-5, 10^-4.5, ..., 1."""

_Grid = Annotated[tuple[float, ...], tyro.conf.arg(help_behavior_hint="(default: 10^-5, 10^-4.5, ..., 1)")]


@dataclass(frozen=True)
class Regression:
    """Learn integers from their binary digits online, with rare large targets (Section 3, Fig. 1a).

    Every pair of learning rate and step size in the grid is tried for every method, and the best pair is
    shown. By default all methods are compared; for the paper's three curves alone give
    --methods sgd art popart.
    """

    methods: tuple[str, ...] = tuple(METHODS)
    """Methods to compare. The paper's are sgd, art and popart. Variants end in -rmsprop (another optimizer),
    -adopting (statistics initialised with the first target), or -percentiles, -expectiles or -extremes (other
    statistics than mean and variance)."""

    alphas: _Grid = GRID
    """Learning rates α of the network to try."""

    betas: _Grid = GRID
    """Step sizes β of the statistics to try."""

    samples: int = 5000
    """Samples per repetition; every 1000th target is the large one."""

    repetitions: int = 50
    """Repetitions of each pair in the grid, each with its own data and initial weights."""

    seed: int = 0
    """Random seed. The same seed gives the same results, to the bit, on the same machine."""

    out: Path = Path("runs/regression")
    """Run folder. An interrupted run in it is resumed."""

    def __post_init__(self) -> None:
        check_names("methods", self.methods, METHODS)
        check_grid("alphas", self.alphas)
        check_grid("betas", self.betas, 1)
        check_whole("samples", self.samples, SMOOTH, SMOOTH)
        check_whole("repetitions", self.repetitions, 1)
        check_seed(self.seed)

    def run(self) -> Path:
        from popart.lab.experiments.regression.run import run

        return run(self)
