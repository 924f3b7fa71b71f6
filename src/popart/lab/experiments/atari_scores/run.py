"""Write the published scores with their normalised values and differences, the largest difference first."""

from pathlib import Path
from typing import Any

from popart.lab.envs.games import Score, scores
from popart.lab.experiments.atari_scores.config import Paper
from popart.lab.runs import Run


def run(settings: Paper) -> Path:
    with Run("paper", "The paper's own Atari scores, redrawn (Table 1, Fig. 2)", settings) as run:
        if not run.finished:
            games = sorted(scores(), key=lambda score: score.difference)
            run.write_table("scores", [_row(score) for score in reversed(games)])
            run.finish()
    return run.folder


def _row(score: Score) -> dict[str, Any]:
    return {
        "game": score.title,
        "random": f"{score.random:.1f}",
        "human": f"{score.human:.1f}",
        "Double DQN": f"{score.double_dqn:.1f}",
        "with Pop-Art": f"{score.popart:.1f}",
        "Double DQN, normalised": f"{score.normalized(score.double_dqn):.1%}",
        "with Pop-Art, normalised": f"{score.normalized(score.popart):.1%}",
        "difference": f"{score.difference:+.1%}",
    }
