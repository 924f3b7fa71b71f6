"""Targets that become much smaller: what `max_norm` limits, and that training survives with it."""

import copy
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import popart
import popart.jax
from benchmarks.falling import MAX_NORM, PRESERVE, Method, learn
from popart.reference import OrderStatistics
from popart.torch import PopArt

RNG = np.random.default_rng(0)
W, B, H = RNG.normal(size=(3, 16)), RNG.normal(size=3), RNG.normal(size=(8, 16))
OLD = popart.Affine(np.asarray(100.0), np.asarray(5.0))
SLIGHTLY, FAR = (popart.Affine(np.asarray(scale), np.asarray(2.0)) for scale in (99.0, 1.0))


def norms(W: Any) -> Any:
    return np.sqrt((np.asarray(W, float) ** 2).sum(-1))


def outputs(W: Any, b: Any, affine: popart.Affine) -> Any:
    return affine.denormalize(H @ W.T + b)


def final_errors(method: Method) -> Any:
    """Return errors relative to the targets of four seeds, 3,000 updates after a fall by 10⁴."""
    run = partial(learn, method, "SGD", 1e-2, jnp.asarray(0.1), jnp.asarray(1e4), updates=3_000)
    return np.asarray(jax.jit(jax.vmap(run))(jnp.arange(4))[0][:, -1])


def test_sgd_diverges_after_a_fall_by_ten_thousand() -> None:
    assert not np.isfinite(final_errors(PRESERVE)).any()


def test_sgd_with_a_limit_learns_the_smaller_targets() -> None:
    assert (final_errors(MAX_NORM) < 0.2).all()


def test_outputs_are_preserved_below_the_limit() -> None:
    limit = 1.02 * norms(W).max()
    for free, held in zip(
        popart.preserve(W, B, OLD, SLIGHTLY),
        popart.preserve(W, B, OLD, SLIGHTLY, max_norm=limit),
        strict=True,
    ):
        np.testing.assert_array_equal(free, held)


@pytest.mark.parametrize("max_norm", [1.0, 3.0, 10.0])
def test_a_fall_enlarges_weights_to_the_limit_but_not_beyond(max_norm: float) -> None:
    W_new, _ = popart.preserve(W, B, OLD, FAR, max_norm=max_norm)
    assert norms(W_new).max() == pytest.approx(max(norms(W).max(), max_norm))


def test_a_rise_is_preserved_whatever_the_norm() -> None:
    W_new, b_new = popart.preserve(W, B, FAR, OLD, max_norm=1e-3)
    np.testing.assert_allclose(outputs(W_new, b_new, OLD), outputs(W, B, FAR))


def test_an_outlier_is_forgotten_without_a_change_of_outputs() -> None:
    """The scale rises and falls again; the weights return to the norm that they had."""
    limit = 1.01 * norms(W).max()
    back = popart.preserve(*popart.preserve(W, B, FAR, OLD, max_norm=limit), OLD, FAR, max_norm=limit)
    np.testing.assert_allclose(outputs(*back, FAR), outputs(W, B, FAR))


def test_beyond_the_limit_outputs_shrink_towards_the_shift_in_the_same_order() -> None:
    before, after = (
        outputs(*popart.preserve(W, B, OLD, FAR, max_norm=max_norm), FAR) - FAR.shift
        for max_norm in (None, 3.0)
    )
    ratio = after / before
    np.testing.assert_allclose(ratio, ratio[0, 0])
    assert 0 < ratio[0, 0] < 0.1


@pytest.mark.parametrize("kind", ["diagonal", "dense"])
def test_each_output_with_its_own_scale_has_its_own_limit(kind: str) -> None:
    scale = np.array([1.0, 100.0, 100.0])
    new = popart.Affine(np.diag(scale) if kind == "dense" else scale, np.zeros(3))
    old = popart.Affine(np.diag([100.0] * 3) if kind == "dense" else np.full(3, 100.0), np.zeros(3))
    W_new, _ = popart.preserve(W, B, old, new, max_norm=10.0)
    np.testing.assert_allclose(norms(W_new), [10.0, *norms(W)[1:]])


