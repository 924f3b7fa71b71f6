"""The paper's 57 games, and the scores that it gives for them."""

import csv
from importlib import resources
from typing import NamedTuple


class Score(NamedTuple):
    """Raw scores of one game, 30 minutes of play."""

    game: str
    title: str
    random: float
    human: float
    double_dqn: float
    popart: float

    def normalized(self, score: float) -> float:
        """0 for random play, 1 for a human tester."""
        return (score - self.random) / abs(self.human - self.random)

    @property
    def difference(self) -> float:
        return self.normalized(self.popart) - self.normalized(self.double_dqn)


def scores() -> list[Score]:
    """The 57 games of the paper's table."""
    with resources.files("popart.lab.atari").joinpath("scores.csv").open(encoding="utf-8") as file:
        return [
            Score(
                row["game"],
                row["title"],
                *(float(row[k]) for k in ("random", "human", "double_dqn", "popart")),
            )
            for row in csv.DictReader(file)
        ]
