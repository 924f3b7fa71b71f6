"""`popart scale`: agents learn small games with rewards of any scale, or do not."""

import shutil
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import bootstrap, trim_mean

from popart.lab.analysis import Page
from popart.lab.checks import LabError
from popart.lab.cli import main
from popart.lab.dqn.config import SMALL_AGENT, SMALL_SCHEDULE, AgentConfig
from popart.lab.envs.small import Game
from popart.lab.experiments.reward_scale import agents
from popart.lab.experiments.reward_scale.agents import train
from popart.lab.experiments.reward_scale.cases import change
from popart.lab.experiments.reward_scale.comparison import about_normalized, estimate
from popart.lab.experiments.reward_scale.config import CASES, METHODS, QUICK, Scale, best_rate
from popart.lab.experiments.reward_scale.training import Training, advance, init
from popart.lab.files import read_table, write_table
from popart.lab.manifest import read_manifest
from popart.lab.plot import redraw
from popart.lab.runs import Run
from tests.lab.processes import started

SCALES, STEPS = [1e-8, 1.0, 1e8], 16_000
SMALL = ["--scales", *map(str, SCALES), "--seeds", "1", "--steps", str(STEPS)]
RESULTS = Path(__file__).parents[3] / "results" / "lab" / "scale"

compiled_once = pytest.mark.xdist_group("scale")
"""Tests that share programs which take long to compile."""


