"""Figures, tables and findings of a report, from the tables that it collected."""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from scipy import stats

from popart.lab.analysis import Page
from popart.lab.campaign.report import drawing
from popart.lab.campaign.report.scores import (
    Difference,
    Scores,
    aggregates_table,
    differences,
    games_table,
)
from popart.lab.envs.games import published, title
from popart.lab.experiments.gradient_norms.analysis import BATCH, Line, comparable, show
from popart.lab.intervals import FEW, rank_correlation, share
from popart.lab.play.analysis import large_share

GAMES = """Scores of random play, a human tester and the paper's two agents after 200 million frames are
published. Ours are means over the runs of each agent, with 95 % intervals over seeds (Student's) where
there are two or more. Differences are Pop-Art minus clipped (Welch's intervals); normalised ones are in
percent of the difference between human and random play."""

AGGREGATES = """Normalised scores over the games that both agents have, in percent: median and mean over
games of the mean over runs, and the interquartile mean over all runs of all games, with 95 % intervals of
the stratified bootstrap over seeds (rliable's definitions). Those of the difference are over games. The
paper's agents were trained for 200 million frames. At least as good: number of games on which Pop-Art is at
least as good as clipping, and its part of all games with an exact 95 % interval over games (Clopper and
Pearson's)."""

FIGURE_2 = """Normalised score of Double DQN with Pop-Art minus that of Double DQN on clipped rewards, in
our own runs (bars; green: Pop-Art is better; lines: 95 % intervals over seeds, if there are several) and in
the paper (circles). 100 % is the difference between a human tester and random play. The axis is linear
between -10 % and 10 %, and logarithmic beyond."""

AGREEMENT = """Each dot is a game: the difference between Pop-Art and clipped rewards in the paper after 200
million frames, and in our own runs."""

SCORES = "Score of each run (dots), mean over runs (circles), and 95 % intervals over seeds (lines)."
LEFT_OUT = "Runs that were found but are in no figure and no other table, and why."
OPEN = "What these runs cannot show, and why."
REWARDS = """Points won in evaluations by `popart evaluate`, of all runs of an agent together, and the part
of them that came from large rewards. A reward is the sum over the four frames of an agent step."""


def analyse(page: Page) -> None:
    (about,) = page.needed_table("about")
    found = Scores(page.needed_table("runs"))
    part = about["of the paper's frames"]
    pairs, heading = differences(found), f"Our runs, {about['frames']} frames: {part} of the paper's training"
    page.show_table("about", "What is compared", "Runs are compared after the same number of frames.")
    if pairs:
        page.figure("figure_2", "Figure 2 from our own runs", FIGURE_2, drawing.figure_2(pairs, heading))
        page.show_table("aggregates", "Aggregates", AGGREGATES, aggregates_table(found, pairs))
        if len(pairs) >= FEW:
            page.figure("agreement", "Agreement with Figure 2", AGREEMENT, drawing.agreement(pairs, heading))
            _find(page, pairs)
    else:
        page.figure("scores", "Scores", SCORES, drawing.figure_scores(found))
    page.show_table("games", "Games", GAMES, games_table(found))
    _norms(page, found)
    if rows := list(_rewards(page)):
        page.show_table("large_rewards", "Large rewards", REWARDS, rows)
    if rows := list(_open(page, found, pairs)):
        page.show_table("open", "What cannot be compared", OPEN, rows)
    if page.table("left_out"):
        page.show_table("left_out", "Runs left out", LEFT_OUT)


def _find(page: Page, pairs: Sequence[Difference]) -> None:
    """Compare with the paper's Fig. 2; agreement needs an interval over games."""
    number, same = len(pairs), sum((x.here.value >= 0) == (x.paper >= 0) for x in pairs)
    part = share(same, number)
    page.find(
        "Pop-Art is better on the same games as in the paper (agrees if the interval is above one half)",
        paper="Fig. 2, after 200 million frames",
        here=f"same sign on {same} of {number} games: {part.percent()}",
        agrees=part.low > 0.5,
    )
    ranks = rank_correlation([x.here.value for x in pairs], [x.paper for x in pairs])
    page.find(
        "Differences of games have the paper's order (agrees if the interval is above 0)",
        paper="Fig. 2, after 200 million frames",
        here=f"Spearman's rank correlation {ranks.text('.2f')} over {number} games",
        agrees=ranks.low > 0,
    )


