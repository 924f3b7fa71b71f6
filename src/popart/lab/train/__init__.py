"""Agents that learn to play: Double DQN as published, on true rewards, and with Pop-Art (Section 4)."""

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

import tyro

from popart.lab.atari.games import scores
from popart.lab.checks import check_between, check_positive, check_seed, check_whole, nearest
from popart.lab.scale import GAMES

if TYPE_CHECKING:
    from popart.lab.dqn.agent import Schedule
    from popart.lab.dqn.learner import Settings

GROUPS = 4
"""Of Atari's environments, when there is more than one."""

AgentName = Literal["clipped", "unclipped", "popart"]
Device = Literal["auto", "cpu", "gpu"]


SMALL = {
    "cartpole": GAMES["cartpole"],
    "catch": GAMES["catch"],
    "minatar_breakout": GAMES["breakout"],
    "minatar_space_invaders": GAMES["space_invaders"],
}

SMALL_SETTINGS: dict[str, Any] = {
    "frames": 50_000,
    "num_envs": 8,
    "replay": 50_000,
    "warm_up": 1000,
    "exploration": 10_000,
    "epsilon": 0.05,
    "copy_every": 400,
    "beta": 1e-3,
    "step_size": 1e-3,
    "log_every": 1000,
    "evaluate_every": 10_000,
}
"""For small games, in place of settings that were left as they are for Atari."""


def _hint(default: str) -> Any:
    return tyro.conf.arg(help_behavior_hint=f"(default: {default})")


@dataclass(frozen=True)
class Train:
    """Train an agent on an Atari game, or on a small one.

    Defaults are the paper's (docs/atari.md has each with its source); a small game has its own instead.
    Ctrl-C saves and ends, and the same command goes on. With more --frames a finished run goes on, too.
    """

    game: str = "pong"
    """One of the paper's 57 games, such as ms_pacman, or cartpole, catch, minatar_breakout or
    minatar_space_invaders."""

    agent: AgentName = "popart"
    """clipped: Double DQN as published, with rewards and errors clipped to [-1, 1]; unclipped: with neither;
    popart: with neither, and with Pop-Art."""

    frames: int = 200_000_000
    """Of the game, four for each step of an agent on Atari."""

    seed: int = 0

    num_envs: int = 512
    """Environments that play at the same time, in four groups that take turns; 1 follows the paper's sequence
    step by step."""

    replay: int = 1_000_000
    """How many observations are remembered. A million takes 7.1 GB."""

    warm_up: int = 50_000
    """Steps at random before the first update."""

    exploration: int = 1_000_000
    """Steps in which epsilon falls from 1 to its end."""

    epsilon: float = 0.01
    """The part of random actions in the end."""

    copy_every: int = 30_000
    """Steps from one copy of the network to the target network to the next."""

    optimizer: Literal["rmsprop", "adam"] = "rmsprop"
    """RMSProp is centred, as DQN's; Adam has the epsilon of Rainbow's, 1.5e-4."""

    step_size: Annotated[
        float | None, _hint("of RMSProp 2.5e-4 for clipped, otherwise 1e-4; of Adam 6.25e-5")
    ] = None
    """Of the network."""

    start: Literal["dqn", "he"] = "dqn"
    """How large weights are at first: DQN's, or those of He et al., which see small things sooner."""

    beta: float = 1e-4
    """The step size of Pop-Art's statistics."""

    discount: float = 0.99
    """How much a reward counts one step later."""

    reward_scale: float = 1.0
    """By what rewards are multiplied before the agent sees them. Scores are not."""

    sticky: float = 0.0
    """The probability that an emulator repeats the last action instead; 0.25 is the modern protocol."""

    undo_wraps: bool = False
    """Whether a score that goes past its last digit gives the reward that it would have given."""

    dtype: Literal["float32", "bfloat16"] = "float32"
    """Of the convolutions. The rest is float32."""

    evaluate_every: int = 10_000_000
    """Frames from one evaluation to the next; the best agent is kept. 0: none."""

    log_every: int = 20_000
    """Frames from one row of the metrics to the next."""

    checkpoint_every: float = 300.0
    """Seconds from one checkpoint to the next."""

    save_replay: bool = True
    """Whether checkpoints have the replay. Without it, who goes on fills a new one first."""

    threads: Annotated[int | None, _hint("one per core")] = None
    """For so many cores; twice as many run, of which half wait."""

    device: Device = "auto"
    """What computes: a GPU if there is one, or what is asked for."""

    out: Annotated[Path | None, _hint("runs/GAME-AGENT-SEED")] = None
    """The run's folder. If it holds part of this run, that is gone on with."""

    FREE = ("frames", "checkpoint_every", "threads", "device")
    """Settings that may change when a run is gone on with."""

    def __post_init__(self) -> None:
        check_game(self.game)
        for name in ("frames", "num_envs", "replay", "copy_every", "log_every"):
            check_whole(name, getattr(self, name), 1)
        for name in ("warm_up", "exploration", "evaluate_every"):
            check_whole(name, getattr(self, name), 0)
        check_seed(self.seed)
        for name in ("epsilon", "discount", "sticky", "beta"):
            check_between(name, getattr(self, name), 0, 1)
        for name in ("beta", "reward_scale", "checkpoint_every"):
            check_positive(name, getattr(self, name))
        if self.step_size is not None:
            check_positive("step_size", self.step_size)
        if self.threads is not None:
            check_whole("threads", self.threads, 1)
        if not self.is_atari and (self.sticky or self.undo_wraps or self.dtype != "float32"):
            raise ValueError(f"sticky, undo_wraps and dtype are for Atari; game is {self.game!r}")
        if self.is_atari and self.num_envs > 1 and self.num_envs % GROUPS:
            raise ValueError(
                f"num_envs is {self.num_envs}; it must be 1 or a multiple of {GROUPS}, because environments "
                f"take turns in {GROUPS} groups"
            )

    @property
    def is_atari(self) -> bool:
        return self.game not in SMALL

    def filled(self) -> Self:
        """With what depends on the game and on the agent."""
        defaults = {field.name: field.default for field in fields(self)}
        mine: dict[str, Any] = {
            "step_size": self._usual_step_size,
            "out": Path("runs") / f"{self.game}-{self.agent}-{self.seed}",
            **({} if self.is_atari else SMALL_SETTINGS),
        }
        left = {k: v for k, v in mine.items() if getattr(self, k) == defaults[k]}
        return replace(self, **left)

    @property
    def _usual_step_size(self) -> float:
        if self.optimizer == "adam":
            return 6.25e-5
        return 2.5e-4 if self.agent == "clipped" else 1e-4

    @property
    def schedule(self) -> "Schedule":
        from popart.lab.dqn.agent import Schedule

        names = ("warm_up", "exploration", "epsilon", "copy_every")
        return Schedule(**{name: getattr(self, name) for name in names})

    @property
    def learning(self) -> "Settings":
        from popart.lab.dqn.learner import Settings

        names = ("agent", "discount", "optimizer", "step_size", "start", "beta")
        return Settings(**{name: getattr(self, name) for name in names})

    def run(self) -> Path:
        from popart.lab.train.training import run

        return run(self)


def check_game(game: str) -> None:
    games = [score.game for score in scores()]
    if game not in (*games, *SMALL):
        allowed = (*games, *SMALL)
        raise ValueError(f"game is {game!r}{nearest(game, allowed)} It may be one of {', '.join(allowed)}")
