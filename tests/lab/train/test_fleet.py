"""Fleets: members are as they would be alone, have their own folders, and fail alone."""

import os
import shutil
import signal
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from popart.lab.checks import LabError
from popart.lab.cli import main
from popart.lab.dqn import learner
from popart.lab.dqn.config import AgentConfig
from popart.lab.dqn.networks import MLP, Nature
from popart.lab.dqn.replay import Transitions
from popart.lab.envs.workers import AtariSuite
from popart.lab.files import read_table
from popart.lab.manifest import read_manifest
from popart.lab.train.fleet import Fleet, cut, padded
from popart.lab.train.loading import load
from popart.lab.train.metrics import TIMES
from tests.lab.examples import ASTERIX, CATCH, CATCH_NETWORK

pytestmark = pytest.mark.xdist_group("catch")

FLEET = CATCH.changed(seed=(0, 1, 2), frames=3000, evaluate_every=1500)
NAMES = ("catch-popart-0", "catch-popart-1", "catch-popart-2")


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the runs of a finished fleet."""
    return FLEET.changed(out=tmp_path_factory.mktemp("fleet") / "runs").run()


def rows(folder: Path) -> list[dict[str, str]]:
    return [{**row, **dict.fromkeys(TIMES, "")} for row in read_table(folder / "metrics.csv")]


def parameters(folder: Path) -> list[np.ndarray]:
    return [np.asarray(x) for x in jax.tree.leaves(load(folder, "last").policy(CATCH_NETWORK).params)]


def test_a_member_is_the_single_run_to_rounding(fleet: Path, tmp_path: Path) -> None:
    """After 508 updates with a learning rate of 1e-3: the same episodes, and parameters to 1e-6."""
    for seed in (0, 2):
        alone = CATCH.changed(seed=seed, frames=3000, evaluate_every=1500, out=tmp_path / f"{seed}").run()
        member = fleet / f"catch-popart-{seed}"
        for single, other in zip(rows(alone), rows(member), strict=True):
            for name in ("frames", "steps", "updates", "episodes", "score_100", "epsilon"):
                assert single[name] == other[name]
            for name in ("loss", "gradient_norm", "scale", "shift"):
                assert float(single[name]) == pytest.approx(float(other[name]), rel=1e-5)
        assert int(rows(alone)[-1]["updates"]) > 500
        for x, y in zip(parameters(alone), parameters(member), strict=True):
            np.testing.assert_allclose(x, y, rtol=0, atol=1e-6)
        evaluations = [read_table(folder / "evaluations.csv") for folder in (alone, member)]
        assert [row["frames"] for row in evaluations[0]] == [row["frames"] for row in evaluations[1]]


def test_a_member_does_not_depend_on_its_companions(fleet: Path, tmp_path: Path) -> None:
    """Not in a single bit, in a fleet of the same size."""
    other = FLEET.changed(seed=(7, 1, 5), out=tmp_path / "runs").run()
    assert rows(other / NAMES[1]) == rows(fleet / NAMES[1])
    assert rows(other / "catch-popart-7") != rows(fleet / NAMES[0])
    for x, y in zip(parameters(other / NAMES[1]), parameters(fleet / NAMES[1]), strict=True):
        np.testing.assert_array_equal(x, y)


def test_a_member_has_the_files_of_a_single_run(fleet: Path, catch: Path) -> None:
    def files(folder: Path) -> set[str]:
        found = {path.name for path in (*folder.iterdir(), *folder.glob("checkpoints/*"))}
        return {name for name in found if not name.startswith("evaluation-")}  # of other tests

    assert {path.name for path in fleet.iterdir()} == set(NAMES)
    for name in NAMES:
        assert files(fleet / name) == files(catch)
        assert read_manifest(fleet / name)["finished"]
        assert read_manifest(fleet / name)["settings"]["seed"] == int(name[-1])


def test_commands_take_a_member_as_they_take_a_run(fleet: Path, capfd: pytest.CaptureFixture[str]) -> None:
    member = fleet / NAMES[1]
    for command in (["evaluate", str(member), "--episodes", "4"], ["plot", str(member)]):
        main(command)
        assert Path(capfd.readouterr().out.splitlines()[-1]).is_relative_to(member)


def test_a_finished_member_is_not_trained_again(fleet: Path, tmp_path: Path) -> None:
    out = shutil.copytree(fleet, tmp_path / "runs")
    shutil.rmtree(out / NAMES[2])
    before = (out / NAMES[0] / "metrics.csv").read_bytes()
    FLEET.changed(out=out).run()
    assert (out / NAMES[0] / "metrics.csv").read_bytes() == before
    assert read_manifest(out / NAMES[0])["resumed"] == []
    assert rows(out / NAMES[2])[-1]["frames"] == rows(fleet / NAMES[2])[-1]["frames"]


def test_the_plan_comes_first_and_the_folder_last(
    fleet: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out = shutil.copytree(fleet, tmp_path / "runs")
    options = ["--seed", "0", "1", "2", "--frames", "3000", "--num-envs", "16", "--evaluate-every", "1500"]
    main(["train", "--game", "catch", *options, "--log-every", "1500", "--device", "cpu", "--out", str(out)])
    said = capfd.readouterr()
    assert "3 × 16" in said.err
    assert all(name in said.out for name in NAMES)
    assert said.out.splitlines()[-1] == str(out)


def test_a_member_that_diverges_is_stopped_and_the_others_are_not(
    fleet: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    learn = Fleet.learn

    def poisoned(self: Fleet, due: np.ndarray) -> jax.Array:
        if int(self.learner.updates[1]) == 60:
            head = self.learner.params["head"]
            head["w"] = head["w"].at[1].set(jnp.nan)
        return learn(self, due)

    monkeypatch.setattr(Fleet, "learn", poisoned)
    out = tmp_path / "runs"
    with pytest.raises(LabError, match=r"1 of 3 runs failed.*catch-popart-1: it diverged: loss nan"):
        FLEET.changed(out=out).run()
    assert read_manifest(out / NAMES[1])["finished"] is None
    assert int(rows(out / NAMES[1])[-1]["frames"]) < 1600
    for name in (NAMES[0], NAMES[2]):
        assert rows(out / name) == rows(fleet / name)
        assert read_manifest(out / name)["finished"]


@pytest.mark.slow
@pytest.mark.xdist_group("atari")
def test_a_game_whose_emulator_is_killed_stops_alone_and_is_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Games have 9 and 18 actions here; each run has a network for its own."""
    command = ASTERIX.changed(game=("asterix", "boxing"), frames=600, out=tmp_path, checkpoint_every=1e-9)
    sent = []

    def killing(self: AtariSuite, group: int, action: np.ndarray) -> None:
        sent.append(action)
        if len(sent) == 100:
            os.kill(self.workers[0]._process.pid, signal.SIGKILL)
        send(self, group, action)

    send = AtariSuite.send
    monkeypatch.setattr(AtariSuite, "send", killing)
    with pytest.raises(LabError, match=r"1 of 2 runs failed.*asterix-popart-0: its process ended"):
        command.run()
    frames = load(tmp_path / "asterix-popart-0", "last").frames
    assert 0 < frames < 600 <= load(tmp_path / "boxing-popart-0", "last").frames
    assert np.max([action[0] for action in sent]) < 9 <= np.max([action[1] for action in sent])
    monkeypatch.undo()
    command.run()
    assert load(tmp_path / "asterix-popart-0", "last").frames >= 600
    for game, actions in (("asterix", 9), ("boxing", 18)):
        policy = load(tmp_path / f"{game}-popart-0", "last").policy(Nature(actions))
        assert policy.params["head"]["w"].shape == (512, actions)