@pytest.mark.parametrize("layout", ["kernel", "weight", "dueling", "heads"])
def test_step_limits_every_kind_of_head(layout: str) -> None:
    weight = jnp.asarray(W, jnp.float32)
    heads = {
        "kernel": {"kernel": weight.T, "bias": jnp.ones(3)},
        "weight": {"weight": weight, "bias": jnp.ones(3)},
        "dueling": {
            "value": {"w": weight.T[:, :1], "b": jnp.ones(1)},
            "advantage": {"w": weight.T, "b": jnp.ones(3)},
        },
        "heads": {"w": jnp.stack((weight.T, weight.T / 100)), "b": jnp.ones((2, 3))},
    }
    art, head = popart.Moments(beta=0.5), heads[layout]
    step = jax.jit(lambda state, head, y: popart.jax.step(art, state, head, y, max_norm=6.0))
    state = popart.jax.init(art, head)
    shape = (8, *state.moments.shape[1:])
    for size in [100.0] * 3 + [1.0] * 20:
        state, head, *_ = step(state, head, size * jax.random.normal(jax.random.key(0), shape))
    weights = [
        x if layout == "weight" else jnp.swapaxes(x, -1, -2) for x in jax.tree.leaves(head) if x.size > 6
    ]
    assert max(norms(x).max() for x in weights) == pytest.approx(6.0, rel=1e-5)


def test_scaling_targets_by_a_power_of_two_changes_no_bit_with_a_limit() -> None:
    art = popart.Moments(beta=0.1)

    def train(size: float) -> Any:
        def update(carry: Any, y: Any) -> tuple[Any, Any]:
            state, head = carry
            state, head, y, _ = popart.jax.step(art, state, head, y, max_norm=3.0)
            error = popart.jax.normalized(head, h)[:, 0] - y
            step = {"w": -0.01 * h.T @ error[:, None], "b": -0.01 * error.sum(keepdims=True)}
            return (state, jax.tree.map(jnp.add, head, step)), (head, y)

        h = jnp.asarray(H, jnp.float32)
        head = {"w": jnp.asarray(W[:1].T, jnp.float32), "b": jnp.zeros(1)}
        sizes = size * jnp.repeat(jnp.asarray([1.0, 1e-3]), 100)
        y = sizes[:, None] * (3 + jax.random.normal(jax.random.key(0), (200, 8)))
        return jax.jit(partial(jax.lax.scan, update))((popart.jax.init(art, head), head), y)[1]

    (head, _), _ = trained = train(1.0), train(2.0**40)
    assert norms(head["w"][..., 0])[101:].max() > 3 - 1e-3, "the limit is reached"
    for one, other in zip(*map(jax.tree.leaves, trained), strict=True):
        assert np.isfinite(one).all()
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_weights_in_half_precision_are_limited_too(dtype: torch.dtype) -> None:
    """Without a limit weights in float16 would be infinite, because they would be above 65,504."""
    for axes in ((), (1,), (3,)):
        old, new = (popart.Affine(torch.full(axes, s), torch.zeros(axes)) for s in (1e4, 1e-2))
        W_new, _ = popart.preserve(torch.tensor(W, dtype=dtype), None, old, new, max_norm=10.0)
        assert norms(W_new.float()).max() == pytest.approx(10, rel=1e-2)


def test_a_head_in_float16_takes_a_limit() -> None:
    head = PopArt(6, 3, beta=0.5, dtype=torch.float16)
    head.update(100 * torch.randn(64))
    head.update(1e-4 * torch.randn(64), max_norm=1.0)
    assert 0.5 < head.weight.float().norm(dim=1).max() <= 1.01


@pytest.mark.parametrize("max_norm", [0.0, -1.0, float("nan")])
def test_a_limit_that_is_not_positive_is_refused(max_norm: float) -> None:
    with pytest.raises(ValueError, match="max_norm is"):
        popart.preserve(W, B, OLD, FAR, max_norm=max_norm)


