"""Claims about every rule: masks, weights, tasks, replicas and states."""

import functools
import math
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import popart
import popart.reference
from popart.jax.heads import Axis
from popart.rules import Rule
from tests.backends import BACKENDS, REFERENCE, Backend

RULES: dict[str, Rule[Any]] = {
    "moments": popart.Moments(beta=0.1),
    "covariance": popart.Covariance(beta=0.1, nu0=4.0),
    "percentiles": popart.Percentiles(beta=0.2, p=0.8),
    "expectiles": popart.Expectiles(beta=0.2, p=0.8),
    "extremes": popart.Extremes(beta=0.2),
    "order-statistics": popart.reference.OrderStatistics(p=0.8, capacity=100),
    "fixed": popart.Fixed(scale=2.0),
}

BATCHES = np.random.default_rng(0).normal(3, 2, (4, 8, 2)).astype(np.float32)
MASK = np.random.default_rng(1).random((4, 8)) < 0.6
COPIES = np.random.default_rng(2).integers(0, 4, (4, 8))
WEIGHTS = np.random.default_rng(4).uniform(0, 2, (4, 8)).astype(np.float32)
INDEX = np.where(np.arange(4)[:, None] == 1, 0, np.random.default_rng(3).integers(0, 3, (4, 8)))
INTEGERS = np.random.default_rng(5).integers(-5, 5, (4, 8, 2))


@pytest.fixture(params=[pytest.param(name, marks=pytest.mark.xdist_group(name)) for name in RULES])
def rule(request: pytest.FixtureRequest) -> Rule[Any]:
    """Tests of one rule share what they run, so they go to the same worker."""
    return RULES[request.param]


def worthwhile(name: str, backend: Backend) -> bool:
    """Return whether a slow case is tested: only the rule with the most code is compiled.

    A scan in single precision compiles the same as `jit`, and is checked as one in double precision is.
    """
    if backend.mode == "compile":
        return name == "order-statistics"
    if name == "moments" or backend.module != "jax":
        return True
    return backend.mode == "jit" or (backend.mode == "scan" and backend.x64)


every_way = pytest.mark.parametrize(
    ("rule", "backend"),
    [
        pytest.param(name, backend, marks=pytest.mark.xdist_group(name), id=f"{name}-{backend.name}")
        for name in RULES
        for backend in BACKENDS
        if worthwhile(name, backend)
    ],
    indirect=True,
)


@functools.cache
def everything(rule: Rule[Any], backend: Backend) -> dict[str, Any]:
    """States after the same batches, taken in each of the ways that there are; in one program."""

    def step(states: dict[str, Any], batch: dict[str, Any]) -> tuple[Any, Any]:
        y, nothing = batch["y"], batch["mask"] & ~batch["mask"]
        new = {
            "masked": rule.update(states["masked"], y, mask=batch["mask"]),
            "weighted": rule.update(states["weighted"], y, weights=batch["copies"]),
            "tasks": rule.update(states["tasks"], y, index=batch["index"]),
            "integers": rule.update(states["integers"], batch["integers"]),
            "empty": rule.update(states["empty"], y[:0]),
            "all-masked": rule.update(states["all-masked"], y, mask=nothing),
        }
        return new, ()

    like = np.zeros((), backend.dtype)
    started = rule.update(rule.init((2,), like=like), BATCHES[0])
    fresh = dict.fromkeys(("masked", "weighted", "integers"), rule.init((2,), like=like))
    carry = {**fresh, "tasks": rule.init((4, 2), like=like), "empty": started, "all-masked": started}
    inputs = [
        {"y": y, "mask": m, "copies": c.astype(np.float32), "index": i, "integers": n}
        for y, m, c, i, n in zip(BATCHES, MASK, COPIES, INDEX, INTEGERS, strict=True)
    ]
    return {**backend.run(step, carry, inputs)[0], "started": started}


def after(rule: Rule[Any], batches: Any, **arguments: Any) -> Any:
    """The state after batches in NumPy float64."""
    state = rule.init((2,))
    for i, y in enumerate(batches):
        state = rule.update(state, y, **{k: v[i] for k, v in arguments.items()})
    return state


def assert_same(a: popart.Affine, b: popart.Affine, backend: Backend = REFERENCE, ulps: int = 64) -> None:
    for x, y in zip(a[:2], b[:2], strict=True):
        np.testing.assert_allclose(x, y, rtol=ulps * backend.eps, atol=ulps * backend.eps)