def batch_of(seed: int, actions: int) -> Transitions:
    """Some transitions with rewards of a few hundred."""
    rng = np.random.default_rng(seed)
    first, later = (rng.normal(size=(2, 32, 10, 1)).astype(np.float32) for _ in range(2))
    action, reward = rng.integers(0, actions, (2, 32)), rng.normal(0, 300, (2, 32)).astype(np.float32)
    terminal, weight = rng.random((2, 32)) < 0.1, np.ones((2, 32), np.float32)
    return Transitions(*map(jnp.asarray, (first, action, reward, terminal, later, weight)))


@pytest.mark.parametrize("agent", ["clipped", "unclipped", "popart"])
def test_padded_actions_are_never_chosen_nor_used_in_a_target(agent: str) -> None:
    """Whatever their outputs are: here they are larger than all others."""
    config, own, large = AgentConfig(agent), MLP(10, 3), MLP(10, 7)  # pyright: ignore[reportArgumentType]
    single = learner.init(config, own, jax.random.key(0))
    like = jax.eval_shape(lambda: learner.init(config, large, jax.random.key(0)))
    many: Any = padded(single, like)
    for params in (many.params, many.target_params):
        params["head"]["b"][3:] = 1e6
    batch = batch_of(0, 3)
    alone, metrics = learner.learn(config, own, single, batch)
    together, other = learner.learn(config, large, many, batch, actions=jnp.int32(3))
    close = partial(
        np.testing.assert_allclose, rtol=1e-5, atol=1e-6
    )  # matrices of another size are rounded so
    jax.tree.map(close, metrics, other)
    jax.tree.map(close, alone.params, cut(together, alone).params)
    for epsilon in (0.0, 1.0):
        chosen = learner.act(
            large, many.params, batch.observation[0], epsilon, jax.random.key(1), jnp.int32(3)
        )
        expected = learner.act(own, single.params, batch.observation[0], epsilon, jax.random.key(1))
        np.testing.assert_array_equal(chosen, expected)


def test_a_member_that_is_not_due_does_not_change() -> None:
    config, network = AgentConfig("popart"), MLP(10, 3)
    before = learner.init(config, network, jax.random.key(0))
    after, _ = learner.learn(config, network, before, batch_of(0, 3), due=jnp.array(False))
    jax.tree.map(np.testing.assert_array_equal, after, before)
    changed, _ = learner.learn(config, network, before, batch_of(0, 3), due=jnp.array(True))
    assert int(changed.updates) == 2
