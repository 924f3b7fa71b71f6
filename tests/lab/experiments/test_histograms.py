"""Fig. 3: normalised targets have the variance and the bound of the theory."""

from pathlib import Path

import numpy as np
import pytest

import popart
import popart.correspondence
from popart.lab.cli import main
from popart.lab.experiments.histograms.config import Histograms
from popart.lab.experiments.histograms.run import BOUNDS, BURN_IN, beta_of, normalized, targets, variances
from popart.lab.experiments.histograms.theory import expected_variance
from popart.lab.files import read_table
from popart.lab.manifest import read_manifest

STREAMS = 40


@pytest.fixture(scope="module")
def rows() -> list[dict[str, float]]:
    return variances(targets(Histograms()))


def test_targets_are_those_of_the_figure() -> None:
    y = targets(Histograms())
    assert y.shape == (10_000,)
    assert abs(y.mean() - 1) < 4 * 2 / 100
    assert abs(y.std() - 2) < 4 * 2 / np.sqrt(2 * 10_000)


@pytest.mark.parametrize(("beta", "s"), [(0.01, 1.0), (0.1, 1 / 3), (0.5, 1.0), (0.97, 2.0)])
def test_normalized_targets_are_those_of_equation_4(beta: float, s: float) -> None:
    """Literally and in float64, from the first target on."""
    y = targets(Histograms(targets=1000)).astype(float)
    beta = float(np.float32(beta))
    mu, nu, expected = y[0], y[0] ** 2, [0.0]
    for target in y[1:]:
        mu, nu = (1 - beta) * mu + beta * target, (1 - beta) * nu + beta * target**2
        expected.append(s * (target - mu) / np.sqrt(nu - mu**2))
    found = normalized(y.astype(np.float32), beta, s)
    np.testing.assert_allclose(found, expected, rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("beta", [0.005, 0.01, 0.02, 0.97, 0.98, 0.99, 0.995])
def test_variances_are_within_sampling_error_of_theory(beta: float) -> None:
    """Over independent streams. The theory is of first order, and at most a percent off here."""
    streams = [targets(Histograms(seed=100 + i)) for i in range(STREAMS)]
    found = np.array([normalized(y, beta)[BURN_IN + int(3 / beta) :].var(dtype=float) for y in streams])
    error = found.std(ddof=1) / np.sqrt(STREAMS)
    expected = expected_variance(beta)
    assert expected is not None
    assert abs(found.mean() - expected) < 4 * error + 0.01 * expected


def test_there_is_no_theory_for_medium_beta() -> None:
    assert expected_variance(0.5) is None
    assert expected_variance(1e-6) == pytest.approx(1, rel=1e-5)
    assert expected_variance(1 - 1e-8) == pytest.approx(1e-8, rel=1e-3)


def test_no_normalized_target_is_beyond_its_bound(rows: list[dict[str, float]]) -> None:
    """Up to the rounding of Y - μ in float32: 1e-7 of Y, which is a hundred times Y - μ for β = 0.99."""
    for row in rows:
        np.testing.assert_allclose(
            row["bound"], row["s"] * np.sqrt((1 - row["beta"]) / row["beta"]), rtol=1e-12
        )
        assert row["largest"] <= row["bound"] * (1 + 1e-4)


def test_the_bound_is_reached_for_large_beta(rows: list[dict[str, float]]) -> None:
    assert all(row["largest"] > 0.95 * row["bound"] for row in rows if row["beta"] > 0.3)


def test_the_variance_falls_with_beta_but_is_set_by_s(rows: list[dict[str, float]]) -> None:
    by_beta = [row["variance"] for row in rows if row["changed"] == "beta"]
    assert by_beta == sorted(by_beta)
    assert by_beta[len(by_beta) // 2] < 0.45  # beta = 0.5, the desired variance being 1
    ratios = [row["variance"] / row["s"] ** 2 for row in rows if row["changed"] == "s"]
    assert max(ratios) - min(ratios) < 1e-5
    assert abs(ratios[0] - 0.98) < 0.06


def test_bounds_and_step_sizes_are_inverse() -> None:
    np.testing.assert_allclose([popart.correspondence.bound(beta_of(b)) for b in BOUNDS], BOUNDS, rtol=1e-5)


def test_the_command_draws_the_figure_and_finds_what_the_paper_says(tmp_path: Path) -> None:
    main(["histograms", "--out", str(tmp_path / "run")])
    assert (tmp_path / "run" / "figure_3.svg").read_text().startswith("<?xml")
    assert len(read_table(tmp_path / "run" / "variances.csv")) == 2 * len(BOUNDS)
    rows = read_table(tmp_path / "run" / "densities.csv")
    areas = [float(row["density"]) * (float(row["to"]) - float(row["from"])) for row in rows]
    assert len(rows) == 4 * 80
    assert sum(areas) == pytest.approx(4)
    assert all(finding["agrees"] for finding in read_manifest(tmp_path / "run")["findings"])
