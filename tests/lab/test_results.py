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


def words(page: str) -> str:
    """All in one line."""
    return " ".join((ROOT / page).read_text("utf-8").split())


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

    half_minutes, since = [], None
    for row in read_table(ROOT / "results" / "atari" / run / "metrics.csv"):
        now = np.array([int(row["frames"]), float(row["seconds"])])
        if int(row["updates"]) and since is None:
            since = now
        elif since is not None and now[1] - since[1] >= 30:
            frames, took = now - since
            half_minutes.append(round(frames / took, -3))
            since = now
    assert len(half_minutes) > 10
    assert f"{min(half_minutes):,.0f} and {max(half_minutes):,.0f}" in words("docs/speed.md")


def test_the_readme_rounds_these_rates() -> None:
    for run, title in (("breakout-popart", "Breakout"), ("ms_pacman-popart", "Ms. Pac-Man")):
        *_, whole = read_table(ROOT / "results" / f"atari_{run}.csv")
        rate = f"{round(float(whole['frames/s']), -3):,.0f}"
        assert re.search(rf"{rate}( frames per second)? on {title}", words("README.md"))


def test_thirds_of_training_on_breakout() -> None:
    for run, dtype in (("breakout-popart", "float32"), ("breakout-popart-bf16", "bfloat16")):
        thirds: list[list[float]] = [[], [], []]
        for row in read_table(ROOT / "results" / "atari" / run / "metrics.csv"):
            if row["score_100"]:
                thirds[min(int(row["frames"]) // 8_000_000, 2)].append(float(row["score_100"]))
        first, second, third = (f"{np.mean(scores):.0f}" for scores in thirds)
        assert f"{first}, {second} and {third} with {dtype}" in words("docs/atari.md")


@pytest.mark.parametrize("agent", ["clipped", "popart"])
def test_what_starts_explain(agent: str) -> None:
    rows = [row for row in read_table(ROOT / "results" / "start.csv") if row["agent"] == agent]
    assert cells("atari.md", f"`{agent}`") == [f"{float(row['explained after 8000']):.2f}" for row in rows]