@pytest.mark.parametrize("game", ["Catch-bsuite", "CartPole-v1"])
def test_rewards_times_a_power_of_two_change_no_action_and_no_parameter(game: str) -> None:
    training = Training(steps=2400, schedule=replace(SMALL_SCHEDULE, warm_up=200, exploration=1200))
    config = replace(AgentConfig("popart"), **SMALL_AGENT)

    @jax.jit
    def run(scale: jax.Array) -> Any:
        state = init(training, config, Game(game), jax.random.key(5))

        def step(state: Any, _: None) -> tuple[Any, None]:
            return advance(training, config, Game(game), scale, state)[0], None

        return jax.lax.scan(step, state, None, training.steps // training.environments)[0]

    one = run(jnp.float32(1))
    assert one.learner.updates > 300
    first = config.art.affine(one.learner.statistics)
    for k in (-40, 40):
        other = run(jnp.float32(2.0**k))
        np.testing.assert_array_equal(one.replay.action, other.replay.action)
        np.testing.assert_array_equal(one.replay.observation, other.replay.observation)
        jax.tree.map(np.testing.assert_array_equal, one.learner.params, other.learner.params)
        second = config.art.affine(other.learner.statistics)
        np.testing.assert_array_equal(2.0**k * first.scale, second.scale)


def changed(case: str, progress: float) -> np.ndarray:
    """Return rewards of 2 as an agent gets them."""
    place, reward = jnp.asarray(list(CASES).index(case)), jnp.full(10_000, 2.0)
    return np.asarray(change(place, reward, jnp.asarray(progress), jax.random.key(0)))


def test_cases_change_rewards_as_they_say() -> None:
    assert (changed("steady", 0.2) == 2).all()
    for case, late in (("grows", 2e4), ("shrinks", 2e-4)):
        assert (changed(case, 0.49) == 2).all()
        np.testing.assert_allclose(changed(case, 0.5), late, rtol=1e-6)
    rewards, counts = np.unique(changed("rare", 0.3), return_counts=True)
    np.testing.assert_array_equal(rewards, (2, 2000))
    assert 70 < counts[1] < 130
    assert (changed("constant", 0.49) == 1).all()
    assert (changed("constant", 0.5) == 2).all()


@compiled_once
def test_popart_learns_catch_at_any_scale_and_plain_dqn_does_not() -> None:
    scales = jnp.array(SCALES)
    popart, plain = (
        train(method, "catch", STEPS, jnp.zeros(3, int), jnp.full(3, 1e-3), scales, jnp.zeros(3, int))
        for method in ("popart", "unclipped")
    )
    assert (popart > 0.7).all()
    assert plain[1] > 0.7
    assert plain[0] < 0
    assert plain[2] < 0


@compiled_once
def test_as_many_agents_are_trained_together_on_a_gpu_as_fit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two and two of three agents: the last one is trained twice, and counted once."""
    given = jnp.zeros(3, int), jnp.array([1e-3, 1e-3, 0.0]), jnp.ones(3), jnp.array([4, 5, 4])
    alone = train("popart", "catch", STEPS, *given)
    monkeypatch.setattr(agents, "on_cpu", lambda: False)
    monkeypatch.setattr(agents, "room", lambda: 2.5 * agents.bytes_of("catch", STEPS))
    together = train("popart", "catch", STEPS, *given)
    assert (alone[:2] > 0.5).all()
    assert (together[:2] > 0.5).all()
    np.testing.assert_allclose(together[2], alone[2], atol=0.05)
    assert together[2] < 0


def test_all_agents_are_trained_together_on_a_gpu_whose_memory_is_not_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(agents, "free_on_device", lambda: None)
    agents.room.cache_clear()
    assert agents.room() // agents.bytes_of("space_invaders", STEPS) > 1000
    agents.room.cache_clear()


def test_a_gpu_trains_all_cases_of_a_game_and_method_together(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The tables have the same rows as on a CPU, which trains one case after the other."""
    calls: list[tuple[str, str, int]] = []

    def train(method: str, game: str, steps: int, cases: jax.Array, *members: jax.Array) -> np.ndarray:
        calls.append((method, game, len(cases)))
        return np.asarray(cases) + 100 * np.asarray(members[0])

    monkeypatch.setattr(agents, "train", train)
    arguments = ["scale", "--games", "catch", "--methods", "art", "popart", "--cases", "steady", "rare"]
    arguments += ["--scales", "1", "--seeds", "2", "--tuned", "--rates", "1e-4", "1e-3", "1e-2"]
    for name, on_cpu in (("cpu", True), ("gpu", False)):
        monkeypatch.setattr(agents, "on_cpu", lambda on_cpu=on_cpu: on_cpu)
        monkeypatch.setattr(agents, "play_randomly", lambda game, steps, seeds: np.zeros(len(seeds)))
        main([*arguments, "--out", str(tmp_path / name)])
    tuning, returns = 2 * 3 * 3, 2 * 2 * 2  # cases, rates, random seeds
    assert sorted(calls[-4:]) == sorted(
        (method, "catch", number) for method in ("art", "popart") for number in (tuning, returns)
    )
    assert len(calls) == 4 + 8
    for table in ("tuning", "returns"):
        cpu, gpu = (read_table(tmp_path / name / f"{table}.csv") for name in ("cpu", "gpu"))
        assert list(cpu) == list(gpu)


@pytest.mark.slow
def test_growing_rewards_are_those_of_the_second_half() -> None:
    """Pop-Art learns catch although all rewards grow by 10⁴, and plain Double DQN does not."""
    one, grows = jnp.ones(1), jnp.array([list(CASES).index("grows")])
    popart, plain = (
        float(train(method, "catch", STEPS, grows, 1e-3 * one, one, jnp.zeros(1, int))[0])
        for method in ("popart", "unclipped")
    )
    assert popart > 0.5
    assert plain < 0


@pytest.mark.slow
@compiled_once
def test_a_run_that_is_killed_or_extended_has_the_same_table(tmp_path: Path) -> None:
    """On one core, so that one of the two agents is done before the other."""
    arguments = ["scale", "--games", "catch", "--methods", "popart", "unclipped", *SMALL]
    out, whole, grown, said = (tmp_path / name for name in ("killed", "whole", "grown", "said"))
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
    assert len(manifest["resumed"]) == 1
    assert [shown["name"] for shown in manifest["shown"]] == ["scale", "returns"]
    assert (out / "scale.svg").exists()

    fewer = ["scale", "--games", "catch", "--methods", "unclipped", *SMALL, "--out", str(grown)]
    main(fewer)
    main([*arguments, "--out", str(grown)])
    assert (grown / "returns.csv").read_bytes() == (whole / "returns.csv").read_bytes()
    assert read_manifest(grown)["settings"]["methods"] == ["popart", "unclipped"]
    with pytest.raises(SystemExit):
        main(fewer)


def test_the_results_say_that_popart_learns_every_game_at_every_scale(tmp_path: Path) -> None:
    shutil.copytree(RESULTS, tmp_path / "run")
    redraw(tmp_path / "run")
    assert [finding["agrees"] for finding in read_manifest(tmp_path / "run")["findings"]] == [True] * 4


def test_agents_that_learn_nothing_at_any_scale_are_no_agreement(tmp_path: Path) -> None:
    shutil.copytree(RESULTS, tmp_path / "run")
    rows = [dict(row) for row in read_table(RESULTS / "returns.csv")]
    for row in rows:
        if row["agent"] == "popart" and row["game"] == "catch":
            row["return"] = "-0.6"
    write_table(tmp_path / "run" / "returns.csv", rows)
    redraw(tmp_path / "run")
    found = {f["claim"]: f["agrees"] for f in read_manifest(tmp_path / "run")["findings"]}
    assert [claim for claim, agrees in found.items() if not agrees] == [
        "With Pop-Art the scale of rewards does not matter in Catch"
    ]


def test_in_the_results_clipping_hurts_only_at_small_scales() -> None:
    rows = [row for row in read_table(RESULTS / "returns.csv") if row["game"] == "catch"]
    clipped = [(float(row["scale"]), float(row["return"])) for row in rows if row["agent"] == "clipped"]
    assert all(found < 0 for scale, found in clipped if scale < 1e-5)
    assert all(found > 0.7 for scale, found in clipped if scale >= 1)


def test_all_methods_are_a_word_and_quick_is_small() -> None:
    assert Scale(methods=("all",)).methods == tuple(METHODS)
    quick = Scale(quick=True)
    assert {name: getattr(quick, name) for name in QUICK} == QUICK


def test_options_that_are_given_are_not_changed_by_quick() -> None:
    quick = Scale(quick=True, seeds=9, games=("cartpole",))
    found = {name: getattr(quick, name) for name in QUICK}
    assert found == QUICK | {"seeds": 9, "games": ("cartpole",)}


def test_the_best_learning_rate_is_that_with_the_highest_mean() -> None:
    returns = {3e-4: (1.0, 2.0), 1e-3: (2.0, 2.0), 3e-3: (0.0, 3.0), 1e-2: (1.0, 1.0)}
    assert best_rate([{"rate": rate, "return": x} for rate, two in returns.items() for x in two]) == 1e-3


def test_estimates_are_trimmed_means_inside_of_their_intervals() -> None:
    x = np.random.default_rng(0).exponential(size=10)
    found = estimate(x)
    assert found.low < found.value < found.high
    np.testing.assert_allclose(found.value, trim_mean(x, 0.25))
    drawn = bootstrap((x,), lambda x, axis: trim_mean(x, 0.25, axis=axis), method="percentile", rng=1)
    np.testing.assert_allclose(found[1:], drawn.confidence_interval, rtol=0.05)


def test_captions_say_if_training_was_short_or_methods_have_a_common_learning_rate() -> None:
    page = Page(RESULTS.parent / "methods-changing")
    assert page.settings["tuned"]
    tuned = about_normalized(page)
    page.settings |= {"tuned": False, "steps": 10_000}
    quick = about_normalized(page)
    page.settings["steps"] = 20_000
    assert "best for it" in tuned
    assert "shorter" not in tuned
    assert "same learning rate, 0.001" in quick
    assert "Catch (10,000 of 20,000 steps), Breakout (MinAtar) (10,000 of 30,000 steps)" in quick
    assert "Catch" not in about_normalized(page)


def test_a_table_with_a_row_of_something_else_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = Scale(games=("catch",), out=tmp_path / "run")
    with suppress(LabError), Run("scale", "", settings) as run:
        rows = [{"game": "chess", "case": "steady", "method": "popart", "scale": 1, "return": 0.0}]
        run.write_table("returns", rows)
        raise LabError("as if it had been interrupted")
    with pytest.raises(SystemExit) as ended:
        main(["scale", "--games", "catch", "--out", str(settings.out)])
    assert ended.value.code == 2
    assert "returns.csv has a row of chess, steady, popart" in " ".join(capsys.readouterr().err.split())


def test_a_run_that_is_killed_between_its_two_tables_writes_each_row_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agents, "train", lambda *given: np.zeros(len(given[-1])))
    settings = Scale(games=("catch",), methods=("popart",), tuned=True, out=tmp_path / "run")
    write = Run.write_table

    def killed(run: Run, name: str, rows: Any) -> None:
        if name == "returns":
            raise LabError("as if it had been killed")
        write(run, name, rows)

    with monkeypatch.context() as patch:
        patch.setattr(Run, "write_table", killed)
        with pytest.raises(LabError, match="killed"):
            settings.run()
    before = (settings.out / "tuning.csv").read_bytes()
    settings.run()
    assert (settings.out / "tuning.csv").read_bytes() == before


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ["--games", "pong"],
            ["games has 'pong'", "cartpole, catch, breakout, space_invaders, asterix, freeway"],
        ),
        (["--methods", "popat"], ["did you mean 'popart'?"]),
        (["--scales", "0"], ["scales has 0.0"]),
        (["--rates", "0.1"], ["rates is (0.1,), and --tuned is not given"]),
        (["--rates", "0", "--tuned"], ["rates has 0.0"]),
        (["--cases", "growing"], ["cases has 'growing'", "steady, grows, shrinks, rare, constant"]),
        (["--seeds", "0"], ["seeds is 0; it must be 1 or more"]),
        (["--steps", "10"], ["steps is 10; it must be 2000 or more"]),
    ],
)
def test_wrong_settings_are_named(
    capsys: pytest.CaptureFixture[str], arguments: list[str], words: list[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["scale", *arguments])
    said = " ".join(capsys.readouterr().err.replace("│", " ").split())
    assert all(word in said for word in words)
