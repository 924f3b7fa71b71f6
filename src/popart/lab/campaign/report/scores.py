"""Scores of games and agents, from the table of runs: means, differences, aggregates."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from popart.lab.envs.games import Score, published, title
from popart.lab.intervals import (
    AGGREGATES,
    Interval,
    between_runs,
    over_runs,
    over_seeds,
    share,
)

AGENTS = ("clipped", "popart", "unclipped")
Row = Mapping[str, Any]


class Scores:
    """The scores of all runs, by game and agent."""

    def __init__(self, rows: Sequence[Mapping[str, str]]) -> None:
        self.games = list(dict.fromkeys(row["game"] for row in rows))
        self.agents = [name for name in AGENTS if any(row["agent"] == name for row in rows)]
        self._runs: dict[tuple[str, str], np.ndarray] = {}
        for row in rows:
            key = row["game"], row["agent"]
            self._runs[key] = np.append(self._runs.get(key, np.array([])), float(row["score"]))

    def has(self, game: str, *agents: str) -> bool:
        return all((game, agent) in self._runs for agent in agents)

    def runs(self, game: str, agent: str) -> np.ndarray:
        """Return the score of each run, in points."""
        return self._runs[game, agent]

    def normalized(self, game: Score, agent: str) -> np.ndarray:
        """Return the score of each run, with 0 for random play and 1 for a human tester."""
        return np.array([game.normalized(score) for score in self.runs(game.game, agent)])

    def both(self) -> list[str]:
        """Return the games that clipped and popart have."""
        return [game for game in self.games if self.has(game, "clipped", "popart")]

    @property
    def fewest_runs(self) -> int:
        return min(len(runs) for runs in self._runs.values())


class Difference(NamedTuple):
    """Pop-Art minus clipped in one game, in units of the difference between human and random play."""

    score: Score
    here: Interval

    @property
    def paper(self) -> float:
        return self.score.difference


def differences(scores: Scores) -> list[Difference]:
    """Return the normalised difference of each game that has published scores, the smallest first."""
    found = []
    for game in scores.both():
        if (paper := published(game)) is not None:
            popart, clipped = (scores.normalized(paper, x) for x in ("popart", "clipped"))
            found.append(Difference(paper, between_runs(popart, clipped)))
    return sorted(found, key=lambda each: each.here.value)


def games_table(scores: Scores) -> list[dict[str, str]]:
    """Return the rows of games: published scores, ours with intervals over seeds, and differences."""
    rows = [_game(scores, game) for game in scores.games]
    used = [name for name in rows[0] if any(row[name] for row in rows)]
    return [{name: row[name] for name in used} for row in rows]


def _game(scores: Scores, game: str) -> dict[str, str]:
    paper = published(game)
    names = ("random", "human", "Double DQN (paper)", "Pop-Art (paper)")
    theirs = paper[2:] if paper else (None,) * 4
    row = {"game": title(game)}
    row |= {name: "" if x is None else f"{x:,.1f}" for name, x in zip(names, theirs, strict=True)}
    for agent in scores.agents:
        runs = scores.runs(game, agent) if scores.has(game, agent) else np.array([])
        row[agent] = _points(over_runs(runs)) if len(runs) else ""
        row[f"runs, {agent}"] = str(len(runs)) if len(runs) else ""
    both = scores.has(game, "clipped", "popart")
    pair = [scores.runs(game, agent) for agent in ("popart", "clipped")] if both else []
    row["difference, points"] = _points(between_runs(*pair), "+") if both else ""
    scaled = [scores.normalized(paper, agent) for agent in ("popart", "clipped")] if paper and both else []
    row["difference, normalised"] = between_runs(*scaled).percent("+,.1f") if scaled else ""
    row["difference, normalised (paper)"] = f"{paper.difference:+.1%}" if paper else ""
    return row


def _points(interval: Interval, sign: str = "") -> str:
    """Return points with one decimal, small ones with two."""
    return interval.text(f"{sign},.{2 if abs(interval.value) < 10 else 1}f")


def aggregates_table(scores: Scores, pairs: Sequence[Difference]) -> list[dict[str, str]]:
    """Return the rows of aggregates over games that both agents have, in percent, with intervals."""
    games = [each.score for each in pairs]
    normalized = {
        agent: [scores.normalized(game, agent) for game in games]
        for agent in scores.agents
        if all(scores.has(game.game, agent) for game in games)
    }
    paper = {
        "Double DQN (paper)": [np.array([game.normalized(game.double_dqn)]) for game in games],
        "Pop-Art (paper)": [np.array([game.normalized(game.popart)]) for game in games],
    }
    return [
        *({"who": who} | _aggregates(runs) for who, runs in normalized.items()),
        {"who": "popart − clipped"}
        | _aggregates(normalized["popart"], normalized["clipped"])
        | _good([each.here.value for each in pairs]),
        *({"who": who} | _aggregates(runs) for who, runs in paper.items()),
        {"who": "Pop-Art − Double DQN (paper)"}
        | _aggregates(paper["Pop-Art (paper)"], paper["Double DQN (paper)"])
        | _good([each.paper for each in pairs]),
    ]


def _aggregates(*groups: Sequence[np.ndarray]) -> dict[str, str]:
    found = {name: over_seeds(statistic, *groups).percent(",.1f") for name, statistic in AGGREGATES.items()}
    return found | {"at least as good": ""}


def _good(differences: Sequence[float]) -> dict[str, str]:
    """Return on how many games a difference is not negative."""
    good, number = sum(x >= 0 for x in differences), len(differences)
    part = share(good, number)
    return {"at least as good": f"{good} of {number} ({part.low:.0%} to {part.high:.0%})"}
