"""The examples do what they say, run as a reader would run them, for no longer than that takes."""

import csv
import re
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

from tests.backends import sharing_what_is_compiled

ROOT = Path(__file__).parents[1]


def run(*command: str) -> str:
    result = subprocess.run(
        [sys.executable, *command],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=sharing_what_is_compiled(),
        timeout=600,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def numbers(line: str) -> list[float]:
    return [float(x) for x in re.findall(r"[-+]?\d+\.?\d*(?:e[-+]?\d+)?", line)]


def mean_return(*command: str) -> float:
    (found,) = re.findall(r"mean return (-?[\d.]+) in \d+ greedy episodes", run(*command))
    return float(found)


LARGE = ("--reward-scale", "1e4")
DQN = {
    "torch": ["examples/dqn.py", "--steps", "15000"],
    "jax": ["examples/dqn_jax.py", "--steps", "65000"],
}


def median_return(*command: str) -> float:
    """Return the median over three random seeds: single runs of this length differ by a factor of two."""
    return statistics.median(mean_return(*command, "--seed", str(seed)) for seed in range(3))


@pytest.mark.parametrize(
    "framework",
    [
        pytest.param("torch", marks=pytest.mark.slow),
        pytest.param("jax", marks=pytest.mark.xdist_group("dqn_jax")),
    ],
)
def test_cartpole_with_rewards_times_ten_thousand_is_solved_with_pop_art_alone(framework: str) -> None:
    assert mean_return(*DQN[framework], *LARGE, "--head", "linear") < 150
    typical = median_return if framework == "torch" else mean_return
    assert typical(*DQN[framework], *LARGE, "--head", "popart") >= 400


@pytest.mark.xdist_group("dqn_jax")  # it runs the programs that are compiled already
@pytest.mark.parametrize("head", ["linear", "popart"])
def test_cartpole_with_rewards_as_they_are_is_solved_by_both_with_these_settings(head: str) -> None:
    assert mean_return(*DQN["jax"], "--head", head) >= 400


@pytest.mark.slow
def test_cartpole_with_rewards_as_they_are_is_solved_with_these_settings_in_pytorch() -> None:
    assert median_return(*DQN["torch"]) >= 400


def test_a_stream_that_grows_a_millionfold_is_learned_with_pop_art_alone() -> None:
    _, plain, pop_art = run("examples/stream.py").splitlines()
    assert numbers(plain)[-1] > 0.5
    assert max(numbers(pop_art)) < 0.15


@pytest.mark.slow
def test_tasks_of_all_sizes_are_learned_with_statistics_per_task(tmp_path: Path) -> None:
    _, linear, shared, per_task, _ = run(
        "examples/multitask.py", str(tmp_path), "--steps", "1000"
    ).splitlines()
    assert max(numbers(linear)) > 0.5
    assert max(numbers(shared)) > 0.5
    assert max(numbers(per_task)) < 0.1
    assert (tmp_path / "multitask.png").stat().st_size > 10_000


@pytest.mark.slow
def test_two_processes_are_as_one() -> None:
    _, *rows = run("examples/ddp.py").splitlines()
    for row in rows:
        between, off = numbers(row.split(":")[1])
        assert between == 0
        assert off < 1e-4


@pytest.mark.slow
def test_deep_pop_art_matters(tmp_path: Path) -> None:
    """Below a soft-max for any temperature or large loss; and both of two losses."""
    run("examples/deep.py", str(tmp_path))
    assert (tmp_path / "deep.png").stat().st_size > 10_000
    with (tmp_path / "deep.csv").open() as file:
        rows = list(csv.DictReader(file))

    def medians(panel: str, method: str, least: float = 0.0) -> list[float]:
        chosen = [row for row in rows if row["panel"] == panel and row["method"] == method]
        return [float(row["median"]) for row in chosen if float(row["x"]) >= least]

    assert min(medians("teacher", "Pop-Art")) > 95
    assert min(medians("classes", "Pop-Art", least=1.0)) > 95
    assert min(medians("classes", "normalised gradients")) > 95
    assert min(medians("teacher", "SGD")) < 70
    assert min(medians("classes", "SGD", least=1.0)) < 80
    assert (
        max(medians("small", "normalised gradients")[-1], medians("large", "normalised gradients")[-1]) < 0.2
    )
    assert medians("small", "SGD")[-1] > 0.8
    assert medians("large", "SGD")[-1] < 0.3
