"""One test per proposition."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import popart
import popart.correspondence
from popart.reference import Parameters, PopArtParameters, normalized_sgd, pop_art_sgd
from tests.paper.network import tanh_network

# Multiples of 0.001: the plain formulas beside which ours are tested underflow where ours do not.
numbers = st.floats(-100, 100).map(lambda x: round(x, 3))


@st.composite
def scales(draw: st.DrawFn, k: int) -> Any:
    """Any non-singular matrix that is not nearly singular."""
    matrix = draw(hnp.arrays(float, (k, k), elements=st.floats(-1, 1)))
    size = draw(st.floats(1e-3, 1e3))
    return size * (matrix + draw(st.sampled_from([-1, 1])) * 2 * k * np.eye(k))


@given(data=st.data(), k=st.integers(1, 4), m=st.integers(1, 5))
def test_proposition_1_outputs_are_preserved_for_any_change_of_scale_and_shift(
    data: st.DataObject, k: int, m: int
) -> None:
    W = data.draw(hnp.arrays(float, (k, m), elements=numbers))
    b, mu, mu_new = (data.draw(hnp.arrays(float, k, elements=numbers)) for _ in range(3))
    Sigma, Sigma_new = data.draw(scales(k)), data.draw(scales(k))
    h = data.draw(hnp.arrays(float, m, elements=numbers))
    W_new, b_new = popart.preserve(W, b, popart.Affine(Sigma, mu), popart.Affine(Sigma_new, mu_new))
    np.testing.assert_allclose(W_new, np.linalg.inv(Sigma_new) @ Sigma @ W, rtol=1e-7, atol=1e-7)
    before, after = Sigma @ (W @ h + b) + mu, Sigma_new @ (W_new @ h + b_new) + mu_new
    size = np.abs(Sigma).max() * (np.abs(W).max() * np.abs(h).max() + np.abs(b).max()) + 200
    np.testing.assert_allclose(after, before, atol=1e-11 * size)


@given(
    k=st.integers(1, 4),
    m=st.integers(1, 5),
    sigma=st.floats(1e-6, 1e6),
    sigma_new=st.floats(1e-6, 1e6),
    data=st.data(),
)
def test_proposition_1_for_scalars(
    k: int, m: int, sigma: float, sigma_new: float, data: st.DataObject
) -> None:
    W = data.draw(hnp.arrays(float, (k, m), elements=numbers))
    b = data.draw(hnp.arrays(float, k, elements=numbers))
    mu, mu_new = data.draw(numbers), data.draw(numbers)
    W_new, b_new = popart.preserve(W, b, popart.Affine(sigma, mu), popart.Affine(sigma_new, mu_new))
    np.testing.assert_allclose(W_new, sigma / sigma_new * W, rtol=1e-13)
    exact = (sigma * b + mu - mu_new) / sigma_new
    size = (sigma * 100 + 200) / sigma_new
    np.testing.assert_allclose(b_new, exact, atol=1e-14 * size)


@given(
    stream=hnp.arrays(float, st.integers(1, 60), elements=st.floats(-1e30, 1e30)),
    beta=st.floats(1e-8, 1),
    s=st.floats(1e-3, 1e3),
    nu0=st.none() | st.floats(1e-6, 1e6),
)
def test_proposition_2_normalized_targets_are_bounded(
    stream: Any, beta: float, s: float, nu0: float | None
) -> None:
    rule = popart.Moments(beta=popart.constant(beta), std=s, nu0=nu0)
    state = rule.init()
    for y in stream:
        state = rule.update(state, y)
        assert (
            abs(rule.affine(state).normalize(y))
            <= popart.correspondence.bound(beta, s) * (1 + 1e-12) + 1e-7 * s
        )


def test_proposition_2_the_bound_is_reached() -> None:
    rule = popart.Moments(beta=popart.constant(1e-4), nu0=1e-12)
    state = rule.update(rule.init(), 1e6)
    np.testing.assert_allclose(rule.affine(state).normalize(1e6), 99.995, rtol=1e-6)


@given(stream=hnp.arrays(float, (20, 3), elements=st.floats(-1e3, 1e3)), beta=st.floats(1e-3, 0.9))
def test_proposition_2_for_a_dense_scale(stream: Any, beta: float) -> None:
    """The same proof bounds the length of a normalised target, for its squared length is Mahalanobis'."""
    rule = popart.Covariance(beta=popart.constant(beta), nu0=1.0)
    state = rule.init((3,))
    for y in stream:
        state = rule.update(state, y)
        length = np.linalg.norm(rule.affine(state).normalize(y))
        assert length <= popart.correspondence.bound(beta) * (1 + 1e-6)


