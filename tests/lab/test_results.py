"""What the documentation says of runs on a GPU is what the files of these runs say."""

import re
from pathlib import Path

import numpy as np
import pytest

from popart.lab.atari.games import scores
from popart.lab.runs import read_manifest, read_table

ROOT = Path(__file__).parents[2]
RUNS = sorted((ROOT / "results" / "atari").iterdir())


def cells(page: str, first: str) -> list[str]:
    """Of the last row of a table that begins so, without what is there for looks."""
    rows = re.findall(rf"^\| {first} \|(.*)\|$", (ROOT / "docs" / page).read_text("utf-8"), re.MULTILINE)
    return [cell.strip().strip("*").replace(",", "").replace("−", "-") for cell in rows[-1].split("|")]


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.name)
def test_runs_of_atari(run: Path) -> None:
    manifest = read_manifest(run)
    asked = manifest["settings"]
    assert manifest["finished"]
    assert "NVIDIA" in manifest["device"]
    last = read_table(run / "metrics.csv")[-1]
    (evaluation,) = run.glob("evaluation-*")
    assert read_manifest(evaluation)["finished"]
    episodes = [float(row["score"]) for row in read_table(evaluation / "episodes.csv")]
    assert len(episodes) == 100

    paper = next(score for score in scores() if score.game == asked["game"])
    frames, training, found, random, theirs = cells("atari.md", f"{paper.title}, `{asked['agent']}`")
    mean, error = (float(number) for number in found.split("±"))
    assert float(frames) == round(int(last["frames"]) / 1e6, 1)
    assert float(training) == pytest.approx(float(last["score_100"]), rel=0.003)
    assert mean == pytest.approx(np.mean(episodes), rel=0.001, abs=0.05)
    assert error == pytest.approx(np.std(episodes) / 10, rel=0.01, abs=0.05)
    assert float(random) == pytest.approx(paper.random, rel=0.002)
    published = paper.popart if asked["agent"] == "popart" else paper.double_dqn
    assert float(theirs) == pytest.approx(published, rel=0.001)


@pytest.mark.parametrize(("game", "column"), [("breakout", 0), ("ms_pacman", 2)])
def test_the_speed_of_atari(game: str, column: int) -> None:
    told = {row["what"]: row for row in read_table(ROOT / "results" / f"atari_{game}-popart.csv")}
    for what in ("emulators", "learner", "end to end"):
        rate, part = cells("speed.md", f"{what}(?:, .*?)?")[column : column + 2]
        assert rate == told[what]["frames/s"]
        assert float(part) == pytest.approx(float(told[what]["end to end / this"]), abs=0.005)
