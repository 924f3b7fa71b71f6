"""The command `popart train`: its options, and the members that they describe.

An option that depends on the game is None until `Train.members` resolves it, once, into a `Member`, which has
a value for everything. An option that was given is never changed.
"""

import dataclasses
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import msgspec
import tyro

from popart.lab.checks import (
    MOST,
    LabError,
    check_between,
    check_names,
    check_positive,
    check_seed,
    check_unique,
    check_whole,
)
from popart.lab.dqn.config import (
    AGENTS,
    ATARI_SCHEDULE,
    SMALL_AGENT,
    SMALL_SCHEDULE,
    AgentConfig,
    AgentName,
    Schedule,
    published_learning_rate,
)
from popart.lab.envs.games import ATARI, SMALL, check_game, is_atari

ENVIRONMENTS = 1024
"""Default number of environments of all games together; each game has at most 512."""

FEW = 8
"""Least default number of environments of a game in a group: with fewer, each hand-over costs too much."""


def _default(kind: str, text: str) -> Any:
    return tyro.conf.arg(help_behavior_hint=f"(default: {text})", metavar=kind)


@dataclass(frozen=True)
class EnvironmentOptions:
    """Options of the environments."""

    num_envs: Annotated[
        int | None, _default("INT", "512; fewer for several games, 24 for all; 8 for a small game")
    ] = None
    """Number of environments of each member that play at the same time. 1 is the paper's order of steps."""

    groups: Annotated[int | None, _default("INT", "up to 4 of at least 8; 1 for a small game")] = None
    """Number of groups of Atari environments. While one group waits for its actions, the others play."""

    sticky: float = 0.0
    """Probability of a sticky action: the emulator repeats the last action instead. 0.25 is usual today."""

    undo_overflow: bool = False
    """Correct the reward when a score overflows, such as from 999,900 to 50."""

    reward_scale: float = 1.0
    """Factor by which the rewards that the agent sees are multiplied. Scores are not changed."""


@dataclass(frozen=True)
class AgentOptions:
    """Hyperparameters of the agent. Defaults are the paper's."""

    optimizer: Literal["rmsprop", "adam"] = "rmsprop"
    """rmsprop: centred, as in DQN; adam: with the epsilon of Rainbow, 1.5e-4."""

    learning_rate: Annotated[
        float | None,
        _default("FLOAT", "RMSProp 2.5e-4 for clipped, otherwise 1e-4; Adam 6.25e-5; 1e-3 for a small game"),
    ] = None
    """Learning rate α of the network."""

    rmsprop_epsilon: float = 0.01
    """ε inside RMSProp's root, for gradients that are summed over a batch. Adam has an ε of its own."""

    initial_weights: Literal["dqn", "he"] = "dqn"
    """Initialisation of the network: that of DQN, or that of He et al., with which it learns sooner."""

    beta: Annotated[float | None, _default("FLOAT", "1e-4; 1e-3 for a small game")] = None
    """Step size β of Pop-Art's statistics."""

    discount: float = 0.99
    """Discount factor γ."""

    dtype: Literal["float32", "bfloat16"] = "float32"
    """Precision of the convolutions. Everything else is float32."""


@dataclass(frozen=True)
class ScheduleOptions:
    """Replay buffer, exploration and copies, in agent steps of all environments of a member together."""

    replay_size: Annotated[int | None, _default("INT", "1,000,000; 50,000 for a small game")] = None
    """Observations in the replay buffer of each member. A million takes 7.1 GB on Atari."""

    warm_up: Annotated[int | None, _default("INT", "50,000; 1000 for a small game")] = None
    """Agent steps with random actions before the first update."""

    exploration: Annotated[int | None, _default("INT", "1,000,000; 10,000 for a small game")] = None
    """Agent steps, after the warm-up, in which ε falls from 1 to its final value."""

    epsilon: Annotated[float | None, _default("FLOAT", "0.01; 0.05 for a small game")] = None
    """Final probability of a random action."""

    copy_every: Annotated[int | None, _default("INT", "30,000; 400 for a small game")] = None
    """Agent steps between two copies of the network to the target network."""


@dataclass(frozen=True)
class RecordOptions:
    """Evaluations, logs and checkpoints."""

    evaluate_every: Annotated[int | None, _default("INT", "10,000,000; 10,000 for a small game")] = None
    """Game frames between two evaluations; the best agent is saved. 0 disables them."""

    log_every: Annotated[int | None, _default("INT", "20,000; 1000 for a small game")] = None
    """Game frames between two rows of metrics.csv."""

    checkpoint_every: float = 300.0
    """Seconds between two checkpoints."""

    stop_diverged: bool = True
    """Stop a member whose loss, gradient, σ or μ is no longer finite. The run is marked as diverged in any
    case."""

    save_replay: bool = True
    """Save the replay buffer in checkpoints. Without it, a resumed run refills the buffer first."""