@settings(deadline=None)
@given(seed=st.integers(0, 2**32 - 1), k=st.integers(1, 4), alpha=st.floats(1e-4, 0.1))
def test_proposition_3_pop_art_sgd_and_normalized_sgd_are_equivalent(seed: int, k: int, alpha: float) -> None:
    """For dense, non-singular scales and any shifts, whatever they are computed from."""
    rng = np.random.default_rng(seed)
    h, jacobian, theta = tanh_network(rng, inputs=3, hidden=4, features=5)
    W, b = rng.normal(size=(k, 5)), rng.normal(size=k)
    one = PopArtParameters(theta, W, b, np.eye(k), np.zeros(k))
    two = Parameters(theta, W, b)
    tests = rng.normal(size=(5, 3))
    for _ in range(20):
        X, Y = rng.normal(size=3), 3 * rng.normal(size=k)
        Sigma = rng.uniform(0.5, 2) * (rng.normal(size=(k, k)) / 4 + 2 * np.eye(k))
        mu = 10 * rng.normal(size=k)
        one = pop_art_sgd(one, h, jacobian, X, Y, Sigma, mu, alpha)
        two = normalized_sgd(two, h, jacobian, X, Y, Sigma, alpha)
        np.testing.assert_allclose(one.theta, two.theta, rtol=1e-8, atol=1e-10)
        for x in tests:
            np.testing.assert_allclose(one.f(h, x), two.f(h, x), rtol=1e-8, atol=1e-8)


@given(s=st.floats(0.2, 20))
def test_proposition_4_a_standard_deviation_corresponds_to_a_ratio(s: float) -> None:
    """The ratio is the integral of the density of N(0, s²) from -1 to 1, here by Gaussian quadrature."""
    x, weights = np.polynomial.legendre.leggauss(100)
    density = np.exp(-((x / s) ** 2) / 2) / (s * math.sqrt(2 * math.pi))
    p = popart.correspondence.ratio_from_std(s)
    np.testing.assert_allclose(p, weights @ density, rtol=1e-12)
    np.testing.assert_allclose(popart.correspondence.std_from_ratio(p), s, rtol=1e-9)


def test_proposition_4_on_normal_targets() -> None:
    y = np.random.default_rng(1).normal(5, 3, 200_000)
    for s in (0.4, 1.0, 2.0):
        rule = popart.Moments(std=s)
        normalized = rule.affine(rule.update(rule.init(), y)).normalize(y)
        p = popart.correspondence.ratio_from_std(s)
        assert abs(np.mean(np.abs(normalized) <= 1) - p) < 5 * math.sqrt(p * (1 - p) / len(y)) + 1e-4
        np.testing.assert_allclose(np.mean(normalized**2), s**2, rtol=1e-9)


@pytest.mark.parametrize("p", [0.6, 0.9])
def test_proposition_5_online_percentiles_converge(p: float) -> None:
    """With steps whose sum diverges and whose squares' sum does not, in the paper's units and ours."""
    rng = np.random.default_rng(2)
    y = rng.gamma(2, 1, (8000, 4))
    for relative in (False, True):
        rule = popart.Percentiles(beta=lambda t: 1 / t**0.75, p=p, relative=relative)
        state = rule.init((4,))
        for row in y:
            state = rule.update(state, row)
        above, below = (y > state.high).mean(0), (y < state.low).mean(0)
        np.testing.assert_allclose(above, (1 - p) / 2, atol=0.03)
        np.testing.assert_allclose(below, (1 - p) / 2, atol=0.03)


@pytest.mark.parametrize("B", [2, 5, 20])
def test_proposition_6_minibatch_extremes_converge_to_percentiles(B: int) -> None:
    a, b = -3.0, 7.0
    rng = np.random.default_rng(3)
    rule = popart.Extremes(beta=popart.harmonic())
    state = rule.init((50,))
    for _ in range(2000):
        state = rule.update(state, rng.uniform(a, b, (B, 50)))
    p = popart.correspondence.ratio_from_batch(B)
    above, below = (b - state.high) / (b - a), (state.low - a) / (b - a)
    np.testing.assert_allclose(above, (1 - p) / 2, atol=0.02)
    np.testing.assert_allclose(below, (1 - p) / 2, atol=0.02)
    np.testing.assert_allclose(popart.correspondence.batch_from_ratio(p), B)


@given(
    stream=hnp.arrays(float, st.integers(1, 30), elements=numbers),
    beta=st.floats(1e-3, 1),
    nu0=st.floats(1e-3, 1e6),
)
def test_proposition_7_debiased_averages_forget_the_start_and_weigh_as_a_constant_step_does(
    stream: Any, beta: float, nu0: float
) -> None:
    """Also with an initial value, which the first step of 1 removes."""
    weights = (1 - beta) ** np.arange(len(stream))[::-1]
    mean = np.average(stream, weights=weights)
    variance = np.average((stream - mean) ** 2, weights=weights)
    for rule in (popart.Moments(beta=beta), popart.Moments(beta=popart.debiased(beta), nu0=nu0)):
        state = rule.init()
        for y in stream:
            state = rule.update(state, y)
        affine = rule.affine(state)
        scale, shift = affine.scale, affine.shift
        size = np.abs(stream).max()
        np.testing.assert_allclose(shift, mean, atol=1e-11 * size)
        np.testing.assert_allclose(scale, math.sqrt(variance), rtol=1e-7, atol=1e-11 * size)
