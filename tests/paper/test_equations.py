"""One test per numbered equation."""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import popart
import popart.reference
from popart.lab.dqn import learner
from popart.lab.dqn.config import AgentConfig
from popart.lab.dqn.replay import Transitions

# Multiples of 0.001: the plain formulas beside which ours are tested underflow where ours do not.
values = st.floats(-1e6, 1e6).map(lambda x: round(x, 3))
streams = hnp.arrays(float, st.integers(1, 40), elements=values)
steps = st.floats(1e-6, 1.0)


def statistics(rule: popart.Rule[Any], stream: Any) -> popart.Affine:
    state = rule.init()
    for y in stream:
        state = rule.update(state, y)
    return rule.affine(state)


@given(y=values, shift=values, scale=st.floats(1e-3, 1e3))
def test_equation_1_targets_are_normalized_by_an_affine_map(y: float, shift: float, scale: float) -> None:
    normalized = popart.Affine(scale, shift).normalize(y)
    np.testing.assert_allclose(normalized, (y - shift) / scale, rtol=1e-12, atol=1e-12)
    dense = popart.Affine(np.array([[scale, 0.3], [-0.2, 2 + scale]]), np.array([shift, 1.0]))
    Y = np.array([y, 3.0])
    np.testing.assert_allclose(dense.scale @ dense.normalize(Y) + dense.shift, Y, rtol=1e-9, atol=1e-9)


@given(g=values, shift=values, scale=st.floats(-1e3, 1e3))
def test_equation_2_outputs_are_denormalized_by_its_inverse(g: float, shift: float, scale: float) -> None:
    np.testing.assert_allclose(popart.Affine(scale, shift).denormalize(g), scale * g + shift)
    Sigma = np.array([[scale, 0.3], [-0.2, 2.0]])
    mu, outputs = np.array([shift, 1.0]), np.array([g, 3.0])
    np.testing.assert_allclose(popart.Affine(Sigma, mu).denormalize(outputs), Sigma @ outputs + mu)


@given(stream=streams)
def test_equation_3_a_harmonic_step_gives_mean_and_variance_of_all_data(stream: Any) -> None:
    """The paper's sigma in Eq. 3 is the variance; what normalises is its root."""
    affine = statistics(popart.Moments(beta=popart.harmonic()), stream)
    scale, shift = affine.scale, affine.shift
    size = np.abs(stream).max()
    np.testing.assert_allclose(shift, stream.mean(), atol=1e-13 * size)
    np.testing.assert_allclose(scale, stream.std(), rtol=1e-9, atol=1e-13 * size)


@given(stream=streams, beta=steps, nu0=st.floats(1e-2, 1e6))
def test_equation_4_moving_averages_of_the_first_two_moments(stream: Any, beta: float, nu0: float) -> None:
    affine = statistics(popart.Moments(beta=popart.constant(beta), nu0=nu0), stream)
    scale, shift = affine.scale, affine.shift
    mu, nu = 0.0, nu0
    for y in stream:
        mu = (1 - beta) * mu + beta * y
        nu = (1 - beta) * nu + beta * y**2
    np.testing.assert_allclose(shift, mu, rtol=1e-9, atol=1e-12 * np.abs(stream).max())
    cancelled = 1e-13 * nu
    np.testing.assert_allclose(scale**2, nu - mu**2, rtol=1e-6, atol=cancelled)


@given(
    batches=hnp.arrays(float, st.tuples(st.integers(1, 8), st.integers(1, 6)), elements=values),
    beta=steps,
    s=st.floats(0.1, 10),
)
def test_equation_4_with_minibatches_and_a_desired_standard_deviation(
    batches: Any, beta: float, s: float
) -> None:
    """Appendix, "Online learning with minibatches" and "Generalizing normalization by variance"."""
    affine = statistics(popart.Moments(beta=popart.constant(beta), std=s, nu0=1.0), batches)
    scale, shift = affine.scale, affine.shift
    mu, nu = 0.0, 1.0
    for Y in batches:
        mu = (1 - beta) * mu + beta * Y.mean()
        nu = (1 - beta) * nu + beta * (Y**2).mean()
    np.testing.assert_allclose(shift, mu, rtol=1e-9, atol=1e-12 * np.abs(batches).max())
    np.testing.assert_allclose((s * scale) ** 2, nu - mu**2, rtol=1e-6, atol=1e-13 * nu)


class Table(NamedTuple):
    """A network whose features are its observation, so that the weights of its head are a table."""

    actions: int = 3

    def init(self, key: jax.Array) -> Any:
        return {"body": [], "head": {"w": jnp.zeros((2, 3)), "b": jnp.zeros(3)}}

    def features(self, body: Any, observations: jax.Array) -> jax.Array:
        return observations[..., 0]


