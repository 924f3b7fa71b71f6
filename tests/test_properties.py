"""The properties that make it ours, in each module's single precision."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import popart
import popart.correspondence
import popart.reference
from popart.rules import Rule
from tests.backends import FLOAT32, Backend

ALPHA = 0.125
FEATURES = np.random.default_rng(7).normal(size=(8, 4)).astype(np.float32)

RULES: dict[str, tuple[Rule[Any], tuple[int, ...]]] = {
    "moments": (popart.Moments(beta=0.01), ()),
    "moments-per-output": (popart.Moments(beta=1e-4, std=0.4), (3,)),
    "moments-harmonic": (popart.Moments(beta=popart.harmonic()), ()),
    "covariance": (popart.Covariance(beta=0.01), (3,)),
    "percentiles": (popart.Percentiles(beta=0.1), ()),
    "expectiles": (popart.Expectiles(beta=0.1), ()),
    "extremes": (popart.Extremes(beta=0.1), ()),
    "order-statistics": (popart.reference.OrderStatistics(capacity=64), ()),
}


def targets(shape: tuple[int, ...], steps: int) -> np.ndarray:
    """Zeros before the first reward, then targets that spread over five orders of magnitude."""
    rng = np.random.default_rng(3)
    y = rng.normal(1, 2, (steps, 8, *shape)) * 10 ** rng.uniform(-3, 2, (steps, 1, *(1 for _ in shape)))
    y[:3] = 0
    return y.astype(np.float32)


@functools.cache
def sgd_with_pop_art(rule: Rule[Any]) -> Any:
    """ART, POP, then SGD on the squared loss of the normalised targets: what a user runs. Compiled once."""

    def step(carry: Any, y: Any) -> tuple[Any, Any]:
        state, W, b, h = carry
        new = rule.update(state, y)
        before, after = rule.affine(state), rule.affine(new)
        W, b = popart.preserve(W, b, before, after)
        g = (h[:, None, :] * W).sum(-1) + b
        normalized = after.normalize(y)
        delta = g - normalized.reshape(g.shape[0], -1)
        f = after.denormalize(g)
        W = W - ALPHA * (delta[:, :, None] * h[:, None, :]).mean(0)
        b = b - ALPHA * delta.mean(0)
        return (new, W, b, h), (normalized, W, b, f)

    return step


def train(rule: Rule[Any], shape: tuple[int, ...], backend: Backend, y: np.ndarray) -> list[Any]:
    k = shape[-1] if shape else 1
    W = np.random.default_rng(5).normal(size=(k, 4)).astype(np.float32)
    carry = (rule.init(shape, like=np.float32(0)), W, np.zeros(k, np.float32), FEATURES)
    return backend.run(sgd_with_pop_art(rule), carry, list(y))[1]


@pytest.mark.parametrize(
    ("name", "float32"),
    [
        *((name, backend) for name in RULES for backend in FLOAT32 if backend.mode != "compile"),
        ("moments", Backend("torch", "float32", "compile")),
        ("covariance", Backend("torch", "float32", "compile")),
    ],
    ids=lambda x: x.name if isinstance(x, Backend) else x,
)
def test_scaling_targets_by_a_power_of_two_changes_no_bit(name: str, float32: Backend) -> None:
    rule, shape = RULES[name]
    y = targets(shape, 20)
    ks = (-100, 100) if float32.mode == "compile" else (-100, -63, -24, -1, 1, 30, 77, 100)
    scaled = {k: train(rule, shape, float32, y * np.float32(2.0) ** k) for k in (0, *ks)}
    for k in ks:
        for (*same, f_k), (*ref, f) in zip(scaled[k], scaled[0], strict=True):
            for x, x_ref in zip(same, ref, strict=True):
                np.testing.assert_array_equal(x, x_ref)
            np.testing.assert_array_equal(f_k, f * np.float32(2.0) ** k)


def test_scaling_targets_by_every_power_of_two_from_minus_100_to_100_changes_no_bit() -> None:
    rule, shape = RULES["moments"]
    W = np.random.default_rng(5).normal(size=(1, 4)).astype(np.float32)
    carry = (rule.init(shape, like=jnp.zeros(())), jnp.asarray(W), jnp.zeros(1), jnp.asarray(FEATURES))
    stream = jax.jit(lambda y: jax.lax.scan(sgd_with_pop_art(rule), carry, y)[1])
    y = targets(shape, 50)
    *reference, f = stream(y)
    for k in range(-100, 101):
        *same, f_k = stream(y * np.float32(2.0) ** k)
        for x, x_ref in zip(same, reference, strict=True):
            np.testing.assert_array_equal(x, x_ref)
        np.testing.assert_array_equal(f_k, np.asarray(f) * np.float32(2.0) ** k)


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("c", [3.0, 1e-20, 12345.678])
def test_scaling_targets_by_any_number_changes_a_few_ulps(name: str, c: float) -> None:
    rule, shape = RULES[name]
    y = targets(shape, 10)
    backend = Backend("numpy", "float32")
    for scaled, plain in zip(
        train(rule, shape, backend, (y * np.float32(c)).astype(np.float32)),
        train(rule, shape, backend, y),
        strict=True,
    ):
        for x, x_ref in zip(scaled[:3], plain[:3], strict=True):
            ulp = backend.eps * max(1, np.abs(x_ref).max())
            limit = 16 if name != "covariance" else 256
            assert np.abs(x - x_ref).max() <= limit * ulp


@pytest.mark.parametrize(
    ("beta", "float32"),
    [
        *((beta, backend) for beta in (1e-1, 1e-2, 1e-4) for backend in FLOAT32 if backend.mode != "compile"),
        (1e-4, Backend("torch", "float32", "compile")),
    ],
    ids=lambda x: x.name if isinstance(x, Backend) else str(x),
)
def test_statistics_of_targets_from_1e_minus_30_to_1e30_do_not_overflow_and_obey_proposition_2(
    beta: float, float32: Backend
) -> None:
    rng = np.random.default_rng(11)
    y = rng.choice([-1, 1], 300) * 10 ** rng.uniform(-30, 30, 300)
    rule = popart.Moments(beta=popart.constant(beta))

    def step(state: Any, y: Any) -> tuple[Any, Any]:
        state = rule.update(state, y)
        scale, shift = new = rule.affine(state)
        return state, (new.normalize(y), scale, shift)

    outputs = float32.run(step, rule.init(like=np.float32(0)), list(y.astype(np.float32)))[1]
    normalized, scale, shift = map(np.stack, zip(*outputs, strict=True))
    assert np.isfinite(scale).all()
    assert np.isfinite(shift).all()
    assert normalized[0] == 0
    assert (np.abs(normalized) <= popart.correspondence.bound(beta) * (1 + 8 * float32.eps)).all()
    assert (np.abs(normalized) > 0.9 * popart.correspondence.bound(beta)).any()


def test_a_minibatch_with_targets_from_1e_minus_30_to_1e30_obeys_proposition_2(single: Backend) -> None:
    rng = np.random.default_rng(12)
    y = (rng.choice([-1, 1], (100, 16)) * 10 ** rng.uniform(-30, 30, (100, 16))).astype(np.float32)
    rule = popart.Moments(beta=popart.constant(0.01), std=0.5)

    def step(state: Any, y: Any) -> tuple[Any, Any]:
        state = rule.update(state, y)
        return state, rule.affine(state).normalize(y)

    outputs = single.run(step, rule.init(like=np.float32(0)), list(y))[1]
    assert (np.abs(outputs[1:]) <= popart.correspondence.bound(0.01, 0.5, 16) * (1 + 8 * single.eps)).all()


@pytest.mark.parametrize(
    ("backend", "steps"),
    [
        (Backend("numpy", "float32"), 20_000),
        (Backend("jax", "float32", "scan"), 100_000),
        (Backend("torch", "float32"), 10_000),
    ],
    ids=lambda x: x.name if isinstance(x, Backend) else str(x),
)
def test_a_mean_a_million_times_the_spread_is_tracked_in_float32(backend: Backend, steps: int) -> None:
    y = (1e6 + np.random.default_rng(13).normal(size=steps)).astype(np.float32)
    rule = popart.Moments(beta=1e-4)

    def step(state: Any, y: Any) -> tuple[Any, Any]:
        return rule.update(state, y), ()

    def final(backend: Backend) -> popart.Affine:
        return rule.affine(backend.run(step, rule.init(like=np.zeros((), backend.dtype)), list(y))[0])

    reference = final(Backend("jax", "float64", "scan", x64=True))
    mine = final(backend)
    assert abs(mine.shift - reference.shift) < 0.1 * reference.scale
    assert abs(mine.scale / reference.scale - 1) < 0.05


def test_increments_below_the_last_bit_are_not_lost() -> None:
    rule = popart.Moments(beta=popart.constant(1e-6), nu0=1.0)
    y = np.random.default_rng(14).normal(1000, 10, 50_000).astype(np.float32)

    def step(state: Any, y: Any) -> tuple[Any, Any]:
        return rule.update(state, y), ()

    single, double = (
        rule.affine(backend.run(step, rule.init(like=np.zeros((), backend.dtype)), list(y))[0])
        for backend in (Backend("jax", "float32", "scan"), Backend("jax", "float64", "scan", x64=True))
    )
    assert abs(single.shift / double.shift - 1) < 1e-5
    assert abs(single.scale / double.scale - 1) < 1e-5


def test_a_constant_stream_has_no_spread_whatever_its_batches(backend: Backend) -> None:
    value = np.float32(0.1)
    rule = popart.Moments(beta=0.01)

    def f(*batches: Any) -> Any:
        state = rule.init(like=batches[0])
        for y in batches:
            state = rule.update(state, y)
        scale, shift = new = rule.affine(state)
        return scale, shift, new.normalize(batches[0]), new.denormalize(batches[0] * 0 + 3)

    scale, shift, normalized, output = backend.call(f, *(np.full(n, value) for n in (1, 3, 7, 33)))
    assert scale == 0
    assert shift == value
    assert (normalized == 0).all()
    assert (output == value).all()


def test_before_any_target_the_output_is_zero_and_the_first_batch_is_adopted(single: Backend) -> None:
    rule = popart.Moments()
    y = np.array([3.0, 5.0], np.float32)
    W, b = np.ones((1, 2), np.float32), np.full(1, 0.5, np.float32)

    def f(y: Any, W: Any, b: Any) -> Any:
        state = rule.init(like=y)
        new = rule.update(state, y)
        before = rule.affine(state)
        W, b = popart.preserve(W, b, before, rule.affine(new))
        return before.denormalize(W), before.normalize(y), W, b, rule.affine(new)

    output, normalized, W_new, b_new, adopted = single.call(f, y, W, b)
    assert (output == 0).all()
    assert (normalized == 0).all()
    np.testing.assert_array_equal(W_new, W)
    np.testing.assert_array_equal(b_new, b)
    assert adopted.shift == 4
    assert adopted.scale == 1


def test_the_first_spread_keeps_the_weights_and_the_outputs_where_they_were(backend: Backend) -> None:
    rule = popart.Moments(beta=0.1)
    W, b = np.ones((1, 2), np.float32), np.zeros(1, np.float32)

    def step(carry: Any, y: Any) -> tuple[Any, Any]:
        state, W, b = carry
        new = rule.update(state, y)
        return (new, *popart.preserve(W, b, rule.affine(state), rule.affine(new))), ()

    start = rule.init(like=np.zeros((), backend.dtype)), W, b
    (state, W_new, b_new), _ = backend.run(step, start, [np.float32(y) for y in (2, 2, 6)])
    after = rule.affine(state)
    constant_output = after.denormalize(b_new)
    np.testing.assert_array_equal(W_new, W)
    np.testing.assert_allclose(b_new, (2 - after.shift) / after.scale, rtol=4 * backend.eps)
    np.testing.assert_allclose(constant_output, 2, rtol=4 * backend.eps)


def test_targets_that_are_not_finite_are_left_out_and_counted(single: Backend) -> None:
    rule = popart.Moments(beta=0.1)
    good = np.array([1.0, 2.0, 4.0], np.float32)
    bad = np.array([1.0, np.nan, 2.0, np.inf, 4.0, -np.inf], np.float32)

    def f(good: Any, bad: Any) -> Any:
        start = rule.update(rule.init(like=good), good - 1)
        return rule.update(start, good), rule.update(start, bad), rule.update(start, bad * np.inf)

    clean, sifted, nothing = single.call(f, good, bad)
    np.testing.assert_allclose(sifted.moments, clean.moments, rtol=4 * single.eps)
    np.testing.assert_array_equal(sifted.counts, [2, 3])
    np.testing.assert_array_equal(nothing.counts, [1, 6])


def test_a_check_that_raises_is_one_call_away() -> None:
    rule = popart.Moments()
    state = rule.update(rule.init(), np.array([1.0, 2.0]))
    popart.check_finite(state)
    with pytest.raises(FloatingPointError, match="1 of them"):
        popart.check_finite(rule.update(state, np.nan))


def test_counts_stop_at_their_maximum() -> None:
    rule = popart.Moments()
    state = rule.update(rule.init(), 1.0)
    state = state._replace(counts=np.full_like(state.counts, 2**31 - 2))
    for _ in range(3):
        state = rule.update(state, [1.0, np.nan])
    np.testing.assert_array_equal(state.counts, 2**31 - 1)
    assert np.isfinite(state.moments).all()
