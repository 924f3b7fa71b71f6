"""Initial statistics of a rule: adopted from the data, as the paper prints them, or safely high."""

import numpy as np
import pytest

import popart
from popart.percentiles import BoundsState

W, B, H = np.ones((1, 2)), np.array([0.25]), np.array([0.5, 1.0])


@pytest.mark.parametrize("make", [popart.Moments, popart.Percentiles, popart.Expectiles, popart.Extremes])
def test_the_literal_start_is_the_identity_and_preserves_from_the_first_update(make: type) -> None:
    rule = make(beta=0.1, nu0=1.0)
    state = rule.init()
    before = rule.affine(state)
    assert (before.scale, before.shift) == (1, 0)
    after = rule.affine(rule.update(state, [5.0, 9.0]))
    W_new, b_new = popart.preserve(W, B, before, after)
    np.testing.assert_allclose(after.denormalize(W_new @ H + b_new), W @ H + B)


def test_the_literal_start_of_a_dense_scale_is_the_identity() -> None:
    rule = popart.Covariance(nu0=1.0)
    np.testing.assert_allclose(rule.affine(rule.init((3,))).scale, np.eye(3), atol=1e-12)


@pytest.mark.parametrize("nu0", [1e4, 1e6])
def test_a_high_start_makes_the_first_targets_small(nu0: float) -> None:
    rule, eager = popart.Moments(beta=1e-2, nu0=nu0), popart.Moments(beta=1e-2)
    y = np.random.default_rng(0).normal(size=32)
    assert rule.affine(rule.init()).scale == np.sqrt(nu0)
    cautious = rule.affine(rule.update(rule.init(), y)).normalize(y)
    assert np.abs(cautious).max() < 5 / np.sqrt(nu0)
    assert eager.affine(eager.update(eager.init(), y)).normalize(y).std() == pytest.approx(1)
    state = rule.init()
    for _ in range(2000):
        state = rule.update(state, y)
    assert rule.affine(state).scale == pytest.approx(y.std(), rel=0.05)


def test_a_float_step_is_constant_where_the_start_counts_and_debiased_where_it_does_not() -> None:
    started, adopting = popart.Moments(beta=0.5, nu0=1.0), popart.Moments(beta=0.5)
    literal = popart.Moments(beta=popart.constant(0.5), nu0=1.0)
    debiased = popart.Moments(beta=popart.debiased(0.5))
    for a, b in ((started, literal), (adopting, debiased)):
        x, y = a.update(a.init(), 4.0), b.update(b.init(), 4.0)
        np.testing.assert_array_equal(x.moments, y.moments)
    assert started.affine(started.update(started.init(), 4.0)).shift == 2
    assert adopting.affine(adopting.update(adopting.init(), 4.0)).shift == 4


def test_adopting_takes_the_first_batch_whole_whatever_the_step() -> None:
    for beta in (1e-4, popart.constant(1e-4), popart.harmonic(), lambda t: 0.5 / t):
        rule = popart.Moments(beta=beta)
        assert rule.affine(rule.update(rule.init(), [2.0, 4.0])) == (1, 3)


@pytest.mark.parametrize("rule", [popart.Percentiles(), popart.Expectiles(), popart.Extremes()])
def test_bounds_are_the_range_seen_while_there_is_no_spread(rule: popart.Percentiles) -> None:
    state: BoundsState = rule.init()
    for y, low, high in ((3.0, 3, 3), (3.0, 3, 3), ([3.0, 5.0], 3, 5)):
        state = rule.update(state, y)
        assert (state.low, state.high) == (low, high)
    assert rule.affine(state)[:2] == (1, 4)
