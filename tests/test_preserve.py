"""Outputs are kept: to the ulp, in every layout, and over a million updates."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import torch

import popart
from benchmarks.drift import drift
from tests.backends import Backend


def maps(kind: str, seed: int, k: int = 3, heads: tuple[int, ...] = ()) -> popart.Affine:
    rng = np.random.default_rng(seed)
    size = 10 ** rng.uniform(-3, 3)
    shape = {"scalar": (), "diagonal": (*heads, k), "dense": (*heads, k), "per-head": (*heads, 1)}[kind]
    shift = rng.normal(size=shape) * size
    if kind == "dense":
        return popart.Affine(size * (rng.normal(size=(*shape, k)) + 4 * np.eye(k)), shift)
    return popart.Affine(size * rng.uniform(0.5, 2, shape), shift)


def outputs(weight: Any, bias: Any, affine: popart.Affine, h: np.ndarray) -> Any:
    """f(h) in float64, whatever precision the layer is in."""
    weight, bias, h = (np.asarray(x, float) for x in (weight, bias, h))
    affine = popart.Affine(*(np.asarray(x, float) for x in affine[:2]))
    return affine.denormalize((weight * h).sum(-1) + bias)


def largest_term(weight: Any, bias: Any, affine: popart.Affine, h: np.ndarray) -> Any:
    weight, bias, h = (np.abs(np.asarray(x, float)) for x in (weight, bias, h))
    affine = popart.Affine(*(np.abs(np.asarray(x, float)) for x in affine[:2]))
    inner = np.maximum((weight * h).max(-1), bias)
    return popart.Affine(affine.scale, 0 * affine.shift).denormalize(inner) + affine.shift


def test_one_preserve_moves_outputs_by_at_most_8_ulps_of_the_largest_term(backend: Backend) -> None:
    rng = np.random.default_rng(0)
    W, b, h = (rng.normal(size=shape).astype(backend.dtype) for shape in ((3, 512), 3, 512))
    pairs: list[dict[str, Any]] = [
        {
            kind: tuple(
                popart.Affine(*(np.asarray(x, backend.dtype) for x in maps(kind, 2 * seed + i)[:2]))
                for i in (0, 1)
            )
            for kind in ("scalar", "diagonal", "dense")
        }
        for seed in range(8)
    ]

    def step(carry: Any, pairs: Any) -> tuple[Any, Any]:
        return carry, {kind: popart.preserve(*carry, *pair) for kind, pair in pairs.items()}

    for pair, moved in zip(pairs, backend.run(step, (W, b), pairs)[1], strict=True):
        for kind, (old, new) in pair.items():
            W_new, b_new = moved[kind]
            before, after = outputs(W, b, old, h), outputs(W_new, b_new, new, h)
            terms = np.maximum(largest_term(W, b, old, h), largest_term(W_new, b_new, new, h))
            assert (np.abs(after - before) <= 8 * backend.eps * terms).all(), kind


@pytest.mark.parametrize("n", [1, 512, 4096])
@pytest.mark.parametrize("weights", ["equal", "uniform", "normal"])
def test_one_preserve_moves_outputs_by_at_most_2_ulps_of_the_sum_of_their_terms(
    single: Backend, n: int, weights: str
) -> None:
    """Also with weights that are all rounded in the same direction."""
    rng, h, b = np.random.default_rng(0), np.ones(n, np.float32), np.ones(1, np.float32)
    for seed in range(20):
        W = {"equal": np.full((1, n), rng.normal()), "uniform": rng.uniform(-1, 1, (1, n))}
        pair = [popart.Affine(*map(np.float32, maps("scalar", 2 * seed + i)[:2])) for i in (0, 1)]
        weight = W.get(weights, rng.normal(size=(1, n))).astype(np.float32)
        _, ((W_new, b_new),) = single.run(lambda c, p: (c, popart.preserve(*c, *p)), (weight, b), [pair])
        before, after = outputs(weight, b, pair[0], h), outputs(W_new, b_new, pair[1], h)
        terms = [
            a.scale * (np.abs(np.asarray(w, float)).sum() + abs(np.asarray(c, float)[0])) + 2 * abs(a.shift)
            for a, w, c in ((pair[0], weight, b), (pair[1], W_new, b_new))
        ]
        assert abs(float(after[0] - before[0])) <= 2 * single.eps * max(terms)


@pytest.mark.parametrize("growth", [1.0, 100.0])
def test_a_dense_scale_of_18_outputs_moves_outputs_by_few_ulps(single: Backend, growth: float) -> None:
    """8, and 16 in JAX, which inverts matrices in float32."""
    for seed in range(8):
        rng = np.random.default_rng(seed)
        W, b, h = (rng.normal(size=shape).astype(single.dtype) for shape in ((18, 512), 18, 512))
        pair = [maps("dense", 2 * seed + i, k=18) for i in (0, 1)]
        pair[1] = popart.Affine(growth * pair[1].scale, pair[1].shift)
        old, new = (popart.Affine(*(np.asarray(x, single.dtype) for x in affine)) for affine in pair)
        W_new, b_new = single.call(popart.preserve, W, b, old, new)
        before, after = outputs(W, b, old, h), outputs(W_new, b_new, new, h)
        terms = np.maximum(sum_of_terms(W, b, old, h), sum_of_terms(W_new, b_new, new, h))
        assert (np.abs(after - before) <= (16 if single.module == "jax" else 8) * single.eps * terms).all()


def sum_of_terms(weight: Any, bias: Any, affine: popart.Affine, h: np.ndarray) -> Any:
    """Return for each output the sum over outputs of |scale| times the largest term of the layer."""
    weight, bias, h = (np.abs(np.asarray(x, float)) for x in (weight, bias, h))
    inner = np.maximum((weight * h).max(-1), bias)
    return np.abs(np.asarray(affine.scale, float)) @ inner + np.abs(np.asarray(affine.shift, float))


def test_layouts_are_transposes_and_several_heads_equal_one_at_a_time(single: Backend) -> None:
    rng = np.random.default_rng(2)
    W, b = rng.normal(size=(4, 3, 5)), rng.normal(size=(4, 3))
    kinds = ("scalar", "diagonal", "dense", "per-head")
    pairs = {kind: (maps(kind, 7, heads=(4,)), maps(kind, 8, heads=(4,))) for kind in kinds}

    def f(W: Any, b: Any, pairs: Any) -> Any:
        return {
            kind: (
                popart.preserve(W, b, *pair),
                popart.preserve(W.swapaxes(-1, -2), b, *pair, layout="in_out"),
            )
            for kind, pair in pairs.items()
        }

    tolerance = 64 * single.eps
    for kind, ((W1, b1), (W2, b2)) in single.call(f, W, b, pairs).items():
        np.testing.assert_array_equal(W1, np.swapaxes(W2, -1, -2))
        np.testing.assert_array_equal(b1, b2)
        for i in range(4):
            pair = (x if kind == "scalar" else popart.Affine(x.scale[i], x.shift[i]) for x in pairs[kind])
            W_one, b_one = popart.preserve(W[i], b[i], *pair)
            np.testing.assert_allclose(W1[i], W_one, rtol=tolerance, atol=tolerance * np.abs(W_one).max())
            np.testing.assert_allclose(b1[i], b_one, rtol=tolerance, atol=tolerance * np.abs(b_one).max())


def test_from_a_diagonal_scale_to_a_dense_one() -> None:
    rng = np.random.default_rng(3)
    W, b, h = rng.normal(size=(3, 5)), rng.normal(size=3), rng.normal(size=5)
    for old, new in (("diagonal", "dense"), ("dense", "diagonal"), ("scalar", "dense")):
        before, after = maps(old, 1), maps(new, 2)
        if old == "scalar":
            before = popart.Affine(before.scale, before.shift + np.zeros(3))
        moved = popart.preserve(W, b, before, after)
        np.testing.assert_allclose(outputs(*moved, after, h), outputs(W, b, before, h), rtol=1e-9)


def test_a_one_dimensional_weight_is_a_scalar_output() -> None:
    h = np.array([1.0, 2.0, 3.0])
    W, b = np.array([1.0, -1.0, 0.5]), np.array(0.25)
    old, new = popart.Affine(2.0, 1.0), popart.Affine(5.0, -3.0)
    W_new, b_new = popart.preserve(W, b, old, new)
    assert W_new.shape == (3,)
    np.testing.assert_allclose(new.denormalize(W_new @ h + b_new), old.denormalize(W @ h + b))


def test_one_bias_shared_by_all_outputs() -> None:
    W, b, h = np.ones((4, 2)), np.array([0.5]), np.array([1.0, 2.0])
    old, new = popart.Affine(2.0, 1.0), popart.Affine(5.0, -3.0)
    W_new, b_new = popart.preserve(W, b, old, new)
    assert b_new.shape == (1,)
    np.testing.assert_allclose(new.denormalize(W_new @ h + b_new), old.denormalize(W @ h + b))


def test_no_bias_while_the_shift_stays() -> None:
    W, h = np.ones((4, 2)), np.array([1.0, 2.0])
    old, new = popart.Affine(2.0, 0.0), popart.Affine(5.0, 0.0)
    W_new, nothing = popart.preserve(W, None, old, new)
    assert nothing is None
    np.testing.assert_allclose(new.denormalize(W_new @ h), old.denormalize(W @ h))


@pytest.mark.parametrize("module", [jnp, torch], ids=lambda module: module.__name__)
@pytest.mark.parametrize("name", ["float16", "bfloat16"])
@pytest.mark.parametrize("dense", [False, True])
def test_half_precision_layers_keep_their_dtype(module: Any, name: str, dense: bool) -> None:
    dtype, one = getattr(module, name), module.eye(2) if dense else module.ones(2)
    W, b = module.ones((2, 3), dtype=dtype), module.zeros(2, dtype=dtype)
    old, new = popart.Affine(2 * one, module.zeros(2)), popart.Affine(4 * one, 2 * module.ones(2))
    W_new, b_new = popart.preserve(W, b, old, new)
    assert W_new.dtype == b_new.dtype == dtype
    np.testing.assert_array_equal(W_new.tolist(), np.full((2, 3), 0.5))
    np.testing.assert_array_equal(b_new.tolist(), np.full(2, -0.5))


@pytest.mark.parametrize("module", [np, jnp, torch], ids=lambda module: module.__name__)
@pytest.mark.parametrize("dense", [False, True])
def test_outputs_in_half_precision_have_values_that_it_cannot_hold(module: Any, dense: bool) -> None:
    """Values near 10⁶ are float32 numbers, and infinite in float16."""
    scale = module.asarray(2e6 * np.eye(2) if dense else np.array([2e6, 2e6]), dtype=module.float32)
    units = popart.Affine(scale, module.asarray([1e6, 1e6], dtype=module.float32))
    outputs = module.asarray([1.0, -2.0], dtype=module.float16)
    values = units.denormalize(outputs)
    assert values.dtype == module.float32
    np.testing.assert_array_equal(values, [3e6, -3e6])


def test_a_dense_scale_with_an_output_that_has_no_spread_yet(single: Backend) -> None:
    rule = popart.Covariance(beta=0.1)
    rng = np.random.default_rng(4)
    first = rng.normal(size=(16, 3)) * (1, 0, 5) + (2, 7, 3)
    second = rng.normal(size=(16, 3)) * (1, 3, 5) + (2, 7, 3)
    W, b, h = rng.normal(size=(3, 5)), rng.normal(size=3), rng.normal(size=5)

    def f(first: Any, second: Any, W: Any, b: Any) -> Any:
        one = rule.update(rule.init((3,), like=first), first)
        two = rule.update(one, second)
        before, after = rule.affine(one), rule.affine(two)
        return (
            before.normalize(first),
            after.normalize(second),
            popart.preserve(W, b, before, after),
            two,
        )

    normalized, later, (W_new, b_new), two = single.call(f, first, second, W, b)
    assert (normalized[:, 1] == 0).all()
    np.testing.assert_allclose(np.cov(normalized[:, [0, 2]].T, bias=True), np.eye(2), atol=1e-4)
    assert np.isfinite(later).all()
    one = rule.update(rule.init((3,)), first.astype(single.dtype))
    before, after = outputs(W, b, rule.affine(one), h), outputs(W_new, b_new, rule.affine(two), h)
    np.testing.assert_allclose(after[[0, 2]], before[[0, 2]], rtol=1e-3)


@pytest.mark.parametrize("beta", [1e-1, 1e-3])
def test_targets_in_a_subspace_never_make_a_covariance_indefinite(beta: float) -> None:
    """One number in four units, in float32: rounding errors of thousands of updates do not add up."""
    rng = np.random.default_rng(5)
    y = rng.normal(size=(5000, 1)) * (1, 1e-6, -3e8, 2) + (0, 1, 5, 1e5)
    rule = popart.Covariance(beta=beta)

    def step(carry: Any, y: Any) -> tuple[Any, Any]:
        state, W, b = carry
        new = rule.update(state, y)
        before, after = rule.affine(state), rule.affine(new)
        W, b = popart.preserve(W, b, before, after)
        return (new, W, b), (after.normalize(y), W)

    for backend, stream in (
        (Backend("jax", "float32", "scan"), y),
        (Backend("numpy", "float32"), y[:500]),
        (Backend("torch", "float32"), y[:500]),
    ):
        carry = (rule.init((4,), like=np.float32(0)), np.ones((4, 2), np.float32), np.zeros(4, np.float32))
        normalized, W = map(np.stack, zip(*backend.run(step, carry, list(stream))[1], strict=True))
        assert np.isfinite(normalized).all()
        assert np.isfinite(W).all()
        assert np.abs(normalized[100:, 0]).max() < 6


def test_normalized_targets_are_white() -> None:
    rng = np.random.default_rng(6)
    y = rng.normal(size=(2000, 3)) @ rng.normal(size=(3, 3)) * (1e-9, 1, 1e9) + (2e-9, 3, 4e9)
    for std in (1.0, 0.5):
        rule = popart.Covariance(std=std)
        normalized = rule.affine(rule.update(rule.init((3,)), y)).normalize(y)
        np.testing.assert_allclose(normalized.mean(0), 0, atol=1e-9)
        np.testing.assert_allclose(np.cov(normalized.T, bias=True), std**2 * np.eye(3), atol=1e-6)


@pytest.mark.parametrize(("beta", "batch"), [(1e-2, 1), (1e-4, 1), (1e-3, 32)])
def test_a_million_updates_in_float32_drift_by_less_than_1e_minus_4(beta: float, batch: int) -> None:
    assert drift(beta, (1_000_000,), batch)[0] < 1e-4
