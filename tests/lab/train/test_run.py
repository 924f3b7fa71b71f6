"""Training runs: what is written, how they are continued, and that the scale of rewards does not matter."""

import json
import shutil
import signal
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from matplotlib.figure import Figure

from popart.lab.analysis import Page, analyse
from popart.lab.checks import LabError
from popart.lab.files import read_table, write_table
from popart.lab.manifest import read_manifest
from popart.lab.plot import redraw
from popart.lab.train import episodes, evaluation
from popart.lab.train.config import member_of
from popart.lab.train.loading import load
from popart.lab.train.loop import Loop
from popart.lab.train.metrics import TIMES
from tests.lab.examples import ASTERIX, CATCH, CATCH_NETWORK, training

pytestmark = pytest.mark.xdist_group("catch")


def test_an_agent_learns_catch_and_its_run_has_metrics_evaluations_and_a_figure(catch: Path) -> None:
    rows = read_table(catch / "metrics.csv")
    assert [int(row["frames"]) // 1500 for row in rows] == list(range(1, 9))
    assert int(rows[-1]["updates"]) == (int(rows[-1]["steps"]) - 992) // 4  # from the 1000th step on
    assert float(rows[0]["score_100"]) < 0
    assert float(rows[-1]["scale"]) > 0.3
    evaluations = read_table(catch / "evaluations.csv")
    assert [int(row["frames"]) // 6000 for row in evaluations] == [1, 2]
    assert max(float(row["score"]) for row in evaluations) > 0.5
    manifest = read_manifest(catch)
    assert {shown["name"] for shown in manifest["shown"]} == {"curves", "result", "evaluations"}
    assert (catch / "curves.png").stat().st_size > 10_000
    result = {row["score of"]: float(row["points"]) for row in read_table(catch / "result.csv")}
    assert len(result) == 2
    assert max(result.values()) > 0.5


def first_rows(catch: Path, out: Path, rows: int, **cells: str) -> Path:
    """Copy a run, with its first rows only, and with other values in the last of these."""
    run = shutil.copytree(catch, out)
    (run / "evaluations.csv").unlink()
    table = read_table(run / "metrics.csv")[:rows]
    write_table(run / "metrics.csv", [*table[:-1], table[-1] | cells])
    return run


def test_a_curve_of_one_point_is_drawn_with_a_marker(
    catch: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[Figure] = []
    monkeypatch.setattr(Page, "figure", lambda *arguments: drawn.append(arguments[-1]))
    one = first_rows(catch, tmp_path / "one", 1, scale="1", shift="0", gradient_norm="1")
    for run in (one, catch):
        analyse(Page(run))
    for figure, points, marker in zip(drawn, (1, 8), ("o", ""), strict=True):
        lines = [line for axes in figure.axes for line in axes.lines]
        markers = [line.get_marker() for line in lines if np.size(line.get_xdata()) == points]
        assert markers == [marker] * 4


def test_a_run_in_which_no_episode_ended_says_so(catch: Path, tmp_path: Path) -> None:
    run = first_rows(catch, tmp_path / "one", 1, score="", score_100="")
    redraw(run)
    assert [row["points"] for row in read_table(run / "result.csv")] == ["no episode ended"]


def test_the_manifest_has_every_setting_of_the_member_and_its_command(catch: Path) -> None:
    manifest = read_manifest(catch)
    (member,) = CATCH.changed(out=catch).members()
    assert member_of(manifest["settings"], catch) == member
    assert manifest["settings"]["copy_every"] == 400
    options = "--num-envs 16 --evaluate-every 6000 --log-every 1500 --device cpu"
    assert manifest["command"] == f"popart train --game catch --frames 12000 {options} --out {catch}"


def test_a_finished_run_is_not_repeated_and_more_frames_continue_it(catch: Path, tmp_path: Path) -> None:
    out = shutil.copytree(catch, tmp_path / "catch")
    before = read_table(out / "metrics.csv")
    CATCH.changed(out=out).run()
    assert read_table(out / "metrics.csv") == before
    CATCH.changed(out=out, frames=13_000).run()
    rows = read_table(out / "metrics.csv")
    assert rows[: len(before)] == before
    assert int(rows[-1]["frames"]) >= 13_000
    assert read_manifest(out)["settings"]["frames"] == 13_000
    CATCH.changed(out=out, frames=13_000).run()
    assert read_table(out / "metrics.csv") == rows
    with pytest.raises(LabError, match="other settings"):
        CATCH.changed(out=out, frames=13_000, seed=1).run()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"game": "cartpole"}, "game is 'catch' there, 'cartpole' here"),
        ({"agent": "clipped"}, "agent is 'popart' there, 'clipped' here"),
    ],
)
def test_a_folder_of_another_run_is_refused(catch: Path, change: dict[str, Any], words: str) -> None:
    with pytest.raises(LabError, match=words):
        CATCH.changed(out=catch, **change).run()