@tyro.conf.configure(tyro.conf.OmitArgPrefixes)
@dataclass(frozen=True)
class Train:
    """Train agents on Atari games or small games.

    Each combination of game, agent and seed is a member with its own run folder. Members that differ only in
    game and seed train together, as one program (a fleet). Defaults are the paper's (with sources in
    docs/explanation/atari.md); small games have their own. Ctrl-C saves, and the same command resumes. Give
    more --frames to continue a finished run.
    """

    game: tuple[str, ...] = ("pong",)
    """One or more of the paper's 57 games, such as ms_pacman; all for all 57; or cartpole, catch,
    minatar_breakout, minatar_space_invaders, minatar_asterix, minatar_freeway."""

    agent: tuple[str, ...] = ("popart",)
    """One or more agents, or all. clipped: Double DQN as published, with rewards and errors clipped to
    [-1, 1]; unclipped: with neither; popart: with neither, and with Pop-Art."""

    seed: tuple[int, ...] = (0,)
    """One or more random seeds."""

    frames: Annotated[int | None, _default("INT", "200,000,000; 50,000 for a small game")] = None
    """Game frames for each member; on Atari an agent step takes four."""

    environment: EnvironmentOptions = field(default_factory=EnvironmentOptions)
    learning: AgentOptions = field(default_factory=AgentOptions)
    schedule: ScheduleOptions = field(default_factory=ScheduleOptions)
    record: RecordOptions = field(default_factory=RecordOptions)

    threads: Annotated[int | None, _default("INT", "all")] = None
    """Number of cores used for emulation."""

    device: Literal["auto", "cpu", "gpu"] = "auto"
    """Device that computes; auto: a GPU if there is one."""

    out: Annotated[Path | None, _default("PATH", "runs/GAME-AGENT-SEED")] = None
    """Run folder; with several members, the folder that holds their run folders."""

    @classmethod
    def of(cls, **options: Any) -> Self:
        """Build a command from flat options, as on the command line: `Train.of(game="catch", beta=1e-3)`."""
        for name in ("game", "agent", "seed"):
            if name in options and not isinstance(options[name], tuple):
                options[name] = (options[name],)
        nested = {}
        for each in dataclasses.fields(cls):
            if dataclasses.is_dataclass(each.default_factory):
                names = {f.name for f in dataclasses.fields(each.default_factory)} & options.keys()
                nested[each.name] = each.default_factory(**{name: options.pop(name) for name in names})
        return cls(**options, **nested)

    def changed(self, **options: Any) -> Self:
        """Return a copy with other flat options."""
        return type(self).of(**(flat(self) | options))

    def __post_init__(self) -> None:
        for name in self.games:
            check_game(name)
        check_unique("game", self.games)
        check_agents("agent", self.agent)
        check_unique("seed", self.seed)
        for name in ("game", "seed"):
            if not getattr(self, name):
                raise ValueError(f"{name} is empty; give at least one")
        for seed in self.seed:
            check_seed(seed)
        _check_options(flat(self))

    @property
    def games(self) -> tuple[str, ...]:
        return ATARI if self.game == ("all",) else self.game

    @property
    def agents(self) -> tuple[AgentName, ...]:
        return AGENTS if "all" in self.agent else self.agent  # pyright: ignore[reportReturnType]

    def members(self) -> list["Member"]:
        """Resolve the options into one member for each game, agent and seed."""
        cases = list(product(self.games, self.agents, self.seed))
        alone = self.out if len(cases) == 1 else None
        root = self.out or Path("runs")
        return [self._member(*case, alone or root / "{}-{}-{}".format(*case)) for case in cases]

    def _member(self, game: str, agent: AgentName, seed: int, out: Path) -> "Member":
        defaults = _defaults(game, agent, self.learning.optimizer, len(self.games))
        given = {k: v for k, v in flat(self).items() if v is not None or k not in defaults}
        settings = defaults | given | {"game": game, "agent": agent, "seed": seed}
        try:
            return member_of(settings, out)
        except ValueError as error:
            raise LabError(str(error)) from error

    def run(self) -> Path:
        from popart.lab.train.run import run

        return run(self)


def check_agents(setting: str, agents: tuple[str, ...]) -> None:
    """Check the names of agents, of which "all" stands for every one."""
    check_names(setting, agents, (*AGENTS, "all"))


