"""Atari: how agents that were trained play it, and the paper's own scores."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal, Self

import tyro

from popart.lab.atari.games import scores
from popart.lab.checks import check_between, check_names, check_seed, check_whole

GAMES = ("boxing", "pong", "breakout", "ms_pacman", "asterix", "atlantis", "video_pinball", "battle_zone")
"""With rewards from 1 to thousands."""

ROWS = 20
"""Points of each line in the figure of gradients."""


@dataclass(frozen=True)
class Paper:
    """The paper's scores on 57 Atari games, Fig. 2 and the headline figures, recomputed from its table."""

    out: Path = Path("runs/paper")
    """The run's folder."""

    def run(self) -> Path:
        from popart.lab.atari.paper import run

        return run(self)


@dataclass(frozen=True)
class _Trained:
    """Which agent is to play, and how."""

    run_folder: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """The folder of a run of `popart train`."""

    which: Literal["best", "last"] = "best"
    """Which agent of the run: the best in its evaluations, or the last."""

    epsilon: float = 0.01
    """The part of random actions."""

    seed: int = 0

    device: Literal["auto", "cpu", "gpu"] = "auto"
    """What computes: a GPU if there is one, or what is asked for."""

    def __post_init__(self) -> None:
        check_between("epsilon", self.epsilon, 0, 1)
        check_seed(self.seed)


@dataclass(frozen=True)
class Evaluate(_Trained):
    """Evaluate a trained agent as the paper does: 100 episodes of up to 30 minutes, beside its scores."""

    episodes: int = 100
    """All are played at once, each in an environment of its own."""

    threads: Annotated[int | None, tyro.conf.arg(help_behavior_hint="(default: one per core)")] = None
    """That emulate."""

    out: tyro.conf.Suppress[Path] = Path()

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole("episodes", self.episodes, 1)
        if self.threads is not None:
            check_whole("threads", self.threads, 1)

    def at(self, out: Path) -> Self:
        return replace(self, out=out)

    def run(self) -> Path:
        from popart.lab.atari.evaluate import run

        return run(self)


@dataclass(frozen=True)
class Watch(_Trained):
    """Film one episode of an agent trained on Atari, with its Q-values and Pop-Art's σ and μ, as MP4."""

    frames: int = 108_000
    """Of the game, at most; the default is as long as an episode can be, 30 minutes."""

    out: Annotated[Path | None, tyro.conf.arg(help_behavior_hint="(default: RUN/watch.mp4)")] = None
    """Where to write the film; one that is there is replaced."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole("frames", self.frames, 4)
        if self.out is not None and self.out.suffix != ".mp4":
            raise ValueError(f"out is '{self.out}'; it must end in .mp4")

    def run(self) -> Path:
        from popart.lab.atari.watch import run

        return run(self)


@dataclass(frozen=True)
class Norms:
    """Norms of gradients on games whose rewards differ by orders of magnitude, as in Fig. 1b.

    Trains each agent on each game for a while, one after the other, in folders within the run's folder. What
    is there already is not trained again. The defaults take three quarters of an hour on two cores; a GPU can
    do with more --frames, --num-envs and --warm-up.
    """

    games: tuple[str, ...] = GAMES
    """Whose names are as for `popart train`."""

    agents: tuple[str, ...] = ("unclipped", "clipped", "popart")
    """Which agents, as for `popart train`."""

    frames: int = 24_000
    """Of each game, for each agent."""

    num_envs: int = 16
    """Environments that play at the same time."""

    warm_up: int = 1000
    """Steps at random before the first update."""

    copy_every: int = 1000
    """Steps from one copy of the network to the target network to the next."""

    seed: int = 0

    device: Literal["auto", "cpu", "gpu"] = "auto"
    """What computes: a GPU if there is one, or what is asked for."""

    out: Path = Path("runs/norms")
    """The run's folder. If it holds part of this run, that is gone on with."""

    def __post_init__(self) -> None:
        check_names("games", self.games, [score.game for score in scores()])
        check_names("agents", self.agents, ("unclipped", "clipped", "popart"))
        from popart.lab.train import Train

        Train(self.games[0], num_envs=self.num_envs, seed=self.seed, warm_up=self.warm_up)  # checks these
        check_whole("copy_every", self.copy_every, 4)
        check_whole("frames", self.frames, 4 * max(self.warm_up, 5 * self.num_envs) + 64 * ROWS)

    def run(self) -> Path:
        from popart.lab.atari.norms import run

        return run(self)
