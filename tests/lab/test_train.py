"""Training: what is written, that it goes on where it was, and that the size of rewards does not matter."""

import json
import shlex
import shutil
import signal
import struct
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import jax
import numpy as np
import pytest
import tyro
from tensorboardX.proto.event_pb2 import Event  # pyright: ignore[reportAttributeAccessIssue]

from popart.lab.checks import LabError
from popart.lab.cli import main
from popart.lab.dqn import agent, learner
from popart.lab.runs import Run, command_line, read_manifest, read_table
from popart.lab.train import Train
from popart.lab.train.checkpoints import Checkpoints, ReplacedError
from popart.lab.train.loading import load
from popart.lab.train.metrics import TIMES
from popart.lab.train.playing import make
from popart.lab.train.training import Training
from tests.lab.processes import PROCESSES

CATCH = Train("catch", frames=12_000, num_envs=16, evaluate_every=6000, log_every=1500, device="cpu")
TINY = Train("boxing", frames=1200, num_envs=4, replay=400, warm_up=100, exploration=100, copy_every=40,
             step_size=1e-3, beta=1e-2, evaluate_every=0, log_every=400, device="cpu")  # fmt: skip


@pytest.fixture(scope="module")
def catch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run."""
    return replace(CATCH, out=tmp_path_factory.mktemp("train") / "catch").run()


@contextmanager
def training(settings: Train, out: Path) -> Iterator[Training]:
    filled = replace(settings, out=out).filled()
    with Run("train", "a test", cast("Any", filled), Train.FREE) as run, Training(run, filled) as begun:
        yield begun


@pytest.mark.xdist_group("catch")
def test_it_learns_and_writes_down_how(catch: Path) -> None:
    rows = read_table(catch / "metrics.csv")
    assert [int(row["frames"]) // 1500 for row in rows] == list(range(1, 9))
    assert int(rows[-1]["updates"]) == (int(rows[-1]["steps"]) - 992) // 4  # from the 1000th step on
    assert float(rows[0]["score_100"]) < 0
    assert float(rows[-1]["scale"]) > 0.3
    evaluations = read_table(catch / "evaluations.csv")
    assert [int(row["frames"]) // 6000 for row in evaluations] == [1, 2]
    assert max(float(row["score"]) for row in evaluations) > 0.5
    manifest = read_manifest(catch)
    assert manifest["settings"]["copy_every"] == 400
    assert {shown["name"] for shown in manifest["shown"]} == {"curves", "evaluations"}
    assert (catch / "curves.png").stat().st_size > 10_000


@pytest.mark.xdist_group("catch")
def test_tensorboard_has_what_the_table_has(catch: Path) -> None:
    (events,) = (catch / "tensorboard").iterdir()
    data, found = events.read_bytes(), {}
    while data:  # a record: its length, a checksum, itself, a checksum
        (length,) = struct.unpack("<Q", data[:8])
        event = Event.FromString(data[12 : 12 + length])
        found.update({(value.tag, event.step): value.simple_value for value in event.summary.value})
        data = data[16 + length :]
    rows = read_table(catch / "metrics.csv")
    expected = {
        (name, int(row["frames"])): float(value)
        for row in rows
        for name, value in row.items()
        if value and name != "frames"
    }
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        assert found[key] == pytest.approx(value, rel=1e-6)


@pytest.mark.xdist_group("catch")
def test_a_finished_run_is_not_run_again_and_more_frames_go_on(catch: Path, tmp_path: Path) -> None:
    out = tmp_path / "catch"
    shutil.copytree(catch, out)
    before = read_table(out / "metrics.csv")
    replace(CATCH, out=out).run()
    assert read_table(out / "metrics.csv") == before
    replace(CATCH, out=out, frames=15_000).run()
    rows = read_table(out / "metrics.csv")
    assert rows[: len(before)] == before
    assert int(rows[-1]["frames"]) >= 15_000
    assert read_manifest(out)["settings"]["frames"] == 15_000
    replace(CATCH, out=out, frames=15_000).run()
    assert read_table(out / "metrics.csv") == rows
    with pytest.raises(LabError, match="other settings"):
        replace(CATCH, out=out, frames=15_000, seed=1).run()


@pytest.mark.xdist_group("catch")
def test_what_goes_on_does_not_depend_on_when_it_was_saved(tmp_path: Path) -> None:
    """Even if that was after the last step, but before the last row."""
    rows = []
    for often in (1e-9, 1e6):
        out = tmp_path / f"{often}"
        settings = replace(CATCH, out=out, num_envs=100, replay=5000, log_every=700, evaluate_every=0)
        settings = replace(settings, checkpoint_every=often)
        replace(settings, frames=2000).run()
        replace(settings, frames=2600).run()
        rows.append(read_table(out / "metrics.csv"))
        for row in rows[-1]:
            row.update(dict.fromkeys(TIMES, ""))
    assert rows[0] == rows[1]
    assert [int(row["frames"]) for row in rows[0]] == [700, 1400, 2000, 2100, 2600]


@pytest.mark.xdist_group("catch")
def test_who_stops_it_in_the_last_evaluation_goes_on_with_that(tmp_path: Path) -> None:
    class Stopped(Training):
        def _evaluate(self) -> bool:
            signal.raise_signal(signal.SIGINT)
            return super()._evaluate()

    settings = replace(CATCH, frames=2000, out=tmp_path / "run").filled()
    with (
        pytest.raises(KeyboardInterrupt),
        Run("train", "Catch: Pop-Art", cast("Any", settings), Train.FREE) as run,
        Stopped(run, settings) as training,
    ):
        training.run()
    assert read_manifest(run.folder)["finished"] is None
    assert not (run.folder / "evaluations.csv").exists()
    settings.run()
    assert read_manifest(run.folder)["finished"]
    assert [row["frames"] for row in read_table(run.folder / "evaluations.csv")] == ["2000"]


@pytest.mark.xdist_group("catch")
def test_nothing_is_learned_from_nothing(tmp_path: Path) -> None:
    """A stack and what comes after it: so much must there be of each environment."""
    with training(replace(CATCH, warm_up=0, num_envs=500, replay=10_000), tmp_path / "run") as run:
        while not run.counts.updates:
            run.step(0)
        run._fetch()
        norms = np.array(run.counts.metrics)[:, learner.Metrics._fields.index("gradient_norm")]
    assert run.counts.steps == 3 * 500
    assert (norms > 0).all()


@pytest.mark.xdist_group("catch")
@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"game": "cartpole"}, "game is 'catch' there, 'cartpole' here"),
        ({"agent": "clipped"}, "agent is 'popart' there, 'clipped' here"),
    ],
)
def test_a_folder_of_another_run_is_refused(catch: Path, change: dict[str, Any], words: str) -> None:
    with pytest.raises(LabError, match=words):
        replace(CATCH, out=catch, **change).run()


@pytest.mark.xdist_group("catch")
@pytest.mark.parametrize("k", [-40, 40])
def test_rewards_times_a_power_of_two_change_nothing_on_a_small_game(
    catch: Path, tmp_path: Path, k: int
) -> None:
    scaled = replace(CATCH, out=tmp_path / "scaled", reward_scale=2.0**k).run()
    rows, others = (read_table(out / "metrics.csv") for out in (catch, scaled))
    for row, other in zip(rows, others, strict=True):
        for name in ("steps", "episodes", "score", "gradient_norm", "loss"):
            assert row[name] == other[name]
        for name in ("scale", "shift"):
            assert float(other[name] or 0) == 2.0**k * float(row[name] or 0)
    policies = [
        load(out, "last").policy(make(CATCH, 1, training=False).network("float32")) for out in (catch, scaled)
    ]
    jax.tree.map(np.testing.assert_array_equal, policies[0].params, policies[1].params)


@pytest.mark.xdist_group("atari")
def test_rewards_times_a_power_of_two_change_no_bit_on_atari(tmp_path: Path) -> None:
    found = []
    for scale in (1.0, 2.0**30):
        with training(replace(TINY, reward_scale=scale), tmp_path / str(scale)) as run:
            while run.counts.frames < 900:
                for group in range(4):
                    run.step(group)
            found.append(run)
    one, other = found
    assert one.counts.updates == other.counts.updates > 20
    assert np.abs(one.memory.reward).sum() > 0
    np.testing.assert_array_equal(one.memory.action, other.memory.action)
    np.testing.assert_array_equal(one.memory.observation, other.memory.observation)
    jax.tree.map(np.testing.assert_array_equal, one.agent.params, other.agent.params)
    jax.tree.map(np.testing.assert_array_equal, one.agent.target_params, other.agent.target_params)
    jax.tree.map(np.testing.assert_array_equal, one.agent.moments, other.agent.moments)
    art = TINY.filled().learning.art
    (scale, shift), (larger, shifted) = (art.affine(run.agent.statistics)[:2] for run in found)
    assert (larger, shifted) == (2.0**30 * scale, 2.0**30 * shift)
    assert scale > 0


@pytest.mark.xdist_group("atari")
def test_one_environment_follows_the_sequence_of_the_paper(tmp_path: Path) -> None:
    """An update after every fourth step, a copy after every so many steps, each step with all before it."""
    steps, copies = [], []
    with training(replace(TINY, num_envs=1, warm_up=20, copy_every=12), tmp_path / "one") as run:
        assert len(run.groups) == 1
        for _ in range(60):
            before = run.counts.updates, np.array(run.agent.target_params["head"]["w"])
            run.step(0)
            if run.counts.updates > before[0]:
                steps.append(run.counts.steps)
            if (before[1] != run.agent.target_params["head"]["w"]).any():
                copies.append(run.counts.updates)
        assert int(run.memory.written[0]) == 60
        assert float(run.schedule.epsilon_at(run.acting.steps)) == pytest.approx(1 - 0.99 * 40 / 100)
    assert steps == list(range(24, 61, 4))
    assert copies == [3, 6, 9]


@pytest.mark.xdist_group("atari")
def test_without_its_replay_it_fills_a_new_one_first(tmp_path: Path) -> None:
    """Emulators start anew in either case, and no transition reaches over that."""
    for kept in (True, False):
        out = tmp_path / f"{kept}"
        settings = replace(TINY, save_replay=kept, frames=640, out=out)
        settings.run()
        with training(replace(settings, frames=1200), out) as run:
            assert run.counts.frames == 640
            assert run.counts.updates == 16
            assert int(run.memory.written.sum()) == (4 * 41 if kept else 0)
            if kept:
                assert run.memory.last[:, 40].all()
            for group in range(4):
                run.step(group)
            assert run.counts.updates == 16 + int(kept)


@pytest.mark.xdist_group("atari")
def test_the_three_agents_share_one_program() -> None:
    """What the paper does not change is the same for all; only Double DQN's step size is its own."""
    agents = [
        replace(TINY, agent=name, step_size=None).filled() for name in ("clipped", "unclipped", "popart")
    ]
    assert [a.step_size for a in agents] == [2.5e-4, 1e-4, 1e-4]
    assert replace(TINY, optimizer="adam", step_size=None).filled().step_size == 6.25e-5
    same = {(a.schedule, replace(a.learning, agent="popart", step_size=1.0)) for a in agents}
    assert len(same) == 1


