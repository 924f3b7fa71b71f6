"""`popart tasks`: one network learns several games with rewards of different size."""

import json
import re
import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import trim_mean

from popart.lab.cli import main
from popart.lab.dqn.config import SMALL_SCHEDULE
from popart.lab.dqn.tasks import config_of_tasks
from popart.lab.envs.small import Game
from popart.lab.experiments.reward_scale.config import Scale
from popart.lab.experiments.several_games import run as module
from popart.lab.experiments.several_games.analysis import normalise, over_games
from popart.lab.experiments.several_games.config import LABELS, METHODS, QUICK, Tasks
from popart.lab.experiments.several_games.run import cases_of, play_randomly, train
from popart.lab.experiments.several_games.training import Training, advance, evaluate, init
from popart.lab.files import read_table
from popart.lab.manifest import read_manifest
from popart.lab.plot import redraw
from popart.lab.runs import command_line
from popart.lab.schemas import Game as GameName
from popart.lab.schemas import TasksMethod
from tests.lab.processes import started

GAMES = (Game("Catch-bsuite"), Game("CartPole-v1"))
TINY = ["--games", "catch", "cartpole", "--scales", "1", "1e4", "--seeds", "2", "--steps", "2000"]
TINY_RUN = ["tasks", *TINY, "--methods", "popart"]

compiled_once = pytest.mark.xdist_group("tasks")
"""Tests that share programs which take long to compile."""


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("tasks") / "run"
    main([*TINY_RUN, "--out", str(out)])
    return out


def test_one_games_rewards_times_a_power_of_two_change_no_action_of_any_game() -> None:
    """With statistics per game; neither parameters nor observations change, to the bit."""
    training = Training(1600, schedule=replace(SMALL_SCHEDULE, warm_up=200, exploration=800))
    config = config_of_tasks("popart", 2)

    @jax.jit
    def run(scales: jax.Array) -> Any:
        def step(_: int, state: Any) -> Any:
            return advance(training, config, GAMES, scales, state)

        return jax.lax.fori_loop(0, training.rounds, step, init(training, config, GAMES, jax.random.key(5)))

    one = run(jnp.ones(2))
    assert one.learner.updates > 300
    scale = config.head(3).affine(one.learner.statistics).scale
    for k, task in ((-40, 0), (40, 0), (-40, 1), (40, 1)):
        factor = np.ones(2, np.float32)
        factor[task] = 2.0**k
        other = run(jnp.asarray(factor))
        jax.tree.map(np.testing.assert_array_equal, one.learner.params, other.learner.params)
        for mine, theirs in zip(one.played, other.played, strict=True):
            np.testing.assert_array_equal(mine.replay.action, theirs.replay.action)
            np.testing.assert_array_equal(mine.replay.observation, theirs.replay.observation)
        np.testing.assert_array_equal(factor * scale, config.head(3).affine(other.learner.statistics).scale)


def test_an_evaluation_is_one_whole_episode_in_each_environment() -> None:
    """CartPole pays 1 per step and ends after 500; catch pays 1 or -1 once."""
    params = init(Training(2000), config_of_tasks("popart", 2), GAMES, jax.random.key(0)).learner.params
    catch, cartpole = np.asarray(jax.jit(lambda p: evaluate(GAMES, p, 1.0, 400, jax.random.key(1)))(params))
    assert abs(catch + 0.6) < 0.15
    assert 18 < cartpole < 26


@compiled_once
def test_a_tiny_run_has_every_network_and_both_references(tiny: Path) -> None:
    rows = read_table(tiny / "returns.csv")
    found = {(row["method"], row["game"], row["seed"]) for row in rows}
    names = ("popart", "alone", "random")
    assert found == {(m, g, s) for m in names for g in ("catch", "cartpole") for s in "01"}
    assert len(rows) == len(found)
    assert {row["game"]: row["scale"] for row in rows} == {"catch": "1.0", "cartpole": "10000.0"}
    manifest = read_manifest(tiny)
    assert manifest["finished"]
    assert [shown["name"] for shown in manifest["shown"]] == ["tasks", "summary", "normalised", "returns"]
    assert all((tiny / f"tasks.{suffix}").stat().st_size > 5000 for suffix in ("png", "svg"))


@compiled_once
def test_the_summary_has_interquartile_means_in_the_games_own_units(tiny: Path) -> None:
    rows = [row for row in read_table(tiny / "returns.csv") if row["game"] == "cartpole"]
    for summary in read_table(tiny / "summary.csv"):
        mine = [float(row["return"]) for row in rows if LABELS[row["method"]] == summary["method"]]
        assert float(summary["CartPole"].split()[0]) == pytest.approx(trim_mean(mine, 0.25), rel=0.01)
        assert 8 < float(summary["CartPole"].split()[0]) <= 500


