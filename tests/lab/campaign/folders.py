"""Run folders with synthetic metrics, in the format of `popart train`, for reports on many games."""

import json
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from popart.lab.envs.games import scores
from popart.lab.files import write_table
from popart.lab.manifest import now, read_manifest, write_manifest
from popart.lab.train.config import Train, flat
from popart.lab.train.run import open_run

FRAMES = 2_000_000


def write_run(
    root: Path, game: str, agent: str, seed: int, score: float, norm: float = 0.1, **options: Any
) -> Path:
    """Write the folder of a finished run whose score and gradient norm rise to these values."""
    rows = int(options.pop("rows", 4))
    finished = options.pop("finished", True)
    options = {"num_envs": 24, "frames": FRAMES, "replay_size": 200_000, "evaluate_every": 0} | options
    folder = root / str(options.pop("name", f"{game}-{agent}-{seed}"))
    (member,) = Train.of(game=game, agent=agent, seed=seed, out=folder, **options).members()
    folder.mkdir(parents=True)
    settings = {name: value for name, value in flat(member).items() if name != "out"}
    about = {"settings": settings, "finished": now() if finished else None}
    write_manifest(folder, manifest() | json.loads(json.dumps(about)))
    rest = dict.fromkeys(("epsilon", "loss", "gradient_norm_5", "gradient_norm_95", "scale", "shift"), 1.0)
    metrics = [
        {
            "frames": member.frames * i // 4,
            "updates": member.frames * i // 64,
            "score_100": score * i / 4,
            "gradient_norm": norm,
            **rest,
        }
        for i in range(1, rows + 1)
    ]
    write_table(folder / "metrics.csv", metrics)
    return folder


@cache
def manifest() -> dict[str, Any]:
    """Return the manifest of a run that was started, with everything but its settings."""
    with tempfile.TemporaryDirectory() as folder:
        (member,) = Train.of(out=Path(folder) / "run").members()
        with open_run(member) as run:
            return read_manifest(run.folder)


def write_campaign(
    root: Path, seeds: int = 3, agents: Mapping[str, tuple[float, float]] | None = None, games: int = 57
) -> Path:
    """Write runs of many games in which each agent reaches a part of the paper's score, with noise.

    Args:
        root: Folder for the run folders.
        seeds: Seeds of each game and agent.
        agents: For each agent, the part of the paper's improvement over random play that it reaches, and the
            orders of magnitude by which gradient norms of games differ.
        games: Number of games.
    """
    rng = np.random.default_rng(0)
    for game in scores()[:games]:
        paper = {"clipped": game.double_dqn, "popart": game.popart, "unclipped": game.random}
        for agent, (part, orders) in (agents or {"clipped": (0.1, 1.0), "popart": (0.1, 0.2)}).items():
            norm = 0.15 * 10 ** (orders * rng.normal())
            for seed in range(seeds):
                score = game.random + part * (paper[agent] - game.random)
                noise = 0.02 * abs(game.human - game.random) * rng.normal()
                write_run(root, game.game, agent, seed, score + noise, norm)
    return root