def test_the_command_in_the_manifest_asks_for_the_same_run() -> None:
    asked = Train(
        "ms_pacman", "clipped", 1000, num_envs=8, save_replay=False, undo_wraps=True, step_size=3e-4
    )
    words = shlex.split(command_line("train", cast("Any", asked)))
    assert words[:2] == ["popart", "train"]
    assert "--no-save-replay" in words
    assert tyro.cli(Train, args=words[2:]) == asked


def test_defaults_are_those_of_double_dqn() -> None:
    settings = Train("ms_pacman").filled()
    assert settings.schedule == agent.Schedule(50_000, 1_000_000, 0.01, 4, 30_000)
    assert (settings.learning.batch, settings.learning.discount, settings.learning.beta) == (32, 0.99, 1e-4)
    assert (settings.frames, settings.replay, settings.sticky) == (200_000_000, 1_000_000, 0.0)
    schedule = settings.schedule
    for steps, epsilon in ((0, 1.0), (50_000, 1.0), (550_000, 0.505), (1_050_000, 0.01), (2e6, 0.01)):
        assert float(schedule.epsilon_at(np.float32(steps))) == pytest.approx(epsilon, abs=1e-5)  # pyright: ignore


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--game", "mspacman"], ["game is 'mspacman'; did you mean 'ms_pacman'?", "yars_revenge"]),
        (["--game", "catchh"], ["did you mean 'catch'?"]),
        (["--num-envs", "6"], ["num_envs is 6; it must be 1 or a multiple of 4"]),
        (["--epsilon", "1.5"], ["epsilon is 1.5; it must be between 0 and 1"]),
        (["--step-size", "0"], ["step_size is 0.0; it must be more than 0"]),
        (["--beta", "2"], ["beta is 2.0; it must be between 0 and 1"]),
        (["--seed", "4294967296"], ["seed is 4294967296; it must be from 0 to 4294967295"]),
        (["--frames", "0"], ["frames is 0; it must be 1 or more"]),
        (["--agent", "popat"], ["popat", "unclipped"]),
        (["--game", "catch", "--sticky", "0.25"], ["sticky, undo_wraps and dtype are for Atari"]),
        (["--num-envs", "256", "--replay", "1000"], ["replay is 1,000", "num_envs 256", "--replay 1536"]),
        (["--replay", "1000000000000"], ["takes 14134000.0 GB", "would fit", "--no-save-replay"]),
    ],
)
def test_what_is_wrong_is_named(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, arguments: list[str], words: list[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["train", *arguments, "--device", "cpu", "--out", str(tmp_path / "run")])
    assert ended.value.code == 2
    said = " ".join("".join(capsys.readouterr()).replace("│", " ").split())
    for word in words:
        assert word in said


@pytest.mark.skipif(jax.devices()[0].platform != "cpu", reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(LabError, match="device is 'gpu', but JAX finds none"):
        replace(CATCH, device="gpu", out=tmp_path).run()


@pytest.mark.xdist_group("catch")
def test_damaged_checkpoints_and_those_of_other_versions_are_named(catch: Path, tmp_path: Path) -> None:
    def spoilt(name: str) -> Path:
        out = tmp_path / name
        shutil.copytree(catch, out)
        return next((out / "checkpoints" / "last").iterdir())

    more = replace(CATCH, frames=20_000)
    other = spoilt("version")
    notes = next((other / "notes").iterdir())
    notes.write_text(json.dumps({**json.loads(notes.read_text()), "format": 0}))
    with pytest.raises(LabError, match=r"another version \(format 0, not 1\)"):
        replace(more, out=tmp_path / "version").run()
    damaged = spoilt("damaged")
    for file in (damaged / "agent").rglob("*"):
        if file.is_file() and file.stat().st_size > 1000:
            file.write_bytes(file.read_bytes()[:500])
    with pytest.raises(LabError, match="is damaged or was written by another version"):
        replace(more, out=tmp_path / "damaged").run()
    shutil.rmtree(spoilt("half") / "agent")
    with pytest.raises(LabError, match="is damaged"):
        replace(more, out=tmp_path / "half").run()


@pytest.mark.xdist_group("catch")
def test_who_reads_leaves_alone_what_is_being_written(catch: Path) -> None:
    half = catch / "checkpoints" / "last" / "999999.orbax-checkpoint-tmp"
    half.mkdir()
    trained = load(catch, "last")
    trained.policy(make(CATCH, 1, training=False).network("float32"))
    assert half.exists()
    half.rmdir()


def write(folder: Path, steps: range) -> None:
    """Checkpoints, one after the other, each with its number."""
    with closing(Checkpoints(folder)) as checkpoints:
        for step in steps:
            checkpoints.save(step, {"frames": step}, policy=np.arange(3))
            checkpoints.wait()


@pytest.mark.xdist_group("catch")
def test_a_checkpoint_that_is_replaced_meanwhile_is_not_mistaken(catch: Path, tmp_path: Path) -> None:
    """While another process writes, the newest is read; and an agent is of the checkpoint that was found."""
    out, read = tmp_path / "catch", []
    shutil.copytree(catch, out, ignore=shutil.ignore_patterns("last", "best"))
    last = out / "checkpoints" / "last"
    write(last, range(1, 2))
    first = load(out, "last")
    with ProcessPoolExecutor(1, PROCESSES) as another:
        writing = another.submit(write, last, range(2, 100))
        while not writing.done():
            trained = load(out, "last")
            assert trained.frames == trained.step
            read.append(trained.step)
        writing.result()
    assert read == sorted(read)
    assert len(set(read)) > 2
    with pytest.raises(ReplacedError, match=r"last/1 was replaced while it was read; try again"):
        first.policy(make(CATCH, 1, training=False).network("float32"))


@pytest.mark.xdist_group("catch")
def test_evaluate_tells_the_score(catch: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["evaluate", str(catch), "--episodes", "50", "--device", "cpu"])
    out = Path(capsys.readouterr().out.strip().splitlines()[-1])
    assert out.parent == catch
    assert read_manifest(out)["command"] == f"popart evaluate {catch} --device cpu --episodes 50"
    scores = [float(row["score"]) for row in read_table(out / "episodes.csv")]
    (summary,) = read_table(out / "summary.csv")
    assert len(scores) == 50
    assert float(summary["score"]) == pytest.approx(np.mean(scores), abs=0.05)
    assert float(summary["score"]) > 0.5
    main(["evaluate", str(catch), "--episodes", "50", "--device", "cpu"])
    assert capsys.readouterr().out.strip().endswith(str(out))


@pytest.mark.xdist_group("atari")
def test_evaluate_puts_the_paper_beside_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = replace(TINY, game="breakout", frames=480, out=tmp_path / "breakout")
    settings.run()
    main(["evaluate", str(settings.out), "--episodes", "4", "--epsilon", "1", "--device", "cpu"])
    said = capsys.readouterr().out
    rows = read_table(Path(said.strip().splitlines()[-1]) / "summary.csv")
    assert [row["score"] for row in rows[1:]] == ["1.7", "30.5", "418.5", "344.1"]
    assert [row["normalized"] for row in rows[1:3]] == ["0.0", "100.0"]
    assert "random (paper): 1.7 (0.0 % of human)" in said
    assert 0 <= float(rows[0]["score"]) < 10


@pytest.mark.xdist_group("catch")
@pytest.mark.parametrize("command", ["evaluate", "watch"])
def test_what_is_not_a_trained_run_is_named(
    catch: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    for folder, words in (
        (tmp_path, "is not a run's folder"),
        (catch / "checkpoints", "is not a run's folder"),
    ):
        with pytest.raises(SystemExit):
            main([command, str(folder)])
        assert words in capsys.readouterr().err


@pytest.mark.xdist_group("atari")
def test_norms_draw_the_figure_of_the_paper(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main([
        "norms", "--games", "boxing", "berzerk", "--agents", "popart", "--frames", "1360", "--warm-up", "20",
        "--num-envs", "4", "--copy-every", "40", "--device", "cpu", "--out", str(tmp_path),
    ])  # fmt: skip
    manifest = read_manifest(tmp_path)
    assert [shown["name"] for shown in manifest["shown"]] == ["figure_1b", "norms"]
    rows = {row["game"]: row["popart"] for row in read_table(tmp_path / "norms.csv")}
    assert rows["orders of magnitude (paper, 57 games)"] == "less than 2"
    for game in ("boxing", "berzerk"):
        norms = [
            float(row["gradient_norm"])
            for row in read_table(tmp_path / f"{game}-popart" / "metrics.csv")
            if row["gradient_norm"]
        ]
        assert len(norms) >= 15
        assert float(rows[game]) == pytest.approx(np.median(norms), rel=0.01)
    apart = abs(np.log10(float(rows["boxing"]) / float(rows["berzerk"])))
    assert float(rows["orders of magnitude"]) == pytest.approx(0.95 * apart, abs=0.02)