@every_way
def test_a_masked_target_is_as_if_it_were_not_there(rule: Rule[Any], backend: Backend) -> None:
    expected = after(rule, [y[m] for y, m in zip(BATCHES, MASK, strict=True)])
    state = everything(rule, backend)["masked"]
    assert_same(rule.affine(state), rule.affine(expected), backend)
    np.testing.assert_array_equal(state.counts, expected.counts)


@every_way
def test_a_weight_is_a_number_of_copies(rule: Rule[Any], backend: Backend) -> None:
    expected = after(rule, [np.repeat(y, n, axis=0) for y, n in zip(BATCHES, COPIES, strict=True)])
    assert_same(rule.affine(everything(rule, backend)["weighted"]), rule.affine(expected), backend)


@every_way
def test_a_task_sees_its_own_targets_and_nothing_else(rule: Rule[Any], backend: Backend) -> None:
    state = everything(rule, backend)["tasks"]
    for task in range(4):
        expected = after(rule, [y[i == task] for y, i in zip(BATCHES, INDEX, strict=True)])
        assert_same(rule.affine(state).select(task), rule.affine(expected), backend)
        np.testing.assert_array_equal(state.counts[:, task], expected.counts)
    assert (state.counts[0, 3] == 0).all()


@every_way
def test_integer_targets_are_converted(rule: Rule[Any], backend: Backend) -> None:
    expected = after(rule, INTEGERS.astype(float))
    assert_same(rule.affine(everything(rule, backend)["integers"]), rule.affine(expected), backend)


@every_way
def test_a_batch_of_nothing_changes_no_bit(rule: Rule[Any], backend: Backend) -> None:
    result = everything(rule, backend)
    for name in ("empty", "all-masked"):
        for x, x_ref in zip(result[name], result["started"], strict=True):
            np.testing.assert_array_equal(x, x_ref)


@every_way
def test_a_state_keeps_its_dtype_and_shape(rule: Rule[Any], backend: Backend) -> None:
    result = everything(rule, backend)
    for name in ("masked", "weighted", "integers"):
        for x, x_ref in zip(result[name], result["started"], strict=True):
            assert x.dtype == x_ref.dtype
            assert x.shape == x_ref.shape


def test_tasks_of_any_size_and_masked_targets_of_any_size_do_not_disturb_each_other(
    rule: Rule[Any],
) -> None:
    """Not even with a warning, which are errors here."""
    size = np.array([1e-30, 1.0, 1e30, 3e38], np.float32)[np.arange(16) % 4, None]
    y = size * np.random.default_rng(6).uniform(0.1, 1, (16, 2)).astype(np.float32)
    state = rule.init((3, 2), like=np.float32(0))
    for batch in (y[:8], y[8:]):
        state = rule.update(state, batch, index=np.arange(8) % 4 % 3, mask=np.arange(8) % 4 < 3)
    for task in range(3):
        alone = rule.init((2,), like=np.float32(0))
        for batch in (y[:8], y[8:]):
            alone = rule.update(alone, batch[task::4])
        for x, x_ref in zip(rule.affine(state).select(task)[:2], rule.affine(alone)[:2], strict=True):
            np.testing.assert_allclose(x, x_ref, rtol=1e-5)


@pytest.mark.parametrize("tasks", [False, True])
def test_replicas_equal_one_process_with_all(rule: Rule[Any], tasks: bool) -> None:
    """This includes a replica without any target that counts."""
    if isinstance(rule, popart.reference.OrderStatistics):
        pytest.skip("a reference for a single process")
    shape, weights = ((4, 2) if tasks else (2,)), WEIGHTS.copy()
    weights[2, :4] = 0

    def step(state: Any, y: Any, w: Any, i: Any) -> Any:
        return rule.update(state, y, weights=w, index=i if tasks else None, across=Axis("replicas"))

    parts = jax.jit(jax.vmap(step, in_axes=(None, 0, 0, 0), out_axes=None, axis_name="replicas"))
    together = rule.init(shape, like=jnp.zeros(()))
    alone = rule.init(shape)
    for y, w, i in zip(BATCHES, weights, INDEX, strict=True):
        together = parts(together, *(jnp.asarray(x).reshape(2, 4, *x.shape[1:]) for x in (y, w, i)))
        alone = rule.update(alone, y, weights=w, index=i if tasks else None)
    assert_same(rule.affine(together), rule.affine(alone), Backend("jax", "float32"))
    np.testing.assert_array_equal(together.counts, alone.counts)


def test_any_number_of_batch_axes(rule: Rule[Any]) -> None:
    flat = rule.update(rule.init((2,)), BATCHES[0])
    folded = rule.update(rule.init((2,)), BATCHES[0].reshape(2, 2, 2, 2))
    one = rule.update(rule.init((2,)), BATCHES[0, 0])
    assert_same(rule.affine(flat), rule.affine(folded))
    assert_same(rule.affine(one), rule.affine(rule.update(rule.init((2,)), BATCHES[0, :1])))


