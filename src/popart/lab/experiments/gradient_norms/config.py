"""`popart norms`: its settings."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from popart.lab.checks import check_names, check_seed, check_whole
from popart.lab.envs.games import ATARI

GAMES = ("boxing", "pong", "breakout", "ms_pacman", "asterix", "atlantis", "video_pinball", "battle_zone")
"""Games with rewards from 1 to thousands."""

AGENTS = ("unclipped", "clipped", "popart")

ROWS = 20
"""Points of each line in the figure."""


@dataclass(frozen=True)
class Norms:
    """Compare norms of gradients on games whose rewards differ by orders of magnitude (Fig. 1b).

    Trains each agent on each game for a short time, in run folders within the run folder; agents that are
    trained already are not trained again. The defaults take three quarters of an hour on two cores. On a GPU,
    give more --frames, --num-envs and --warm-up.
    """

    games: tuple[str, ...] = GAMES
    """Atari games, with names as for `popart train`."""

    agents: tuple[str, ...] = AGENTS
    """Agents to train, with names as for `popart train`."""

    frames: int = 24_000
    """Frames for each game and agent."""

    num_envs: int = 16
    """Environments of each game that play at the same time."""

    warm_up: int = 1000
    """Steps with random actions before the first update."""

    copy_every: int = 1000
    """Steps between two copies of the network to the target network."""

    seed: int = 0
    """Random seed."""

    device: Literal["auto", "cpu", "gpu"] = "auto"
    """Device that computes; auto is a GPU if there is one."""

    out: Path = Path("runs/norms")
    """Run folder. An interrupted run in it is resumed."""

    def __post_init__(self) -> None:
        check_names("games", self.games, ATARI)
        check_names("agents", self.agents, AGENTS)
        check_whole("num_envs", self.num_envs, 1)
        check_whole("warm_up", self.warm_up, 0)
        check_whole("copy_every", self.copy_every, 4)
        check_seed(self.seed)
        check_whole("frames", self.frames, 4 * max(self.warm_up, 5 * self.num_envs) + 64 * ROWS)

    def run(self) -> Path:
        from popart.lab.experiments.gradient_norms.run import run

        return run(self)