def test_equation_5_targets_are_in_real_units_with_each_network_s_own_normalization() -> None:
    """Double Q-learning: the online network chooses, the target network values, neither normalised.

    The learner's targets are compared with numbers by hand, and its update with Eq. 4 for these.
    """
    config = AgentConfig("popart", discount=0.9, beta=0.25)
    network, art = Table(), config.art
    online = {"body": [], "head": {"w": jnp.array([[1.0, 2.0, 0.0], [0.5, -1.0, 0.0]]), "b": jnp.zeros(3)}}
    target = {"body": [], "head": {"w": jnp.array([[9.0, 4.0, 5.0], [-3.0, 8.0, 7.0]]), "b": jnp.zeros(3)}}
    agent = learner.init(config, network, jax.random.key(0))._replace(
        params=online,
        statistics=art.update(art.init(like=jnp.zeros(())), jnp.array([800.0, 1200.0])),  # 1000 +- 200
        target_params=target,
        target_statistics=art.update(art.init(like=jnp.zeros(())), jnp.array([290.0, 310.0])),  # 300 +- 10
    )
    after = jnp.array([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]])[..., None]
    batch = Transitions(
        observation=after,
        action=jnp.zeros(3, int),
        reward=jnp.array([100.0, -50.0, 7.0]),
        terminal=jnp.array([False, False, True]),
        next_observation=after,
        weight=jnp.ones(3),
    )
    expected = np.array([100 + 0.9 * (10 * 4 + 300), -50 + 0.9 * (10 * -3 + 300), 7])
    Q = learner.values(config, network, agent.params, agent.statistics, after)
    Q_target = learner.values(config, network, agent.target_params, agent.target_statistics, after)
    np.testing.assert_allclose(learner.targets(config, batch, Q, Q_target), expected, rtol=1e-6)
    _, metrics = learner.learn(config, network, agent, jax.tree.map(lambda x: x[None], batch))
    step = 0.25 / (1 - 0.75**2)  # the second one, debiased
    mu = (1 - step) * 1000 + step * expected.mean()
    nu = (1 - step) * (1000**2 + 200**2) + step * (expected**2).mean()
    np.testing.assert_allclose(metrics.shift, [mu], rtol=1e-5)
    np.testing.assert_allclose(metrics.scale, [math.sqrt(nu - mu**2)], rtol=1e-5)


def test_equation_6_percentile_rules_aim_at_the_same_share_beyond_each_bound() -> None:
    y = np.random.default_rng(0).gamma(2, 3, 4001)
    for p in (0.5, 0.9, 0.99):
        rule = popart.reference.OrderStatistics(p=p, capacity=4001)
        affine = rule.affine(rule.update(rule.init(), y))
        scale, shift = affine.scale, affine.shift
        for beyond in (np.mean(y > shift + scale), np.mean(y < shift - scale)):
            assert abs(beyond - (1 - p) / 2) <= 1 / 4001


@given(stream=streams, beta=steps, p=st.floats(0.01, 1))
def test_equations_7_and_8_percentiles_step_by_step(stream: Any, beta: float, p: float) -> None:
    rule = popart.Percentiles(beta=popart.constant(beta), p=p, relative=False, nu0=1e6)
    affine = statistics(rule, stream)
    scale, shift = affine.scale, affine.shift
    y_min, y_max = -1e3, 1e3
    for Y in stream:
        y_max, y_min = (
            y_max + beta * ((y_max < Y) - (1 - p) / 2),
            y_min - beta * ((y_min > Y) - (1 - p) / 2),
        )
    np.testing.assert_allclose((shift + scale, shift - scale), (y_max, y_min), rtol=1e-12)


@given(
    batches=hnp.arrays(float, st.tuples(st.integers(1, 8), st.integers(2, 6)), elements=values),
    beta=steps,
)
def test_equation_9_extremes_of_minibatches(batches: Any, beta: float) -> None:
    affine = statistics(popart.Extremes(beta=popart.constant(beta), nu0=1.0), batches)
    scale, shift = affine.scale, affine.shift
    y_min, y_max = -1.0, 1.0
    for Y in batches:
        y_min = (1 - beta) * y_min + beta * Y.min()
        y_max = (1 - beta) * y_max + beta * Y.max()
    size = 1e-13 * max(1.0, np.abs(batches).max())
    np.testing.assert_allclose(shift, (y_max + y_min) / 2, rtol=1e-9, atol=size)
    np.testing.assert_allclose(scale, (y_max - y_min) / 2, rtol=1e-9, atol=size)


@given(beta=steps, t=st.integers(1, 2000))
def test_equation_10_the_debiased_step(beta: float, t: int) -> None:
    """The weight of the newest of t targets, each of which weighs 1 - beta times as much as the next."""
    weights = [(1 - beta) ** age for age in range(t)]
    np.testing.assert_allclose(popart.debiased(beta)(np.float64(t)), 1 / math.fsum(weights), rtol=1e-11)


@given(stream=streams, beta=st.floats(1e-3, 0.999), start=values)
def test_equation_11_the_debiased_average_removes_the_initial_value(
    stream: Any, beta: float, start: float
) -> None:
    t = len(stream)
    biased = start
    for z in stream:
        biased = (1 - beta) * biased + beta * z
    expected = (biased - (1 - beta) ** t * start) / -math.expm1(t * math.log1p(-beta))
    shift = statistics(popart.Moments(beta=beta), stream).shift
    size = max(np.abs(stream).max(), abs(start)) / min(1.0, beta * t)
    np.testing.assert_allclose(shift, expected, atol=1e-12 * size)