def test_update_is_pure(rule: Rule[Any]) -> None:
    state = rule.update(rule.init((2,)), BATCHES[0])
    copy = [np.copy(x) for x in state]
    rule.update(state, BATCHES[1])
    for x, y in zip(state, copy, strict=True):
        np.testing.assert_array_equal(x, y)


def test_arrays_of_a_state_share_no_memory(rule: Rule[Any]) -> None:
    """Shared memory would connect buffers that are changed in place, and cause recompilation."""
    for state in (rule.init((2,)), rule.update(rule.init((2,)), BATCHES[0])):
        for i, x in enumerate(state):
            assert not any(np.shares_memory(x, y) for y in state[i + 1 :])


def test_rules_are_hashable_settings(rule: Rule[Any]) -> None:
    assert hash(rule) == hash(type(rule)(**vars(rule)))
    assert rule == type(rule)(**vars(rule))


@pytest.mark.parametrize(
    "backend",
    [Backend("jax", "float32"), Backend("jax", "float64", x64=True), Backend("torch", "float32")],
    ids=lambda b: b.name,
)
def test_a_state_of_numpy_follows_targets_of_another_module(rule: Rule[Any], backend: Backend) -> None:
    def f(y: Any) -> Any:
        return rule.update(rule.init((2,)), y), rule.update(rule.init((2,), like=y), y)

    follows, born = backend.call(f, BATCHES[0])
    for x, y in zip(follows, born, strict=True):
        np.testing.assert_array_equal(x, y)
        assert x.dtype == y.dtype


def test_half_precision_targets_are_measured_in_float32(rule: Rule[Any]) -> None:
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

        def f(y: Any, index: Any, weights: Any, rule: Rule[Any] = rule) -> Any:
            one = rule.update(rule.init(like=y), y, weights=weights)
            many = rule.update(rule.init((3,), like=y), y, index=index)
            again = rule.update(many, y + 1, index=index)
            return one, many, again

        got = backend.call(f, y, index, weights)
        for state, expected in zip(got, f(y, index, weights), strict=True):
            np.testing.assert_array_equal(state.counts, expected.counts)
            assert_same(rule.affine(state), rule.affine(expected))


@pytest.mark.parametrize("n", [1, 4095, 4096, 4097, 12_345])
@pytest.mark.parametrize("last", [7.0, np.nan])
def test_the_last_target_of_a_long_batch_counts(n: int, last: float) -> None:
    """NumPy sums squares in rows of 4,096."""
    y = np.append(np.random.default_rng(6).normal(3, 2, n), last).astype(np.float32)
    state = popart.Moments().update(popart.Moments().init(like=np.float32(0)), y)
    counted = [float(x) for x in y if math.isfinite(x)]
    assert state.counts.tolist() == [1, n + 1 - len(counted)]
    scale, shift = popart.Moments().affine(state)
    assert float(shift) == pytest.approx(math.fsum(counted) / len(counted), rel=1e-6)
    spread = math.fsum((x - float(shift)) ** 2 for x in counted) / len(counted)
    assert float(scale) == pytest.approx(math.sqrt(spread), rel=1e-6, abs=1e-6)


def test_a_symmetric_rule_measures_targets_and_their_negatives(single: Backend) -> None:
    rule = popart.Moments(beta=0.1, symmetric=True)

    def f(y: Any, index: Any) -> Any:
        whole = rule.update(rule.init(like=y), y)
        tasks = rule.update(rule.init((2,), like=y), y, index=index)
        return whole, rule.affine(whole), rule.affine(tasks)

    y = np.array([1.0, -3.0, 5.0, 2.0, np.nan], np.float32)
    state, whole, tasks = single.call(f, y, np.array([0, 0, 1, 1, 1]))
    assert (float(whole.shift), float(whole.scale)) == (0, pytest.approx(np.sqrt(39 / 4), rel=1e-6))
    np.testing.assert_allclose(tasks.scale, np.sqrt([5, 14.5]), rtol=1e-6)
    np.testing.assert_array_equal(state.counts, [1, 1])
    bounds = popart.Extremes(beta=0.1, symmetric=True)
    affine = bounds.affine(bounds.update(bounds.init(), [1.0, -3.0]))
    assert (affine.scale, affine.shift) == (3, 0)
    assert not rule.has_shift