@compiled_once
def test_an_interrupted_run_reads_what_it_has_and_ends_with_the_same_table(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "run"
    lines = (tiny / "returns.csv").read_text("utf-8").splitlines(keepends=True)
    out.mkdir()
    (out / "returns.csv").write_text("".join(lines[:4]), "utf-8")
    manifest = json.loads((tiny / "manifest.json").read_text("utf-8"))
    (out / "manifest.json").write_text(json.dumps(manifest | {"finished": None}), "utf-8")
    trained = []
    rows_of = module._rows  # pyright: ignore[reportPrivateUsage]
    monkeypatch.setattr(module, "_rows", lambda *x: (trained.append(x[1]), rows_of(*x))[1])
    main([*TINY_RUN, "--out", str(out)])
    assert (out / "returns.csv").read_bytes() == (tiny / "returns.csv").read_bytes()
    everything = cases_of(Tasks(games=("catch", "cartpole"), scales=(1, 1e4), methods=("popart",), seeds=2))
    assert set(trained) == set(everything[2:])  # the first network has two rows, the next one


@compiled_once
def test_a_finished_run_is_extended_by_more_seeds_and_by_nothing_else(tiny: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    arguments = list(TINY_RUN)
    arguments[arguments.index("--seeds") + 1] = "1"
    main([*arguments, "--out", str(out)])
    few = read_table(out / "returns.csv")
    assert {row["seed"] for row in few} == {"0"}
    main([*TINY_RUN, "--out", str(out)])
    assert (out / "returns.csv").read_bytes() == (tiny / "returns.csv").read_bytes()
    assert read_manifest(out)["settings"]["seeds"] == 2
    assert len(read_manifest(out)["resumed"]) == 1
    with pytest.raises(SystemExit):
        main([*TINY_RUN, "--seed", "1", "--out", str(out)])
    with pytest.raises(SystemExit):
        main([*arguments, "--out", str(out)])  # fewer seeds
    assert read_manifest(out)["settings"]["seeds"] == 2


@pytest.mark.slow
@compiled_once
def test_a_killed_run_is_resumed_to_the_same_table(tiny: Path, tmp_path: Path) -> None:
    out, said = tmp_path / "killed", tmp_path / "said"
    with started([*TINY_RUN, "--out", str(out)], said, cores=1) as process:
        while process.is_alive() and not (out / "returns.csv").exists():
            time.sleep(0.01)
    assert 0 < len(read_table(out / "returns.csv")) < 12
    with started([*TINY_RUN, "--out", str(out)], said, cores=1) as process:
        process.join()
        assert process.exitcode == 0, said.read_text("utf-8")
    assert (out / "returns.csv").read_bytes() == (tiny / "returns.csv").read_bytes()


@pytest.mark.slow
def test_only_with_popart_per_game_both_games_are_learned() -> None:
    """Catch has rewards of 1 and its copy of 10⁴, in one network; one statistic serves the larger alone."""
    names, steps, seeds = ("catch", "cartpole"), 16_000, jnp.zeros(1, int)
    scales = jnp.array([1e-4, 1e4])
    popart, one = (np.asarray(train(m, names, steps, scales, seeds))[0] for m in ("popart", "one_statistic"))
    random = np.asarray(play_randomly(names, seeds))[0]
    assert popart[0] > 0.7
    assert popart[1] > 3 * random[1]
    assert one[0] < 0
    assert one[1] > 3 * random[1]


def test_normalised_returns_are_0_for_random_play_and_1_alone() -> None:
    returns = {
        "popart": np.array([[3.0, 5.0], [1.0, 1.0]]),
        "alone": np.array([[6.0, 10.0], [0.0, 0.5]]),
        "random": np.array([[-2.0, 2.0], [1.0, 1.0]]),
    }
    found = normalise(returns)
    assert set(found) == {"popart", "alone"}
    np.testing.assert_allclose(found["popart"][0], [3 / 8, 5 / 8])
    np.testing.assert_allclose(found["alone"][0].mean(), 1)
    assert np.isnan(found["popart"][1]).all()  # it is not learned alone
    assert over_games(found["popart"]).value == pytest.approx(0.5)
    assert np.isnan(over_games(found["popart"][1:]).value)


def test_the_mean_over_games_is_of_networks() -> None:
    """Two networks that are each good at one game are equally good, which is certain."""
    found = over_games(np.array([[0.0, 1.0], [1.0, 0.0]]))
    assert tuple(found) == (0.5, 0.5, 0.5)


def test_quick_is_small_and_changes_no_option_that_is_given() -> None:
    quick = Tasks(quick=True)
    assert {name: getattr(quick, name) for name in QUICK} == QUICK
    assert Tasks(quick=True, seeds=9).seeds == 9


def test_files_are_checked_for_the_methods_and_games_that_there_are() -> None:
    assert set(TasksMethod.__args__) == set(METHODS)  # pyright: ignore[reportAttributeAccessIssue]
    assert set(GameName.__args__) == set(module.GAMES)  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize("command", [Scale, Tasks])
def test_games_of_minatar_have_the_same_names_as_in_training(command: type[Scale] | type[Tasks]) -> None:
    options: dict[str, Any] = {"scales": (1.0, 1.0)} if command is Tasks else {}
    settings = command(games=("catch", "minatar_breakout"), **options)
    assert settings == command(games=("catch", "breakout"), **options)
    assert "--games catch breakout" in command_line("experiment", settings)
    with pytest.raises(ValueError, match="games has 'breakout' more than once"):
        command(games=("breakout", "minatar_breakout"))


def test_all_methods_can_be_asked_for_in_one_word() -> None:
    assert Tasks(methods=("all",)) == Tasks(methods=tuple(METHODS)) == Tasks()
    assert Tasks(methods=("all", "popart")) == Tasks()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--games", "pong"], ["games has 'pong'", "cartpole, catch, breakout"]),
        (["--games", "catch", "catch", "--scales", "1", "2"], ["games has 'catch' more than once"]),
        (["--methods", "popat"], ["methods has 'popat'", "did you mean 'popart'?"]),
        (["--methods", "hl_gauss"], ["methods has 'hl_gauss'"]),
        (["--scales", "1", "2"], ["scales has 2 numbers and games has 4 names", "one scale for each game"]),
        (["--scales", "1", "1", "1", "0"], ["scales is 0.0; it must be positive"]),
        (["--scales", "1", "1", "1", "1e60"], ["scales is 1e+60; it must be from"]),
        (["--seeds", "0"], ["seeds is 0; it must be 1 or more"]),
        (["--steps", "10"], ["steps is 10; it must be 2000 or more"]),
    ],
)
def test_wrong_settings_are_named(
    capsys: pytest.CaptureFixture[str], arguments: list[str], words: list[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["tasks", *arguments])
    said = " ".join(capsys.readouterr().err.replace("│", " ").split())
    assert all(word in said for word in words), said


def test_more_steps_than_fit_into_memory_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["tasks", "--steps", "2000000000", "--out", str(tmp_path / "run")])
    assert "steps is 2,000,000,000, which takes" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


