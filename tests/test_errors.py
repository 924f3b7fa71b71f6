"""Bad input: the error names the argument, its value and what is allowed, and nothing has changed."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import popart
import popart.correspondence
import popart.reference
from popart.jax.heads import Axis

BETA_RULES = [popart.Moments, popart.Covariance, popart.Percentiles, popart.Expectiles, popart.Extremes]
RATIO_RULES = [popart.Percentiles, popart.Expectiles, popart.reference.OrderStatistics]


@pytest.mark.parametrize("beta", [0, -0.1, 1.5, float("nan"), float("inf"), "0.1"])
def test_beta_must_be_in_0_1(beta: float) -> None:
    for make in (*BETA_RULES, popart.constant, popart.debiased, popart.correspondence.bound):
        with pytest.raises(ValueError, match=rf"beta is {beta!r}; it must be in \(0, 1\]"):
            make(beta)


def test_a_step_function_that_leaves_0_1_is_caught() -> None:
    rule = popart.Moments(beta=lambda t: 2 / t)
    with pytest.raises(ValueError, match=r"beta gave 2.0 for t = 1; a step must be in \(0, 1\]"):
        rule.update(rule.init(), 1.0)


@pytest.mark.parametrize("p", [0, -0.5, 1.01, float("nan")])
def test_p_must_be_in_0_1(p: float) -> None:
    for make in RATIO_RULES:
        with pytest.raises(ValueError, match=rf"p is {p!r}; it must be in \(0, 1\]"):
            make(p=p)
    for convert in (popart.correspondence.std_from_ratio, popart.correspondence.batch_from_ratio):
        with pytest.raises(ValueError, match=rf"p is {p!r}; it must be in \(0, 1\)"):
            convert(p)


@pytest.mark.parametrize("s", [0.0, -1.0, float("inf"), float("nan")])
def test_std_must_be_positive(s: float) -> None:
    for make in (popart.Moments, popart.Covariance):
        with pytest.raises(ValueError, match=f"std is {s!r}; it must be positive and finite"):
            make(std=s)
    with pytest.raises(ValueError, match=f"std is {s!r}; it must be positive and finite"):
        popart.correspondence.ratio_from_std(s)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: popart.Moments(nu0=0.0), "nu0 is 0.0; it must be positive and finite, or None"),
        (lambda: popart.Moments(epsilon=-1.0), r"epsilon is -1.0; it must be in \[0, inf\)"),
        (lambda: popart.reference.OrderStatistics(capacity=0), "capacity is 0; it must be at least 1"),
        (lambda: popart.Fixed(scale=0.0), "scale is 0.0; it must be finite and not 0"),
        (lambda: popart.Fixed(shift=float("inf")), "shift is inf; it must be finite"),
        (lambda: popart.Fixed(scale=(1.0, 2.0)).init(()), r"shape is \(\); it does not hold a scale"),
        (lambda: popart.Covariance().init(()), r"shape is \(\); a covariance needs an axis of outputs"),
        (
            lambda: popart.correspondence.ratio_from_batch(1),
            "B is 1; a minibatch whose extremes differ has B > 1",
        ),
        (lambda: popart.correspondence.bound(0.1, batch=0), "batch is 0; it must be at least 1"),
    ],
)
def test_settings_are_checked_when_they_are_made(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_a_shape_must_be_a_tuple() -> None:
    with pytest.raises(TypeError, match=r"shape is 3; it must be a tuple, such as \(3,\)"):
        popart.Moments().init(3)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("asarray", [np.asarray, jnp.asarray])
def test_weights_that_cannot_be_rescaled_are_refused(asarray: Any) -> None:
    units = popart.Affine(1.0, 0.0), popart.Affine(2.0, 0.0)
    with pytest.raises(ValueError, match=r"weight has dtype int.*; it must be of floats"):
        popart.preserve(asarray(np.full((1, 3), 7)), asarray(np.ones(1)), *units)


def test_order_statistics_of_replicas_are_refused() -> None:
    rule = popart.reference.OrderStatistics(capacity=8)
    update = partial(rule.update, rule.init(like=jnp.zeros(())), across=Axis("replicas"))
    message = "across is given; order statistics are a reference for a single process"
    with pytest.raises(ValueError, match=message):
        jax.vmap(update, axis_name="replicas")(jnp.ones((2, 4)))


@pytest.mark.parametrize("asarray", [np.asarray, jnp.asarray, torch.asarray])
def test_arguments_of_update_are_checked(asarray: Any) -> None:
    rule = popart.Moments()
    y = asarray(np.ones((4, 3), np.float32))
    state = rule.update(rule.init((3,), like=y), y)
    tasks = rule.init((2, 3), like=y)
    index = asarray(np.array([0, 1, 2, 0]))
    cases: list[tuple[Any, dict[str, Any], str]] = [
        (state, {"targets": y[:, :2]}, r"targets have shape \(4, 2\); .* of shape \(\*batch, 3\)"),
        (state, {"targets": y[0, 0]}, r"targets have shape \(\)"),
        (
            state,
            {"targets": y, "mask": y[:3, 0] > 0},
            r"mask has shape \(3,\); it may have \(4,\) or \(4, 3\)",
        ),
        (state, {"targets": y, "weights": y[0]}, r"weights has shape \(3,\)"),
        (
            state,
            {"targets": y, "weights": -y},
            r"weights reach from -1.0 to -1.0; they must be in \[0, inf\)",
        ),
        (state, {"targets": y, "weights": y * np.inf}, "weights reach from inf to inf"),
        (tasks, {"targets": y, "index": index}, "index reaches from 0 to 2; .* of tasks 0 to 1"),
        (tasks, {"targets": y, "index": index - 1}, "index reaches from -1 to 1"),
        (
            tasks,
            {"targets": y, "index": index[:2]},
            r"index has shape \(2,\); the batch has shape \(4,\)",
        ),
        (tasks, {"targets": y, "index": y[:, 0]}, "index has dtype .*float32; it must be of integers"),
        (rule.init(like=y), {"targets": y[:, 0], "index": index}, r"index needs statistics per task"),
    ]
    for state, arguments, message in cases:
        with pytest.raises(ValueError, match=message):
            rule.update(state, **arguments)


def test_compiled_code_leaves_out_targets_of_tasks_that_do_not_exist() -> None:
    rule, y, index = popart.Moments(0.1), np.array([1, 2, 3, 4, 50, 60], "f"), np.array([0, 0, 1, 1, -1, 2])
    expected = rule.update(rule.init((2,), like=y), y[:4], index=index[:4])
    for asarray, compiled in ((jnp.asarray, jax.jit), (torch.asarray, torch.compile(backend="eager"))):
        update = compiled(lambda state, y, index: rule.update(state, y, index=index))
        found = update(rule.init((2,), like=asarray(y)), asarray(y), asarray(index))
        for mine, theirs in zip(found, expected, strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("asarray", [np.asarray, jnp.asarray, torch.asarray])
def test_a_singular_new_scale_is_refused(asarray: Any) -> None:
    W, b = asarray(np.ones((2, 3), np.float32)), asarray(np.zeros(2, np.float32))
    zero = asarray(np.zeros(2, np.float32))
    for old, new in (
        (popart.Affine(1.0, 0.0), popart.Affine(0.0, 0.0)),
        (popart.Affine(zero + 1, zero), popart.Affine(asarray(np.array([1, 0], np.float32)), zero)),
        (popart.Affine(1.0, zero), popart.Affine(asarray(np.ones((2, 2), np.float32)), zero)),
    ):
        with pytest.raises(ValueError, match=r"new\.scale is singular"):
            popart.preserve(W, b, old, new)
    with pytest.raises(ValueError, match="both must be finite"):
        popart.preserve(W, b, popart.Affine(1.0, 0.0), popart.Affine(float("nan"), 0.0))


def test_compiled_code_leaves_a_layer_alone_that_it_cannot_keep() -> None:
    W, b = jnp.ones((2, 3)), jnp.ones(2)
    one, zero = jnp.ones(2), jnp.array([1.0, 0.0])
    W_new, b_new = jax.jit(popart.preserve)(W, b, popart.Affine(one, 0 * one), popart.Affine(zero, one))
    np.testing.assert_array_equal(W_new, W)
    np.testing.assert_array_equal(b_new, [0, 1])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"layout": "io"}, "layout is 'io'; it may be 'out_in' or 'in_out'"),
        ({"bias": np.zeros(3)}, r"bias has shape \(3,\); a weight of shape \(2, 3\) in layout 'out_in'"),
        ({"new": popart.Affine(1.0, np.zeros(3))}, r"new.shift has shape \(3,\); it must broadcast to"),
        ({"bias": None, "new": popart.Affine(1.0, 1.0)}, "bias is None but the shift changes from 0.0"),
    ],
)
def test_arguments_of_preserve_are_checked(arguments: dict[str, Any], message: str) -> None:
    good = {"bias": np.zeros(2), "old": popart.Affine(1.0, 0.0), "new": popart.Affine(2.0, 0.0)}
    with pytest.raises(ValueError, match=message):
        popart.preserve(np.ones((2, 3)), **(good | arguments))


def test_in_compiled_code_bad_values_are_left_out_and_bad_shapes_still_raise() -> None:
    rule = popart.Moments(beta=0.1)
    state = rule.update(
        rule.init((2,), like=np.float32(0)), np.array([1, 3], np.float32), index=np.array([0, 0])
    )
    update = jax.jit(lambda y, w, i: rule.update(state, y, weights=w, index=i))
    new = update(jnp.array([2.0, 5.0, 7.0]), jnp.array([1.0, -1.0, 1.0]), jnp.array([0, 0, 9]))
    alone = rule.update(state, np.array([2], np.float32), index=np.array([0]))
    np.testing.assert_allclose(rule.affine(new), rule.affine(alone), rtol=1e-6)
    np.testing.assert_array_equal(new.counts, alone.counts)
    with pytest.raises(ValueError, match="weights has shape"):
        update(jnp.ones(3), jnp.ones(2), jnp.zeros(3, int))
