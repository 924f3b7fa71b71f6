"""The commands `popart evaluate` and `popart watch`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from popart.lab.checks import check_between, check_positive, check_seed, check_whole


@dataclass(frozen=True)
class _Trained:
    """Options about the agent that plays."""

    run_folder: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Folder of a run of `popart train`."""

    which: Literal["best", "last"] = "best"
    """Agent of the run: the one with the best evaluation in training, or the last one."""

    epsilon: float = 0.01
    """Probability of a random action."""

    seed: int = 0
    """Random seed."""

    device: Literal["auto", "cpu", "gpu"] = "auto"
    """Device that computes; auto: a GPU if there is one."""

    def __post_init__(self) -> None:
        check_between("epsilon", self.epsilon, 0, 1)
        check_seed(self.seed)

    def check_run(self) -> None:
        """Refuse a folder that is not a run before JAX is loaded, which takes seconds."""
        from popart.lab.manifest import read_manifest

        read_manifest(self.run_folder)


@dataclass(frozen=True)
class Evaluate(_Trained):
    """Evaluate a trained agent as in the paper: 100 episodes of at most 30 minutes, beside its scores."""

    episodes: int = 100
    """Number of episodes. All are played at the same time, each in its own environment."""

    large_rewards: float = 200.0
    """Smallest reward, in points, that counts as large in the share of points from large rewards."""

    threads: Annotated[
        int | None, tyro.conf.arg(help_behavior_hint="(default: one per core)", metavar="INT")
    ] = None
    """Number of threads used for emulation."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole("episodes", self.episodes, 1)
        check_positive("large_rewards", self.large_rewards)
        if self.threads is not None:
            check_whole("threads", self.threads, 1)

    def run(self) -> Path:
        self.check_run()
        from popart.lab.play.evaluate import run

        return run(self)


@dataclass(frozen=True)
class Watch(_Trained):
    """Film one episode of an agent trained on Atari, with its Q-values and Pop-Art's σ and μ, as MP4."""

    beside: Annotated[Path | None, tyro.conf.arg(help_behavior_hint="(default: none)", metavar="RUN")] = None
    """Another run of the same game, filmed beside it with the same seed."""

    frames: int = 108_000
    """Longest video in game frames; the default is the longest possible episode, 30 minutes."""

    out: Annotated[
        Path | None,
        tyro.conf.arg(
            help_behavior_hint="(default: RUN/watch.mp4; RUN/watch-beside-OTHER.mp4 with --beside)",
            metavar="PATH",
        ),
    ] = None
    """Path of the video; an existing one is replaced."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole("frames", self.frames, 4)
        if self.out is not None and self.out.suffix != ".mp4":
            raise ValueError(f"out is '{self.out}'; it must end in .mp4")

    def run(self) -> Path:
        self.check_run()
        from popart.lab.play.watch import run

        return run(self)