@pytest.mark.parametrize("per_output", [False, True])
def test_in_pytorch_weights_are_limited_too(per_output: bool) -> None:
    """The results are those of the core, with the same numbers."""
    torch.manual_seed(0)
    rule = popart.Moments(beta=0.5)
    shape = (3,) if per_output else ()
    head = PopArt(6, 3, rule, per_output=per_output)
    assert head.bias is not None
    head.update(100 * torch.randn(64, *shape))
    for size in (1.0, 1e-2, 1e-4):
        W, b = (x.detach().numpy().copy() for x in (head.weight, head.bias))
        old, y = popart.Affine(*(x.numpy() for x in head.affine)), size * torch.randn(64, *shape)
        head.update(y, max_norm=1.0)
        new = popart.Affine(*(x.numpy() for x in head.affine))
        expected = popart.preserve(W, b, old, new, max_norm=1.0)
        np.testing.assert_allclose(head.weight.detach(), expected[0], rtol=1e-6)
        np.testing.assert_allclose(head.bias.detach(), expected[1], rtol=1e-5)
    assert head.weight.norm(dim=1).max() <= max(1.0, float(np.linalg.norm(W, axis=1).max())) * 1.001


def test_the_loss_limits_weights_as_update_does() -> None:
    torch.manual_seed(0)
    head, h = PopArt(6, 1, beta=0.5), torch.randn(64, 6)
    head.update(100 * torch.randn(64))
    other = copy.deepcopy(head)
    y = 1e-3 * torch.randn(64, 1)
    for _ in range(10):
        t = head.update(y, max_norm=1.0)
        expected = (head.normalized(h) - t).square().mean()
        assert other.loss(h, y, max_norm=1.0).item() == expected.item()
    assert torch.equal(head.weight, other.weight)


def test_weights_stay_finite_when_targets_fall_from_1e30_to_1e_minus_30_only_with_a_limit() -> None:
    """Preserved, outputs of 10³⁰ are weights of 10⁶⁰ in units of 10⁻³⁰, which float32 does not have."""

    def weights(max_norm: float | None) -> Any:
        rule = popart.Moments(beta=0.1)
        y = np.random.default_rng(0).normal(size=(8,)).astype(np.float32)
        state = rule.update(rule.init(), np.float32(1e30) * y)
        layer = W.astype(np.float32), B.astype(np.float32)
        for _ in range(4000):
            new = rule.update(state, np.float32(1e-30) * y)
            old, affine = rule.affine(state), rule.affine(new)
            assert np.isfinite(affine).all()
            with np.errstate(over="ignore", invalid="ignore"):
                layer = popart.preserve(*layer, old, affine, max_norm=max_norm)
            state = new
        assert rule.affine(state).scale < 1e-29
        return layer

    assert all(np.isfinite(x).all() for x in weights(3.0))
    assert not np.isfinite(weights(None)[0]).all()


RULES = [popart.Moments(1.0), popart.Moments(0.1), popart.Percentiles(beta=0.5), OrderStatistics(capacity=16)]


@pytest.mark.parametrize("rule", RULES, ids=repr)
@pytest.mark.parametrize("framework", ["numpy", "jax", "torch"])
def test_weights_stay_finite_with_a_limit_however_fast_targets_fall(
    rule: popart.Rule[Any], framework: str
) -> None:
    """From 10³⁰ to 10⁻³⁰, also at once: factors of 10⁶⁰, which float32 does not have."""
    convert: Any = {"numpy": np.asarray, "jax": jnp.asarray, "torch": torch.asarray}[framework]
    rng = np.random.default_rng(0)
    layer = tuple(convert(x.astype(np.float32)) for x in (W, B))
    state = rule.init((), like=layer[1])
    for size in [1e30] * 3 + [1e-30] * 40:
        new = rule.update(state, convert((size * rng.normal(size=8)).astype(np.float32)))
        old, affine = rule.affine(state), rule.affine(new)
        with np.errstate(over="ignore", invalid="ignore"):
            layer = popart.preserve(*layer, old, affine, max_norm=3.0)
        state = new
        assert all(np.isfinite(np.asarray(x)).all() for x in layer)
    norms = np.linalg.norm(np.asarray(layer[0]), axis=1)
    assert 0 < norms.max() <= max(3.0, np.linalg.norm(W, axis=1).max()) * 1.001


def test_weights_of_zero_stay_zero_when_the_scale_falls_by_more_than_float32_has() -> None:
    zero = np.zeros((2, 3), np.float32), np.ones(2, np.float32)
    old, new = (popart.Affine(np.float32(x), np.float32(0)) for x in (1e30, 1e-30))
    with np.errstate(over="ignore"):
        weight, bias = popart.preserve(*zero, old, new, max_norm=3.0)
    assert (weight == 0).all()
    assert np.isfinite(bias).all()
