"""Small games, and agents that play them with rewards of any size."""

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from popart.lab.cli import main
from popart.lab.dqn.learner import Settings
from popart.lab.runs import read_manifest, read_table
from popart.lab.scale import GAMES
from popart.lab.scale.experiment import train
from popart.lab.scale.games import Game
from popart.lab.scale.training import SCHEDULE, Training, advance, start
from tests.lab.processes import started

SCALES, STEPS = [1e-8, 1.0, 1e8], 16_000
SMALL = ["--scales", *map(str, SCALES), "--seeds", "1", "--steps", str(STEPS)]

compiled_once = pytest.mark.xdist_group("scale")
"""Programs that take long to compile, and are the same ones in these tests."""


@pytest.mark.parametrize("name", [game.name for game in GAMES.values()])
def test_episodes_end_once_and_start_anew(name: str) -> None:
    game = Game(name)
    world, seen = game.reset(jax.random.key(0), 4)
    assert seen.observation.shape == (4, *game.shape)
    assert seen.start.all()
    assert not seen.last.any()

    @jax.jit
    def play(carry: Any, key: jax.Array) -> Any:
        world, _ = carry
        choose, move = jax.random.split(key)
        carry = game.step(world, jax.random.randint(choose, (4,), 0, game.actions), move)
        return carry, carry[1]

    _, record = jax.lax.scan(play, (world, seen), jax.random.split(jax.random.key(1), 600))
    last, begins = np.asarray(record.last), np.asarray(record.start)
    assert last.sum() > 4
    np.testing.assert_array_equal(begins[1:], last[:-1])
    assert not (last & begins).any()
    assert not np.asarray(record.reward)[begins].any()
    assert not np.asarray(record.terminal)[begins].any()


def test_catch_ends_after_nine_steps_with_a_reward_of_one() -> None:
    """Its board has ten rows: what is seen first, eight falls, and the end."""
    game = Game("Catch-bsuite")
    world, _ = game.reset(jax.random.key(0), 1)
    rewards, lasts = [], []
    for i in range(20):
        world, seen = game.step(world, jnp.ones(1, int), jax.random.key(i))
        rewards.append(float(seen.reward[0]))
        lasts.append(bool(seen.last[0]))
    ends = np.flatnonzero(lasts)
    assert list(ends) == [8, 18]
    assert {abs(rewards[i]) for i in ends} == {1.0}
    assert all(rewards[i] == 0 for i in range(20) if i not in ends)


def test_a_time_limit_cuts_and_does_not_end() -> None:
    """A pole that is held up for 500 steps."""
    game = Game("CartPole-v1")
    world, seen = game.reset(jax.random.key(3), 1)
    step = jax.jit(game.step)
    for _ in range(502):
        x, speed, angle, turn = seen.observation[0]
        action = (angle + 0.5 * turn + 0.05 * speed + 0.02 * x > 0)[None].astype(int)
        world, seen = step(world, action, jax.random.key(0))
        if seen.last[0]:
            break
    assert seen.last[0]
    assert not seen.terminal[0]


@pytest.mark.parametrize("game", ["Catch-bsuite", "CartPole-v1"])
def test_rewards_times_a_power_of_two_change_no_action_and_no_parameter(game: str) -> None:
    training = Training(steps=2400, schedule=replace(SCHEDULE, warm_up=200, exploration=1200))
    settings = Settings("popart", step_size=1e-3, beta=1e-3)

    @jax.jit
    def run(scale: jax.Array) -> Any:
        state = start(training, settings, Game(game), jax.random.key(5))

        def step(state: Any, _: None) -> tuple[Any, None]:
            return advance(training, settings, Game(game), scale, state)[0], None

        return jax.lax.scan(step, state, None, training.steps // training.environments)[0]

    one = run(jnp.float32(1))
    assert one.learner.updates > 300
    first = settings.art.affine(one.learner.statistics)
    for k in (-40, 40):
        other = run(jnp.float32(2.0**k))
        np.testing.assert_array_equal(one.replay.action, other.replay.action)
        np.testing.assert_array_equal(one.replay.observation, other.replay.observation)
        jax.tree.map(np.testing.assert_array_equal, one.learner.params, other.learner.params)
        second = settings.art.affine(other.learner.statistics)
        np.testing.assert_array_equal(2.0**k * first.scale, second.scale)


@compiled_once
def test_popart_learns_catch_at_any_scale_and_plain_dqn_does_not() -> None:
    scales, seeds = jnp.array(SCALES), jnp.arange(1)
    popart, plain, clipped = (
        np.asarray(train(agent, "Catch-bsuite", STEPS, scales, seeds)).mean(1)
        for agent in ("popart", "unclipped", "clipped")
    )
    assert (popart > 0.7).all()
    assert plain[1] > 0.7
    assert plain[0] < 0
    assert plain[2] < 0
    assert clipped[0] < 0
    assert (clipped[1:] > 0.7).all()


@compiled_once
def test_a_run_that_is_killed_goes_on_to_the_same_table(tmp_path: Path) -> None:
    """On one core, so that one of the two agents is done before the other."""
    arguments = ["scale", "--games", "catch", "--agents", "popart", "clipped", *SMALL]
    out, whole = tmp_path / "killed", tmp_path / "whole"
    said = tmp_path / "said"
    with started([*arguments, "--out", str(out)], said, cores=1) as process:
        while process.is_alive() and not (out / "returns.csv").exists():
            time.sleep(0.01)
    assert len(read_table(out / "returns.csv")) == 3
    for folder in (out, whole):
        with started([*arguments, "--out", str(folder)], said, cores=1) as process:
            process.join()
            assert process.exitcode == 0, said.read_text("utf-8")
    assert (out / "returns.csv").read_bytes() == (whole / "returns.csv").read_bytes()
    assert len(read_table(out / "returns.csv")) == 6
    manifest = read_manifest(out)
    assert len(manifest["continued"]) == 1
    assert [shown["name"] for shown in manifest["shown"]] == ["scale", "returns"]
    assert (out / "scale.svg").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--games", "pong"], ["games has 'pong'", "cartpole, catch, breakout, space_invaders"]),
        (["--agents", "popat"], ["did you mean 'popart'?"]),
        (["--scales", "0"], ["scales has 0.0"]),
        (["--seeds", "0"], ["seeds is 0; it must be 1 or more"]),
        (["--steps", "10"], ["steps is 10; it must be 2000 or more"]),
    ],
)
def test_what_is_wrong_is_named(
    capsys: pytest.CaptureFixture[str], arguments: list[str], words: list[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["scale", *arguments])
    said = " ".join(capsys.readouterr().err.replace("│", " ").split())
    assert all(word in said for word in words)