def _check_options(options: dict[str, Any]) -> None:
    given = {name: value for name, value in options.items() if value is not None}
    for name in ("frames", "num_envs", "groups", "replay_size", "copy_every", "log_every", "threads"):
        if name in given:
            most = 2**62 if name == "replay_size" else MOST  # memory limits it
            check_whole(name, given[name], 1, most=most)
    for name in ("warm_up", "exploration", "evaluate_every"):
        if name in given:
            check_whole(name, given[name], 0)
    for name in ("epsilon", "discount", "sticky", "beta"):
        if name in given:
            check_between(name, given[name], 0, 1)
    for name in ("beta", "reward_scale", "checkpoint_every", "learning_rate", "rmsprop_epsilon"):
        if name in given:
            check_positive(name, given[name])


def _defaults(game: str, agent: AgentName, optimizer: str, games: int) -> dict[str, Any]:
    """Return the settings that depend on the game, or on the number of games that train together."""
    if not is_atari(game):
        common = {"frames": 50_000, "num_envs": 8, "replay_size": 50_000, "log_every": 1000}
        return common | dataclasses.asdict(SMALL_SCHEDULE) | SMALL_AGENT | {"evaluate_every": 10_000}
    return {
        "frames": 200_000_000,
        "num_envs": max(3 * FEW, min(512, ENVIRONMENTS // games // 4 * 4)),
        "replay_size": 1_000_000,
        **dataclasses.asdict(ATARI_SCHEDULE),
        "learning_rate": published_learning_rate(agent, optimizer),
        "beta": 1e-4,
        "log_every": 20_000,
        "evaluate_every": 10_000_000,
    }


@dataclass(frozen=True)
class Member:
    """One run: an agent that learns a game with a seed. Every setting has its value."""

    game: str
    seed: int
    frames: int
    num_envs: int
    groups: int
    replay_size: int
    agent: AgentConfig
    schedule: Schedule
    reward_scale: float
    sticky: float
    undo_overflow: bool
    dtype: str
    evaluate_every: int
    log_every: int
    checkpoint_every: float
    save_replay: bool
    threads: int | None
    device: str
    out: Path
    stop_diverged: bool = True

    FREE = ("frames", "checkpoint_every", "threads", "device", "stop_diverged")
    """Settings that may change when a run is resumed."""

    def __post_init__(self) -> None:
        if not self.is_atari and (self.sticky or self.undo_overflow or self.dtype != "float32"):
            raise ValueError(f"sticky, undo_overflow and dtype are for Atari; game is {self.game!r}")
        if not self.is_atari and self.groups > 1:
            raise ValueError(f"groups is {self.groups}; environments of {self.game!r} take no turns: give 1")
        if self.num_envs % self.groups:
            raise ValueError(f"num_envs is {self.num_envs}; it must be a multiple of groups, {self.groups}")

    @property
    def is_atari(self) -> bool:
        return is_atari(self.game)

    @property
    def name(self) -> str:
        return f"{self.game}-{self.agent.agent}-{self.seed}"

    @property
    def program(self) -> tuple[Any, ...]:
        """The settings that members must have in common to share a program and a turn."""
        screen = None if self.is_atari else SMALL[self.game].name
        shape = self.num_envs, self.groups, self.replay_size, self.reward_scale, self.dtype, self.save_replay
        return self.agent, self.schedule, *shape, self.sticky, self.undo_overflow, screen


def default_groups(game: str, num_envs: int) -> int:
    """Return the default number of groups: four hide the time of the GPU, if they are not too small."""
    allowed = (4, 3, 2) if is_atari(game) else ()
    return next((n for n in allowed if num_envs % n == 0 and num_envs // n >= FEW), 1)


def member_of(settings: dict[str, Any], out: Path) -> Member:
    """Build a member from flat settings, such as those of a manifest; ValueError if they make no sense."""
    parts = {"agent": AgentConfig, "schedule": Schedule}
    nested = {name: _pick(kind, settings) for name, kind in parts.items()}
    settings = {"stop_diverged": True} | settings  # earlier versions lack it
    by_default = settings.get("groups") is None
    names = {f.name for f in dataclasses.fields(Member)} - {*parts, "out", "groups"}
    given = {name: settings[name] for name in names} | {"groups": 1 if by_default else settings["groups"]}
    member = msgspec.convert({**given, **nested, "out": out}, Member)
    _check_options(flat(member))
    if not by_default:
        return member
    return dataclasses.replace(member, groups=default_groups(member.game, member.num_envs))


def _pick(kind: Any, settings: dict[str, Any]) -> dict[str, Any]:
    return {f.name: settings[f.name] for f in dataclasses.fields(kind) if f.name in settings}


def flat(settings: Any) -> dict[str, Any]:
    """Return the settings of a dataclass and of those nested in it, by name."""
    found = {}
    for each in dataclasses.fields(settings):
        value = getattr(settings, each.name)
        found |= flat(value) if dataclasses.is_dataclass(value) else {each.name: value}
    return found