RESULTS = Path(__file__).parents[3] / "results" / "lab" / "tasks"
PAGE = Path(__file__).parents[3] / "docs" / "explanation" / "which-normalisation.md"


def test_the_page_has_the_table_of_results() -> None:
    """Interquartile means with intervals from the summary, and the normalised mean over games."""
    page, settings = PAGE.read_text("utf-8"), read_manifest(RESULTS)["settings"]
    normalised = {row["method"]: row["mean"] for row in read_table(RESULTS / "normalised.csv")}
    rows = read_table(RESULTS / "summary.csv")
    assert len(rows) == len(settings["methods"]) + 2
    for row in rows:
        method, *cells = row.values()
        line = f"| {method} | {' | '.join([*cells, normalised.get(method, '')])} |"
        assert re.sub(r"-(?=\d)", "−", line).replace(" |  |", " | |") in page
    assert settings["seeds"] == 10
    assert "over ten random seeds" in page


def test_art_without_pop_is_better_than_popart_as_the_page_says() -> None:
    """With a statistic per game: over all games and in Space Invaders, and in no other game."""

    def without_overlap(name: str, column: str) -> bool:
        rows = {row["method"]: row[column] for row in read_table(RESULTS / f"{name}.csv")}
        methods = "Art without Pop, per game", "Pop-Art, one per game"
        art, pop = ([float(x) for x in re.findall(r"[-\d.]+", rows[method])] for method in methods)
        return art[1] > pop[2]

    assert without_overlap("normalised", "mean")
    games = ("Catch", "Breakout (MinAtar)", "Space Invaders (MinAtar)", "Freeway (MinAtar)")
    assert [without_overlap("summary", game) for game in games] == [False, False, True, False]


def test_the_results_are_those_of_their_rows(tmp_path: Path) -> None:
    shutil.copytree(RESULTS, tmp_path / "run")
    redraw(tmp_path / "run")
    for name in ("summary", "normalised"):
        assert read_table(tmp_path / "run" / f"{name}.csv") == read_table(RESULTS / f"{name}.csv")
    assert [finding["agrees"] for finding in read_manifest(tmp_path / "run")["findings"]] == [True]
