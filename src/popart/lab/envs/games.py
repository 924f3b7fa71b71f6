"""The games by name: the paper's 57 on Atari with their published scores, and six small ones."""

import csv
from collections.abc import Sequence
from functools import cache
from importlib import resources
from typing import NamedTuple

from popart.lab.checks import nearest


class Score(NamedTuple):
    """Published raw scores of one Atari game, for 30 minutes of play."""

    game: str
    title: str
    random: float
    human: float
    double_dqn: float
    popart: float

    def normalized(self, score: float) -> float:
        """Return 0 for random play and 1 for a human tester."""
        return (score - self.random) / abs(self.human - self.random)

    @property
    def difference(self) -> float:
        return self.normalized(self.popart) - self.normalized(self.double_dqn)


class SmallGame(NamedTuple):
    """A small game: its name in gymnax, its title, and how many steps an agent needs to learn it."""

    name: str
    label: str
    steps: int

    reach: float = 10.0
    """A bound of its values, with a discount of 0.99; most are far below 10."""


SMALL = {
    "cartpole": SmallGame("CartPole-v1", "CartPole", 50_000, 100.0),
    "catch": SmallGame("Catch-bsuite", "Catch", 20_000),
    "minatar_breakout": SmallGame("Breakout-MinAtar", "Breakout (MinAtar)", 30_000),
    "minatar_space_invaders": SmallGame("SpaceInvaders-MinAtar", "Space Invaders (MinAtar)", 30_000),
    "minatar_asterix": SmallGame("Asterix-MinAtar", "Asterix (MinAtar)", 30_000),
    "minatar_freeway": SmallGame("Freeway-MinAtar", "Freeway (MinAtar)", 50_000),
}

GAMES = {name.removeprefix("minatar_"): game for name, game in SMALL.items()}
"""The small games by the names that experiments with nothing but small games use."""


def small_names(games: Sequence[str]) -> tuple[str, ...]:
    """Return the names of small games in experiments with nothing else: minatar_breakout becomes breakout."""
    return tuple(name.removeprefix("minatar_") if name in SMALL else name for name in games)


@cache
def scores() -> tuple[Score, ...]:
    """Return the 57 games of the paper's table."""
    with resources.files("popart.lab.envs").joinpath("scores.csv").open(encoding="utf-8") as file:
        return tuple(
            Score(
                row["game"],
                row["title"],
                *(float(row[k]) for k in ("random", "human", "double_dqn", "popart")),
            )
            for row in csv.DictReader(file)
        )


ATARI = tuple(score.game for score in scores())


def is_atari(game: str) -> bool:
    return game not in SMALL


def published(game: str) -> Score | None:
    """Return the published scores of an Atari game; None for a small game."""
    return next((score for score in scores() if score.game == game), None)


def title(game: str) -> str:
    """Return the full name of a game, such as Ms. Pac-Man."""
    score = published(game)
    return score.title if score else SMALL[game].label


def check_game(game: str) -> None:
    allowed = (*ATARI, *SMALL)
    if game not in allowed:
        raise ValueError(f"game is {game!r}{nearest(game, allowed)} It may be one of {', '.join(allowed)}")