def test_an_update_of_numpy_makes_at_most_60_calls() -> None:
    """Calls of functions of this package are counted, for statistics, normalisation and layer together."""
    rule, y = popart.Moments(), BATCHES[0, :, 0]
    W, b, state = np.ones((1, 4), np.float32), np.zeros(1, np.float32), rule.init(like=y)
    calls: list[str] = []

    def note(frame: Any, event: str, _: Any) -> None:
        if event == "call" and frame.f_globals.get("__name__", "").startswith("popart"):
            calls.append(frame.f_code.co_name)

    for _ in range(2):
        calls.clear()
        sys.setprofile(note)
        new = rule.update(state, y)
        popart.preserve(W, b, rule.affine(state), rule.affine(new))
        sys.setprofile(None)
        state = new
    assert {"update", "affine", "preserve"} <= set(calls)
    assert len(calls) <= 60


@pytest.mark.parametrize("asarray", [np.asarray, jnp.asarray, torch.asarray])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("shape", [(), (2,)])
def test_targets_that_are_all_the_same_have_no_spread(
    asarray: Any, dtype: Any, weighted: bool, shape: tuple[int, ...]
) -> None:
    """Not even one of rounding, whatever their weights are, in float32 statistics."""
    rule, rng = popart.Moments(beta=1e-3), np.random.default_rng(0)
    state = rule.init(shape, like=np.zeros((), np.float32))
    y = np.full((32, *shape), -0.1, dtype)
    for _ in range(30):
        w = rng.uniform(0.1, 3, 32).astype(np.float32)
        state = rule.update(state, asarray(y), weights=asarray(w) if weighted else None)
        assert not np.asarray(rule.affine(state).scale).any()
    another = np.full((32, *shape), np.nextafter(np.float32(-0.1), np.float32(0)))
    state = rule.update(state, asarray(another))
    assert (np.asarray(rule.affine(state).scale) > 0).all()


@pytest.mark.parametrize("asarray", [np.asarray, jnp.asarray, torch.asarray])
def test_a_step_of_1_forgets_extremes_of_any_size(asarray: Any) -> None:
    rule = popart.Extremes(beta=1.0)
    state = rule.init(like=np.zeros((), np.float32))
    for y in ([-1e17, 1e17], [0.25, 0.75]):
        state = rule.update(state, asarray(np.array(y, np.float32)))
    scale, shift = rule.affine(state)
    assert (float(scale), float(shift)) == (0.25, 0.5)


@pytest.mark.parametrize(
    "rule",
    [
        popart.Moments(np.float64(0.1), std=np.float64(2.0)),
        popart.Covariance(np.float64(0.1), nu0=np.float64(2.0)),
        popart.Percentiles(np.float64(0.1), p=np.float64(0.9)),
        popart.Expectiles(np.float64(0.1), p=np.float64(0.9)),
    ],
    ids=repr,
)
def test_settings_of_numpy_have_no_precision(rule: Rule[Any]) -> None:
    with jax.enable_x64(True):
        y = jnp.arange(8, dtype=jnp.float32).reshape(4, 2)
        state = jax.jit(rule.update)(rule.init((2,), like=y), y)
        assert {x.dtype.name for x in (*state, *rule.affine(state))} == {"int32", "float32"}
    assert "float64" not in repr(rule)


def test_sums_of_many_targets_of_a_task_keep_their_digits() -> None:
    y = np.random.default_rng(0).normal(1, 1, 2_000_000).astype(np.float32)
    rule, index = popart.Moments(beta=0.1), np.zeros(len(y), np.int32)
    state = rule.update(rule.init((1,), like=jnp.zeros(())), jnp.asarray(y), index=jnp.asarray(index))
    expected = y.astype(np.float64)
    scale, shift = rule.affine(state)
    np.testing.assert_allclose([scale[0], shift[0]], [expected.std(), expected.mean()], rtol=1e-5)


@pytest.mark.parametrize("asarray", [np.asarray, jnp.asarray, torch.asarray])
def test_weights_whose_sum_is_infinite_are_refused(asarray: Any) -> None:
    rule, w = popart.Moments(), np.full(3, 3e38, np.float32) if asarray is jnp.asarray else np.full(3, 1e308)
    with pytest.raises(ValueError, match=r"weights reach from .*; they must be in .* and their sum, too"):
        rule.update(rule.init(), asarray(np.ones(3, np.float32)), weights=asarray(w))


@pytest.mark.parametrize("size", [1e155, 1e300])
def test_float64_targets_beyond_float32_are_left_out_without_a_warning(size: float) -> None:
    rule = popart.Moments()
    state = rule.update(rule.init(like=np.float32(0)), np.array([1.0, 3.0, size]))
    assert state.counts.tolist() == [1, 1]
    assert float(rule.affine(state).shift) == 2.0
