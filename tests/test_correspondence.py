"""The numbers that the paper gives."""

import pytest

import popart
import popart.correspondence


@pytest.mark.parametrize(("p", "s"), [(0.99, 0.4), (0.95, 0.5)])
def test_ratios_correspond_to_the_papers_standard_deviations(p: float, s: float) -> None:
    assert popart.correspondence.std_from_ratio(p) == pytest.approx(s, abs=0.05)


def test_a_standard_deviation_of_one_corresponds_to_68_percent() -> None:
    assert popart.correspondence.ratio_from_std(1.0) == pytest.approx(0.68, abs=0.005)


def test_a_minibatch_of_20_corresponds_to_the_papers_ratio_and_standard_deviation() -> None:
    assert popart.correspondence.ratio_from_batch(20) == 19 / 21
    assert popart.correspondence.ratio_from_batch(20) == pytest.approx(0.9, abs=0.01)
    assert popart.correspondence.std_from_batch(20) == pytest.approx(0.6, abs=0.005)


@pytest.mark.parametrize("B", [2, 20, 1000])
def test_batch_and_standard_deviation_are_inverses(B: int) -> None:
    assert popart.correspondence.batch_from_std(popart.correspondence.std_from_batch(B)) == pytest.approx(
        B, rel=1e-9
    )


def test_a_step_of_1e_minus_4_bounds_targets_by_100() -> None:
    assert popart.correspondence.bound(1e-4) == pytest.approx(100, abs=0.01)
    assert popart.correspondence.bound(1e-4) < 100
    assert popart.correspondence.bound(1.0) == 0
