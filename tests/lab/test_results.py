"""What the documentation says of runs on a GPU is what the files of these runs say."""

import json
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
    rows = re.findall(rf"^ *\| {first} \|(.*)\|$", (ROOT / "docs" / page).read_text("utf-8"), re.MULTILINE)
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
    dtype = "" if asked["dtype"] == "float32" else f", {asked['dtype']}"
    frames, training, found, random, theirs = cells("atari.md", f"{paper.title}, `{asked['agent']}`{dtype}")
    mean, error = (float(number) for number in found.split("±"))
    assert float(frames) == round(int(last["frames"]) / 1e6, 1)
    assert float(training) == pytest.approx(float(last["score_100"]), rel=0.003)
    assert mean == pytest.approx(np.mean(episodes), rel=0.001, abs=0.05)
    assert error == pytest.approx(np.std(episodes) / 10, rel=0.01, abs=0.05)
    assert float(random) == pytest.approx(paper.random, rel=0.002)
    published = paper.popart if asked["agent"] == "popart" else paper.double_dqn
    assert float(theirs) == pytest.approx(published, rel=0.001)


@pytest.mark.parametrize("run", ["breakout-popart", "ms_pacman-popart", "breakout-popart-bf16"])
def test_the_speed_of_atari(run: str) -> None:
    file = ROOT / "results" / f"atari_{run}.csv"
    found = {row["what"]: row for row in read_table(file)}
    seconds = json.loads(file.with_suffix(".json").read_text("utf-8"))["seconds"]
    game, dtype = found["emulators"]["game"], found["emulators"]["dtype"]
    title = next(score.title for score in scores() if score.game == game)
    *rates, part, told = cells("speed.md", f"{title}, {dtype}")
    assert rates == [found[what]["frames/s"] for what in ("emulators", "learner", "end to end")]
    assert (part, float(told)) == (found["emulators"]["end to end / this"], round(seconds))


@pytest.mark.parametrize("agent", ["clipped", "popart"])
def test_what_starts_explain(agent: str) -> None:
    rows = [row for row in read_table(ROOT / "results" / "start.csv") if row["agent"] == agent]
    told = [float(cell) for cell in cells("atari.md", f"`{agent}`")]
    assert told == pytest.approx([float(row["explained after 8000"]) for row in rows], abs=0.0051)