def _norms(page: Page, found: Scores) -> None:
    """Show Fig. 1b for games that the agents have in common."""
    lines = lines_of(page.table("gradients"))
    agents = [name for name in ("unclipped", "clipped", "popart") if any(a == name for _, a in lines)]
    main = [name for name in ("clipped", "popart") if name in agents] or agents
    games = [game for game in found.games if all((game, agent) in lines for agent in main)]
    agents = [agent for agent in agents if all((game, agent) in lines for game in games)]
    scored = {row["game"] for row in page.table("runs") if row.get("scored") != "False"}
    if games and agents:
        show(page, games, agents, lines, [game for game in games if game not in scored])


def lines_of(rows: Sequence[Mapping[str, str]]) -> dict[tuple[str, str], Line]:
    """Return the norms of summed gradients, as the geometric mean over seeds."""
    runs: dict[tuple[str, str], dict[str, list[tuple[float, float]]]] = {}
    for row in rows:
        seeds = runs.setdefault((row["game"], row["agent"]), {})
        point = float(row["updates"]), BATCH * float(row["gradient_norm"])
        seeds.setdefault(row["seed"], []).append(point)
    return {key: _mean([Line(*np.array(run).T) for run in seeds.values()]) for key, seeds in runs.items()}


def _mean(lines: Sequence[Line]) -> Line:
    at = lines[0].updates
    norms = np.array([np.interp(at, x.updates, x.norm) for x in lines])
    return Line(at, stats.gmean(norms, 0))


def _rewards(page: Page) -> Iterator[dict[str, str]]:
    large, rows = float(page.settings["large_rewards"]), page.table("rewards")
    for game, agent in dict.fromkeys((row["game"], row["agent"]) for row in rows):
        mine = [row for row in rows if (row["game"], row["agent"]) == (game, agent)]
        points = sum(max(float(r["reward"]), 0) * int(r["times"]) for r in mine)
        yield {
            "game": title(game),
            "agent": agent,
            "points won": f"{points:,.0f}",
            f"from rewards of {large:g} and more": f"{large_share(mine, large):.1%}",
        }


def _open(page: Page, found: Scores, pairs: Sequence[Difference]) -> Iterator[dict[str, str]]:
    """Yield what cannot be compared, and why."""
    missing = [agent for agent in ("clipped", "popart") if agent not in found.agents]
    unpaired = [title(game) for game in found.games if game not in found.both()]
    unknown = [title(game) for game in found.games if published(game) is None]
    if found.fewest_runs < 2:
        yield {"what": "intervals over seeds", "why": "some games have a single seed of an agent"}
    if missing:
        yield {"what": "Pop-Art with clipping", "why": f"there is no run of {' or '.join(missing)}"}
    elif unpaired:
        yield {
            "what": "Pop-Art with clipping, in some games",
            "why": f"{', '.join(unpaired)}: only one of the two agents was compared",
        }
    if unknown:
        why = f"{', '.join(unknown)}: no scores of random play and of a human tester are published"
        yield {"what": "normalised scores, Fig. 2, the paper's scores", "why": why}
    if pairs and len(pairs) < FEW:
        yield {"what": "signs and order of games beside the paper's", "why": f"fewer than {FEW} games"}
    if not page.table("gradients"):
        yield {"what": "Fig. 1b", "why": "no run has made an update"}
    elif not comparable(found.both() if not missing else found.games):
        yield {"what": "norms of gradients beside the paper's", "why": f"fewer than {FEW} Atari games"}
