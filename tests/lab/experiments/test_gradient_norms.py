"""`popart norms`: Fig. 1b from the metrics of short training runs."""

import os
import re
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from popart.lab.cli import main
from popart.lab.envs.games import ATARI
from popart.lab.experiments.gradient_norms.analysis import spread
from popart.lab.experiments.gradient_norms.config import Norms
from popart.lab.experiments.gradient_norms.run import training
from popart.lab.files import read_table
from popart.lab.manifest import read_manifest
from popart.lab.runs import Run
from popart.lab.train.config import Train
from tests.lab import processes

RESULTS = Path(__file__).parents[3] / "results" / "lab" / "norms"


def test_the_spread_is_the_range_of_95_percent_in_orders_of_magnitude() -> None:
    assert spread([1.0, 10.0, 1000.0]) == pytest.approx(2.9 - 0.05)
    assert spread(list(10.0 ** np.linspace(0, 4, 1001))) == pytest.approx(0.95 * 4)


def test_all_agents_train_with_the_same_learning_rate_in_folders_of_their_own() -> None:
    members = training(Norms(out=Path("run"))).members()
    assert len(members) == len({member.out for member in members}) == 24
    assert {member.agent.learning_rate for member in members} == {1e-4}
    assert all(Path("run") in member.out.parents for member in members)


def test_one_game_and_one_agent_have_a_folder_apart_from_the_run() -> None:
    (member,) = training(Norms(games=("pong",), agents=("popart",), out=Path("run"))).members()
    assert member.out != Path("run")
    assert Path("run") in member.out.parents


@pytest.mark.slow
def test_the_command_trains_and_draws(tmp_path: Path) -> None:
    """Two games and one agent, as a fleet, for as short as the command allows; the same if interrupted."""
    sizes = ["--frames", "1400", "--num-envs", "4", "--warm-up", "20", "--copy-every", "40"]
    games = ["--games", "boxing", "asterix", "--agents", "popart"]
    main(["norms", *games, *sizes, "--device", "cpu", "--out", str(tmp_path / "run")])
    rows = read_table(tmp_path / "run" / "gradients.csv")
    assert {row["game"] for row in rows} == {"boxing", "asterix"}
    assert all(float(row["gradient_norm"]) > 0 for row in rows)
    assert (tmp_path / "run" / "figure_1b.png").stat().st_size > 10_000
    before = (tmp_path / "run" / "gradients.csv").read_bytes()
    main(["norms", *games, *sizes, "--device", "cpu", "--out", str(tmp_path / "run")])
    assert (tmp_path / "run" / "gradients.csv").read_bytes() == before
    out, said = tmp_path / "interrupted", tmp_path / "said"
    arguments = ["norms", *games, *sizes, "--device", "cpu", "--out", str(out)]
    with processes.started(arguments, said) as process:
        while not (out / "agents" / "boxing-popart-0" / "metrics.csv").exists():
            assert process.is_alive(), said.read_text("utf-8")
            time.sleep(0.01)
        assert process.pid is not None
        os.kill(process.pid, signal.SIGINT)
        process.join()
    assert process.exitcode == 130
    assert read_manifest(out)["finished"] is None
    with processes.started(arguments, said) as process:
        process.join()
    assert (out / "gradients.csv").read_bytes() == before


def test_the_command_collects_and_draws_gradients_of_training_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the metrics of earlier runs instead of training."""

    def copy_metrics(train: Train) -> Path:
        for member in train.members():
            member.out.mkdir(parents=True)
            shutil.copy(RESULTS / f"{member.game}-{member.agent.agent}" / "metrics.csv", member.out)
        return tmp_path

    monkeypatch.setattr(Train, "run", copy_metrics)
    main(["norms", "--device", "cpu", "--out", str(tmp_path / "run")])
    for name in ("gradients.csv", "norms.csv"):
        assert sorted(read_table(tmp_path / "run" / name), key=str) == sorted(
            read_table(RESULTS / name), key=str
        )
    manifest = read_manifest(tmp_path / "run")
    assert [shown["name"] for shown in manifest["shown"]] == ["figure_1b", "norms"]
    assert manifest["findings"] == read_manifest(RESULTS)["findings"]


def analysed(folder: Path, sizes: dict[str, float], games: int = 57) -> dict[str, Any]:
    """Analyse norms that are log-normal over games, with these standard deviations in orders of magnitude."""
    names, normal = ATARI[:games], stats.norm.ppf((np.arange(games) + 0.5) / games)
    rows = [
        {"game": game, "agent": agent, "updates": updates, "gradient_norm": norm}
        for agent, size in sizes.items()
        for game, norm in zip(names, 10 ** (size * normal - 0.8), strict=True)
        for updates in (10, 20)
    ]
    with Run("norms", "Norms", {"games": list(names), "agents": list(sizes), "out": folder}) as run:
        run.write_table("gradients", rows)
        run.finish()
    return read_manifest(folder)


def test_agreement_needs_the_whole_interval_of_pop_art_below_that_of_clipping(tmp_path: Path) -> None:
    clear, narrow = (
        analysed(tmp_path / str(size), {"clipped": 1.0, "popart": size})["findings"] for size in (0.3, 0.8)
    )
    assert [clear[0]["agrees"], narrow[0]["agrees"]] == [True, False]
    orders = [float(x) for x in re.findall(r"([\d.]+) \(", narrow[0]["here"])[:2]]
    assert orders[0] < orders[1]  # which alone is not enough
    reverse = analysed(tmp_path / "reverse", {"clipped": 0.3, "popart": 1.0})["findings"]
    assert not reverse[0]["agrees"]


def test_fewer_than_five_games_are_not_compared_with_the_paper(tmp_path: Path) -> None:
    """Neither in orders of magnitude nor with the range from 1 to 20, within which all of these are."""
    sizes = {"clipped": 1.0, "popart": 0.1}
    four, five = (analysed(tmp_path / str(games), sizes, games)["findings"] for games in (4, 5))
    assert (len(four), len(five)) == (0, 2)


def test_norms_are_those_of_the_summed_gradient(tmp_path: Path) -> None:
    manifest = analysed(tmp_path / "run", {"popart": 0.1}, games=5)
    mean = float(read_table(tmp_path / "run" / "gradients.csv")[0]["gradient_norm"])
    summed = float(read_table(tmp_path / "run" / "norms.csv")[0]["popart"])
    assert summed == pytest.approx(32 * mean, rel=0.01)
    assert manifest["findings"][-1]["agrees"]  # 32 * 10^-0.8 is 5: between 1 and 20


def test_the_stored_run_of_eight_games_does_not_claim_what_it_cannot_show() -> None:
    """1.24 against 1.40 orders of magnitude is no difference; the documentation says so."""
    findings = {finding["claim"]: finding["agrees"] for finding in read_manifest(RESULTS)["findings"]}
    claim = "Norms of gradients span fewer orders of magnitude with Pop-Art than with clipping"
    assert findings[claim] is False
    page = (RESULTS.parents[2] / "docs" / "explanation" / "atari.md").read_text("utf-8")
    orders = read_table(RESULTS / "norms.csv")[-2]
    values = [orders[agent].split()[0] for agent in ("unclipped", "clipped", "popart")]
    told = "{:.1f}, {:.1f} and {:.1f} orders, with intervals that overlap".format(*map(float, values))
    assert told in " ".join(page.split())