def test_a_continued_run_does_not_depend_on_when_it_was_saved(tmp_path: Path) -> None:
    """Even if that was after the last step, but before the last row."""
    rows = []
    for seconds in (1e-9, 1e6):
        out = tmp_path / f"{seconds}"
        command = CATCH.changed(warm_up=40, log_every=70, evaluate_every=0, checkpoint_every=seconds, out=out)
        command.changed(frames=200).run()
        command.changed(frames=260).run()
        rows.append(read_table(out / "metrics.csv"))
        for row in rows[-1]:
            row.update(dict.fromkeys(TIMES, ""))
    assert rows[0] == rows[1]
    assert [int(row["frames"]) // 70 for row in rows[0]] == [1, 2, 2, 3, 3]
    assert int(rows[0][-1]["updates"]) > 40


def test_a_run_interrupted_in_its_last_evaluation_resumes_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluations = iter(range(2))

    def interrupted(*arguments: Any, **options: Any) -> list[float] | None:
        if next(evaluations) == 1:
            signal.raise_signal(signal.SIGINT)
        return episodes.first_episodes(*arguments, **options)

    def evaluated() -> list[int]:
        return [int(row["frames"]) // 100 for row in read_table(tmp_path / "run" / "evaluations.csv")]

    command = CATCH.changed(frames=2000, evaluate_every=1000, out=tmp_path / "run")
    with monkeypatch.context() as patch:
        patch.setattr(evaluation, "first_episodes", interrupted)
        with pytest.raises(KeyboardInterrupt):
            command.run()
    assert read_manifest(tmp_path / "run")["finished"] is None
    assert evaluated() == [10]
    command.run()
    assert read_manifest(tmp_path / "run")["finished"]
    assert evaluated() == [10, 20]
    command.changed(frames=2500).run()
    assert evaluated() == [10, 20, 25]


def first_release(catch: Path, out: Path) -> Path:
    """Copy a run, with the manifest that the first release would have written."""
    shutil.copytree(catch, out)
    manifest = json.loads((out / "manifest.json").read_text("utf-8"))
    old = {"learning_rate": "step_size", "initial_weights": "start", "replay_size": "replay",
           "undo_overflow": "undo_wraps"}  # fmt: skip
    settings = {
        old.get(k, k): v for k, v in manifest["settings"].items() if k not in ("batch", "steps_per_update")
    }
    manifest |= {"settings": settings, "continued": manifest.pop("resumed")}
    del manifest["format"]
    (out / "manifest.json").write_text(json.dumps(manifest), "utf-8")
    return out


def test_the_agent_of_a_run_of_the_first_release_can_be_loaded(catch: Path, tmp_path: Path) -> None:
    out = first_release(catch, tmp_path / "old")
    for which in ("best", "last"):
        trained = [load(folder, which) for folder in (catch, out)]
        assert trained[0].frames == trained[1].frames
        jax.tree.map(np.testing.assert_array_equal, *(each.policy(CATCH_NETWORK) for each in trained))


def test_a_run_of_the_first_release_is_not_continued(catch: Path, tmp_path: Path) -> None:
    out = first_release(catch, tmp_path / "old")
    before = (out / "manifest.json").read_bytes()
    with pytest.raises(LabError, match="give another --out"):
        CATCH.changed(out=out, frames=13_000).run()
    assert (out / "manifest.json").read_bytes() == before


@pytest.mark.parametrize("k", [-40, 40])
def test_scaling_rewards_by_a_power_of_two_changes_nothing_on_a_small_game(
    catch: Path, tmp_path: Path, k: int
) -> None:
    scaled = CATCH.changed(out=tmp_path / "scaled", reward_scale=2.0**k).run()
    rows, others = (read_table(out / "metrics.csv") for out in (catch, scaled))
    for row, other in zip(rows, others, strict=True):
        for name in ("steps", "episodes", "score", "gradient_norm", "loss"):
            assert row[name] == other[name]
        for name in ("scale", "shift"):
            assert float(other[name] or 0) == 2.0**k * float(row[name] or 0)
    policies = [load(out, "last").policy(CATCH_NETWORK) for out in (catch, scaled)]
    jax.tree.map(np.testing.assert_array_equal, policies[0].params, policies[1].params)


@pytest.mark.xdist_group("atari")
def test_scaling_rewards_by_a_power_of_two_changes_no_bit_on_atari(
    trained_loop: Loop, tmp_path: Path
) -> None:
    with training(ASTERIX.changed(reward_scale=2.0**30, frames=1500), tmp_path / "scaled") as loop:
        for _ in loop.turns():
            pass
    assert trained_loop.counts.updates == loop.counts.updates > 20
    one, other = trained_loop.fleet, loop.fleet
    assert np.abs(one.memory.reward).sum() > 0
    np.testing.assert_array_equal(one.memory.action, other.memory.action)
    np.testing.assert_array_equal(one.memory.observation, other.memory.observation)
    jax.tree.map(np.testing.assert_array_equal, one.learner.params, other.learner.params)
    jax.tree.map(np.testing.assert_array_equal, one.learner.target_params, other.learner.target_params)
    jax.tree.map(np.testing.assert_array_equal, one.learner.optimizer, other.learner.optimizer)
    art = ASTERIX.members()[0].agent.art
    affine, scaled = (art.affine(fleet.policy(0).statistics) for fleet in (one, other))
    assert (scaled.scale, scaled.shift) == (2.0**30 * affine.scale, 2.0**30 * affine.shift)
    assert affine.scale > 0


@pytest.mark.xdist_group("atari")
@pytest.mark.parametrize("saved", [pytest.param(True, marks=pytest.mark.slow), False])
def test_a_run_saved_without_its_replay_buffer_refills_it_first(tmp_path: Path, saved: bool) -> None:
    """Emulators are reset in either case, and no transition reaches across that."""
    command = ASTERIX.changed(save_replay=saved, frames=640, out=tmp_path / "run")
    command.run()
    with training(command.changed(frames=1200), tmp_path / "run") as loop:
        counts, memory = loop.counts, loop.fleet.memory
        assert (counts.frames[0], counts.updates[0]) == (640, 16)
        assert int(memory.written.sum()) == (4 * 41 if saved else 0)
        if saved:
            assert memory.last[0, :, 40].all()
        turns = loop.turns()
        next(turns)
        next(turns)
        assert counts.updates[0] == 16 + int(saved)
        assert counts.frames[0] == 640  # only the first observations of new episodes were received
        turns.close()
