"""What holds for every rule: masks, weights, tasks, replicas, and how a state is kept."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import popart
from popart.rules import Rule
from tests.backends import REFERENCE, Backend

RULES: dict[str, Rule[Any, Any]] = {
    "moments": popart.Moments(beta=0.1),
    "covariance": popart.Covariance(beta=0.1, nu0=4.0),
    "percentiles": popart.Percentiles(beta=0.2, p=0.8),
    "expectiles": popart.Expectiles(beta=0.2, p=0.8),
    "extremes": popart.Extremes(beta=0.2),
    "order-statistics": popart.OrderStatistics(p=0.8, capacity=40),
    "fixed": popart.Fixed(scale=2.0),
}

BATCHES = np.random.default_rng(0).normal(3, 2, (3, 8, 2)).astype(np.float32)


@pytest.fixture(params=RULES)
def rule(request: pytest.FixtureRequest) -> Rule[Any, Any]:
    return RULES[request.param]


def after(rule: Rule[Any, Any], state: Any, batches: Any, **arguments: Any) -> popart.Affine:
    for i, y in enumerate(batches):
        state = rule.update(state, y, **{k: v[i] for k, v in arguments.items()})
    return rule.affine(state)


def assert_same(a: popart.Affine, b: popart.Affine, backend: Backend = REFERENCE, ulps: int = 64) -> None:
    for x, y in zip(a[:2], b[:2], strict=True):
        np.testing.assert_allclose(x, y, rtol=ulps * backend.eps, atol=ulps * backend.eps)


def test_a_masked_target_is_as_if_it_were_not_there(rule: Rule[Any, Any], backend: Backend) -> None:
    mask = np.random.default_rng(1).random((3, 8)) < 0.6
    kept = [y[m] for y, m in zip(BATCHES, mask, strict=True)]

    def f(batches: Any, mask: Any) -> Any:
        return after(rule, rule.init((2,), like=batches[0]), batches, mask=mask)

    expected = after(rule, rule.init((2,)), kept)
    assert_same(backend.call(f, BATCHES, mask), expected, backend)


def test_a_weight_is_a_number_of_copies(rule: Rule[Any, Any], backend: Backend) -> None:
    weights = np.random.default_rng(2).integers(0, 4, (3, 8))
    copies = [np.repeat(y, w, axis=0) for y, w in zip(BATCHES, weights, strict=True)]

    def f(batches: Any, weights: Any) -> Any:
        return after(rule, rule.init((2,), like=batches[0]), batches, weights=weights)

    expected = after(rule, rule.init((2,)), copies)
    assert_same(backend.call(f, BATCHES, weights.astype(np.float32)), expected, backend)


def test_a_task_sees_its_own_targets_and_nothing_else(rule: Rule[Any, Any], backend: Backend) -> None:
    index = np.random.default_rng(3).integers(0, 3, (3, 8))
    index[1, index[1] == 2] = 0

    def f(batches: Any, index: Any) -> Any:
        state = rule.init((4, 2), like=batches[0])
        for y, i in zip(batches, index, strict=True):
            state = rule.update(state, y, index=i)
        return rule.affine(state), state

    together, state = backend.call(f, BATCHES, index)
    for task in range(3):
        own = [y[i == task] for y, i in zip(BATCHES, index, strict=True)]
        alone = rule.init((2,))
        for y in own:
            alone = rule.update(alone, y)
        assert_same(together.select(task), rule.affine(alone), backend)
        np.testing.assert_array_equal(state.counts[:, task], alone.counts)
    untouched = rule.init((2,))
    assert_same(together.select(3), rule.affine(untouched))
    np.testing.assert_array_equal(state.counts[:, 3], untouched.counts)


def test_replicas_that_merge_equal_one_process_with_all(rule: Rule[Any, Any], backend: Backend) -> None:
    parts = [slice(0, 3), slice(3, 3), slice(3, 8)]
    weights = np.random.default_rng(4).uniform(0, 2, (3, 8)).astype(np.float32)

    def f(batches: Any, weights: Any) -> Any:
        state = rule.init((2,), like=batches[0])
        for y, w in zip(batches, weights, strict=True):
            summaries = [rule.summarize(state, y[part], weights=w[part]) for part in parts]
            state = rule.absorb(state, rule.merge(summaries))
        return rule.affine(state)

    if isinstance(rule, popart.OrderStatistics):
        parts = [slice(0, 4), slice(4, 8)]
    expected = after(rule, rule.init((2,)), BATCHES, weights=weights)
    assert_same(backend.call(f, BATCHES, weights), expected, backend)


def test_merging_takes_what_an_all_gather_gives(rule: Rule[Any, Any]) -> None:
    state = rule.init((2,))
    parts = [rule.summarize(state, y) for y in (BATCHES[0, :4], BATCHES[0, 4:])]
    gathered = type(parts[0])(*(np.stack(x) for x in zip(*parts, strict=True)))
    assert_same(
        rule.affine(rule.absorb(state, rule.merge(gathered))),
        rule.affine(rule.absorb(state, rule.merge(parts))),
        ulps=0,
    )


def test_an_empty_batch_changes_nothing(rule: Rule[Any, Any], backend: Backend) -> None:
    def f(state: Any, y: Any) -> Any:
        return rule.update(state, y[:0]), rule.update(state, y, mask=(y == y + 1).all(-1))

    state = rule.update(rule.init((2,), like=np.zeros((), backend.dtype)), BATCHES[0])
    empty, masked = backend.call(f, state, BATCHES[1])
    for a, b, c in zip(state, empty, masked, strict=True):
        np.testing.assert_array_equal(a, b)
        np.testing.assert_array_equal(a, c)


def test_any_number_of_batch_axes(rule: Rule[Any, Any]) -> None:
    flat = rule.update(rule.init((2,)), BATCHES[0])
    folded = rule.update(rule.init((2,)), BATCHES[0].reshape(2, 2, 2, 2))
    one = rule.update(rule.init((2,)), BATCHES[0, 0])
    assert_same(rule.affine(flat), rule.affine(folded))
    assert_same(rule.affine(one), rule.affine(rule.update(rule.init((2,)), BATCHES[0, :1])))


def test_update_is_pure(rule: Rule[Any, Any]) -> None:
    state = rule.update(rule.init((2,)), BATCHES[0])
    copy = [np.copy(x) for x in state]
    rule.update(state, BATCHES[1])
    for x, y in zip(state, copy, strict=True):
        np.testing.assert_array_equal(x, y)


def test_rules_are_hashable_settings(rule: Rule[Any, Any]) -> None:
    assert hash(rule) == hash(type(rule)(**vars(rule)))
    assert rule == type(rule)(**vars(rule))


def test_a_state_keeps_its_dtype_and_shape(rule: Rule[Any, Any], backend: Backend) -> None:
    def f(y: Any) -> Any:
        state = rule.init((2,), like=y)
        return state, rule.update(state, y)

    before, now = backend.call(f, BATCHES[0])
    for x, y in zip(before, now, strict=True):
        assert x.dtype == y.dtype
        assert x.shape == y.shape


def test_integer_targets_are_converted(rule: Rule[Any, Any], backend: Backend) -> None:
    y = np.array([[1, 2], [5, -3], [4, 4]])

    def f(integers: Any, floats: Any) -> Any:
        states = (rule.update(rule.init((2,), like=floats), x) for x in (integers, floats))
        return [rule.affine(state) for state in states]

    integers, floats = backend.call(f, y, y.astype(np.float32))
    assert_same(integers, floats, ulps=0)


@pytest.mark.parametrize(
    "backend",
    [Backend("jax", "float32"), Backend("jax", "float64", x64=True), Backend("torch", "float32")],
    ids=lambda b: b.name,
)
def test_a_state_of_numpy_follows_targets_of_another_module(rule: Rule[Any, Any], backend: Backend) -> None:
    def f(y: Any) -> Any:
        return rule.update(rule.init((2,)), y), rule.update(rule.init((2,), like=y), y)

    follows, born = backend.call(f, BATCHES[0])
    for x, y in zip(follows, born, strict=True):
        np.testing.assert_array_equal(x, y)
        assert x.dtype == y.dtype


def test_half_precision_targets_are_measured_in_float32(rule: Rule[Any, Any]) -> None:
    y = jnp.asarray(BATCHES[0], jnp.bfloat16)
    state = rule.update(rule.init((2,), like=y), y)
    assert rule.affine(state).scale.dtype == jnp.float32
    exact = rule.update(rule.init((2,)), np.asarray(y, float))
    assert_same(rule.affine(state), rule.affine(exact), Backend("jax", "float32"))


def test_long_batches_are_measured_as_short_ones_are() -> None:
    """JAX goes through long batches row by row."""
    rng = np.random.default_rng(5)
    y, index = rng.normal(3, 2, 4096), rng.integers(0, 3, 4096)
    weights = rng.random(4096)
    y[17] = np.nan
    backend = Backend("jax", "float64", "jit", x64=True)
    for rule in (popart.Moments(), popart.Percentiles(), popart.Expectiles(), popart.Extremes()):

        def f(y: Any, index: Any, weights: Any, rule: Rule[Any, Any] = rule) -> Any:
            one = rule.update(rule.init(like=y), y, weights=weights)
            many = rule.update(rule.init((3,), like=y), y, index=index)
            again = rule.update(many, y + 1, index=index)
            return one, many, again

        got = backend.call(f, y, index, weights)
        for state, expected in zip(got, f(y, index, weights), strict=True):
            np.testing.assert_array_equal(state.counts, expected.counts)
            assert_same(rule.affine(state), rule.affine(expected))


def test_merging_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="summaries is empty"):
        popart.Moments().merge([])
