"""`popart campaign report`: what is compared, what is not, and what the page says."""

import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from popart.lab.campaign.report import Report
from popart.lab.checks import LabError
from popart.lab.envs.games import scores
from popart.lab.files import read_table, write_table
from popart.lab.manifest import read_manifest, update_manifest
from popart.lab.plot import redraw
from tests.lab.campaign.folders import FRAMES, write_campaign, write_run
from tests.lab.examples import CATCH

RESULTS = Path(__file__).parents[3] / "results"


def table(folder: Path, name: str, key: str = "game") -> dict[str, dict[str, str]]:
    return {row[key]: row for row in read_table(folder / f"{name}.csv")}


def reasons(folder: Path) -> dict[str, str]:
    return {Path(row["run"]).name: row["reason"] for row in read_table(folder / "left_out.csv")}


def numbers(text: str) -> list[float]:
    return [float(x) for x in re.findall(r"[-+]?[\d.]+", text.replace(",", ""))]


@pytest.fixture(scope="module")
def campaign(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A campaign of 57 games whose differences follow the paper's, with noise between seeds."""
    agents = {"unclipped": (0.0, 2.0), "clipped": (0.1, 1.0), "popart": (0.1, 0.3)}
    return write_campaign(tmp_path_factory.mktemp("campaign"), 2, agents)


@pytest.fixture(scope="module")
def report(campaign: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Report((campaign,), out=tmp_path_factory.mktemp("report") / "out").run()


def test_the_page_says_how_many_games_seeds_and_frames_there_are(report: Path) -> None:
    (about,) = read_table(report / "about.csv")
    assert (about["games"], about["seeds"], about["frames"]) == ("57", "2", "2,000,000")
    assert about["of the paper's frames"] == "1 %"
    assert about["runs compared"] == str(57 * 3 * 2)
    page = (report / "report.html").read_text("utf-8")
    assert "Campaign: 57 games, 2 seeds, 2,000,000 frames, 1 % of the paper" in page
    for name in ("figure_1b", "figure_2", "agreement"):
        assert (report / f"{name}.png").stat().st_size > 10_000
        assert f'-{name}-caption"' in page


def test_the_table_of_games_has_published_scores_and_ours_with_intervals(report: Path) -> None:
    rows = table(report, "games")
    assert len(rows) == 57
    runs = [r for r in read_table(report / "runs.csv") if (r["game"], r["agent"]) == ("pong", "popart")]
    row = rows["Pong"]
    assert [float(row[name]) for name in ("random", "human", "Double DQN (paper)")] == [-20.7, 14.6, 20.9]
    mean, low, high = numbers(row["popart"].replace("to", " "))
    ours = [float(run["score"]) for run in runs]
    assert mean == pytest.approx(np.mean(ours), abs=0.06)
    interval = stats.t.interval(0.95, 1, np.mean(ours), stats.sem(ours))
    assert (low, high) == pytest.approx(interval, abs=0.06)
    assert row["difference, normalised (paper)"] == "-0.8%"


def test_aggregates_are_those_of_the_scores_and_the_papers_are_beside_them(report: Path) -> None:
    rows = table(report, "aggregates", "who")
    paper = rows["Pop-Art − Double DQN (paper)"]
    assert (paper["median"], paper["mean"]) == ("0.4 %", "-256.3 %")
    assert paper["at least as good"].startswith("32 of 57")
    runs = read_table(report / "runs.csv")
    normalized = np.array(
        [
            [
                game.normalized(float(r["score"]))
                for r in runs
                if (r["game"], r["agent"]) == (game.game, agent)
            ]
            for agent in ("popart", "clipped")
            for game in scores()
        ]
    ).reshape(2, 57, 2)
    assert numbers(rows["popart"]["interquartile mean"])[0] == pytest.approx(
        100 * stats.trim_mean(normalized[0].ravel(), 0.25), abs=0.06
    )
    differences = normalized[0].mean(1) - normalized[1].mean(1)
    value, low, high = numbers(rows["popart − clipped"]["median"].replace("to", " "))
    assert value == pytest.approx(100 * np.median(differences), abs=0.06)
    assert low < value < high
    assert rows["popart − clipped"]["at least as good"].startswith(f"{(differences >= 0).sum()} of 57")


def test_agreement_with_the_papers_figures_is_found_where_there_is_one(report: Path) -> None:
    findings = read_manifest(report)["findings"]
    assert len(findings) == 5
    assert all(finding["agrees"] for finding in findings)
    theirs = [game.difference for game in scores()]
    ours = [numbers(row["difference, normalised"])[0] for row in table(report, "games").values()]
    correlation = stats.spearmanr(ours, theirs)[0]
    assert numbers(findings[1]["here"])[0] == pytest.approx(correlation, abs=0.02)


def test_no_agreement_is_found_where_scores_are_noise(tmp_path: Path) -> None:
    agents = {"clipped": (0.0, 0.5), "popart": (0.0, 0.5)}
    report = Report((write_campaign(tmp_path / "runs", 1, agents),), out=tmp_path / "out").run()
    findings = read_manifest(report)["findings"]
    assert [finding["agrees"] for finding in findings[:3]] == [False, False, False]
    open_ = table(report, "open", "what")
    assert open_["intervals over seeds"]["why"] == "some games have a single seed of an agent"
    assert "(" not in table(report, "games")["Pong"]["popart"]
    assert "(" not in table(report, "aggregates", "who")["popart"]["median"]


def test_only_runs_that_were_trained_equally_long_with_the_same_settings_are_compared(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    for agent in ("clipped", "popart"):
        for seed in range(2):
            write_run(runs, "pong", agent, seed, 5.0)
    write_run(runs, "pong", "popart", 2, 5.0, frames=FRAMES // 2)
    write_run(runs, "pong", "popart", 3, 5.0, rows=3, finished=False)
    write_run(runs, "pong", "popart", 5, 5.0, optimizer="adam")
    write_run(runs, "pong", "popart", 6, 5.0, learning_rate=1e-3)
    write_run(runs, "pong", "popart", 1, 5.0, name="pong-popart-1-again")
    (write_run(runs, "pong", "popart", 7, 5.0) / "metrics.csv").unlink()
    (write_run(runs, "pong", "popart", 8, 5.0) / "manifest.json").write_text("{")
    longer = write_run(runs, "pong", "popart", 9, 50.0, frames=4 * FRAMES)
    report = Report((runs,), out=tmp_path / "out").run()
    why = reasons(report)
    assert why["pong-popart-2"] == "was trained for 1,000,000 frames (finished), not 2,000,000"
    assert (
        why["pong-popart-3"]
        == "was trained for 1,500,000 frames (not finished, 2,000,000 planned), not 2,000,000"
    )
    assert why["pong-popart-5"].startswith("has other settings than most: optimizer is adam, not rmsprop")
    assert why["pong-popart-6"] == "has other settings than most: learning_rate is 0.001, not 0.0001"
    assert why["pong-popart-1-again"].startswith("has the game, agent and seed of ")
    assert why["pong-popart-7"] == "has no metrics yet"
    assert "is damaged" in why["pong-popart-8"]
    compared = table(report, "runs", "run")
    assert {Path(run).name for run in compared} == {
        *(f"pong-{agent}-{seed}" for agent in ("clipped", "popart") for seed in range(2)),
        "pong-popart-9",  # a longer run is read up to the same number of frames
    }
    assert float(compared[str(longer)]["score"]) == 12.5
    assert int(compared[str(longer)]["frames"]) == FRAMES
    assert {row["agent"]: row for row in read_table(report / "gradients.csv")}.keys() == {"clipped", "popart"}


def test_unfinished_runs_are_compared_after_the_frames_that_all_have_reached(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    write_run(runs, "pong", "clipped", 0, 8.0, rows=3, finished=False)
    write_run(runs, "pong", "popart", 0, 8.0, rows=2, finished=False)
    report = Report((runs,), out=tmp_path / "out").run()
    assert {row["frames"] for row in read_table(report / "runs.csv")} == {str(FRAMES // 2)}
    assert {row["score"] for row in read_table(report / "runs.csv")} == {"4.0"}
    given = Report((runs,), frames=FRAMES // 4, out=tmp_path / "other").run()
    assert {row["score"] for row in read_table(given / "runs.csv")} == {"2.0"}


def test_a_row_that_is_only_half_written_is_left_out(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    for agent in ("clipped", "popart"):
        run = write_run(runs, "pong", agent, 0, 8.0, rows=3, finished=False)
        with (run / "metrics.csv").open("a") as file:
            file.write("3000,1.0")
    report = Report((runs,), out=tmp_path / "out").run()
    assert len(read_table(report / "runs.csv")) == 2


def test_runs_are_found_at_any_depth_also_below_a_folder_with_a_manifest_of_its_own(tmp_path: Path) -> None:
    """Campaigns and `popart norms` have such folders."""
    write_run(tmp_path / "runs" / "fleet" / "agents", "pong", "popart", 0, 5.0)
    shutil.copy(RESULTS / "lab" / "norms" / "manifest.json", tmp_path / "runs" / "fleet")
    (tmp_path / "runs" / "fleet" / "agents" / "pong-popart-0" / "checkpoints").mkdir()
    report = Report((tmp_path / "runs",), out=tmp_path / "runs" / "report").run()
    again = Report((tmp_path / "runs",), out=tmp_path / "runs" / "report").run()  # it is no run itself
    assert again == report
    assert len(read_table(report / "runs.csv")) == 1
    assert not (report / "left_out.csv").exists()


def test_games_without_gradients_are_left_out_of_the_range_of_norms(tmp_path: Path) -> None:
    """A game without any reward has gradients of 0, which have no order of magnitude."""
    for seed in range(2):
        for i, game in enumerate(("pong", "boxing", "breakout", "asterix", "atlantis", "venture")):
            write_run(
                tmp_path / "runs", game, "popart", seed, 1.0, norm=0.0 if game == "venture" else 0.1 * (i + 1)
            )
    report = Report((tmp_path / "runs",), out=tmp_path / "out").run()
    (shown,) = (x for x in read_manifest(report)["shown"] if x["name"] == "figure_1b")
    assert shown["caption"].endswith("because gradients are 0 in half of the rows: venture.")
    norms = table(report, "norms")
    assert "venture" not in norms
    assert float(norms["boxing"]["popart"]) == pytest.approx(6.4)
    orders = numbers(norms["orders of magnitude"]["popart"])[0]
    assert 0.5 < orders < np.log10(5)


def test_games_without_any_score_are_marked_and_the_range_without_them_is_given(tmp_path: Path) -> None:
    """Their gradients are tiny for every agent, and widen the range of each by orders of magnitude."""
    games = ("pong", "boxing", "breakout", "asterix", "atlantis", "venture")
    for agent in ("clipped", "popart"):
        for i, game in enumerate(games):
            empty = game == "venture"
            norm = 1e-4 if empty else 0.1 * (i + 1)
            write_run(tmp_path / "runs", game, agent, 0, 0.0 if empty else 1.0, norm=norm)
    report = Report((tmp_path / "runs",), out=tmp_path / "out").run()
    (shown,) = (x for x in read_manifest(report)["shown"] if x["name"] == "figure_1b")
    assert shown["caption"].endswith("Grey: games in which every score of every agent is 0: venture.")
    norms = table(report, "norms")
    for agent in ("clipped", "popart"):
        assert numbers(norms["orders of magnitude"][agent])[0] > 3
        assert numbers(norms["orders of magnitude, 5 games with scores"][agent])[0] < np.log10(5)
    (found,) = (x for x in read_manifest(report)["findings"] if "than with clipping" in x["claim"])
    assert "95 % of 6 games" in found["here"]


def test_a_missing_agent_is_said_and_the_other_is_shown(tmp_path: Path) -> None:
    write_run(tmp_path / "runs", "pong", "popart", 0, 5.0)
    report = Report((tmp_path / "runs",), out=tmp_path / "out").run()
    why = table(report, "open", "what")["Pop-Art with clipping"]["why"]
    assert why == "there is no run of clipped"
    assert not (report / "figure_2.png").exists()
    assert (report / "scores.png").exists()


def test_a_report_is_replaced_as_a_whole_and_no_other_folder_is(tmp_path: Path) -> None:
    runs = write_campaign(tmp_path / "runs", 1, games=6)
    out = Report((runs,), out=tmp_path / "out").run()
    assert (out / "figure_2.png").exists()
    for run in runs.glob("*-clipped-*"):
        shutil.rmtree(run)
    Report((runs,), out=out).run()
    assert not (out / "figure_2.png").exists()
    other = write_run(tmp_path, "pong", "popart", 0, 1.0)
    with pytest.raises(LabError, match="is a run of 'train'"):
        Report((runs,), out=other).run()


def test_a_report_is_redrawn_from_its_own_tables(report: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(report, tmp_path / "copy")
    redraw(copy)
    for name in ("games.csv", "aggregates.csv", "norms.csv", "figure_2.png", "figure_1b.png"):
        assert (copy / name).read_bytes() == (report / name).read_bytes()


def test_real_runs_on_atari_have_scores_of_their_evaluations(tmp_path: Path) -> None:
    """The runs in `results/atari`: two agents on Pong were trained equally long; others are left out."""
    pong = tuple(RESULTS / "atari" / f"pong-{agent}" for agent in ("clipped", "popart"))
    report = Report(pong, out=tmp_path / "pong").run()
    (about,) = read_table(report / "about.csv")
    assert about["score"] == "`popart evaluate`: last agent, 100 episodes, epsilon 0.01"
    row = table(report, "games")["Pong"]
    assert (row["clipped"], row["popart"]) == ("19.6", "19.4")
    assert table(report, "open", "what")["signs and order of games beside the paper's"]
    everything = Report((RESULTS / "atari",), frames=20_000_000, out=tmp_path / "all").run()
    assert "was trained for 5,000,924 frames" in reasons(everything)["battle_zone-popart"]
    assert "dtype is bfloat16" in reasons(everything)["breakout-popart-bf16"]


@pytest.mark.xdist_group("catch")
def test_real_runs_of_small_games_are_compared_by_their_returns(catch: Path, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    shutil.copytree(catch, runs / "catch-popart-0", ignore=shutil.ignore_patterns("checkpoints"))
    CATCH.changed(agent=("clipped",), out=runs / "catch-clipped-0").run()
    report = Report((runs,), out=tmp_path / "out").run()
    row = table(report, "games")["Catch"]
    assert (row["runs, clipped"], row["runs, popart"]) == ("1", "1")
    best = max(float(r["score"]) for r in read_table(catch / "evaluations.csv"))
    assert float(row["popart"]) == pytest.approx(best, abs=0.06)
    assert "human" not in row
    why = table(report, "open", "what")["normalised scores, Fig. 2, the paper's scores"]["why"]
    assert why == "Catch: no scores of random play and of a human tester are published"
    assert table(report, "open", "what")["norms of gradients beside the paper's"]
    assert read_manifest(report)["findings"] == []
    (about,) = read_table(report / "about.csv")
    assert about["score"].startswith("best evaluation in training")
    assert not about["of the paper's frames"]


def test_shares_of_large_rewards_are_those_of_the_evaluations(tmp_path: Path) -> None:
    for agent, times in (("clipped", {"10": 80, "200": 1}), ("popart", {"10": 20, "200": 4, "-50": 1})):
        run = write_run(tmp_path / "runs", "ms_pacman", agent, 0, 500.0)
        evaluation = run / f"evaluation-last-{FRAMES}-10-0.01-0"
        evaluation.mkdir()
        shutil.copy(run / "manifest.json", evaluation)
        update_manifest(evaluation, experiment="evaluate", settings={"episodes": 10, "epsilon": 0.01})
        write_table(evaluation / "episodes.csv", [{"episode": 0, "score": 1000.0}])
        write_table(evaluation / "rewards.csv", [{"reward": r, "times": n} for r, n in times.items()])
    report = Report((tmp_path / "runs",), out=tmp_path / "out").run()
    rows = table(report, "large_rewards", "agent")
    assert rows["clipped"]["from rewards of 200 and more"] == "20.0%"
    assert rows["popart"]["from rewards of 200 and more"] == "80.0%"
    assert rows["popart"]["points won"] == "1,000"
    none = Report((tmp_path / "runs",), score="training", large_rewards=300, out=tmp_path / "none").run()
    assert not (none / "large_rewards.csv").exists()


def test_a_kind_of_score_that_a_run_lacks_leaves_it_out(tmp_path: Path) -> None:
    _, run = (write_run(tmp_path / "runs", "pong", "popart", seed, 5.0) for seed in range(2))
    write_table(run / "evaluations.csv", [{"frames": FRAMES // 2, "score": 7.0}])
    report = Report((tmp_path / "runs",), score="best", out=tmp_path / "out").run()
    assert reasons(report) == {
        "pong-popart-0": "has no score of best evaluation in training (32 episodes each)"
    }
    assert [row["score"] for row in read_table(report / "runs.csv")] == ["7.0"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"frames": 0}, "frames is 0; it must be 1 or more"),
        ({"runs": ()}, "runs is empty"),
        ({"large_rewards": 0.0}, "large_rewards is 0.0; it must be positive"),
    ],
)
def test_a_wrong_option_is_named(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Report(**arguments)


def test_a_folder_without_runs_is_named(tmp_path: Path) -> None:
    with pytest.raises(LabError, match="no run of `popart train` in"):
        Report((tmp_path,), out=tmp_path / "out").run()
    with pytest.raises(LabError, match="is not a folder"):
        Report((tmp_path / "nowhere",), out=tmp_path / "out").run()
    assert not (tmp_path / "out").exists()
