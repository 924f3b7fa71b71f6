"""Atari: how agents that were trained play it, and the paper's own scores."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal, Self

import tyro

from popart.lab.checks import check_between, check_whole


@dataclass(frozen=True)
class Paper:
    """The paper's scores on 57 Atari games, Fig. 2 and the headline figures, recomputed from its table."""

    out: Path = Path("runs/paper")
    """The run's folder."""

    def run(self) -> Path:
        from popart.lab.atari.paper import run

        return run(self)


@dataclass(frozen=True)
class Evaluate:
    """Evaluate a trained agent as the paper does: 100 episodes of up to 30 minutes, beside its scores."""

    run_folder: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """The folder of a run of `popart train`."""

    which: Literal["best", "last"] = "best"
    """Which agent of the run: the best in its evaluations, or the last."""

    episodes: int = 100
    """All are played at once, each in an environment of its own."""

    epsilon: float = 0.01
    """The part of random actions."""

    seed: int = 0

    threads: int | None = None
    """That emulate. (default: one per core)"""

    device: Literal["auto", "cpu", "gpu"] = "auto"
    """What computes: a GPU if there is one, or what is asked for."""

    out: tyro.conf.Suppress[Path] = Path()

    def __post_init__(self) -> None:
        check_whole("episodes", self.episodes, 1)
        check_whole("seed", self.seed, 0)
        if self.threads is not None:
            check_whole("threads", self.threads, 1)
        check_between("epsilon", self.epsilon, 0, 1)

    def at(self, out: Path) -> Self:
        return replace(self, out=out)

    def run(self) -> Path:
        from popart.lab.atari.evaluate import run

        return run(self)
