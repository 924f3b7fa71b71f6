"""What `docs/explanation/which-normalisation.md` says is in the results."""

from pathlib import Path

import numpy as np
import pytest

from popart.lab.experiments.reward_scale.comparison import estimate
from popart.lab.experiments.reward_scale.config import METHODS
from popart.lab.files import read_table
from popart.lab.intervals import Interval
from popart.lab.manifest import read_manifest
from tests.lab.dqn.test_methods import SCALE_FREE

ROOT = Path(__file__).parents[3]
RESULTS = ROOT / "results" / "lab"
PAGE = (ROOT / "docs" / "explanation" / "which-normalisation.md").read_text("utf-8")
RATES = ("0.0003", "0.001", "0.003")


def returns(run: str, method: str) -> dict[tuple[str, float], np.ndarray]:
    """Return the returns over seeds for each learning rate and scale."""
    found: dict[tuple[str, float], list[float]] = {}
    for row in read_table(RESULTS / run / "returns.csv"):
        if row["method"] == method:
            found.setdefault((row["rate"], float(row["scale"])), []).append(float(row["return"]))
    return {key: np.array(x) for key, x in found.items()}


def best(run: str, method: str) -> str:
    """Return the learning rate with the highest mean at a scale of 1."""
    found = returns(run, method)
    return max(RATES, key=lambda rate: found[rate, 1.0].mean())


def row(run: str, method: str) -> str:
    """Return the row of the page's table."""
    rate, found = best(run, method), returns(run, method)
    scales = sorted({scale for _, scale in found})
    cells = [f"{estimate(found[rate, scale]).value:.2f}".replace("-", "−") for scale in scales]
    return f"| {METHODS[method]} | {rate} | {' | '.join(cells)} |"


@pytest.mark.parametrize("method", METHODS)
def test_the_table_has_every_method(method: str) -> None:
    assert row("methods-catch", method) in PAGE


@pytest.mark.parametrize("method", METHODS)
def test_no_method_is_a_straw_man_at_scale_1(method: str) -> None:
    """With the best of three learning rates it learns catch as the plain baseline does."""
    plain = estimate(returns("methods-catch", "unclipped")[best("methods-catch", "unclipped"), 1.0])
    mine = estimate(returns("methods-catch", method)[best("methods-catch", method), 1.0])
    assert mine.high >= plain.low
    assert mine.value > 0.89


@pytest.mark.parametrize("method", METHODS)
def test_methods_that_are_free_of_scale_learn_at_every_scale_and_no_other_does(method: str) -> None:
    rate, found = best("methods-catch", method), returns("methods-catch", method)
    worst = min(estimate(x).value for (r, _), x in found.items() if r == rate)
    assert (worst > 0.89) == (method in SCALE_FREE)
    assert worst > 0.89 or worst < -0.5


def test_the_page_says_what_was_run() -> None:
    settings = read_manifest(RESULTS / "methods-catch")["settings"]
    assert settings["seeds"] == 5
    assert len(settings["scales"]) == 5
    assert settings["tuned"]
    assert "five random seeds" in PAGE


def test_costs_of_moving_bins_are_those_measured() -> None:
    rows = read_table(ROOT / "results" / "reprojection.csv")
    found = {row["change of units"]: row["root mean square"] for row in rows if row["head"].startswith("51")}
    for change in ("scale × 1.25", "scale × 2", "scale × 10", "scale × 10⁴", "shift + 1 scale"):
        assert f"| {change} | {found[change]} |" in PAGE
    assert f"| 10,000 updates, following each of them | {found['10,000 updates, slack 0']} |" in PAGE


def growing(method: str, run: str = "methods-catch-grows") -> tuple[str, Interval]:
    """Return the best learning rate for rewards that grow, and the return with it."""
    found = {rate: estimate(x) for (rate, _), x in returns(run, method).items()}
    rate = max(RATES, key=lambda rate: found[rate].value)
    return rate, found[rate]


def growing_row(method: str, run: str = "methods-catch-grows") -> str:
    rate, (mean, low, high) = growing(method, run)
    cells = f"{mean:.2f} ({low:.2f} to {high:.2f})".replace("-", "−")
    return f"| {METHODS[method]} | {rate} | {cells} |"


@pytest.mark.parametrize("method", METHODS)
def test_the_table_of_growing_rewards_has_every_method(method: str) -> None:
    assert read_manifest(RESULTS / "methods-catch-grows")["settings"]["growth"] == 1e4
    assert growing_row(method) in PAGE


def test_only_methods_without_a_scale_of_outputs_fail_when_rewards_grow() -> None:
    failed = {method for method in METHODS if growing(method)[1].value < 0.8}
    assert failed == {"unclipped", "return_scaling"}
    intervals = [growing(method)[1] for method in METHODS if method not in (*failed, "adaptive_bins")]
    assert max(x.low for x in intervals) <= min(x.high for x in intervals)


@pytest.mark.parametrize("method", METHODS)
def test_the_table_of_shrinking_rewards_has_every_method(method: str) -> None:
    assert read_manifest(RESULTS / "methods-catch-shrinks")["settings"]["growth"] == 1e-4
    assert growing_row(method, "methods-catch-shrinks") in PAGE
