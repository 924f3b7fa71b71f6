"""The paper's table of Atari scores, and the numbers in its text."""

import re
from pathlib import Path

import pytest

from popart.lab.cli import main
from popart.lab.envs.games import scores
from popart.lab.experiments.atari_scores.analysis import headline
from popart.lab.files import read_table
from popart.lab.manifest import read_manifest


def test_the_table_has_the_57_games() -> None:
    games = {score.game: score for score in scores()}
    assert len(games) == 57
    assert games["gopher"][2:] == (257.6, 2412.5, 14840.8, 56218.2)
    assert games["ms_pacman"][2:] == (307.3, 6951.6, 2711.4, 4963.8)
    assert games["skiing"][2:] == (-17098.1, -4336.9, -9021.8, -13585.1)
    assert games["video_pinball"].title == "Video Pinball"


def test_columns_add_up_to_those_of_the_paper() -> None:
    """Sums over the printed table: an error in any of its 228 numbers is found."""
    sums = [sum(column) for column in zip(*(score[2:] for score in scores()), strict=True)]
    assert sums == pytest.approx([50864.9, 606494.2, 1039514.0, 992047.2], abs=0.05)


def test_the_headline_numbers_are_the_papers_except_for_the_mean() -> None:
    found = headline(scores())
    assert (found.at_least_as_good, found.games) == (32, 57)
    assert found.median == pytest.approx(0.0041, abs=5e-5)
    assert found.mean == pytest.approx(-2.56, abs=0.005)


def test_the_papers_mean_follows_from_a_random_score_of_0_in_video_pinball() -> None:
    games = [s._replace(random=0.0) if s.game == "video_pinball" else s for s in scores()]
    assert headline(games).mean == pytest.approx(0.339, abs=5e-4)
    assert headline(games).at_least_as_good == 32


def test_normalized_scores() -> None:
    breakout = next(score for score in scores() if score.game == "breakout")
    assert breakout.normalized(breakout.random) == 0
    assert breakout.normalized(breakout.human) == 1
    frostbite = next(score for score in scores() if score.game == "frostbite")
    assert frostbite.normalized(frostbite.double_dqn) < 0.5  # as the text says
    assert frostbite.normalized(frostbite.popart) > 0.75


def test_the_command_prints_its_findings_and_explains_the_mean(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["paper", "--out", str(tmp_path / "run")])
    printed = capsys.readouterr().out
    assert re.search(r"32 of 57 +32 of 57", printed)
    assert printed.splitlines()[-1] == str(tmp_path / "run")
    findings = read_manifest(tmp_path / "run")["findings"]
    assert [finding["agrees"] for finding in findings] == [True, True, False]
    assert "-256%" in findings[2]["here"]
    assert "Video Pinball" in findings[2]["here"]
    assert "+33.9%" in findings[2]["here"]
    manifest = read_manifest(tmp_path / "run")
    assert "redrawn" in manifest["title"]
    assert all("recomputed from the paper's table" in finding["claim"] for finding in findings)
    assert all("The paper's own numbers" in shown["caption"] for shown in manifest["shown"])
    assert "own numbers, redrawn" in (tmp_path / "run" / "figure_2.svg").read_text("utf-8")
    rows = read_table(tmp_path / "run" / "scores.csv")
    assert [rows[0]["game"], rows[-1]["game"]] == ["Gopher", "Video Pinball"]
    assert (tmp_path / "run" / "figure_2.png").stat().st_size > 10_000
