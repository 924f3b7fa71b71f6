"""`popart evaluate`: the score of a trained agent, beside the published ones."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from popart.lab.cli import main
from popart.lab.files import read_table
from popart.lab.manifest import read_manifest, write_manifest
from popart.lab.play.analysis import large_share
from popart.lab.play.config import Evaluate
from popart.lab.runs import Run
from popart.lab.train.episodes import Player
from popart.lab.train.loading import load
from popart.lab.train.storage import Checkpoints


@pytest.mark.xdist_group("catch")
def test_an_evaluation_has_the_score_of_each_episode_and_their_mean(
    catch: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["evaluate", str(catch), "--episodes", "50", "--device", "cpu"])
    said = capsys.readouterr().out
    out = Path(said.strip().splitlines()[-1])
    assert out.parent == catch
    manifest = read_manifest(out)
    assert manifest["command"] == f"popart evaluate {catch} --device cpu --episodes 50"
    assert (manifest["settings"]["game"], manifest["settings"]["agent"]) == ("catch", "popart")
    scores = [float(row["score"]) for row in read_table(out / "episodes.csv")]
    (summary,) = read_table(out / "summary.csv")
    assert len(scores) == 50
    assert float(summary["score"]) == pytest.approx(np.mean(scores), abs=0.05)
    assert float(summary["score"]) > 0.5
    assert summary["who"] in said
    assert (out / "scores.svg").exists()


def test_the_standard_error_is_that_of_a_sample_and_a_single_episode_has_none(tmp_path: Path) -> None:
    settings = {"game": "catch", "agent": "popart", "frames": 1000, "large_rewards": 200.0}
    for scores, expected in (([1.0, -1.0, 4.0], "1.5"), ([1.0], "")):
        folder = tmp_path / str(len(scores))
        rows = [{"episode": i, "score": x} for i, x in enumerate(scores)]
        with Run("evaluate", "Catch", settings | {"out": folder}, (), "popart evaluate") as run:
            run.write_table("episodes", rows)
            run.finish()
        (summary,) = read_table(folder / "summary.csv")
        assert summary["standard_error"] == expected
        assert summary["who"].endswith(f", {len(scores)} episode{'s' if len(scores) > 1 else ''}")


@pytest.mark.xdist_group("catch")
def test_the_last_agent_plays_for_a_best_one_that_does_not_exist_and_says_so(
    catch: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = shutil.copytree(catch, tmp_path / "run")
    load(run, "best")
    shutil.rmtree(run / "checkpoints" / "best")
    load(run, "last")
    assert capsys.readouterr().err == ""
    for reason in ("the checkpoint of its best agent is missing", "training has made no evaluation"):
        assert load(run, "best").which == "last"
        assert f"{run} has no best agent, because {reason}; the last agent plays" in capsys.readouterr().err
        (run / "evaluations.csv").unlink(missing_ok=True)


@pytest.mark.xdist_group("catch")
def test_a_finished_evaluation_is_not_repeated(
    catch: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = shutil.copytree(catch, tmp_path / "run")
    words = ["evaluate", str(run), "--episodes", "5", "--device", "cpu"]
    main(words)
    first = capsys.readouterr().out
    monkeypatch.setattr(Player, "step", None)
    main(words)
    assert capsys.readouterr().out == first


@pytest.mark.xdist_group("catch")
def test_the_best_agent_is_evaluated_unless_the_last_one_is_wanted(catch: Path, tmp_path: Path) -> None:
    run = shutil.copytree(catch, tmp_path / "run")
    frames = Checkpoints(run / "checkpoints" / "best").all()[0].notes()["frames"]
    best, last = (Evaluate(run, which, episodes=5, device="cpu").run() for which in ("best", "last"))
    assert best.name == f"evaluation-best-{frames}-5-0.01-0"
    assert read_manifest(best)["settings"]["frames"] == frames
    assert last.name == f"evaluation-last-{read_table(run / 'metrics.csv')[-1]['frames']}-5-0.01-0"


@pytest.mark.xdist_group("atari")
def test_published_scores_are_beside_that_of_an_atari_game(
    asterix: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = shutil.copytree(asterix, tmp_path / "run")
    main(["evaluate", str(run), "--episodes", "4", "--epsilon", "1", "--device", "cpu"])
    said = capsys.readouterr().out
    rows = read_table(Path(said.strip().splitlines()[-1]) / "summary.csv")
    assert [row["score"] for row in rows[1:]] == ["210.0", "8503.3", "17356.5", "18919.5"]
    assert [row["normalized"] for row in rows[1:3]] == ["0.0", "100.0"]
    printed = [line.split() for line in said.splitlines()]
    assert ["random", "(paper)", "210.0", "0.0"] in printed
    assert ["human", "(paper)", "8503.3", "100.0"] in printed
    assert 0 < float(rows[0]["score"]) < 1500  # random play


@pytest.mark.xdist_group("atari")
def test_rewards_are_counted_by_size_and_sum_up_to_the_scores(asterix: Path, tmp_path: Path) -> None:
    """On the real emulator: random play of Asterix, whose rewards are multiples of 50."""
    run = shutil.copytree(asterix, tmp_path / "run")
    out = Evaluate(run, epsilon=1.0, episodes=3, large_rewards=50.0, device="cpu").run()
    rows = read_table(out / "rewards.csv")
    scores = [float(row["score"]) for row in read_table(out / "episodes.csv")]
    assert sum(float(row["reward"]) * int(row["times"]) for row in rows) == sum(scores) > 0
    assert all(float(row["points"]) == float(row["reward"]) * int(row["times"]) for row in rows)
    assert all(float(row["reward"]) % 50 == 0 != float(row["reward"]) for row in rows)
    first, *others = read_table(out / "summary.csv")
    assert first["points from rewards of 50 and more"] == "100.0%"
    assert not any(row["points from rewards of 50 and more"] for row in others)
    assert "rewards" in [shown["name"] for shown in read_manifest(out)["shown"]]


@pytest.mark.xdist_group("catch")
def test_another_size_of_large_rewards_plays_no_episode_again(
    catch: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = shutil.copytree(catch, tmp_path / "run")
    first = Evaluate(run, episodes=20, large_rewards=1.0, device="cpu").run()
    rewards = {float(row["reward"]) for row in read_table(first / "rewards.csv")}
    assert rewards <= {-1.0, 1.0}
    assert "100.0%" in read_table(first / "summary.csv")[0].values()
    monkeypatch.setattr(Player, "step", None)
    again = Evaluate(run, episodes=20, large_rewards=2.0, device="cpu").run()
    assert again == first
    assert read_table(again / "summary.csv")[0]["points from rewards of 2 and more"] == "0.0%"


def test_lost_points_count_neither_as_won_nor_as_large() -> None:
    rows = [{"reward": r, "times": n} for r, n in (("-500", "9"), ("10", "60"), ("199", "1"), ("200", "1"))]
    assert large_share(rows, 200) == pytest.approx(200 / 999)
    assert large_share([{"reward": "-1", "times": "21"}], 1) == 0


@pytest.mark.xdist_group("catch")
@pytest.mark.parametrize("command", ["evaluate", "watch"])
def test_a_folder_that_is_not_a_training_run_is_named(
    catch: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    for folder in (tmp_path, catch / "checkpoints"):
        with pytest.raises(SystemExit):
            main([command, str(folder), "--device", "cpu"])
        assert f"{folder} is not a run folder" in capsys.readouterr().err
    evaluation = Evaluate(catch, episodes=2, device="cpu").run()
    with pytest.raises(SystemExit):
        main([command, str(evaluation), "--device", "cpu"])
    assert "is a run of 'evaluate', not of 'train'" in capsys.readouterr().err


@pytest.mark.xdist_group("catch")
def test_a_run_without_a_checkpoint_is_named(
    catch: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = shutil.copytree(catch, tmp_path / "run", ignore=shutil.ignore_patterns("checkpoints"))
    finished = f"{run} is a finished run without its checkpoints, which hold the agent; copy them to {run}/"
    for words in (finished, f"{run} has no checkpoint yet; train for longer"):
        with pytest.raises(SystemExit):
            main(["evaluate", str(run), "--device", "cpu"])
        assert words in capsys.readouterr().err
        write_manifest(run, read_manifest(run) | {"finished": None})


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"episodes": 0}, "episodes is 0; it must be 1 or more"),
        ({"threads": 0}, "threads is 0; it must be 1 or more"),
        ({"large_rewards": -1.0}, "large_rewards is -1.0; it must be positive and finite"),
        ({"epsilon": -0.1}, "epsilon is -0.1; it must be between 0 and 1"),
        ({"seed": 2**32}, "seed is 4294967296; it must be from 0 to 4294967295"),
    ],
)
def test_a_wrong_option_is_named(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Evaluate(Path("run"), **arguments)
