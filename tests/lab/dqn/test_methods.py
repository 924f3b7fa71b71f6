"""The methods that `popart scale` compares: their table, their parts, and which are free of scale."""

import shutil
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from stable_baselines3.common.running_mean_std import RunningMeanStd

import popart
import popart.lab.dqn.methods
from popart.lab.cli import main
from popart.lab.dqn.config import SMALL_SCHEDULE
from popart.lab.dqn.methods import config_of, method
from popart.lab.dqn.methods.return_scaling import ErrorScaling
from popart.lab.dqn.rewards import VecNormalize
from popart.lab.envs.small import Game
from popart.lab.experiments.reward_scale.config import METHODS
from popart.lab.experiments.reward_scale.training import Training, advance, init
from popart.lab.files import read_table
from tests.backends import sharing_what_is_compiled

SCALE_FREE = {"popart", "popart_adam", "art", "scale_only", "adaptive_bins"}


def test_a_method_is_one_file_and_one_line_of_the_table() -> None:
    files = Path(popart.lab.dqn.methods.__file__).parent.glob("[!_]*.py")
    assert {file.stem for file in files} == set(METHODS)
    assert all(method(name).source for name in METHODS)


def test_the_help_has_every_method_of_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["scale", "--help"])
    said = " ".join(capsys.readouterr().out.replace("│", " ").split())
    told = said.partition("--methods [STR [STR ...]] ")[2].partition("--scales")[0]
    assert all(f"{name}: {label}" in told for name, label in METHODS.items())


@pytest.mark.slow
def test_one_file_and_one_line_of_the_table_add_a_method_that_the_command_trains(tmp_path: Path) -> None:
    """In a copy of the package: Pop-Art with another rule."""
    copy = shutil.copytree(Path(popart.__file__).parent, tmp_path / "popart")
    file = """
import popart
from popart.jax.alternatives import Linear
from popart.lab.dqn.methods import Method

def head(config, actions):
    print("The head of the test is used.")
    return Linear(popart.Expectiles(config.beta))

METHOD = Method("this test", head)
"""
    (copy / "lab" / "dqn" / "methods" / "of_the_test.py").write_text(file, "utf-8")
    table = copy / "lab" / "experiments" / "reward_scale" / "config.py"
    text, line = table.read_text("utf-8"), "METHODS = {\n"
    assert text.count(line) == 1
    table.write_text(text.replace(line, line + '    "of_the_test": "with expectiles",\n'), "utf-8")

    def popart_scale(*arguments: str) -> str:
        command = [sys.executable, "-m", "popart", "scale", *arguments]
        environment = {**sharing_what_is_compiled(), "PYTHONPATH": str(tmp_path)}
        ended = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert ended.returncode == 0, ended.stderr
        return ended.stdout

    assert "of_the_test: with expectiles" in " ".join(popart_scale("--help").replace("│", " ").split())
    options = ["--games", "catch", "--methods", "of_the_test", "--scales", "1", "--seeds", "1"]
    said = popart_scale(*options, "--steps", "2000", "--out", "run")
    assert "The head of the test is used." in said
    assert [row["method"] for row in read_table(tmp_path / "run" / "returns.csv")] == ["of_the_test"]
    drawn = "".join(path.read_text("utf-8") for path in (tmp_path / "run").glob("*.svg"))
    assert "with expectiles" in drawn


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_rewards_times_a_power_of_two_change_no_parameter_or_the_method_is_not_scale_free(name: str) -> None:
    training = Training(steps=1600, schedule=replace(SMALL_SCHEDULE, warm_up=200, exploration=800))
    config, game = config_of(name, 10.0), Game("Catch-bsuite")

    @jax.jit
    def run(scale: jax.Array) -> Any:
        def step(state: Any, _: None) -> tuple[Any, None]:
            return advance(training, config, game, scale, state)[0], None

        state = init(training, config, game, jax.random.key(5))
        return jax.lax.scan(step, state, None, training.steps // training.environments)[0].learner

    one = run(jnp.float32(1))
    assert one.updates > 200
    others = [run(jnp.float32(2.0**k)) for k in (-20, 20)]
    leaves = [jax.tree.leaves(x.params) for x in (one, *others)]
    same = all(np.array_equal(a, b) for other in leaves[1:] for a, b in zip(leaves[0], other, strict=True))
    assert same == (name in SCALE_FREE)


def test_vecnormalize_has_the_statistics_of_stable_baselines() -> None:
    """With its loop: the return of an environment is 0 after the end of an episode."""
    rng, rewards, theirs = np.random.default_rng(0), VecNormalize(), RunningMeanStd(shape=())
    state, returns = rewards.init(4), np.zeros(4)
    for _ in range(200):
        reward, first = rng.normal(50, 20, 4).astype(np.float32), rng.random(4) < 0.1
        returns = np.where(first, 0.0, returns * 0.99 + reward)
        theirs.update(returns)
        state = rewards.observe(state, jnp.asarray(reward), jnp.asarray(first))
    np.testing.assert_allclose(state.variance, theirs.var, rtol=1e-4)
    given = np.array([-1e5, 30.0, 1e5], np.float32)
    expected = np.clip(given / np.sqrt(theirs.var + 1e-8), -10, 10)
    np.testing.assert_allclose(rewards.apply(state, jnp.asarray(given)), expected, rtol=1e-4)


def test_return_scaling_divides_the_gradient_by_its_scale() -> None:
    rng = np.random.default_rng(1)
    h, y = rng.normal(size=(8, 3)).astype(np.float32), rng.normal(size=8).astype(np.float32)
    reward, discount = rng.normal(size=8), np.where(np.arange(8) < 3, 0.0, 0.99)
    head, params = ErrorScaling(), {"w": jnp.ones((3, 2)), "b": jnp.zeros(2)}
    given = jnp.asarray(np.stack((reward, discount, y), -1), jnp.float32)
    step = head.step(head.init(params), params, given, weights=jnp.ones(8))
    index = jnp.asarray(rng.integers(0, 2, 8))

    def loss(params: Any, targets: jax.Array) -> jax.Array:
        return head.loss(params, jnp.asarray(h), targets, index=index).sum()

    scale = np.sqrt(reward.var() + discount.var() * (y**2).mean())
    gradient = jax.grad(partial(loss, targets=step.targets))(params)["w"]
    error = h.sum(1) - y
    expected = [
        [(error * h[:, i] * (np.asarray(index) == k)).sum() / scale for k in (0, 1)] for i in range(3)
    ]
    np.testing.assert_allclose(gradient, expected, rtol=1e-4, atol=1e-4)
