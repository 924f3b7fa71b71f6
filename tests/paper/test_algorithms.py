"""Algorithms 1 and 2 as printed, and the library's pieces put together, in lockstep."""

import numpy as np

import popart
from popart.reference import Parameters, PopArtParameters, normalized_sgd, pop_art_sgd
from tests.paper.network import tanh_network

ALPHA = 0.05


def test_the_jacobian_of_the_test_network_is_right() -> None:
    rng = np.random.default_rng(0)
    h, jacobian, theta = tanh_network(rng, 3, 4, 5)
    X, eps = rng.normal(size=3), 1e-6
    numeric = [(h(theta + d, X) - h(theta - d, X)) / (2 * eps) for d in eps * np.eye(len(theta))]
    np.testing.assert_allclose(jacobian(theta, X), numeric, atol=1e-8)


def test_algorithm_1_is_what_the_library_does_with_a_dense_scale() -> None:
    rng = np.random.default_rng(1)
    h, jacobian, theta = tanh_network(rng, 3, 4, 5)
    art = popart.Covariance(beta=0.1, nu0=1.0)
    state = art.init((2,))
    W, b = rng.normal(size=(2, 5)), np.zeros(2)
    reference = PopArtParameters(theta, W, b, np.eye(2), np.zeros(2))
    for t in range(200):
        X, Y = rng.normal(size=3), 10 ** (t / 50) * rng.normal(size=2) + 5
        new = art.update(state, Y)
        old_map, new_map = art.affine(state), art.affine(new)
        W, b = popart.preserve(W, b, old_map, new_map)
        delta = W @ h(theta, X) + b - new_map.normalize(Y)
        features, J = h(theta, X), jacobian(theta, X)
        theta = theta - ALPHA * J @ W.T @ delta
        W, b = W - ALPHA * np.outer(delta, features), b - ALPHA * delta
        state = new
        reference = pop_art_sgd(reference, h, jacobian, X, Y, new_map.scale, new_map.shift, ALPHA)
        np.testing.assert_allclose(theta, reference.theta, rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(W, reference.W, rtol=1e-7, atol=1e-9)
        np.testing.assert_allclose(b, reference.b, rtol=1e-7, atol=1e-9)


def test_algorithm_2_is_plain_sgd_when_the_scale_is_one() -> None:
    rng = np.random.default_rng(2)
    h, jacobian, theta = tanh_network(rng, 3, 4, 5)
    parameters = Parameters(theta, rng.normal(size=(2, 5)), np.zeros(2))
    X, Y = rng.normal(size=3), rng.normal(size=2)

    def loss(p: Parameters) -> float:
        return 0.5 * float(((p.f(h, X) - Y) ** 2).sum())

    new = normalized_sgd(parameters, h, jacobian, X, Y, np.eye(2), ALPHA)
    eps = 1e-6
    for name in Parameters._fields:
        x = getattr(parameters, name)
        numeric = np.zeros_like(x)
        for i in np.ndindex(x.shape):
            d = np.zeros_like(x)
            d[i] = eps
            up, down = (parameters._replace(**{name: x + sign * d}) for sign in (1, -1))
            numeric[i] = (loss(up) - loss(down)) / (2 * eps)
        np.testing.assert_allclose(getattr(new, name), x - ALPHA * numeric, atol=1e-7)


def test_algorithm_2_scales_the_lower_layers_by_the_inverse_square() -> None:
    rng = np.random.default_rng(3)
    h, jacobian, theta = tanh_network(rng, 3, 4, 5)
    parameters = Parameters(theta, rng.normal(size=(2, 5)), np.zeros(2))
    X, Y = rng.normal(size=3), rng.normal(size=2)
    plain = normalized_sgd(parameters, h, jacobian, X, Y, np.eye(2), ALPHA)
    scaled = normalized_sgd(parameters, h, jacobian, X, Y, 10 * np.eye(2), ALPHA)
    np.testing.assert_allclose(scaled.theta - theta, (plain.theta - theta) / 100, atol=1e-15)
    np.testing.assert_array_equal(scaled.W, plain.W)
