"""Heads of alternatives in PyTorch and JAX, against formulas in NumPy."""

import copy
import math
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from scipy.special import log_softmax, softmax

import popart
import popart.jax.alternatives as in_jax
from popart.alternatives import H, Histogram, HLGauss, Symlog, TwoHot
from popart.torch import PopArt
from popart.torch.alternatives import Art, Categorical, Transformed
from tests.alternatives.methods import METHODS, NORMALIZED_BINS

RNG = np.random.default_rng(6)
FEATURES = RNG.normal(size=(12, 6)).astype(np.float32)
TARGETS = RNG.normal(2, 3, (12, 2)).astype(np.float32)
ACTIONS = RNG.integers(0, 2, 12)


def filled(head: Any, factor: float = 1.0) -> Any:
    with torch.no_grad():
        for x in (head.weight, head.bias):
            x.copy_(factor * torch.randn(x.shape, generator=torch.Generator().manual_seed(1)))
    return head


@pytest.mark.parametrize("histogram", [TwoHot(-3, 3, 33), HLGauss()], ids=repr)
def test_a_categorical_head_is_softmax_mean_and_cross_entropy(histogram: Histogram) -> None:
    head = filled(Categorical(6, 2, histogram))
    W, b = (x.detach().numpy().astype(float) for x in (head.weight, head.bias))
    logits = np.einsum("ni,obi->nob", FEATURES, W) + b
    means = (softmax(logits, -1) * histogram.values).sum(-1)
    losses = -(histogram.encode(TARGETS.astype(float)) * log_softmax(logits, -1)).sum(-1)
    h, y, a = map(torch.asarray, (FEATURES, TARGETS, ACTIONS))
    rows = np.arange(12)
    np.testing.assert_allclose(head(h).detach(), means, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(head(h, index=a).detach(), means[rows, ACTIONS], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(head.loss(h, y).item(), losses.mean(), rtol=1e-5)
    chosen = head.loss(h, y[rows, a], index=a, weights=torch.asarray(rows % 3))
    expected = np.average(losses[rows, ACTIONS], weights=rows % 3)
    np.testing.assert_allclose(chosen.item(), expected, rtol=1e-5)

    in_pure = in_jax.Categorical(2, histogram)
    params = {"w": jnp.asarray(W.reshape(-1, 6).T, jnp.float32), "b": jnp.asarray(b.reshape(-1), jnp.float32)}
    state = in_pure.init(params)
    np.testing.assert_allclose(in_pure.values(state, params, FEATURES), means, rtol=1e-4, atol=1e-4)
    found = in_pure.loss(params, FEATURES, TARGETS[rows, ACTIONS], index=jnp.asarray(ACTIONS))
    np.testing.assert_allclose(found, losses[rows, ACTIONS], rtol=1e-4)


@pytest.mark.parametrize("layout", ["w", "weight"])
def test_bins_follow_in_jax_as_in_pytorch(layout: str) -> None:
    art = popart.Moments(0.5)
    head, in_pure = (
        filled(Categorical(6, 2, NORMALIZED_BINS, art)),
        in_jax.Categorical(2, NORMALIZED_BINS, art),
    )
    W = jnp.asarray(head.weight.detach().numpy().reshape(-1, 6))
    b = jnp.asarray(head.bias.detach().numpy().reshape(-1))
    params = {"w": W.T, "b": b} if layout == "w" else {"weight": W, "bias": b}
    state = in_pure.init(params)
    for size in (1.0, 1.1, 2.0, 5.0):
        y = head.update(torch.asarray(size * TARGETS))
        state, params, mine, _ = in_pure.step(state, params, jnp.asarray(size * TARGETS))
        np.testing.assert_allclose(mine, y, atol=1e-5)
        mine = in_pure.values(state, params, FEATURES)
        np.testing.assert_allclose(mine, head(torch.asarray(FEATURES)).detach(), rtol=1e-4, atol=1e-3)


def test_outputs_change_by_a_fraction_of_a_bin_when_bins_follow() -> None:
    """`benchmarks/reprojection.py` measures the size of the change."""
    head = filled(Categorical(6, 2, NORMALIZED_BINS, popart.Moments(1.0)), 0.1)
    with torch.no_grad():
        peak = NORMALIZED_BINS.encode(torch.linspace(-1.5, 1.5, 2))
        head.bias.copy_((peak + 1e-6).log())
    h, y = torch.asarray(FEATURES), torch.asarray(TARGETS)
    head.update(y)
    before, scale = head(h), head.affine.scale
    head.update(1.4 * y)
    assert head.affine.scale > 1.3 * scale
    width = 8 / 41 * (1 + 1.5) * scale  # of a bin of symlog, at 1.5 scales from the mean
    assert (head(h) - before).abs().max() < width / 4
    adopted = copy.deepcopy(head)
    adopted.update(1.5 * y)
    torch.testing.assert_close(adopted.affine.scale, head.affine.scale)
    torch.testing.assert_close(adopted(h), head(h))


def test_a_categorical_head_gives_0_before_targets_and_their_mean_at_first() -> None:
    head = Categorical(6, 2, NORMALIZED_BINS, popart.Moments(0.1))
    h, y = torch.asarray(FEATURES), torch.asarray(TARGETS)
    assert (head(h) == 0).all()
    head.update(y)
    torch.testing.assert_close(head(h), y.mean().expand(12, 2))


def test_bad_targets_are_left_out_of_a_categorical_head() -> None:
    head = filled(Categorical(6, 2, NORMALIZED_BINS, popart.Moments(0.1)))
    y = torch.asarray(TARGETS).clone()
    y[3, 1] = math.nan
    loss = head.loss(torch.asarray(FEATURES), y, mask=torch.arange(12) > 1)
    loss.backward()
    assert loss.isfinite()
    assert all(head.weight.grad.isfinite().flatten())
    assert head.state.counts[1] == 1


def test_a_categorical_head_is_saved_with_its_units() -> None:
    head = filled(Categorical(6, 2, NORMALIZED_BINS, popart.Moments(0.1)))
    head.update(torch.asarray(TARGETS))
    other = Categorical(6, 2, NORMALIZED_BINS, popart.Moments(0.1))
    other.load_state_dict(head.state_dict())
    assert torch.equal(other(torch.asarray(FEATURES)), head(torch.asarray(FEATURES)))
    head.reset_parameters()
    assert (head(torch.asarray(FEATURES)) == 0).all()


def test_a_categorical_head_learns_targets_of_a_size_that_nobody_told_it() -> None:
    torch.manual_seed(0)
    head = Categorical(6, 2, NORMALIZED_BINS, popart.Moments(1e-2))
    optimizer = torch.optim.Adam(head.parameters(), 3e-2)
    direction = torch.randn(6, 2)
    for _ in range(400):
        h = torch.randn(32, 6)
        loss = head.loss(h, 1e6 * (5 + h @ direction))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    h = torch.randn(200, 6)
    y = 1e6 * (5 + h @ direction)
    assert (head(h) - y).square().mean() < 0.05 * y.var()


def test_without_pop_only_the_units_change() -> None:
    head, h = filled(Art(6, 2, beta=0.5)), torch.asarray(FEATURES)
    for size in (1.0, 3.0):
        before = head.weight.clone(), head.bias.clone()
        head.update(torch.asarray(size * TARGETS))
        assert torch.equal(head.weight, before[0])
        assert torch.equal(head.bias, before[1])
    g = h @ head.weight.T + head.bias
    torch.testing.assert_close(head(h), head.sigma * g + head.mu)
    state, params = popart.Moments(0.5).init(like=jnp.zeros(())), {"w": jnp.ones((6, 2)), "b": jnp.zeros(2)}
    step = in_jax.Linear(popart.Moments(0.5), preserve=False).step(state, params, jnp.asarray(TARGETS))
    assert step.head is params
    assert (step.change.factor, step.change.rest, step.change.moved) == (1, 0, 0)


def test_averages_of_heads_without_pop_are_those_of_functions() -> None:
    heads, h = [filled(Art(6, 2, beta=0.5), factor) for factor in (1.0, 2.0)], torch.asarray(FEATURES)
    for head, size in zip(heads, (1.0, 4.0), strict=True):
        head.update(torch.asarray(size * TARGETS))
    expected = 0.9 * heads[0](h) + 0.1 * heads[1](h)
    heads[0].polyak_(heads[1], 0.1)
    torch.testing.assert_close(heads[0](h), expected, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("art", [popart.Fixed(), popart.Moments(0.3)], ids=repr)
@pytest.mark.parametrize("transform", [H(), Symlog()], ids=repr)
def test_a_transform_is_around_the_rule(transform: Any, art: Any) -> None:
    head, plain = (filled(x) for x in (Transformed(6, 2, art, transform=transform), PopArt(6, 2, art)))
    h, y = torch.asarray(FEATURES), torch.asarray(TARGETS)
    torch.testing.assert_close(head.update(y), plain.update(transform.apply(y)))
    torch.testing.assert_close(head(h), transform.invert(plain(h)))
    torch.testing.assert_close(head.normalized(h), plain.normalized(h))
    torch.testing.assert_close(head.denormalize(head.normalize(y)), y, rtol=1e-4, atol=1e-4)
    with head.in_normalized_units():
        torch.testing.assert_close(head(h), head.normalized(h))
    before = head(h)
    head.update(3 * y)
    torch.testing.assert_close(head(h), before, rtol=1e-4, atol=1e-4)
    with pytest.raises(ValueError, match="transform is"):
        head.to_linear()


@pytest.mark.parametrize("name", METHODS)
def test_every_head_has_the_same_four_methods(name: str) -> None:
    head = METHODS[name].torch()
    assert all(callable(getattr(head, method)) for method in ("forward", "normalized", "update", "loss"))
    assert all(callable(getattr(METHODS[name].jax, x)) for x in ("step", "normalized", "values", "loss"))


def test_wrong_shapes_are_named() -> None:
    head = Categorical(6, 2)
    with pytest.raises(ValueError, match=r"y has shape \(12,\) and the outputs have shape \(12, 2\)"):
        head.loss(torch.asarray(FEATURES), torch.asarray(TARGETS[:, 0]))
